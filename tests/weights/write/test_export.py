"""Which matrices become codes of how many bits, what each format takes for them, and what it refuses."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
import torch

from tests import gguf_files
from tests.tiny_models import save
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.model.families import read_config
from tokenmill.quant.stored import Stored
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.gguf.header import read_header
from tokenmill.weights.names import Target
from tokenmill.weights.write.export import Export, ExportPlan, find_export
from tokenmill.weights.write.quantize import Kind, kind_of, plan_quantization, quantize

FileType = gguf.LlamaFileType


def planned(models, name, tmp_path, **how) -> dict[str, int]:
    """The bits of every matrix of the first layer, and of others, by the ends of their names."""
    out = tmp_path / ("out.gguf" if how.get("export") == "gguf" else "out")
    plan, _ = plan_quantization(open_checkpoint(save(name, models)), out, **how)
    own = {label: bits for label, bits in plan.bits.items() if "layers.1." not in label and "h.1." not in label}
    return {".".join(label.removesuffix(".weight").split(".")[-2:]): bits for label, bits in own.items()}


PROJECTIONS = dict.fromkeys(
    [*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))], 4
)
EIGHT = dict.fromkeys(PROJECTIONS, 8)


@pytest.mark.parametrize(
    ("name", "how", "wanted"),
    [
        ("llama", {}, PROJECTIONS | {"lm_head": 8}),
        ("llama", {"scheme": "q8"}, EIGHT | {"lm_head": 8}),
        ("llama", {"head": "none"}, PROJECTIONS),
        ("llama", {"head": "q4"}, PROJECTIONS | {"lm_head": 4}),
        ("llama", {"export": "gptq", "group": 32, "scheme": "q4"}, None),
        ("llama-mha-tied", {}, PROJECTIONS),
        (
            "mixtral",
            {"head": "none"},
            {f"self_attn.{n}_proj": 4 for n in "qkvo"} | {f"{e}.w{n}": 4 for e in range(5) for n in (1, 2, 3)},
        ),
    ],
    ids=str,
)
def test_what_becomes_codes(models, tmp_path, name, how, wanted):
    if wanted is None:
        with pytest.raises(
            ConfigError, match=r"group = 32 is not allowed: one that divides the 80 inputs of .*: none does"
        ):
            planned(models, name, tmp_path, **how)
    else:
        assert planned(models, name, tmp_path, **how) == wanted


def of_gguf(tmp_path, name, **how) -> dict[str, int]:
    """The same of a model whose rows are multiples of 32."""
    source = open_checkpoint(gguf_files.write(tmp_path / "in.gguf", name))
    plan, _ = plan_quantization(source, tmp_path / "out.gguf", export="gguf", **how)
    return {label: bits for label, bits in plan.bits.items() if ".1." not in label}


def test_what_becomes_codes_in_a_gguf_file(tmp_path):
    tied = of_gguf(tmp_path, "llama-tied")
    assert set(tied.values()) == {4} and len(tied) == 7
    assert of_gguf(tmp_path, "llama-tied", head="q8") == tied | {"token_embd.weight": 8}
    assert of_gguf(tmp_path, "llama", scheme="none") == {}
    assert of_gguf(tmp_path, "llama", scheme="none", head="q8") == {"output.weight": 8}
    assert of_gguf(tmp_path, "llama") == tied | {"output.weight": 8}
    gpt2 = of_gguf(tmp_path, "gpt2")
    assert gpt2.keys() == {f"blk.0.{name}.weight" for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"scheme": "q5"}, "scheme = 'q5' is not allowed: use one of q4, q8"),
        ({"scheme": "none"}, "scheme = 'none' is not allowed: use one of q4, q8"),
        ({"group": 16}, "group = 16 is not allowed: use one of 32, 64, 128, 256"),
        ({"head": "q5"}, "head = 'q5' is not allowed: use one of q4, q8, none"),
        ({"symmetric": 1}, "symmetric = 1 is not allowed: true or false"),
        ({"symmetric": True}, "symmetric = True is not allowed: only with export gptq or gguf"),
        ({"export": "awq"}, "export = 'awq' is not allowed: use one of gguf, gptq, tokenmill"),
    ],
    ids=str,
)
def test_settings_that_are_refused(models, tmp_path, how, message):
    with pytest.raises(ConfigError) as raised:
        planned(models, "llama", tmp_path, **how)
    assert message in str(raised.value)


def test_a_head_that_is_the_embedding_is_not_rounded_in_a_directory(models, tmp_path):
    said = "head = 'q4' is not allowed: only for a head of its own; this model's is its embedding, which is not rounded"
    with pytest.raises(ConfigError, match=said):
        planned(models, "llama-mha-tied", tmp_path, head="q4")
    assert planned(models, "llama-mha-tied", tmp_path, head="none") == PROJECTIONS


def test_formats_by_what_they_hold():
    own, gptq, of_gguf_ = (find_export(name) for name in ("tokenmill", "gptq", "gguf"))
    assert [each.grid(4, False) for each in (own, gptq, of_gguf_)] == ["minimum", "zero_point", "minimum"]
    assert [each.grid(4, True) for each in (gptq, of_gguf_)] == ["symmetric"] * 2
    assert [each.grid(8, False) for each in (gptq, of_gguf_)] == ["symmetric"] * 2
    assert [
        (each.is_for_floats, each.codes_embedding, each.default_head, each.mixes_bits) for each in (own, gptq, of_gguf_)
    ] == [
        (False, False, "q8", True),
        (False, False, "none", False),
        (True, True, "q8", True),
    ]
    assert own.leaves(4, (2, 3)) and not own.leaves(4, (3, 2)) and not own.leaves(8, (2, 3))
    assert gptq.leaves(4, (2, 3)) is False and of_gguf_.leaves(4, (2, 3)) is False


def test_a_format_of_its_own_says_everything():
    plain = Export()
    for call in (
        lambda: plain.grid(4, False),
        lambda: plain.check_output(Path("x")),
        lambda: plain.check(None),
        lambda: plain.num_bytes(None, "x"),
        lambda: plain.write(None, Path("x"), None, Silent(), ""),
    ):
        with pytest.raises(NotImplementedError):
            call()


LLAMA = {"model_type": "llama", "vocab_size": 10, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 4, "torch_dtype": "bfloat16"}
UP, NORM = "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


def plan_of(
    shape=(96, 64), bits=4, group=32, symmetric=False, parameter="layers.0.mlp.up.weight", transform="", scheme_bits=4
):
    """One matrix that becomes codes, and a norm."""
    targets = {UP: Target(parameter, "up", transform), NORM: Target("norm.weight", "", "")}
    source, model = SimpleNamespace(path=Path("/models/x")), read_config(LLAMA)
    return ExportPlan(source, model, {UP: shape, NORM: (64,)}, {UP: bits}, targets, scheme_bits, group, symmetric)


@pytest.mark.parametrize(
    ("name", "plan", "wanted"),
    [
        ("tokenmill", plan_of(), 96 * (32 + 2 * 2 + 2 * 2)),
        ("tokenmill", plan_of(group=64), 96 * (32 + 2 + 2)),
        ("tokenmill", plan_of(bits=8), 96 * (64 + 2 * 2)),
        ("gptq", plan_of(), 96 * 32 + 2 * 96 // 2 + 2 * 96 * 2 + 64 * 4),
        ("gptq", plan_of(bits=8, scheme_bits=8), 96 * 64 + 2 * 96 + 2 * 96 * 2 + 64 * 4),
        ("gguf", plan_of(), 96 * 2 * 20),
        ("gguf", plan_of(symmetric=True), 96 * 2 * 18),
        ("gguf", plan_of(bits=8), 96 * 2 * 34),
    ],
)
def test_bytes_of_a_matrix(name, plan, wanted):
    export = find_export(name)
    assert export.num_bytes(plan, UP) == wanted
    assert export.num_bytes(plan, NORM) == (64 * 4 if name == "gguf" else 64 * 2)


def test_a_buffer_takes_nothing_in_a_gguf_file():
    plan = plan_of()
    plan.shapes["buffer"] = (64,)
    assert find_export("gguf").num_bytes(plan, "buffer") == 0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            plan_of(parameter="head.weight"),
            "head = 'q4' is not allowed: none: a GPTQ export keeps its head in floating point",
        ),
        (plan_of(bits=8), f"scheme = 'q8 for {UP}' is not allowed: only q4: a GPTQ export has one"),
        (plan_of(group=128), f"group = 128 is not allowed: one that divides the 64 inputs of {UP}: 64, 32"),
        (plan_of((96, 48), group=64), f"one that divides the 48 inputs of {UP}: none does"),
        (plan_of((92, 64)), f"one whose matrices have multiples of 8 outputs; {UP} has 92"),
        (plan_of((94, 64), 8, scheme_bits=8), f"one whose matrices have multiples of 4 outputs; {UP} has 94"),
        (plan_of(transform="transpose"), "this one's are [in, out]. Use export gguf"),
    ],
    ids=str,
)
def test_what_a_gptq_directory_cannot_hold(plan, message):
    with pytest.raises(ConfigError) as raised:
        find_export("gptq").check(plan)
    assert message in str(raised.value)
    find_export("gptq").check(plan_of())
    find_export("gptq").check(plan_of((92, 64), 8, scheme_bits=8))


def test_a_directory_of_ours_is_not_transposed():
    with pytest.raises(ConfigError, match=r"model = 'llama at /models/x' is not allowed: a family whose files store"):
        find_export("tokenmill").check(plan_of(transform="transpose"))
    find_export("tokenmill").check(plan_of())


def test_a_plan_with_more_bits_for_some():
    plan = plan_of()
    assert plan.with_8_bits([UP]).bits == {UP: 8} and plan.bits == {UP: 4}
    assert plan.with_8_bits([]).bits == {UP: 4}
    assert plan_of(transform="transpose").is_transposed(UP) and not plan.is_transposed(UP)
    assert not plan.is_transposed("elsewhere")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.17.mlp.up_proj.weight", "mlp.up_proj"),
        ("model.layers.1.block_sparse_moe.experts.3.w1.weight", "w1"),
        ("transformer.h.0.attn.c_attn.weight", "attn.c_attn"),
        ("lm_head.weight", "lm_head"),
        ("blk.3.ffn_up_exps.weight[11]", "ffn_up_exps"),
    ],
)
def test_kinds_of_tensors(name, kind):
    assert kind_of(name) == kind


def test_the_error_of_a_kind():
    kind = Kind("up", "q8")
    assert kind.error == 0.0 and Kind("the rest", "float32").error is None
    codes = torch.full((2, 32), 130, dtype=torch.uint8)
    numbers = torch.full((2, 32), 2.0)
    numbers[1] = 4.0
    kind.add("up", numbers, Stored(8, None, codes, torch.ones(2, 1)))
    assert kind.error == pytest.approx((32 * 4.0 / (32 * 4.0 + 32 * 16.0)) ** 0.5)
    kind.add("up", numbers[:1], Stored(8, None, codes[:1], torch.ones(1, 1)))
    assert kind.error == pytest.approx((32 * 4.0 / (2 * 32 * 4.0 + 32 * 16.0)) ** 0.5)
    with pytest.raises(CheckpointError, match=r"^up cannot be rounded: it holds infinite, missing or far too large"):
        kind.add("up", numbers * torch.inf, Stored(8, None, codes, torch.ones(2, 1)))


def test_many_rows_are_compared_some_at_a_time(monkeypatch):
    from tokenmill.weights.write import quantize as module

    generator = torch.Generator().manual_seed(1)
    numbers, codes = torch.randn(9, 20, generator=generator), torch.full((9, 32), 129, dtype=torch.uint8)
    errors = []
    for rows in (100, 2, 1):
        monkeypatch.setattr(module, "ROWS", rows)
        kind = Kind("up", "q8")
        kind.add("up", numbers, Stored(8, None, codes, torch.arange(9.0)[:, None]))
        errors.append(kind.error)
    wanted = (torch.arange(9.0)[:, None] - numbers).norm() / numbers.norm()
    assert errors == pytest.approx([wanted.item()] * 3)


def test_what_was_written_is_told_by_kind(models, tmp_path):
    source = open_checkpoint(save("llama", models))
    eight = ["model.layers.0.mlp.up_proj.weight"]
    found = quantize(source, tmp_path / "out", Silent(), eight_bits=eight)
    assert list(found) == [
        *("lm_head", "the rest", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj in q8", "self_attn.k_proj"),
        *("self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"),
    ]
    assert (found["lm_head"].stored_as, found["mlp.up_proj in q8"].stored_as, found["mlp.up_proj"].stored_as) == (
        "q8",
        "q8",
        "q4",
    )
    assert found["mlp.up_proj in q8"].names == eight and found["mlp.up_proj in q8"].name == "mlp.up_proj"
    down = found["mlp.down_proj"]
    assert (down.count, down.num_weights, down.bytes_before) == (2, 2 * 48 * 80, 4 * 2 * 48 * 80)
    assert down.bytes_after == 2 * 48 * (40 + 3 * 4)
    rest = found["the rest"]
    assert (rest.count, rest.stored_as, rest.error) == (6, "float32", None)
    assert rest.bytes_before == rest.bytes_after == 4 * (211 * 48 + 5 * 48)
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told["quantization_config"] == {"quant_method": "tokenmill", "bits": 4, "group_size": 32, "version": 1}
    assert told["torch_dtype"] == "float32"


def test_a_rounder_may_leave_matrices_to_rounding(models, tmp_path):
    asked = []

    def rounder(name, rows_RK, bits):
        asked.append((name, tuple(rows_RK.shape), bits))

    plain = quantize(open_checkpoint(save("llama", models)), tmp_path / "one", Silent())
    other = quantize(open_checkpoint(save("llama", models)), tmp_path / "two", Silent(), rounder=rounder)
    assert {name: kind.squared_error for name, kind in plain.items()} == {n: k.squared_error for n, k in other.items()}
    assert ("lm_head.weight", (211, 48), 8) in asked and len(asked) == 15


# ---- GGUF


def exported(tmp_path, name="llama", kind=gguf.GGMLQuantizationType.F32, metadata=None, **how):
    source = open_checkpoint(gguf_files.write(tmp_path / "in.gguf", name, kind, metadata=metadata))
    quantize(source, tmp_path / "a model.gguf", Silent(), export="gguf", **how)
    return read_header(tmp_path / "a model.gguf")


@pytest.mark.parametrize(
    ("how", "kind", "wanted"),
    [
        ({}, "F32", FileType.MOSTLY_Q4_1),
        ({"symmetric": True}, "F32", FileType.MOSTLY_Q4_0),
        ({"scheme": "q8"}, "F32", FileType.MOSTLY_Q8_0),
        ({"scheme": "none", "head": "none"}, "F32", FileType.ALL_F32),
        ({"scheme": "none", "head": "none"}, "F16", FileType.MOSTLY_F16),
        ({"scheme": "none", "head": "none"}, "BF16", FileType.MOSTLY_BF16),
        ({"scheme": "none", "head": "q8"}, "F32", FileType.MOSTLY_Q8_0),
    ],
    ids=str,
)
def test_the_file_says_what_it_is(tmp_path, how, kind, wanted):
    header = exported(tmp_path, kind=gguf.GGMLQuantizationType[kind], **how)
    told = {key: value for key, value in header.metadata.items() if key.startswith("general.")}
    assert told == {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "a model",
        "general.file_type": int(wanted),
        "general.quantization_version": gguf.GGML_QUANT_VERSION,
    }
    offsets = sorted((info.offset, info.num_bytes) for info in header.tensors.values())
    assert all(at % 32 == 0 for at, _ in offsets)
    assert all(at + -(-size // 32) * 32 == then for (at, size), (then, _) in itertools.pairwise(offsets))
    end = header.data_offset + offsets[-1][0] + -(-offsets[-1][1] // 32) * 32
    assert (tmp_path / "a model.gguf").stat().st_size == end


def test_types_of_what_is_no_code(tmp_path):
    """Norms, biases, learned positions and routers are F32; embeddings in the model's own type."""
    kinds = gguf.GGMLQuantizationType
    gpt2 = exported(tmp_path, "gpt2", kinds.F16).tensors
    found = {name: info.type for name, info in gpt2.items()}
    assert found["token_embd.weight"] == kinds.F16 and found["position_embd.weight"] == kinds.F32
    assert found["blk.0.attn_norm.weight"] == found["blk.0.attn_qkv.bias"] == kinds.F32
    assert found["blk.0.ffn_up.weight"] == kinds.Q4_1
    (tmp_path / "a model.gguf").unlink()
    mixtral = exported(tmp_path, "mixtral", kinds.BF16).tensors
    assert mixtral["blk.0.ffn_gate_inp.weight"].type == kinds.F32
    assert mixtral["blk.1.ffn_up_exps.weight"].shape == (3, 256, 64)
    assert mixtral["output.weight"].type == kinds.Q8_0


def test_recommended_settings_go_with_it(tmp_path):
    header = exported(tmp_path, metadata={"general.sampling.top_k": 20, "general.sampling.temp": 0.5})
    told = {key: value for key, value in header.metadata.items() if "sampling" in key}
    assert told == {"general.sampling.top_k": 20, "general.sampling.temp": 0.5}


def test_what_llama_cpp_reads_otherwise_is_said(tmp_path, caplog):
    exported(tmp_path, "mistral")
    assert caplog.messages == ["llama.cpp has no window for this architecture: after 7 tokens its text differs"]


def test_a_model_without_a_tokenizer_says_so(models, tmp_path, caplog):
    quantize(open_checkpoint(save("llama", models)), tmp_path / "x.gguf", Silent(), "none", head="none", export="gguf")
    assert read_header(tmp_path / "x.gguf").metadata["tokenizer.ggml.model"] == "no_vocab"
    assert caplog.messages == [f"{save('llama', models)} has no tokenizer, so the file has no vocabulary"]


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(group=64), "group = 64 is not allowed: 32, which all types of GGUF that can be written have"),
        (plan_of((96, 48)), f"one whose matrices have 32 · n inputs; {UP} has 48"),
    ],
    ids=str,
)
def test_what_a_gguf_file_cannot_hold(plan, message):
    with pytest.raises(ConfigError) as raised:
        find_export("gguf").check(plan)
    assert message in str(raised.value)
