"""The files of llama.cpp's own quantiser that ours are compared with, with and without an importance matrix.

They are Q4_0 and Q4_K_M.
Run: python benchmarks/llama_quantize.py BIN SOURCE.gguf DIRECTORY [TEXT]
BIN holds llama-quantize and llama-imatrix. The source archive of llama-cpp-python has llama.cpp in vendor/llama.cpp:
  cmake -B build -DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_SERVER=OFF
  cmake --build build --target llama-quantize llama-imatrix llama-perplexity    (then BIN is build/bin)
SOURCE is written by `tokenmill quantize MODEL --export gguf --scheme none -o SOURCE.gguf`. TEXT is what the importance
matrix is computed on; without it there are two files.
"""

import subprocess
import sys
from pathlib import Path

TYPES = ("Q4_0", "Q4_K_M")
CONTEXT = "512"


def main(binaries: Path, source: Path, directory: Path, text: Path | None = None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    quantize = str(binaries / "llama-quantize")
    for kind in TYPES:
        _run(quantize, str(source), str(directory / f"{source.stem}-{kind}.gguf"), kind)
    if text is None:
        return
    matrix = str(directory / "imatrix.gguf")
    _run(str(binaries / "llama-imatrix"), "-m", str(source), "-f", str(text), "-o", matrix, "-c", CONTEXT)
    for kind in TYPES:
        _run(quantize, "--imatrix", matrix, str(source), str(directory / f"{source.stem}-{kind}-imatrix.gguf"), kind)


def _run(*command: str) -> None:
    """One step; what it says is shown when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
