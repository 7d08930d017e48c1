"""GGUF files of every family, tokenmill against llama.cpp: its converter's file read here, and the export read there.

    pip download --no-binary llama-cpp-python --no-deps llama-cpp-python    # has llama.cpp's source, with its converter
    python -m venv peer && peer/bin/pip install xllamacpp                   # llama.cpp itself
    python benchmarks/gguf_families.py --source …/vendor/llama.cpp --python peer/bin/python [NAME …]

NAME is one of tests/tiny_models.py; tests/gguf_models.py changes some of them to what llama.cpp can hold. Of each,
transformers makes a model with random weights in float32. llama.cpp's own converter writes a file, which is read by
tokenmill; tokenmill writes another, which is read by llama.cpp. The table has the largest differences of log
probabilities from transformers', and the number of greedy tokens that are equal.
--record adds the metadata of the converter's files, where tokenmill reads the same model from them, to
tests/weights/gguf/converted_keys.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tokenmill.engine.load import load
from tokenmill.errors import TokenmillError
from tokenmill.hub.progress import Silent
from tokenmill.text.vocab import tokenizer_from_gguf
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.write.quantize import quantize

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))  # for tests/

from tests import gguf_files, gguf_models  # noqa: E402
from tests.tiny_models import TINY, build  # noqa: E402

RECORD = REPOSITORY / "tests" / "weights" / "gguf" / "converted_keys.json"
REFUSED = (RuntimeError, TokenmillError, subprocess.TimeoutExpired)
NEW, PROMPT, END = 16, 40, 0  # tokens; END is never chosen
THREADS = 2
_LETTERS = {"linear_attention": "M", "full_attention": "*", "moe": "E", "mlp": "-"}
BOUND = (
    5e-4  # the largest difference of log probabilities from transformers; models with delta nets differ by up to 2e-4
)

CONVERT = """
import json, logging, sys, traceback
from pathlib import Path
source, jobs = sys.argv[1], json.loads(sys.argv[2])
sys.path[:0] = [source, source + "/gguf-py"]
import gguf, torch
from conversion import ModelBase, base, get_model_class
from conversion.base import AutoConfig, TextModel, ModelType, get_model_architecture
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
logging.disable(logging.WARNING)
for directory, out in jobs:
    try:
        with torch.inference_mode():
            as_it_is = '"hybrid_' in Path(directory, "config.json").read_text()
            base.AutoConfig = None if as_it_is else AutoConfig  # which adds keys of experts where there are no experts
            hparams = ModelBase.load_hparams(Path(directory), False)
            found = get_model_class(get_model_architecture(hparams, ModelType.TEXT))
            for each in (found, *(inner for inner in vars(found).values() if isinstance(inner, type))):
                each.set_vocab, each.no_mtp = TextModel.set_vocab, True
                each._is_tokenizer_xlmroberta = lambda self: False
            found(Path(directory), gguf.LlamaFileType.ALL_F32, Path(out), eager=True).write()
    except BaseException:
        Path(out).unlink(missing_ok=True)
        print(json.dumps([directory, traceback.format_exc(limit=-3)]))
"""

# Decode tokens as one sequence from position 0, with an output for each token.
DECODE = """
def decode(lib, context, tokens):
    batch = lib.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for place, token in enumerate(tokens):
        batch.token[place], batch.pos[place], batch.n_seq_id[place], batch.logits[place] = token, place, 1, 1
        batch.seq_id[place][0] = 0
    assert lib.llama_decode(context, batch) == 0
"""

# By llama.h of that source, of which the wheel must be nearly a contemporary: the defaults are compared.
RUN = """
import ctypes, json, os, sys, xllamacpp
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int32, c_uint32, c_void_p
path, tokens, vocabulary, threads = json.loads(sys.argv[1])
lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)

class Model(Structure):
    _fields_ = [("devices", c_void_p), ("overrides", c_void_p), ("numbers", c_int32 * 6), ("pointers", c_void_p * 4),
                ("flags", c_bool * 6), ("rest", c_bool * 64)]

class Context(Structure):
    _fields_ = [("n_ctx", c_uint32), ("n_batch", c_uint32), ("n_ubatch", c_uint32), ("n_seq_max", c_uint32),
                ("n_rs_seq", c_uint32), ("outputs", c_uint32 * 2), ("n_threads", c_int32), ("n_threads_batch", c_int32),
                ("types", c_int32 * 4), ("flash_attn", c_int32), ("rope", c_float * 6), ("yarn_orig_ctx", c_uint32),
                ("defrag", c_float), ("eval", c_void_p * 2), ("type_k", c_int32), ("type_v", c_int32),
                ("abort", c_void_p * 2), ("flags", c_bool * 6), ("rest", c_bool * 128)]

class Batch(Structure):
    _fields_ = [("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", c_void_p), ("pos", POINTER(c_int32)),
                ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))),
                ("logits", POINTER(ctypes.c_int8))]

for name, result, arguments in (
    ("llama_model_default_params", Model, []),
    ("llama_context_default_params", Context, []),
    ("llama_model_load_from_file", c_void_p, [c_char_p, Model]),
    ("llama_init_from_model", c_void_p, [c_void_p, Context]),
    ("llama_batch_init", Batch, [c_int32, c_int32, c_int32]),
    ("llama_decode", c_int32, [c_void_p, Batch]),
    ("llama_get_logits_ith", POINTER(c_float), [c_void_p, c_int32]),
):
    getattr(lib, name).restype, getattr(lib, name).argtypes = result, arguments
lib.ggml_backend_load_all()
model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
assert model, "the file is refused"
context = lib.llama_context_default_params()
found = context.n_ctx, context.n_batch, context.n_ubatch, context.type_k, context.type_v, context.n_seq_max
assert found == (512, 2048, 512, 1, 1, 1), f"another llama.h: {found}"
context.n_ctx, context.type_k, context.type_v, context.flash_attn = 512, 0, 0, 0
context.n_threads = context.n_threads_batch = threads
state = lib.llama_init_from_model(model, context)
assert state, "no context"
decode(lib, state, tokens)
rows = [lib.llama_get_logits_ith(state, place)[:vocabulary] for place in range(len(tokens))]
print("\\nANSWER", json.dumps(rows), flush=True)
os._exit(0)
"""


def made(name: str, folder: Path) -> tuple[Path, Any]:
    """The directory of a model, with a tokenizer of bytes, and the model in transformers."""
    kind, numbers = gguf_models.numbers_of(name, vocab_size=gguf_files.VOCABULARY)
    model, path = build(kind, numbers), folder / name
    model.save_pretrained(path)
    if (
        kind == "granitemoehybrid"
    ):  # llama.cpp's converter knows only the `layer_types` of published files, not transformers 5's
        text = (path / "config.json").read_text()
        text = text.replace('"full_attention"', '"attention"').replace('"linear_attention"', '"mamba"')
        (path / "config.json").write_text(text)
    if kind == "nemotron_h":  # likewise
        config = json.loads((path / "config.json").read_text())
        kinds = config.pop("layers_block_type")
        config["num_hidden_layers"] = len(kinds)
        config["hybrid_override_pattern"] = "".join(_LETTERS[kind] for kind in kinds)
        if "moe" not in kinds:
            del config["num_experts_per_tok"], config["n_routed_experts"], config["n_group"], config["topk_group"]
        (path / "config.json").write_text(json.dumps(config))
    if kind == "mimo_v2_flash":
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(_mimo_as_published(config)))
    save_tokenizer(path)
    return path, model


def _mimo_as_published(config: dict[str, Any]) -> dict[str, Any]:
    """The config in the keys of published files, which llama.cpp's converter reads."""
    ropes = config.pop("rope_parameters")
    return config | {
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in config["layer_types"]],
        "layernorm_epsilon": config["rms_norm_eps"],
        "partial_rotary_factor": ropes["full_attention"]["partial_rotary_factor"],
        "rope_theta": ropes["full_attention"]["rope_theta"],
        "swa_head_dim": config["head_dim"],
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": 2 * config["num_key_value_heads"],
        "swa_rope_theta": ropes["sliding_attention"]["rope_theta"],
        "swa_v_head_dim": config["v_head_dim"],
        "topk_method": "noaux_tc",
    }


def save_tokenizer(path: Path) -> None:
    """Save a tokenizer of bytes beside a model."""
    tokenizer = tokenizer_from_gguf(gguf_files.vocabulary())
    tokenizer.backend.save(str(path / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_texts}
    (path / "tokenizer_config.json").write_text(json.dumps(names))


def greedy(model: Any, tokens: list[int]) -> tuple[list[int], torch.Tensor]:
    """The tokens after a prompt and the log probabilities of each place, [NEW, V]."""
    ids, found = list(tokens), []
    for _ in range(NEW):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        found.append(_without_end(logits))
        ids.append(int(found[-1].argmax()))
    return ids[len(tokens) :], torch.stack(found)


def _without_end(logits: torch.Tensor) -> torch.Tensor:
    logits = logits.float().clone()
    logits[END] = -torch.inf
    return logits.log_softmax(-1)


def read_here(path: Path, tokens: list[int], wanted: list[int]) -> tuple[list[int], torch.Tensor]:
    """The same by tokenmill, on transformers' tokens."""
    program = load(path, program="eager", scheme="dense", dtype="float32", threads=THREADS, max_length=PROMPT + NEW)
    logits = program.logits([*tokens, *wanted[:-1]])[len(tokens) - 1 :]
    found = torch.stack([_without_end(row) for row in logits])
    return found.argmax(-1).tolist(), found


def read_there(
    python: str, path: Path, tokens: list[int], wanted: list[int], vocabulary: int
) -> tuple[list[int], torch.Tensor]:
    """The same by llama.cpp. RuntimeError with the end of what it says, where it refuses the file."""
    request = [str(path), [*tokens, *wanted[:-1]], vocabulary, THREADS]
    rows = answer_of(python, DECODE + RUN, request)[len(tokens) - 1 :]
    found = torch.stack([_without_end(torch.tensor(row)) for row in rows])
    return found.argmax(-1).tolist(), found


def answer_of(python: str, program: str, request: list[Any]) -> Any:
    """What a program says of a request, both as JSON. RuntimeError with the end of its errors, where it says none."""
    command = [python, "-c", program, json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower() or "assert" in line.lower()]
        raise RuntimeError(" / ".join(said[:3] or done.stderr.splitlines()[-2:])[:300])
    return json.loads(lines[-1].removeprefix("ANSWER "))


def difference(found: tuple[list[int], torch.Tensor], wanted: tuple[list[int], torch.Tensor]) -> str:
    """How many tokens are equal, each after the same ones, and the largest difference of log probabilities."""
    same = sum(one == other for one, other in zip(found[0], wanted[0], strict=True))
    return f"{same} equal, {(found[1] - wanted[1])[:, END + 1 :].abs().max().item():.1e}"


def metadata_of(path: Path) -> dict[str, Any]:
    header = read_header(path)
    arch = header.metadata["general.architecture"]
    own = {key: value for key, value in header.metadata.items() if key.startswith(f"{arch}.")}
    return {"general.architecture": arch, **own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--source", required=True, help="llama.cpp's source")
    parser.add_argument("--python", required=True, help="a Python that has xllamacpp")
    parser.add_argument("--record", action="store_true", help="write the metadata of the converter's files")
    parser.add_argument("--keep", help="a folder for the files")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.keep or temporary)
        folder.mkdir(exist_ok=True)
        names = given.names or list(TINY)
        models = {name: made(name, folder) for name in names}
        jobs = [[str(path), f"{path}.gguf"] for path, _ in models.values()]
        command = [sys.executable, "-c", CONVERT, given.source, json.dumps(jobs)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        failed = {Path(directory).name: told for directory, told in map(json.loads, done.stdout.splitlines())}
        prompt = torch.randint(1, gguf_files.VOCABULARY, (PROMPT,), generator=torch.Generator().manual_seed(5)).tolist()
        recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        print("| model | the converter's file, read here | the export, read by llama.cpp |\n|---|---|---|")
        for name, (path, model) in models.items():
            wanted, cells = greedy(model, prompt), []
            try:
                if name in failed:
                    raise RuntimeError(f"the converter: {failed[name].splitlines()[-1]}")
                found = read_here(Path(f"{path}.gguf"), prompt, wanted[0])
                if (found[1] - wanted[1])[:, END + 1 :].abs().max() < BOUND:
                    recorded[name] = metadata_of(Path(f"{path}.gguf"))
                cells.append(difference(found, wanted))
            except REFUSED as error:
                cells.append(f"{type(error).__name__}: {error}")
            try:
                out = folder / "export.gguf"  # llama.cpp looks for names of families in that of a file
                out.unlink(missing_ok=True)
                quantize(open_checkpoint(path), out, Silent(), "none", head="none", export="gguf")
                found = read_there(given.python, out, prompt, wanted[0], gguf_files.VOCABULARY)
                cells.append(difference(found, wanted))
            except REFUSED as error:
                cells.append(f"{type(error).__name__}: {error}")
            print(f"| {name} | {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)
        if given.record:
            RECORD.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
