"""The WeightSource: matrices as parts, what of them is kept and what is rounded, and rows that are read alone."""

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.gguf_files import TINY as GGUF_MODELS
from tests.gguf_files import write
from tests.tiny_models import KINDS, TINY, save
from tests.weights.test_quantize import export
from tokenmill.errors import CheckpointError
from tokenmill.hub.progress import Silent
from tokenmill.model.description import describe
from tokenmill.model.families import read_config
from tokenmill.model.parameters import matrices_of
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.quant.schemes import Scheme, find_scheme
from tokenmill.quant.stored import Stored
from tokenmill.settings.engine_config import FUSIBLE
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.load import load_decoder
from tokenmill.weights.plain import PlainCheckpoint
from tokenmill.weights.source import WeightSource
from tokenmill.weights.write.quantize import quantize

KIND = gguf.GGMLQuantizationType


def source_of(checkpoint, scheme=None, dtype=torch.float32, **more):
    scheme = find_scheme(scheme) if isinstance(scheme, str) else scheme or Scheme()
    return WeightSource(checkpoint, read_config(checkpoint.config), scheme, dtype, **more)


def places(source):
    """Every matrix of a source, and the number of its rows."""
    for path, matrix in matrices_of(describe(source.model)).items():
        layer, role = (None, path) if path == "head" else path.removeprefix("layers.").split(".", 1)
        yield None if layer is None else int(layer), role, matrix.outputs


def values(parts):
    return torch.cat([part.values() for part in parts])


class Coded(PlainCheckpoint):
    """A directory of which some tensors are said to be codes."""

    codes: dict[str, Stored]

    def read_codes(self, name, rows=None):
        found = self.codes.get(name)
        return found if found is None or rows is None else found.rows(rows)


@pytest.fixture
def coded(models, tmp_path):
    path = save("llama", models)
    opened = open_checkpoint(path)
    made = Coded(path, opened.config, [path / "model.safetensors"])
    made.codes = {}
    return made


# ---- parts


def test_merged_matrices_have_their_rows_in_order(models):
    path = save("llama", models)
    tensors, source = load_file(path / "model.safetensors"), source_of(open_checkpoint(path))
    (part,) = source.matrix(1, "attention.qkv")
    names = [f"model.layers.1.self_attn.{letter}_proj.weight" for letter in "qkv"]
    assert torch.equal(part.numbers, torch.cat([tensors[name] for name in names]))
    assert source.tensors(1, "attention.qkv") == {
        names[0]: range(48), names[1]: range(48, 64), names[2]: range(64, 80)
    }  # fmt: skip
    assert torch.equal(source.tensor("norm.weight"), tensors["model.norm.weight"])
    half = source_of(open_checkpoint(path), dtype=torch.bfloat16)
    assert torch.equal(half.matrix(0, "mlp.down")[0].numbers, tensors["model.layers.0.mlp.down_proj.weight"].bfloat16())
    assert half.tensor("norm.weight").dtype == torch.bfloat16


def test_codes_are_kept_if_they_are_no_wider_than_what_others_are_rounded_to(coded):
    name = "model.layers.0.self_attn.k_proj.weight"
    plain = source_of(coded).matrix(0, "attention.qkv")[0].numbers
    for bits, kept in ((8, {"file": 8, "q8": 8, "q4": 4, "dense": 32}), (4, {"file": 4, "q8": 4, "q4": 4})):
        coded.codes = {name: round_to_nearest(plain[48:64], bits)}
        for scheme, expected in kept.items():
            parts = source_of(coded, scheme).matrix(0, "attention.qkv")
            if scheme == "dense" or (scheme, bits) == ("q4", 8):
                assert [(part.bits, part.num_rows) for part in parts] == [(expected, 80)]
                continue
            rest = {"file": 32, "q8": 8, "q4": 4}[scheme]
            assert [(part.bits, part.num_rows) for part in parts] == [(rest, 48), (expected, 16), (rest, 16)]
            assert torch.equal(parts[1].codes, coded.codes[name].codes)
            if scheme != "file":
                assert torch.equal(parts[0].codes, round_to_nearest(plain[:48], rest, quick=True).codes)
            else:
                assert torch.equal(parts[2].numbers, plain[64:])


def test_rows_are_rounded_once_from_what_the_file_has(models):
    """Not from what the model's dtype would make of them; a bias is added in float32 then."""
    checkpoint = open_checkpoint(save("llama-bias", models))
    source = source_of(checkpoint, "q8", torch.bfloat16)
    exact = source_of(checkpoint).matrix(0, "mlp.down")[0].numbers
    (part,) = source.matrix(0, "mlp.down")
    assert torch.equal(part.codes, round_to_nearest(exact, 8, quick=True).codes)
    assert not torch.equal(part.scales, round_to_nearest(exact.bfloat16(), 8, quick=True).scales)
    assert source.tensor("layers.0.mlp.down.bias").dtype == torch.float32
    assert source_of(checkpoint, "file", torch.bfloat16).tensor("layers.0.mlp.down.bias").dtype == torch.bfloat16


def test_a_router_is_not_rounded(models):
    source = source_of(open_checkpoint(save("mixtral", models)), "q4", torch.bfloat16)
    (router,) = source.matrix(0, "mlp.router")
    assert router.numbers.dtype == torch.bfloat16
    assert [part.bits for part in source.matrix(0, "mlp.experts.4.up")] == [4]


@pytest.mark.parametrize("scheme", ["dense", "q8", "file"])
def test_a_tied_head_is_the_embedding(models, scheme):
    source = source_of(open_checkpoint(save("llama-mha-tied", models)), scheme, torch.bfloat16)
    table = source.tensor("embedding.weight")
    (head,) = source.matrix(None, "head")
    if scheme == "q8":
        assert torch.equal(head.codes, round_to_nearest(table, 8, quick=True).codes)
    else:
        assert head.numbers.data_ptr() == table.data_ptr()
    assert torch.equal(values(source.matrix(None, "head", range(3, 9))), head.values()[3:9])


def test_values_may_be_changed_on_the_way(models):
    """In the order of the file, [outputs, inputs], also where it stores them [inputs, outputs] or interleaved."""
    for family in ("llama", "gpt2", "gpt_neox"):
        source, seen = source_of(open_checkpoint(save(family, models))), {}

        def change(name, numbers_RK, seen=seen):
            seen[name] = tuple(numbers_RK.shape)
            return numbers_RK * 2

        before, after = source.matrix(0, "attention.qkv")[0], source.matrix(0, "attention.qkv", change=change)[0]
        assert torch.equal(after.numbers, 2 * before.numbers)
        assert seen == {name: (len(rows), 48) for name, rows in source.tensors(0, "attention.qkv").items()}


def test_progress_ends_when_all_was_read(models):
    told = []
    source = source_of(open_checkpoint(save("llama", models)), progress=lambda *figures: told.append(figures))
    load_decoder(source, 24, FUSIBLE)
    source.matrix(0, "attention.qkv")  # once more, which is not counted
    assert told[0] == (0, told[-1][1]) and told[-1][0] == told[-1][1]
    assert told == sorted(told) and len(set(told)) == len(told)


def test_a_tensor_whose_shape_has_changed_is_refused(coded):
    coded.shapes = {**coded.shapes}
    source = source_of(coded)
    coded.shapes["model.norm.weight"] = (49,)
    with pytest.raises(CheckpointError, match=r"was changed while .*: model\.norm\.weight has another shape now"):
        source.tensor("norm.weight")


# ---- rows


def check_rows(checkpoint, scheme):
    source = source_of(checkpoint, scheme)
    for layer, role, outputs in places(source):
        whole = values(source.matrix(layer, role))
        assert len(whole) == outputs
        for rows in (
            range(outputs // 3, outputs // 3 + max(outputs // 2, 1)),
            range(outputs - 1, outputs),
            range(outputs),
        ):
            assert torch.equal(values(source.matrix(layer, role, rows)), whole[rows.start : rows.stop]), (role, rows)


@pytest.mark.parametrize("name", [name for name, (kind, _) in TINY.items() if kind in KINDS])
def test_rows_of_a_directory_are_those_of_the_matrix(name, models):
    for scheme in ("dense", "q8"):
        check_rows(open_checkpoint(save(name, models)), scheme)


@pytest.mark.parametrize("kind", [KIND.F16, KIND.Q4_0, KIND.Q5_1, KIND.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", GGUF_MODELS)
def test_rows_of_a_gguf_file_are_those_of_the_matrix(name, kind, tmp_path):
    checkpoint = open_checkpoint(write(tmp_path / "x.gguf", name, kind))
    for scheme in ("dense", "file"):
        check_rows(checkpoint, scheme)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_rows_of_an_export_are_those_of_the_matrix(method, models, tmp_path):
    checkpoint = open_checkpoint(export(save("llama", models), tmp_path / "out", method))
    for scheme in ("dense", "file"):
        check_rows(checkpoint, scheme)


@pytest.mark.parametrize("bits", ["q4", "q8"])
def test_rows_of_our_own_codes_are_those_of_the_matrix(bits, models, tmp_path):
    quantize(open_checkpoint(save("llama", models)), tmp_path / "out", Silent(), bits)
    for scheme in ("dense", "file"):
        check_rows(open_checkpoint(tmp_path / "out"), scheme)


def test_a_rank_reads_no_other_rows_of_a_directory(models, monkeypatch):
    """A tensor is a view of the mapped file, whose pages are read when they are used."""
    checkpoint, read = open_checkpoint(save("llama", models)), []
    real = PlainCheckpoint.read

    def noted(self, name, dtype=None, rows=None):
        found = real(self, name, dtype, rows)
        read.append((name.rpartition("self_attn.")[2], found.nbytes))
        return found

    monkeypatch.setattr(PlainCheckpoint, "read", noted)
    source = source_of(checkpoint)
    source.matrix(0, "attention.qkv", range(8, 24))  # 16 rows of Q
    source.matrix(0, "attention.qkv", range(40, 56))  # the end of Q and the first half of K
    wanted = [("k_proj.weight", 8 * 48 * 4), ("q_proj.weight", 8 * 48 * 4), ("q_proj.weight", 16 * 48 * 4)]
    assert sorted(read) == wanted


def test_a_rank_reads_no_other_rows_of_our_own_codes(models, tmp_path, monkeypatch):
    quantize(open_checkpoint(save("llama", models)), tmp_path / "out", Silent(), "q4")
    checkpoint, read, real = open_checkpoint(tmp_path / "out"), 0, PlainCheckpoint.read

    def noted(self, name, dtype=None, rows=None):
        nonlocal read
        found = real(self, name, dtype, rows)
        read += found.nbytes
        return found

    monkeypatch.setattr(PlainCheckpoint, "read", noted)
    source_of(checkpoint, "file").matrix(0, "mlp.down", range(5, 15))
    assert read == 10 * (80 // 2 + 2 * 3 * 2)  # codes, and a scale and a minimum for each of three groups


def test_a_rank_reads_no_other_rows_of_a_gguf_file(tmp_path, monkeypatch):
    """Rows of a head lie together, in whichever order: a rank reads its heads."""
    path = write(tmp_path / "x.gguf", "llama", KIND.Q4_0)
    checkpoint, read, real = open_checkpoint(path), [], np.fromfile

    def noted(file, dtype, count, offset):
        read.append(count)
        return real(file, dtype, count, offset=offset)

    monkeypatch.setattr(np, "fromfile", noted)
    for scheme in ("file", "dense"):
        source_of(checkpoint, scheme).matrix(0, "attention.qkv", range(16, 32))  # the second head of Q
    assert read == 2 * [16 * 64 // 32 * 18]
