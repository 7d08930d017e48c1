"""A directory in Meta's own layout as a checkpoint, described in Hugging Face's names and in the words of config.json.

A large model lies in several files, consolidated.00.pth and so on. Each has a slice of every matrix: rows of matrices
that come first in a block, columns of matrices that come second. Rows of wq and wk lie in pairs that rotate together.

Two facts that params.json leaves out are known of the models that were published so: the positions for which a model
was trained, and the scaling of its rope.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config
from tokenmill.registry import TENSOR_READERS, lookup
from tokenmill.settings.recommended import NOTHING, Recommended
from tokenmill.text.byte_ranks import begin_with, llama3_specials, read_tekken, read_tiktoken
from tokenmill.text.sentencepiece import holds_ranks, read_sentencepiece
from tokenmill.text.tokenizer import Tokenizer, read_json
from tokenmill.value_reader import MAX_POSITIONS, ValueReader, brief
from tokenmill.weights.fingerprint import meta_tokenizers
from tokenmill.weights.plain import Checkpoint
from tokenmill.weights.tensor_file import TensorFile, open_tensor_file

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PARAMS = "params.json"
# Limits of the programs that came with the models, and keys that tell nothing more.
_HARMLESS = ("max_batch_size", "max_seq_len", "model_parallel_size", "lora_args", "quantization_args", "causal")
_LLAMA_31 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
OTHERWISE = "give the same model in Hugging Face layout"
_SMALL = 3072  # the width up to which a Llama with scaled rope is 3.2, whose factor is 32
_FILES = (r"consolidated\.\d+\.pth", r"consolidated(-\d+-of-\d+)?\.safetensors")
_IGNORED = re.compile(r"rope\.freqs|layers\.\d+\.attention\.inner_attention\.rope\.freqs")
# Meta's name → Hugging Face's, and the dimension in which files have slices of it.
_NAMES: dict[str, tuple[str, int | None]] = {
    "tok_embeddings": ("model.embed_tokens", 1),
    "norm": ("model.norm", None),
    "output": ("lm_head", 0),
    "attention.wq": ("self_attn.q_proj", 0),
    "attention.wk": ("self_attn.k_proj", 0),
    "attention.wv": ("self_attn.v_proj", 0),
    "attention.wo": ("self_attn.o_proj", 1),
    "feed_forward.w1": ("mlp.gate_proj", 0),
    "feed_forward.w2": ("mlp.down_proj", 1),
    "feed_forward.w3": ("mlp.up_proj", 0),
    "feed_forward.gate": ("block_sparse_moe.gate", None),
    "attention_norm": ("input_layernorm", None),
    "ffn_norm": ("post_attention_layernorm", None),
}
_EXPERT = re.compile(r"feed_forward\.experts\.(\d+)\.(w[123])")


@dataclass(frozen=True)
class Slices:
    """One tensor: its slices, each in a file under `name`. dim: the dimension in which slices follow one another; None
    where every file has the whole tensor. pairs: whether its rows lie in pairs.
    """

    name: str
    files: tuple[TensorFile, ...]
    dim: int | None
    pairs: bool


def is_meta(path: Path) -> bool:
    """Tell whether a directory is in Meta's own layout, and in no other."""
    return (path / PARAMS).is_file() and not (path / "config.json").is_file() and bool(_weight_files(path))


class MetaCheckpoint(Checkpoint):
    """A directory in Meta's own layout. slices: where each tensor lies, by Hugging Face's name."""

    def __init__(self, path: Path) -> None:
        values = read_json(path / PARAMS)
        inner = values.get("model")
        self._params = inner if isinstance(inner, dict) else values
        self.path, files = path, [open_tensor_file(file) for file in _weight_files(path)]
        self.num_bytes = sum(file.path.stat().st_size for file in files)
        self.slices = dict(_find_slices(path, files, self._params.get("dim")))
        if coded := sorted(name for name, each in self.slices.items() if _is_coded(each)):
            raise CheckpointError(f"{path} holds codes, whose scales are not read: {brief(coded)}: {OTHERWISE}")
        self.shapes = {name: _whole_shape(path, each) for name, each in self.slices.items()}
        table = self.shapes.get("model.embed_tokens.weight")
        if table is None or len(table) != 2:
            raise CheckpointError(f"{path} holds no tok_embeddings.weight in its consolidated files")
        has_head = "lm_head.weight" in self.shapes
        self.config: dict[str, Any] = read_params(self._params, str(path / PARAMS), table[0], has_head)
        self.config["dtype"] = self.dtype_of("model.embed_tokens.weight")

    @cached_property
    def model(self) -> ModelConfig:
        """The config as the transforms of tensors want it."""
        return read_config(self.config)

    def dtype_of(self, name: str) -> str:
        found = self.slices[name]
        return found.files[0].dtypes[found.name]

    def read(self, name: str, dtype: "torch.dtype | None" = None, rows: range | None = None) -> "Tensor":
        tensor: Tensor = lookup(TENSOR_READERS, "meta", "model").read(self, name, dtype, rows)
        return tensor

    def tokenizer(self) -> Tokenizer | None:
        """Read tekken.json or tokenizer.model, which Meta's older downloads have beside the directory."""
        if (tekken := self.path / "tekken.json").is_file():
            return read_tekken(tekken)
        if not (files := meta_tokenizers(self.path)):
            return None
        file = files[-1]
        if holds_ranks(file):
            return read_tiktoken(file, llama3_specials(bool(self._params.get("use_scaled_rope"))))
        try:
            backend, rules = read_sentencepiece(file, {})
        except ImportError as error:
            remedy = "pip install 'tokenmill[sentencepiece]'"
            raise CheckpointError(f"{file} needs a conversion that is not installed: {remedy}") from error
        first, last = (backend.token_to_id(name) for name in ("<s>", "</s>"))
        if first is None or last is None:
            raise CheckpointError(f"{file} has no <s> or no </s>, between which a text of these models stands")
        begin_with(backend, "<s>")
        texts = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        return Tokenizer(backend, rules=rules, bos_token_id=first, eos_token_ids=[last], special_texts=texts)

    def generation_defaults(self) -> Recommended:
        return NOTHING


def _weight_files(path: Path) -> list[Path]:
    """List the consolidated files in order: .pth, or else safetensors."""
    entries = sorted(entry for entry in path.iterdir() if entry.is_file())
    found = ([entry for entry in entries if re.fullmatch(pattern, entry.name)] for pattern in _FILES)
    return next((files for files in found if files), [])


def _find_slices(path: Path, files: list[TensorFile], width: object) -> Iterable[tuple[str, Slices]]:
    """Find each tensor's slices; CheckpointError for a tensor that has no name here or is missing in some file.

    width: of the model, which tells whether the embedding is sliced by its columns, or by its rows as from Llama 3 on.
    """
    by_name: dict[str, list[TensorFile]] = {}
    for file in files:
        for name in file.shapes:
            by_name.setdefault(name, []).append(file)
    are_slices = files[0].path.suffix == ".pth"
    wrong = list[str]()
    for name, those in by_name.items():
        if _IGNORED.fullmatch(name):
            continue
        if (found := _translate(name)) is None:
            wrong.append(name)
        elif len(those) != (len(files) if are_slices else 1):
            raise CheckpointError(f"{path} is incomplete: {name} is in {len(those)} of {len(files)} files")
        else:
            hf_name, dim = found
            if name == "tok_embeddings.weight" and those[0].shapes[name][-1:] == (width,):
                dim = 0
            yield hf_name, Slices(name, tuple(those), dim, name.endswith(("wq.weight", "wk.weight")))
    if wrong:
        raise CheckpointError(
            f"{path} holds tensors that no Llama, Mistral or Mixtral in its own layout has: {OTHERWISE}",
            unexpected=wrong,
        )


def _is_coded(slices: Slices) -> bool:
    """Tell whether a tensor is stored in 8 bits, as Meta's largest Llama 3.1, whose scales lie in other files."""
    kinds = (file.dtypes[slices.name] for file in slices.files)
    return any(kind.startswith(("int", "uint", "float8")) for kind in kinds)


def _translate(name: str) -> tuple[str, int | None] | None:
    """Find Hugging Face's name of a tensor, and the dimension of its slices; None where it has no such name."""
    base, _, kind = name.rpartition(".")
    layer = re.match(r"layers\.(\d+)\.", base)
    short = base[layer.end() :] if layer else base
    if (expert := _EXPERT.fullmatch(short)) and layer:
        number, matrix = expert.groups()
        hf_name = f"model.layers.{layer[1]}.block_sparse_moe.experts.{number}.{matrix}"
        return f"{hf_name}.{kind}", 1 if matrix == "w2" else 0
    if kind != "weight" or short not in _NAMES or (layer is None) != (short in ("tok_embeddings", "norm", "output")):
        return None
    hf_name, dim = _NAMES[short]
    return f"model.layers.{layer[1]}.{hf_name}.weight" if layer else f"{hf_name}.weight", dim


def _whole_shape(path: Path, slices: Slices) -> tuple[int, ...]:
    """Put the shape of a tensor together from the shapes of its slices."""
    shapes, dim = [file.shapes[slices.name] for file in slices.files], slices.dim
    beside = {shape if dim is None else shape[:dim] + shape[dim + 1 :] for shape in shapes}
    if len(beside) > 1 or (dim is not None and any(len(shape) != 2 for shape in shapes)):
        raise CheckpointError(f"{path}: the slices of {slices.name} have the shapes {brief(shapes)}, which do not fit")
    whole = list(shapes[0])
    if dim is not None:
        whole[dim] = sum(shape[dim] for shape in shapes)
    return tuple(whole)


def read_params(values: Mapping[str, Any], where: str, vocab_size: int, has_head: bool) -> dict[str, Any]:
    """Read the config that params.json describes; CheckpointError for a key that is not known.

    vocab_size: rows of the embedding; the params.json of Meta's first models does not say it. has_head: whether there
    is a head.
    """
    reader = ValueReader(values, where, CheckpointError)
    dim, heads = reader.count("dim"), reader.count("n_heads")
    if dim % heads and "head_dim" not in values:
        raise reader.refuse("n_heads", heads, f"a divisor of dim = {dim}, where there is no head_dim")
    reader.expect("vocab_size", vocab_size, -1)
    theta, is_scaled = reader.number("rope_theta", 10000.0), reader.flag("use_scaled_rope", False)
    reader.expect("use_biases", False)
    experts = reader.inside("moe")
    config: dict[str, Any] = {
        "model_type": "mixtral" if experts.values else "mistral" if "head_dim" in values else "llama",
        "hidden_size": dim,
        "intermediate_size": _width(reader, dim),
        "num_hidden_layers": reader.count("n_layers", maximum=1 << 11),
        "num_attention_heads": heads,
        "num_key_value_heads": reader.count("n_kv_heads", heads),
        "head_dim": reader.count("head_dim", dim // heads),
        "vocab_size": vocab_size,
        "rms_norm_eps": reader.number("norm_eps", maximum=1.0),
        "rope_theta": theta,
        "eos_token_id": None,  # which the tokenizer says
        "tie_word_embeddings": reader.flag("tied_embeddings", not has_head or (is_scaled and dim <= _SMALL)),
    }
    if experts.values:
        config["num_local_experts"] = experts.count("num_experts")
        config["num_experts_per_tok"] = experts.count("num_experts_per_tok")
        experts.refuse_unread(experts.values)
    if config["model_type"] != "llama":
        config["sliding_window"] = reader.count("sliding_window", None, maximum=MAX_POSITIONS)
    factor = reader.number("rope_scaling_factor", 32.0 if dim <= _SMALL else 8.0)
    if is_scaled:
        config["rope_scaling"] = {"rope_type": "llama3", "factor": factor, **_LLAMA_31}
    usual = 131072 if is_scaled else 8192 if theta == 500_000 else 16384 if theta == 1e6 else 4096
    if config["model_type"] != "llama":
        usual = 32768
    config["max_position_embeddings"] = reader.count("max_position_embeddings", usual, maximum=MAX_POSITIONS)
    if left := sorted(values.keys() - reader.read - set(_HARMLESS)):
        raise CheckpointError(f"{where} has keys that tokenmill does not know: {brief(left)}: {OTHERWISE}")
    return config


def _width(reader: ValueReader, dim: int) -> int:
    """Compute the width of an MLP as Meta does."""
    multiple, factor = reader.count("multiple_of", 256), reader.number("ffn_dim_multiplier", 1.0)
    width = int(factor * int(8 * dim / 3))
    return reader.count("hidden_dim", -(-width // multiple) * multiple)
