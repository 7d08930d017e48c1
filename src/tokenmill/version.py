"""The version of tokenmill, which saved files name."""

__all__ = ["__version__"]

__version__ = "0.1.0.dev0"
