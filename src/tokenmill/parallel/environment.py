"""The environment of ranks that rank 0 starts: they find the same modules as it does."""

import os
import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """That of this process, with the places where it finds modules, which a program or its working directory may have
    changed since it began.
    """
    places = [str(Path(path).absolute()) for path in sys.path if path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
