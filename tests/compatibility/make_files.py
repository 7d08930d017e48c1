"""Writes the files of a version that tests/compatibility keeps: `python -m tests.compatibility.make_files FOLDER`.

It ran once for each version, with that version. What it has written is never written again: test_files.py opens it with
every later version. The texts are the same on every machine, because in each place of them the next best token is far
behind: the texts are asked of every build of program native and of program eager here, before anything is written.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers

import tokenmill
from tokenmill.cli.main import main as run
from tokenmill.engine.load import load
from tokenmill.kernels import native_library
from tokenmill.program.native.program import Native
from tokenmill.receipts import maker

VERSION = "0.1.0"
MODEL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
HOW = {"dtype": "float32", "scheme": "dense", "max_length": 64, "threads": 1, "packed_cache": False}
PROMPT, MORE = [5, 9, 2, 40, 7, 33, 1, 8, 12], [3, 3, 50]
ASKED = {
    "greedy": {"max_new_tokens": 12},
    "sampled": {"max_new_tokens": 16, "temperature": 0.9, "top_p": 0.95, "seed": 7, "presence_penalty": 0.5},
}


def save_model(path):
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**MODEL)).float()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            parameter.data = torch.from_numpy(np.random.default_rng(len(name)).normal(0, 0.3, parameter.shape)).float()
            parameter.data = parameter.data.bfloat16().float()
    model.bfloat16().save_pretrained(path)
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({f"w{number}": number for number in range(MODEL["vocab_size"])}, unk_token="w0")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.save(str(path / "tokenizer.json"))


def texts(path, **settings):
    """What the files say, as an engine gives it."""
    engine = load(path, **HOW | settings)
    found = {name: list(engine.generate(PROMPT, **asked).tokens) for name, asked in ASKED.items()}
    session = engine.session(PROMPT)
    session.generate(max_new_tokens=6)
    found["session"] = list(session.generate(MORE, max_new_tokens=8).tokens)
    engine.close()
    return found


def main(folder):
    folder.mkdir(parents=True)
    save_model(folder / "model")
    found = []
    for build in native_library.builds():
        Native.build = build
        found.append(texts(folder / "model", program="native"))
    Native.build = ""
    found.append(texts(folder / "model", program="eager"))
    assert all(each == found[0] for each in found), found
    maker.__version__ = VERSION
    engine = load(folder / "model", program="native", prefix_dir=folder / "blocks", block_size=4, **HOW)
    session = engine.session(PROMPT)
    session.generate(max_new_tokens=6)
    session.notes = {"title": "kept"}
    session.save(folder / "session.kv")
    receipts = [engine.generate(PROMPT, **asked).receipt() for asked in ASKED.values()]
    receipts.append(session.generate(MORE, max_new_tokens=8).receipt())
    for each in receipts:
        object.__setattr__(each, "model", {**each.model, "name": "kept"})
    (folder / "receipts.jsonl").write_text("".join(f"{each}\n" for each in receipts))
    engine.close()
    packed = folder / "packed.tm"
    assert (
        run(["pack", str(folder / "model"), "-o", str(packed), "--program", "native", "--dtype", "float32", "-q"]) == 0
    )
    (folder / "packed.tm.gz").write_bytes(gzip.compress(packed.read_bytes(), mtime=0))  # nearly all of it is padding
    packed.unlink()
    (folder / "texts.json").write_text(json.dumps({"version": VERSION, "made by": tokenmill.__version__, **found[0]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
