#!/bin/sh
# transformers 5.24.0 and the experts of Qwen3-VL with experts (qwen3_vl_moe).
#
# The published files have experts.gate_up_proj as [experts, inputs, outputs]. transformers turns it round when it loads
# it, where the shape is not that of its module, which has [experts, outputs, inputs]. Two things follow.
#  1. save_pretrained, which restores the published names and layouts of other families, writes its own layout under the
#     same name, so that a program that reads the published layout multiplies by the transposed matrix or refuses it.
#  2. Where a layer is twice as wide as an expert, both layouts have one shape: gate_up_proj is not turned round, while
#     down_proj beside it is, and the loaded model gives other logits, without a word.
# Prints both; exits with 0 while it is so, with 1 if that changes.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0
"$folder/venv/bin/python" - "$folder" <<'EOF'
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

folder, name = Path(sys.argv[1]), "model.language_model.layers.0.mlp.experts.gate_up_proj"
transformers.logging.set_verbosity_error()


def published(width):
    """A model, and a folder with its tensors as published files have them."""
    text = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}
    text |= {"moe_intermediate_size": width, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]}}
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    vision |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    torch.manual_seed(1)
    config = transformers.Qwen3VLMoeConfig(text_config=text, vision_config=vision)
    model = transformers.Qwen3VLMoeForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    path = folder / f"published-{width}"
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for each in [each for each in tensors if ".experts." in each]:
        tensors[each] = tensors[each].transpose(1, 2).contiguous()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return model, path


def logits(model):
    with torch.no_grad():
        return model(torch.tensor([[1, 2, 3, 4]])).logits


shapes, far = [], {}
for width in (24, 16):
    model, path = published(width)
    loaded = type(model).from_pretrained(path).eval()
    loaded.save_pretrained(folder / f"again-{width}")
    far[width] = float((logits(loaded) - logits(model)).abs().max())
    if width == 24:
        shapes = [list(load_file(each / "model.safetensors")[name].shape) for each in (path, folder / "again-24")]
print(f"transformers {transformers.__version__}: gate_up_proj is {shapes[0]} in the file, {shapes[1]} saved again")
print(f"logits differ by {far[24]:.1e} with experts of 24, by {far[16]:.1e} with experts of 16, half of a layer's width")
sys.exit(0 if shapes[0] != shapes[1] and far[24] < 1e-4 and far[16] > 1e-2 else 1)
EOF
