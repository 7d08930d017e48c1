"""GGUF files of encoders, tokenmill against llama.cpp: its converter's file read here, and the export read there.

    pip download --no-binary llama-cpp-python --no-deps llama-cpp-python    # has llama.cpp's source, with its converter
    tokenmill bench install-peer llama.cpp                                  # llama-cpp-python itself
    python benchmarks/gguf_encoders.py --source …/vendor/llama.cpp --python PEER/bin/python [NAME …]

NAME is one of MODELS. Of each, transformers makes a model with random weights in float32. llama.cpp's own converter
writes a file, which is read by tokenmill; tokenmill writes another, which is read by llama.cpp. The table has the
smallest cosine of a token's row, or of a pooled text, with transformers'.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from benchmarks.gguf_families import CONVERT, DECODE, answer_of, save_tokenizer
from tests import gguf_files
from tests.jina_bert import JinaBert

from tokenmill.engine.load import load
from tokenmill.errors import TokenmillError
from tokenmill.hub.progress import Silent
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.write.quantize import quantize

_NONE = {"bos_token_id": None, "eos_token_id": None, "cls_token_id": None, "sep_token_id": None, "pad_token_id": 0}
_GEMMA = {"use_bidirectional_attention": True, "head_dim": 16, "num_key_value_heads": 1, "query_pre_attn_scalar": 16}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {},
    "nomic_bert": {},
    "modernbert": {**_NONE, "local_attention": 16, "num_hidden_layers": 7, "max_position_embeddings": 128},
    "eurobert": {**_NONE, "num_key_value_heads": 2},
    "jina_bert": {"num_attention_heads": 6, "hidden_size": 96},
    "gemma3_text": {**_NONE, **_GEMMA, "sliding_window": 16, "num_hidden_layers": 7},
}
SIZES = {
    "vocab_size": gguf_files.VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
RUN = """
import json, sys
import llama_cpp as lib
path, texts = json.loads(sys.argv[1])
lib.llama_backend_init()
model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
assert model, "the file is refused"
how = lib.llama_context_default_params()
how.n_ctx = how.n_batch = how.n_ubatch = 512
how.embeddings, how.pooling_type, how.n_threads, how.n_threads_batch = True, 0, 1, 1
width, found = lib.llama_model_n_embd(model), []
for tokens in texts:
    context = lib.llama_init_from_model(model, how)
    decode(lib, context, tokens)
    found.append([lib.llama_get_embeddings_ith(context, place)[:width] for place in range(len(tokens))])
print("ANSWER", json.dumps(found))
"""
# The keys of Nomic's published config.json, which the converter wants; 2048 is what it makes of 8192 positions.
PUBLISHED_NOMIC = {
    "architectures": ["NomicBertModel"],
    "model_type": "nomic_bert",
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_layer": 4,
    "n_positions": 8192,
    "max_trained_positions": 2048,
    "activation_function": "swiglu",
    "causal": False,
    "layer_norm_epsilon": 1e-12,
    "prenorm": False,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "type_vocab_size": 2,
    "vocab_size": gguf_files.VOCABULARY,
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
}


def made(name: str, folder: Path) -> tuple[Path, Any]:
    """The directory of a model, with a tokenizer of bytes, and the model in transformers."""
    torch.manual_seed(len(name))
    sizes = {**SIZES, **MODELS[name]}
    if name == "jina_bert":
        model: Any = JinaBert(transformers.BertConfig(**sizes))
    else:
        model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.25).add_(0.5 * (weight.ndim == 1))
    path = folder / name
    model.eval().save_pretrained(path)
    save_tokenizer(path)
    return path, model


def converted(source: str, path: Path) -> Path:
    """The file that llama.cpp's converter makes; RuntimeError with the end of what it says where it refuses."""
    config = path / "config.json"
    own = config.read_text()
    published = json.loads(own) | (PUBLISHED_NOMIC if path.name == "nomic_bert" else {"classifier_pooling": "mean"})
    if path.name == "modernbert":
        published["layer_norm_eps"] = published["norm_eps"]  # which published files have, too
    config.write_text(json.dumps(published))
    out = path.parent / f"{path.name}-converted.gguf"
    command = [sys.executable, "-c", CONVERT, source, json.dumps([[str(path), str(out)]])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    config.write_text(own)
    if told := done.stdout.splitlines():
        raise RuntimeError(json.loads(told[-1])[1].splitlines()[-1])
    return out


def rows_there(python: str, file: Path, texts: list[list[int]]) -> list[torch.Tensor]:
    """The row of each token by llama.cpp."""
    return [torch.tensor(rows) for rows in answer_of(python, DECODE + RUN, [str(file), texts])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", required=True, help="llama.cpp's source")
    parser.add_argument("--python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    random = torch.Generator().manual_seed(5)
    texts = [torch.randint(1, gguf_files.VOCABULARY, (n,), generator=random).tolist() for n in (5, 23, 60)]
    print("| model | the converter's file, read here | the export, read by llama.cpp |\n|---|---|---|")
    for name in given.names or MODELS:
        with tempfile.TemporaryDirectory() as temporary:
            path, model = made(name, Path(temporary))
            with torch.no_grad():
                wanted = [model(torch.tensor([text])).last_hidden_state[0] for text in texts]
            cells = []
            try:
                engine = load(converted(given.source, path), dtype="float32", scheme="dense", max_length=128)
                pooled = {"mean": [rows.mean(0) for rows in wanted], "last": [rows[-1] for rows in wanted]}
                found = {how: engine.embed(texts, pooling=how) for how in pooled}
                least = min(cosine(found[how], torch.stack(rows)) for how, rows in pooled.items())
                cells.append(f"{least:.7f}")
            except (RuntimeError, TokenmillError) as error:
                cells.append(f"{type(error).__name__}: {error}")
            try:
                out = Path(temporary) / "export.gguf"
                checkpoint = open_checkpoint(path)
                quantize(checkpoint, out, Silent(), "none", head="none", export="gguf")
                there = rows_there(given.python, out, texts)
                least = min(cosine(rows, own) for rows, own in zip(there, wanted, strict=True))
                cells.append(f"{least:.7f}")
            except (RuntimeError, TokenmillError) as error:
                cells.append(f"{type(error).__name__}: {error}")
            print(f"| {name} | {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    """The smallest cosine of rows."""
    return float(torch.cosine_similarity(one, other, dim=-1).min())


if __name__ == "__main__":
    main()
