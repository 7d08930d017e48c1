"""Directories of codes: what is written is what is read, and exports of GPTQ and AWQ are read as they were meant."""

import json
from itertools import product

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.marks import QUICK_FAMILIES, needs_native
from tests.tiny_models import KINDS, prompt, reference, save
from tokenmill.cli.main import main
from tokenmill.engine.load import load
from tokenmill.errors import CapacityError, CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.kernels import native_library
from tokenmill.loader.resolve import resolve
from tokenmill.model.families import read_config
from tokenmill.quant.rtn import round_to_nearest
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.weights.checkpoint import open_checkpoint, read_config_json
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.integer_tensors import pack_own, unpack_awq, unpack_gptq, unpack_own
from tokenmill.weights.codes.own import Own
from tokenmill.weights.write import convert as module
from tokenmill.weights.write.convert import convert
from tokenmill.weights.write.quantize import quantize

LONG = prompt(40, seed=5)
GROUPS = [32, 64, 128, 256]
ROUNDED = [family for family in KINDS if family not in ("gpt2", "gpt_oss")]  # which store [in, out]
NATIVE = pytest.param(
    "native",
    marks=needs_native,
)


@pytest.fixture(scope="module")
def llama(models):
    path = save("llama", models)
    (path / "tokenizer_config.json").write_text('{"model_max_length": 128}')
    return path


def make(source, out, **how):
    return quantize(open_checkpoint(source), out, Silent(), **how)


def numbers(rows: int, columns: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def round_quickly(name, numbers_RK, bits):
    return round_to_nearest(numbers_RK, bits, quick=True)


def entries(path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


# ---- rounding


@pytest.mark.parametrize("bits", [4, 8])
def test_wider_groups_lose_more_and_not_much(bits):
    """Of normal numbers a group of 256 spans about 5.6 deviations and one of 32 about 4.1, so the step, and with it the
    error, grows by no more than 1.5; 8 % and 0.7 % are what such steps amount to: range / (15 or 254) / sqrt(12)."""
    given = numbers(64, 512)
    norm = given.square().mean().sqrt()
    errors = [(round_to_nearest(given, bits, group).values() - given).square().mean().sqrt() / norm for group in GROUPS]
    assert errors == sorted(errors)
    assert errors[-1] < 1.6 * errors[0]
    assert errors[0] < (0.08 if bits == 4 else 0.007)


@pytest.mark.parametrize("group", GROUPS)
def test_the_search_loses_less(group):
    """Fitting scale and minimum to the codes, from more starts, loses 6 % less in groups of 32, and less
    than that in wider ones. With zero points, or a zero in the middle, there are fewer grids to choose from."""
    given = numbers(64, 512)
    quick = round_to_nearest(given, 4, group, quick=True)
    found = [round_to_nearest(given, 4, group, grid) for grid in ("minimum", "zero_point", "symmetric")]
    errors = [(stored.values() - given).norm() for stored in found]
    assert errors == sorted(errors)
    assert errors[0] < (0.95 if group == 32 else 0.99) * (quick.values() - given).norm()
    for stored in found:
        assert torch.equal(stored.scales.half().float(), stored.scales)
    assert torch.equal(found[0].minimums.half().float(), found[0].minimums)
    zeros = -found[1].minimums / found[1].scales
    assert torch.equal(zeros.round() * found[1].scales, -found[1].minimums)
    assert (zeros.round().min(), zeros.round().max()) >= (1, 1) and zeros.max() <= 15
    assert found[2].minimums is None


@pytest.mark.parametrize("grid", ["minimum", "zero_point", "symmetric"])
def test_inputs_that_count_more_are_nearer(grid):
    given, weights = numbers(64, 256), torch.ones(256)
    weights[::32] = 100.0
    plain, weighted = round_to_nearest(given, 4, 32, grid), round_to_nearest(given, 4, 32, grid, weights)
    before, after = ((stored.values() - given).square().mean(0) for stored in (plain, weighted))
    assert after[::32].sum() < 0.3 * before[::32].sum()
    assert (after * weights).sum() < (before * weights).sum()


@pytest.mark.parametrize("grid", ["minimum", "zero_point", "symmetric"])
def test_groups_without_a_spread_are_kept(grid):
    """A constant is a level of any grid, up to its scale's rounding to half; weights of nothing say nothing."""
    for value in (0.0, 0.75, -0.75):
        stored = round_to_nearest(torch.full((2, 64), value), 4, 32, grid, torch.zeros(64))
        assert torch.allclose(stored.values(), torch.full((2, 64), value), rtol=1e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_the_end_of_a_row_is_a_group_of_its_own(bits):
    """What stands in the other columns changes nothing of it, and no zeros are mixed in."""
    given = numbers(5, 320)
    whole, end = round_to_nearest(given, bits, 256), round_to_nearest(given[:, 256:], bits, 64)
    assert torch.equal(whole.values()[:, 256:], end.values())
    assert len(whole.scales[0, :8].unique()) == 1


@pytest.mark.parametrize("columns", [32, 48, 320])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
def test_packing_loses_nothing(bits, group, columns):
    stored = round_to_nearest(numbers(7, columns), bits, group)
    layout = Own(bits, group)
    again = unpack_own(layout, pack_own(layout, stored, columns), "x")
    assert again.bits == bits
    assert torch.equal(again.codes[:, :columns], stored.codes[:, :columns])
    assert torch.equal(again.scales, stored.scales)
    assert bits == 8 or torch.equal(again.minimums, stored.minimums)


# ---- the directory


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("scheme", ["q4", "q8"])
def test_the_directory_holds_what_was_rounded(llama, tmp_path, scheme, group):
    kinds = make(llama, tmp_path / "out", scheme=scheme, group=group, head="none")
    source, again = open_checkpoint(llama), open_checkpoint(tmp_path / "out")
    assert dict(again.shapes) == dict(source.shapes)
    for name, shape in source.shapes.items():
        if "proj" not in name:
            assert again.read_codes(name) is None
            assert torch.equal(again.read(name), source.read(name))
            continue
        wanted = round_to_nearest(source.read(name), int(scheme[1]), group)
        assert torch.equal(again.read(name), wanted.values()[:, : shape[1]])
        assert torch.equal(again.read_codes(name).values()[:, : shape[1]], again.read(name))
    files = tmp_path / "out"
    assert entries(files) == ["config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"]
    assert entries(tmp_path) == ["out"]
    config = json.loads((files / "config.json").read_text())
    assert config["quantization_config"]["group_size"] == group
    assert "stored_as_codes" not in config
    down = kinds["mlp.down_proj"]
    weights = [source.read(f"model.layers.{i}.mlp.down_proj.weight") for i in range(2)]
    differences = [again.read(f"model.layers.{i}.mlp.down_proj.weight") - weights[i] for i in range(2)]
    expected = torch.stack(differences).norm() / torch.stack(weights).norm()
    assert down.error == pytest.approx(expected.item(), rel=1e-5)
    assert (down.count, down.bytes_before) == (2, 2 * 48 * 80 * 4)
    codes = 80 // (2 if scheme == "q4" else 1) + -(-80 // group) * (4 if scheme == "q4" else 2)
    assert down.bytes_after == 2 * 48 * codes


def rounded(family, scheme, program):
    """Programs read the same codes: of most families each scheme is computed by one of them, by default."""
    is_default = family in QUICK_FAMILIES or (scheme, program) in (("q4", "native"), ("q8", "eager"))
    marks = [needs_native] * (program == "native") + [pytest.mark.long] * (not is_default)
    return pytest.param(family, scheme, program, marks=marks)


ALL = product([*ROUNDED, "llama-mha-tied", "qwen2-window"], ("q4", "q8"), ("eager", "native"))


@pytest.mark.parametrize(("family", "scheme", "program"), [rounded(*each) for each in ALL])
def test_the_same_bits_as_rounding_when_loading(models, tmp_path, family, scheme, program):
    """Groups of 32 are those of the schemes, so the same rounding gives the same codes, and with them everything."""
    source = save(family, models)
    config = read_config(read_config_json(source))
    try:
        resolve(EngineConfig(program=program, dtype="float32", device="cpu"), config)
    except ConfigError as error:
        pytest.skip(str(error))
    head = {} if config.tie_embeddings else {"head": scheme}
    make(source, tmp_path / "out", scheme=scheme, rounder=round_quickly, **head)
    settings = {"program": program, "scheme": scheme, "dtype": "float32", "threads": 1}
    assert torch.equal(load(tmp_path / "out", **settings).logits(LONG), load(source, **settings).logits(LONG))


def test_a_quantised_directory_keeps_its_codes_without_being_told(llama, tmp_path):
    make(llama, tmp_path / "out", group=64)
    assert read_config(read_config_json(tmp_path / "out")).codes
    settings = {"program": "eager", "dtype": "float32", "threads": 1}
    kept, plain = (load(tmp_path / "out", scheme=scheme, **settings) for scheme in ("file", "dense"))
    assert torch.equal(kept.logits(LONG), plain.logits(LONG))
    assert kept.memory["matrix_bytes"] < 0.45 * plain.memory["matrix_bytes"]
    if native_library.why_not() is None:
        assert load(tmp_path / "out", threads=1).config.scheme == "file"


@needs_native
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_dtype_alone_leaves_the_codes_as_they_are(llama, tmp_path, dtype):
    """It is that of what is no code: the same as with scheme "file", and much smaller than what was dequantised."""
    make(llama, tmp_path / "out")
    settings = {"dtype": dtype, "threads": 1}
    alone, kept, plain = (
        load(tmp_path / "out", **settings, **how) for how in ({}, {"scheme": "file"}, {"scheme": "dense"})
    )
    assert (alone.config.scheme, alone.config.dtype, plain.config.scheme) == ("file", dtype, "dense")
    assert torch.equal(alone.logits(LONG), kept.logits(LONG))
    assert alone.memory["matrix_bytes"] == kept.memory["matrix_bytes"] < 0.6 * plain.memory["matrix_bytes"]
    assert load(llama, **settings).config.scheme != "file"


def test_shards_keep_a_matrix_together(llama, tmp_path, monkeypatch):
    make(llama, tmp_path / "one")
    monkeypatch.setattr(module, "SHARD_BYTES", 10_000)
    make(llama, tmp_path / "many")
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())["weight_map"]
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 3
    assert files[-1].name == f"model-{len(files):05d}-of-{len(files):05d}.safetensors"
    assert all(index[name] == index[name.removesuffix("codes") + "scales"] for name in index if name.endswith("codes"))
    one, many = open_checkpoint(tmp_path / "one"), open_checkpoint(tmp_path / "many")
    assert all(torch.equal(one.read(name), many.read(name)) for name in one.shapes)


def test_a_quantised_model_becomes_plain_again(llama, tmp_path):
    make(llama, tmp_path / "q4")
    source = open_checkpoint(tmp_path / "q4")
    plain = open_checkpoint(convert(source, tmp_path / "plain", "float32", Silent()))
    assert "quantization_config" not in plain.config
    assert all(torch.equal(plain.read(name), source.read(name)) for name in source.shapes)


def test_the_verb_reports_and_refuses(llama, tmp_path, capsys):
    arguments = ["quantize", str(llama), "--group", "64", "-o", str(tmp_path / "out")]
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert "rounding to q4, groups of 64" in captured.err
    assert document["num_bytes"] == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    by_name = {row["name"]: row for row in document["tensors"]}
    assert by_name["lm_head"]["stored_as"] == "q8"
    assert 0 < by_name["self_attn.q_proj"]["relative_error"] < 0.1
    assert by_name["the rest"]["relative_error"] is None
    assert main(arguments) == 2
    assert "new or empty" in capsys.readouterr().err
    assert main(["quantize", str(llama), "-q", "-o", str(tmp_path / "table")]) == 0
    assert "--algorithm gptq" in capsys.readouterr().out
    assert main(["quantize", str(llama)]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "message"), [({"scheme": "q5"}, "q4, q8"), ({"group": 48}, "32, 64"), ({"head": "q2"}, "q4, q8, none")]
)
def test_settings_are_refused_before_anything_is_written(llama, tmp_path, how, message):
    with pytest.raises(ConfigError, match=message):
        make(llama, tmp_path / "out", **how)
    assert entries(tmp_path) == []


def test_what_cannot_be_rounded_is_refused(models, llama, tmp_path):
    with pytest.raises(ConfigError, match=r"stores? matrices \[out, in\]"):
        make(save("gpt2", models), tmp_path / "out")
    with pytest.raises(ConfigError, match="its embedding"):
        make(save("llama-mha-tied", models), tmp_path / "out", head="q8")
    tensors = load_file(llama / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = torch.nan
    broken = tmp_path / "broken"
    broken.mkdir()
    save_file(tensors, broken / "model.safetensors")
    (broken / "config.json").write_bytes((llama / "config.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"layers.1.mlp.up_proj.weight cannot be rounded"):
        make(broken, tmp_path / "out")
    assert entries(tmp_path) == ["broken"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "Ctrl-C"])
def test_nothing_is_left_of_what_broke_off(llama, tmp_path, monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(CheckpointError if isinstance(error, OSError) else KeyboardInterrupt):
        make(llama, tmp_path / "out")
    assert entries(tmp_path) == []


def test_a_disk_without_room_is_told_before_writing(llama, tmp_path, monkeypatch):
    usage = module.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(CapacityError, match=r"disk space for .*out: \d.* kB needed, 10 B available"):
        make(llama, tmp_path / "out")
    assert entries(tmp_path) == []


# ---- GPTQ and AWQ


def draw(rows: int, columns: int, group: int, bits: int, symmetric: bool, seed: int):
    """Codes [K, R], zeros and scales [G, R], as the papers have them; group -1 is all of a row."""
    generator = torch.Generator().manual_seed(seed)
    groups = 1 if group == -1 else -(-columns // group)
    codes = torch.randint(0, 1 << bits, (columns, rows), generator=generator)
    zeros = torch.randint(1, 1 << bits, (groups, rows), generator=generator)
    if symmetric:
        zeros[:] = 1 << bits - 1
    scales = (torch.rand(groups, rows, generator=generator) * 0.04 / (1 << bits - 4) + 0.001).half()
    return codes, zeros, scales


def values_of(codes, zeros, scales, group: int) -> torch.Tensor:
    """[R, K]."""
    columns = torch.arange(len(codes))
    groups = torch.zeros_like(columns) if group == -1 else columns // group
    return ((codes - zeros[groups]) * scales[groups].double()).t().float().contiguous()


def pack_columns(matrix, bits: int, order) -> torch.Tensor:
    """Eight (or four) neighbours of a row in one word; its i-th field is neighbour order[i]."""
    fields = 32 // bits
    neighbours = matrix.long().reshape(len(matrix), -1, fields)
    words = sum(neighbours[..., order[i]] << bits * i for i in range(fields))
    return torch.where(words >> 31 == 1, words - (1 << 32), words).int()  # as signed ones


def gptq(rows=16, columns=48, group=32, bits=4, symmetric=False, v2=False, seed=3):
    """Tensors of one matrix and what they stand for."""
    codes, zeros, scales = draw(rows, columns, group, bits, symmetric, seed)
    straight = range(32 // bits)
    tensors = {
        "qweight": pack_columns(codes.t(), bits, straight).t().contiguous(),
        "qzeros": pack_columns(zeros if v2 else zeros - 1, bits, straight),
        "scales": scales,
        "g_idx": torch.arange(columns, dtype=torch.int32) // (columns if group == -1 else group),
    }
    return tensors, values_of(codes, zeros, scales, group)


def awq(rows=16, columns=48, group=32, seed=3):
    codes, zeros, scales = draw(rows, columns, group, 4, False, seed)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    tensors = {"qweight": pack_columns(codes, 4, order), "qzeros": pack_columns(zeros, 4, order), "scales": scales}
    return tensors, values_of(codes, zeros, scales, group)


@pytest.mark.slow
@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("group", [32, 64, 128, 256, -1])
@pytest.mark.parametrize("bits", [4, 8])
def test_gptq_matrices(bits, group, symmetric, v2):
    tensors, values = gptq(columns=160, group=group, bits=bits, symmetric=symmetric, v2=v2)
    stored = unpack_gptq(GPTQ(bits, max(group, 0), int(not v2)), tensors, "x")
    assert torch.equal(stored.values(), values)
    assert (stored.minimums is None) == symmetric
    assert stored.bits == bits


@pytest.mark.parametrize("group", [32, 64, 128, 256, -1])
def test_awq_matrices(group):
    tensors, values = awq(columns=160, group=group)
    assert torch.equal(unpack_awq(AWQ(4, max(group, 0)), tensors, "x").values(), values)


def export(source, path, method: str, biases=False, **settings):
    """A tiny Llama whose projections are such an export, and the same model in plain numbers beside it."""
    made = {"gptq": gptq, "awq": awq}[method]
    drawn = {"group": settings.get("group", 32)} | ({"bits": settings.get("bits", 4)} if method == "gptq" else {})
    tensors, plain = {}, {}
    for seed, (name, tensor) in enumerate(load_file(source / "model.safetensors").items()):
        if "proj" not in name:
            tensors[name] = plain[name] = tensor
            continue
        base = name.removesuffix(".weight")
        parts, values = made(*tensor.shape, seed=seed, **drawn)
        tensors |= {f"{base}.{part}": part_tensor for part, part_tensor in parts.items()}
        plain[name] = values
        if biases:
            tensors[f"{base}.bias"] = torch.zeros(tensor.shape[0], dtype=torch.float16)
    path.mkdir()
    (path / "plain").mkdir()
    save_file(tensors, path / "model.safetensors")
    save_file(plain, path / "plain" / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"dtype": "float16"}
    (path / "plain" / "config.json").write_text(json.dumps(config))
    own = {"bits": settings.get("bits", 4), "group_size": settings.get("group", 32), "quant_method": method}
    own |= {"zero_point": True, "version": "GEMM"} if method == "awq" else {"desc_act": False, "sym": False}
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": own}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("program", ["eager", NATIVE])
@pytest.mark.parametrize(("method", "bits", "group"), [("gptq", 4, 32), ("gptq", 8, -1), ("awq", 4, 64)])
def test_exports_give_the_logits_of_their_numbers(llama, tmp_path, method, bits, group, program):
    """Eager multiplies the same float32 numbers; native rounds activations to 8 bits (see test_quantized.py)."""
    path = export(llama, tmp_path / "out", method, bits=bits, group=group)
    plain = load(path / "plain", program="eager", dtype="float32", threads=1).logits(LONG)
    ours = load(path, program=program, scheme="file", dtype="float32", threads=1).logits(LONG)
    if program == "eager":
        torch.testing.assert_close(ours, plain)
    else:
        assert (ours - plain).pow(2).mean().sqrt() < 0.04 * plain.pow(2).mean().sqrt()


@pytest.mark.parametrize("method", ["tokenmill", "gptq", "awq"])
def test_info_counts_codes_as_they_are_stored(llama, tmp_path, capsys, method):
    """Not as the float32 that they are read as: the sum is that of the file's own tensors."""
    path = tmp_path / "out"
    if method == "tokenmill":
        make(llama, path)
    else:
        export(llama, path, method, biases=method == "gptq")
    capsys.readouterr()
    assert main(["info", str(path), "--json", "--tensors"]) == 0
    facts = json.loads(capsys.readouterr().out)
    stored = load_file(path / "model.safetensors")
    found = {entry["name"]: (entry["type"], entry["num_bytes"]) for entry in facts["tensors"]}
    assert found == {name: (str(each.dtype).removeprefix("torch."), each.nbytes) for name, each in stored.items()}
    assert sum(entry["num_bytes"] for entry in facts["types"].values()) == sum(each.nbytes for each in stored.values())
    assert facts["types"]["uint8" if method == "tokenmill" else "int32"]["count"] >= 14


def test_what_older_exports_say_in_a_file_of_its_own(llama, tmp_path):
    path = export(llama, tmp_path / "out", "gptq")
    wanted = load(path, threads=1).logits(LONG)
    config = json.loads((path / "config.json").read_text())
    older = config.pop("quantization_config") | {
        "damp_percent": 0.01,
        "provider": "auto-round",
        "data_type": "int",
        "iters": 200,
        "amp": True,
        "act_bits": 16,
        "offload_to_disk": True,
        "gptaq": False,
        "model_file_base_name": "gptq_model-4bit-32g",
    }
    del older["quant_method"]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="missing"):
        load(path)
    (path / "quantize_config.json").write_text(json.dumps(older))
    (path / "model.safetensors").rename(path / "gptq_model-4bit-32g.safetensors")
    assert torch.equal(load(path, threads=1).logits(LONG), wanted)
    (path / "quantize_config.json").write_text(json.dumps(older | {"bits": 5}))
    with pytest.raises(CheckpointError, match="gptq: bits = 5 is not implemented"):
        load(path)


def test_eight_bits_are_kept_only_where_zero_is_in_the_middle(llama, tmp_path):
    source = open_checkpoint(export(llama, tmp_path / "out", "gptq", bits=8))
    assert source.read_codes("model.layers.0.mlp.up_proj.weight") is None
    symmetric, _ = gptq(80, 48, bits=8, symmetric=True)
    edit_tensors(tmp_path / "out", {f"model.layers.0.mlp.up_proj.{part}": symmetric[part] for part in symmetric})
    assert source.read_codes("model.layers.0.mlp.up_proj.weight").bits == 8


def edit_tensors(path, changes) -> None:
    tensors = load_file(path / "model.safetensors") | changes
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path / "model.safetensors")


def test_the_reference_model_is_what_was_rounded(models, tmp_path):
    """transformers' own parameters, not our reading of them."""
    make(save("qwen3", models), tmp_path / "out", scheme="q8")
    again = open_checkpoint(tmp_path / "out")
    for name, parameter in reference("qwen3").named_parameters():
        torch.testing.assert_close(again.read(name), parameter.detach(), atol=0.004, rtol=0)  # half of 0.15 · 5 / 127
