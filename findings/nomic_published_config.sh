#!/usr/bin/env bash
# transformers 5.24.0: NomicBertConfig does not read the keys of Nomic's own code (n_embd, n_layer, n_head, n_inner,
# rotary_emb_base), under which checkpoints of model_type nomic_bert were published. A config.json that has them alone
# is read as the default model, 12 layers of width 768, without a word, and the keys stay in the config as attributes
# that nothing reads. It fits nomic-embed-text-v1.5 because that is the default; of another size only the shapes of the
# tensors tell. llama.cpp's converter takes its numbers from this config, so that its header says 12 layers, too.
#
# Seen (Python 3.11.7): n_layer 4, n_embd 512, rotary_emb_base 10000 give num_hidden_layers 12, hidden_size 768 and
# rope_theta 1000. Expected: these numbers (as GPT-2's config reads n_layer), or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check transformers==5.24.0
mkdir "$folder/model"
cat > "$folder/model/config.json" <<'JSON'
{"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_layer": 4, "n_embd": 512, "n_head": 8,
 "n_inner": 2048, "n_positions": 2048, "rotary_emb_base": 10000, "activation_function": "swiglu", "vocab_size": 30528}
JSON
cat > "$folder/read.py" <<'PYTHON'
import sys

import transformers

config = transformers.AutoConfig.from_pretrained(sys.argv[1])
found = config.num_hidden_layers, config.hidden_size, config.rope_parameters["rope_theta"], config.n_layer
print(transformers.__version__, type(config).__name__, "layers, width, theta:", *found[:3], "n_layer:", found[3])
gpt2 = transformers.AutoConfig.for_model("gpt2", n_layer=4)
assert gpt2.num_hidden_layers == 4, "GPT-2's config reads it"
assert found == (12, 768, 1000.0, 4), "the behaviour has changed"
PYTHON
"$folder/venv/bin/python" "$folder/read.py" "$folder/model"
