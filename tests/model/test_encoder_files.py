"""BERT as a GGUF file: written and read again; and the keys that llama.cpp's converter writes."""

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_encoders import save_encoder
from tests.tiny_models import prompt
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.config import read_gguf_config
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.pooling import pooling_of
from tokenmill.weights.write.quantize import quantize

TEXTS = [prompt(length, seed=length) for length in (5, 1, 23, 60)]
# Of all-MiniLM-L6-v2, by convert_hf_to_gguf.py of the source of llama-cpp-python 0.3.36.
CONVERTED = {
    "bert.block_count": 6,
    "bert.context_length": 512,
    "bert.embedding_length": 384,
    "bert.feed_forward_length": 1536,
    "bert.attention.head_count": 12,
    "bert.attention.layer_norm_epsilon": 9.999999960041972e-13,
    "bert.attention.causal": False,
    "bert.pooling_type": 1,
}


def written(path, target, scheme):
    quantize(open_checkpoint(path), target, Silent(), scheme, export="gguf")
    return target


@needs_native
def test_what_is_written_is_read_again(tmp_path):
    path = save_encoder("bert", tmp_path)
    (path / "modules.json").write_text('[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1"}]')
    (path / "1").mkdir()
    (path / "1" / "config.json").write_text('{"pooling_mode": "cls"}')
    file = written(path, tmp_path / "x.gguf", "none")
    assert pooling_of(file).pooling == "cls" and pooling_of(file).is_told
    engine, wanted = load(file, dtype="float32", max_length=64), load(path, dtype="float32", max_length=64)
    assert engine.model_config.both_ways and not engine.model_config.has_head
    similar = torch.cosine_similarity(engine.embed(TEXTS), wanted.embed(TEXTS, pooling="cls"))
    assert similar.min() > 0.99999


def test_the_keys_of_llama_cpps_converter_are_read(tmp_path):
    path = save_encoder("bert", tmp_path)
    header = read_header(written(path, tmp_path / "x.gguf", "none"))
    own = {key: value for key, value in header.metadata.items() if key.startswith("bert.")}
    ours = {"attention.head_count_kv", "vocab_size"}  # which the converter does not write
    assert {key.removeprefix("bert.") for key in own} - ours == {key.removeprefix("bert.") for key in CONVERTED} - {
        "pooling_type"
    }
    sizes = {"bert.block_count": 3, "bert.context_length": 66, "bert.embedding_length": 48}
    sizes |= {"bert.feed_forward_length": 80, "bert.attention.head_count": 4}
    others = {key: value for key, value in header.metadata.items() if not key.startswith("bert.")}
    header.metadata.clear()
    header.metadata.update({**others, **CONVERTED, **sizes})
    model = read_config(read_gguf_config(path, header))
    assert (model.num_types, model.norm_eps, model.both_ways, model.hidden_size) == (2, pytest.approx(1e-12), True, 48)
    header.metadata["bert.attention.causal"] = True
    with pytest.raises(CheckpointError, match=r"attention\.causal"):
        read_gguf_config(path, header)


def test_families_that_are_not_written_say_so(tmp_path):
    with pytest.raises(ConfigError, match=r"a family for which llama\.cpp has an architecture"):
        written(save_encoder("modernbert", tmp_path), tmp_path / "x.gguf", "none")
