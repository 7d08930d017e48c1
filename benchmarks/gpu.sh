#!/bin/sh
# Decoding on a GPU from the bare source tree: tokenmill beside transformers, in one table. Under 8 minutes.
# Needs Python 3.11 or newer with torch and transformers; nothing is installed. Tried without a GPU by
#     benchmarks/gpu.sh --device cpu --shapes smollm2-135m --engines compiled,transformers --batches 1 --depths 16 --new 1
set -eu
cd "$(dirname "$0")/.."
PYTHONPATH=src exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
