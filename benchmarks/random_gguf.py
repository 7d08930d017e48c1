"""A GGUF file of a well-known shape with random weights: as large and as quick as the real one, without a download.

Run: python benchmarks/random_gguf.py SHAPE KIND FILE
SHAPE is one that `tokenmill bench --shape` knows and llama.cpp has an architecture for, with a number of layers behind
a colon or all of them, and with +mtp behind that a layer more, which predicts further tokens. KIND is
bf16, q8_0, q4_0 or q4_k_m; the last one has the types that llama-quantize gives a model without experts. The tokenizer
is SmolLM2's, with unused words up to the vocabulary of the shape.
"""

import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tokenmill.bench.shapes import find_shape
from tokenmill.hub.names import locate
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import in_gguf, read_config
from tokenmill.model.families.mtp import MTP
from tokenmill.weights.gguf.checkpoint import is_number
from tokenmill.weights.names import expected_tensors
from tokenmill.weights.write.export_gguf import ALWAYS_F32
from tokenmill.weights.write.gguf_metadata import ADD, metadata_of, rope_lists

TYPE = gguf.GGMLQuantizationType
KINDS = {"bf16": TYPE.BF16, "q8_0": TYPE.Q8_0, "q4_0": TYPE.Q4_0, "q4_k_m": TYPE.Q4_K}
SPREAD = 0.02  # of the weights
# Factors for the scale of a block, and of its minimum, so that random codes have that spread; the minimum is a mean.
SCALES = {
    TYPE.Q8_0: (1 / 74, None),  # codes of -128 … 127
    TYPE.Q4_0: (1 / 4.6, None),  # -8 … 7
    TYPE.Q5_0: (1 / 9.2, None),  # -16 … 15
    TYPE.Q4_K: (1 / 4.6 / 36, 7.5 / 4.6 / 36),  # 0 … 15, with scales of 0 … 63
    TYPE.Q5_K: (1 / 9.2 / 36, 15.5 / 9.2 / 36),  # 0 … 31
    TYPE.Q6_K: (1 / 18.5 / 74, None),  # -32 … 31, with scales of -128 … 127
}
AT_END = (TYPE.Q6_K,)  # types whose blocks end with their scale
NARROW = {TYPE.Q4_K: TYPE.Q5_0, TYPE.Q5_K: TYPE.Q5_0, TYPE.Q6_K: TYPE.Q8_0}  # where 256 does not divide a row
UNUSED = int(gguf.TokenType.UNUSED)


def write(shape: str, kind: str, target: Path) -> None:
    """Write the tensors that our own reader expects of this shape."""
    config = find_shape(shape.removesuffix(MTP)).config
    model = read_config(config)
    metadata, tensors = metadata_of(model), _tensors(model)
    if shape.endswith(MTP):
        _add_layer(metadata, tensors, read_config({**config, "model_type": model.family + MTP}))
    file = gguf.GGUFWriter(str(target), metadata.pop("general.architecture"), use_temp_file=True)
    for key, value in metadata.items():
        ADD[type(value)](file, key, value)
    _copy_tokenizer(file, model.vocab_size)
    random = np.random.default_rng(1)
    for name, factors in rope_lists(model.rope).items():
        file.add_tensor(name, np.array(factors, np.float32))
    for name, (size, is_plain) in tensors.items():
        if len(size) == 1 or is_plain:
            file.add_tensor(name, np.ones(size, np.float32) * (-1 if name.endswith("ssm_a") else 1))
        else:
            chosen = _type(name, KINDS[kind], model)
            chosen = NARROW.get(chosen, chosen) if size[-1] % gguf.GGML_QUANT_SIZES[chosen][0] else chosen
            file.add_tensor(name, _matrix(random, chosen, size), raw_dtype=chosen)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file(progress=False)
    file.close()


def _add_layer(metadata: dict[str, Any], tensors: dict[str, Any], layer: ModelConfig) -> None:
    """Add the keys and the tensors of a layer that predicts further tokens."""
    count = next(key for key in metadata if key.endswith(".block_count"))
    architecture = count.removesuffix(".block_count")
    metadata[count] += 1
    metadata[f"{architecture}.nextn_predict_layers"] = 1
    for key in [key for key, value in metadata.items() if key.startswith(architecture) and isinstance(value, list)]:
        if len(metadata[key]) == metadata[count] - 1:
            metadata[key] = [*metadata[key], False]
    tensors |= {name: each for name, each in _tensors(layer).items() if name.startswith("blk.")}


def _tensors(model: ModelConfig) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Map the name of each tensor to its shape, and to whether llama.cpp wants it in float32."""
    found: dict[str, tuple[tuple[int, ...], bool]] = {}
    experts: dict[str, int] = {}
    family = model.family + MTP * (model.mtp_layer is not None and not model.family.endswith(MTP))
    for name, (goal, size) in expected_tensors(in_gguf(family), model).items():
        stored, bracket, _ = name.partition("[")
        if is_number(name):
            continue
        experts[stored] = experts.get(stored, 0) + 1
        whole = (experts[stored], *size) if bracket else size
        found[stored] = whole, goal.parameter.endswith(ALWAYS_F32)
    return found


def _type(name: str, kind: gguf.GGMLQuantizationType, model: ModelConfig) -> gguf.GGMLQuantizationType:
    """Choose the type that llama-quantize gives a matrix in a Q4_K_M file."""
    if kind != TYPE.Q4_K:
        return kind
    if name == "output.weight" or (name == "token_embd.weight" and model.tie_embeddings):
        return TYPE.Q6_K
    layer = re.search(r"\d+", name)
    if layer and (".attn_v." in name or ".ffn_down" in name):
        index, layers = int(layer.group()), model.num_layers
        is_dearer = index < layers // 8 or index >= 7 * layers // 8 or (index - layers // 8) % 3 == 2
        return TYPE.Q6_K if is_dearer else TYPE.Q4_K
    return TYPE.Q5_K if ".attn_qkv." in name else TYPE.Q4_K


def _matrix(random: np.random.Generator, kind: gguf.GGMLQuantizationType, size: tuple[int, ...]) -> NDArray[np.uint8]:
    """Make random codes of a matrix, or of the matrices of all experts."""
    rows, columns = int(np.prod(size[:-1])), size[-1]
    if kind == TYPE.BF16:
        bits = (random.standard_normal((rows, columns), np.float32) * SPREAD).view(np.uint32) + 0x8000 >> 16
        return bits.astype(np.uint16).view(np.uint8).reshape(*size[:-1], -1)
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, columns // block, num_bytes), np.uint8)
    first = num_bytes - 2 if kind in AT_END else 0
    for factor in SCALES[kind]:
        if factor is not None:
            numbers = SPREAD * factor * (0.75 + 0.5 * random.random((rows, columns // block), np.float32))
            blocks[:, :, first : first + 2] = numbers.astype(np.float16)[:, :, None].view(np.uint8)
            first += 2
    return blocks.reshape(*size[:-1], -1)


def _copy_tokenizer(file: gguf.GGUFWriter, vocabulary: int) -> None:
    for key, field in gguf.GGUFReader(locate("smollm2-135m")).fields.items():
        if key.startswith("tokenizer."):
            value = field.contents()
            if key == "tokenizer.ggml.tokens":
                value = (value + [f"<unused {number}>" for number in range(vocabulary)])[:vocabulary]
            elif key == "tokenizer.ggml.token_type":
                value = (value + [UNUSED] * vocabulary)[:vocabulary]
            elif key == "tokenizer.ggml.merges":
                value = value[: max(vocabulary - 1000, 0)]
            file.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in KINDS:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
