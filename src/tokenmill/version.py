"""The version, where every module can import it without the rest of the package."""

__version__ = "0.1.0"
