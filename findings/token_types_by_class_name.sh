#!/usr/bin/env bash
# transformers 5.24.0: whether a tokenizer gives token types follows from the name of its class in
# tokenizer_config.json, not from tokenizer.json. One tokenizer.json, whose template gives the second text of a pair the
# type 1, gives token_type_ids as BertTokenizer and none as PreTrainedTokenizerFast. A cross-encoder of BERT's kind whose
# tokenizer was saved under the second name then reads both texts as the first, and scores pairs otherwise, without a word.
# "model_input_names" in the config brings the types back.
#
# Seen (Python 3.11.7, torch 2.13.0): the largest difference of a tiny classifier's logits between the two classes is above
# 0.01; with model_input_names it is 0. Expected: the types of the template, or a warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.24.0 numpy
"$folder/venv/bin/python" - "$folder/model" 2>/dev/null <<'PYTHON'
import json
import sys
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

path = Path(sys.argv[1])
path.mkdir()
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"a cat is an animal what".split()]
made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
made.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
made.save(str(path / "tokenizer.json"))
config = transformers.BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
    max_position_embeddings=32, num_labels=1,
)
config.save_pretrained(path)
torch.manual_seed(0)
model = transformers.BertForSequenceClassification(config).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.4)


@torch.no_grad()
def score(**settings):
    (path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "[PAD]", "unk_token": "[UNK]", **settings}))
    given = transformers.AutoTokenizer.from_pretrained(path)("what is a cat", "a cat is an animal", return_tensors="pt")
    found = float(model(**given).logits[0, 0])
    print(settings, "token_type_ids" in given, round(found, 4))
    return found, "token_type_ids" in given


bert, has_types = score(tokenizer_class="BertTokenizer")
plain, has_none = score(tokenizer_class="PreTrainedTokenizerFast")
named, has_again = score(
    tokenizer_class="PreTrainedTokenizerFast", model_input_names=["input_ids", "token_type_ids", "attention_mask"]
)
assert (has_types, has_none, has_again) == (True, False, True), "the behaviour has changed"
assert abs(bert - plain) > 0.01 and named == bert, "the behaviour has changed"
PYTHON
