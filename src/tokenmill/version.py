"""The version of tokenmill, which files and result rows carry."""

__all__ = ["VERSION"]

VERSION = "0.1.0.dev0"
