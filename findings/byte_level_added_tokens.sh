#!/usr/bin/env bash
# tokenizers 0.23.3: the ByteLevel decoder reads the text of an added token as if it were written in GPT-2's letters for
# bytes. So a token of one's own with a letter between U+0021 and U+017F, such as "<café>", is found in a text as one id
# and comes back with U+FFFD: é is the letter for the byte E9, which is no UTF-8 by itself. A token with a letter beyond
# that table, such as "<日本>", comes back as it was. Nothing warns of it when the token is added.
#
# Seen (Python 3.11.7): <café> -> "<caf\ufffd>", <日本> -> "<日本>". Expected: both as they were added.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PYTHON'
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_tokens(["<café>", "<日本>"])
seen = {}
for text in ("<café>", "<日本>"):
    ids = tokenizer.encode(text).ids
    assert len(ids) == 1, (text, ids)
    seen[text] = tokenizer.decode(ids, skip_special_tokens=False)
print(seen)
assert seen == {"<café>": "<caf\ufffd>", "<日本>": "<日本>"}, "the behaviour has changed"
PYTHON
