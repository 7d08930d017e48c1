"""A GGUF file of a well-known shape with random weights: as large and as quick as the real one, without a download.

Run: python benchmarks/random_gguf.py SHAPE KIND FILE
SHAPE is one of the Llamas that `tokenmill bench --shape` knows, KIND is q4_0, q8_0 or bf16. The tokenizer, and so the
vocabulary, are those of SmolLM2.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tokenmill.bench.shapes import find_shape
from tokenmill.hub.names import locate

KINDS = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0, "bf16": None}
SPREAD = 0.02  # of the weights


class Writer:
    """Matrices of random blocks in a file that begins with another file's tokenizer."""

    def __init__(self, target: Path, kind: str) -> None:
        self.file, self._kind = gguf.GGUFWriter(str(target), "llama", use_temp_file=True), KINDS[kind]
        self._random = np.random.default_rng(1)

    def copy_tokenizer(self, source: Path) -> None:
        for key, field in gguf.GGUFReader(source).fields.items():
            if key.startswith("tokenizer."):
                self.file.add_key_value(key, field.contents(), field.types[0], field.types[-1])

    def matrix(self, name: str, rows: int, columns: int) -> None:
        if self._kind is None:
            bits = (self._random.standard_normal((rows, columns), np.float32) * SPREAD).view(np.uint32) + 0x8000 >> 16
            raw, kind = bits.astype(np.uint16).view(np.uint8), gguf.GGMLQuantizationType.BF16
        else:
            raw, kind = self._blocks(rows, columns), self._kind
        self.file.add_tensor(name, raw, raw_dtype=kind)

    def _blocks(self, rows: int, columns: int) -> NDArray[np.uint8]:
        """Random codes, with a scale near that of weights of this spread."""
        size, num_bytes = gguf.GGML_QUANT_SIZES[self._kind]
        blocks = self._random.integers(0, 256, (rows, columns // size, num_bytes), np.uint8)
        largest = 8 if self._kind == gguf.GGMLQuantizationType.Q4_0 else 128
        scales = SPREAD * 2 / largest * (1 + self._random.random((rows, columns // size), np.float32))
        blocks[:, :, :2] = scales.astype(np.float16)[:, :, None].view(np.uint8)
        return blocks.reshape(rows, -1)


def write(shape: str, kind: str, target: Path) -> None:
    """All tensors of a Llama, with a head of its own."""
    config, tokenizer_of = find_shape(shape).config, locate("smollm2-135m")
    width, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = Writer(target, kind)
    writer.copy_tokenizer(tokenizer_of)
    vocabulary = len(gguf.GGUFReader(tokenizer_of).fields["tokenizer.ggml.tokens"].contents())
    numbers = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": width,
        "block_count": layers,
        "feed_forward_length": inner,
        "head_count": heads,
        "head_count_kv": kv_heads,
        "rope_dimension_count": width // heads,
        "vocab_size": vocabulary,
    }
    for name, value in numbers.items():
        getattr(writer.file, f"add_{name}")(value)
    writer.file.add_layer_norm_rms_eps(1e-5)
    writer.file.add_rope_freq_base(config.get("rope_theta", 10000.0))
    shapes = {
        "attn_q": (width, width),
        "attn_k": (width * kv_heads // heads, width),
        "attn_v": (width * kv_heads // heads, width),
        "attn_output": (width, width),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    for name in ("token_embd", "output"):
        writer.matrix(f"{name}.weight", vocabulary, width)
    writer.file.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.file.add_tensor(f"blk.{layer}.{name}.weight", np.ones(width, np.float32))
        for name, size in shapes.items():
            writer.matrix(f"blk.{layer}.{name}.weight", *size)
    writer.file.write_header_to_file()
    writer.file.write_kv_data_to_file()
    writer.file.write_tensors_to_file(progress=False)
    writer.file.close()


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[2] not in KINDS:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
