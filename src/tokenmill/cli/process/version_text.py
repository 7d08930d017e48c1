"""The text of `tokenmill --version`: versions, and the native library with its instruction set and its origin.

Nothing of torch is imported for it.
"""

import platform
from importlib.metadata import PackageNotFoundError, version

from tokenmill.kernels import native_library
from tokenmill.version import __version__


def version_text() -> str:
    """Three lines; the first is the name and the version alone."""
    return f"tokenmill {__version__}\n{_library()}\nPython {platform.python_version()}, {_torch()}"


def _library() -> str:
    why = native_library.why_not()
    if why is not None:
        return f"the native program's library {why}"
    built = f"built from {native_library.built_from()}"
    return f"native library: {native_library.best_build()}, ABI {native_library.ABI}, {built}"


def _torch() -> str:
    try:
        return f"torch {version('torch')}"
    except PackageNotFoundError:
        return "no torch"
