"""MLX's directories: config.json as mlx-lm writes it, matrices with settings of their own, and a coded embedding.

That the values are MLX's own is shown in test_of_others.py.
"""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny_models import TINY, prompt
from tests.weights.codes.test_of_others import KINDS
from tests.weights.codes.test_of_others import tensor as tensor_of
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.model.families import read_config
from tokenmill.weights.checkpoint import foreseen_config, open_checkpoint
from tokenmill.weights.codes.checkpoint import QuantizedCheckpoint
from tokenmill.weights.codes.layout import Parts
from tokenmill.weights.codes.methods import name_method, name_tensors
from tokenmill.weights.codes.mlx import MLX
from tokenmill.weights.plain import PlainCheckpoint

HIDDEN, WIDTH, VOCABULARY = 64, 96, 211
DOWN = "model.layers.1.mlp.down_proj"


def coded(
    rows: int, columns: int, bits: int, group: int = 32, seed: int = 0
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The parts of a matrix with random codes, and its values."""
    generator = torch.Generator().manual_seed(rows * columns + bits + 1000 * seed)
    codes = torch.randint(0, 1 << bits, (rows, columns), generator=generator)
    scales = (torch.rand(rows, columns // group, generator=generator) * 0.6 / (1 << bits)).half()
    biases = (-scales * (1 << bits) * 0.45).half()
    fields = codes.view(rows, -1, 32 // bits) << torch.arange(0, 32, bits)
    words = fields.sum(-1).to(torch.uint32)
    wide = (each.float().repeat_interleave(group, 1) for each in (scales, biases))
    scale, bias = wide
    return {"weight": words, "scales": scales, "biases": biases}, codes * scale + bias


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def written(request, tmp_path_factory):
    """A directory with matrices of 4 bits, one of 8 and one that is left; and the model in transformers."""
    path = tmp_path_factory.mktemp("mlx")
    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "tie_word_embeddings": request.param}
    config = transformers.AutoConfig.for_model("llama", **TINY["llama"][1] | sizes | {"num_attention_heads": 4})
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    for name, module in model.named_modules():
        if not hasattr(module, "weight") or module.weight.dim() != 2 or name.endswith("v_proj"):
            continue
        if request.param and name == "lm_head":
            continue
        parts, values = coded(*module.weight.shape, 8 if name == DOWN else 4)
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
        module.weight.data = values
    save_file(tensors, path / "model.safetensors")
    own = {"group_size": 32, "bits": 4, DOWN: {"group_size": 32, "bits": 8}, "model.layers.0.self_attn.v_proj": False}
    said = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(said | {"quantization": own, "quantization_config": own}))
    return path, model


def test_matrices_are_those_that_were_written(written):
    path, model = written
    found = open_checkpoint(path)
    for name, parameter in model.named_parameters():
        assert torch.equal(found.read(name), parameter), name
    assert found.read_codes(f"{DOWN}.weight") is None and found.read_codes("model.embed_tokens.weight").bits == 4
    count = sum(f"{name.removesuffix('.weight')}.scales" in found.plain.shapes for name in found.shapes)
    assert f": 1 of its {count} matrices have codes of 8 bits with minimums" in found.dequantized
    assert read_config(found.config).embedding_bits == 5.0 and foreseen_config(path) == found.config


@pytest.mark.parametrize("program", ["eager", "native"])
def test_logits_are_those_of_transformers(written, program):
    """In floating point, law 1's bound; with the codes, activations are rounded to 8 bits for each product."""
    path, model = written
    with torch.no_grad():
        expected = model(torch.tensor([prompt(40)])).logits[0]
    plain = load(path, program=program, scheme="dense", dtype="float32", threads=1)
    torch.testing.assert_close(plain.logits(prompt(40)), expected, rtol=1e-4, atol=1e-4)
    kept = load(path, program=program, scheme="file", dtype="float32", threads=1)
    assert (kept.logits(prompt(40)) - expected).abs().max() <= 0.1 * expected.std()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (
            {"bits": 4, "group_size": 32, "mode": "nf4"},
            "mode = 'nf4' is not implemented: only 'affine', 'mxfp4', 'mxfp8'",
        ),
        ({"bits": 4, "group_size": 32, "mode": "nvfp4"}, "mode nvfp4 has 4 bits and groups of 16, not 4 and 32"),
        ({"bits": 7, "group_size": 32}, "bits = 7 is not implemented"),
        ({"bits": 4, "group_size": 48}, "group_size = 48 is not implemented"),
        ({"bits": 8, "group_size": 32, "mode": "mxfp4"}, "mode mxfp4 has 4 bits and groups of 32, not 8 and 32"),
        ({"bits": 4, "group_size": 32, DOWN: {"bits": 9}}, f"{DOWN}: bits = 9 is not implemented"),
        ({"bits": 4, "group_size": 32, DOWN: {"novel": 9}}, "has keys that tokenmill does not know: novel = 9"),
        ({"bits": 4, "group_size": 64}, "does not fit its config"),
        ({"bits": 4}, "has no 'group_size', which is required"),
    ],
    ids=str,
)
def test_settings_that_are_refused(written, tmp_path, own, message):
    path, _ = written
    config = {**json.loads((path / "config.json").read_text()), "quantization": own, "quantization_config": own}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").hardlink_to(path / "model.safetensors")
    with pytest.raises(CheckpointError) as raised:
        open_checkpoint(tmp_path)
    assert message in str(raised.value)


def test_modules_have_the_defaults_of_mlx_and_not_of_the_directory(tmp_path):
    """What a module's own settings leave out: mlx's to_quantized has mode "affine", 4 bits, groups of 64."""
    given = {
        "bits": 4,
        "group_size": 16,
        "mode": "nvfp4",
        "modules": {"a": {"bits": 8}, "b": {"mode": "mxfp8"}, "c": {}},
    }
    own = dict(MLX.read(given).others)
    assert [(own[name].mode, own[name].code_size, own[name].group) for name in "abc"] == [
        *(("affine", 8, 64), ("mxfp8", 8, 32), ("affine", 4, 64))
    ]


def test_a_mode_that_no_setting_names_is_told_by_the_tensors():
    """As mlx-lm 0.32's infer_quant_config tells it, where the scales have 8 bits."""
    layout = MLX.read({"bits": 4, "group_size": 64, "mode": "affine", "modules": {}})
    for mode, words, groups in (("nvfp4", 8, 4), ("mxfp4", 8, 2), ("mxfp8", 16, 2)):
        shapes = {"weight": (8, words), "scales": (8, groups)}
        found = layout.of(Parts("model.x.weight", shapes, {"weight": "uint32", "scales": "uint8"}, bytes))
        assert found.mode == mode and found.shape_of(shapes) == (8, 64)


def test_a_stack_of_experts_in_nvfp4_may_have_a_largest_number_for_each(tmp_path):
    kind = KINDS["MLX nvfp4 4 by 16 of the largest"]
    parts = {name.rpartition(".")[2]: tensor_of(*each) for name, each in kind["tensors"].items()}
    stack = {f"model.layers.0.mlp.switch_mlp.up_proj.{name}": torch.stack([each, each]) for name, each in parts.items()}
    stack["model.layers.0.mlp.switch_mlp.up_proj.global_scale"][1] *= 2
    save_file(stack, tmp_path / "model.safetensors")
    config = {"model_type": "qwen3_moe", "vocab_size": 8, "hidden_size": 64, "intermediate_size": 8, "num_experts": 2}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 1}
    plain = PlainCheckpoint(tmp_path, name_method(config | {"quantization": kind["quantization"]}, tmp_path), [
        tmp_path / "model.safetensors"
    ])  # fmt: skip
    name_tensors(plain)
    found = QuantizedCheckpoint(plain)
    first, second = (found.read(f"model.layers.0.mlp.experts.{number}.up_proj.weight") for number in (0, 1))
    row = tensor_of("float32", [64], kind["row"])
    assert torch.equal(first[0], row) and torch.equal(second, 2 * first)


@pytest.mark.parametrize("program", ["eager", "native"])
@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_stacks_of_experts(kind, program, tmp_path):
    """As mlx-lm names them: experts of a layer in one tensor, a router of 8 bits or of 4."""
    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_attention_heads": 4}
    sizes |= {} if kind == "mixtral" else {"moe_intermediate_size": WIDTH}
    config = transformers.AutoConfig.for_model(kind, **TINY[kind][1] | sizes | {"head_dim": 16})
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    tensors, block = dict(model.state_dict()), "block_sparse_moe" if kind == "mixtral" else "mlp"
    own = {"group_size": 32, "bits": 4, f"model.layers.1.{block}.gate": {"group_size": 32, "bits": 8}}
    own[f"model.layers.1.{block}.switch_mlp.down_proj"] = {"group_size": 32, "bits": 2}
    for layer, decoder in enumerate(model.model.layers):
        at, experts = f"model.layers.{layer}", decoder.mlp.experts
        parts, values = coded(5, HIDDEN, 8 if layer else 4)
        decoder.mlp.gate.weight.data = values
        del tensors[f"{at}.mlp.gate.weight"], tensors[f"{at}.mlp.experts.gate_up_proj"]
        del tensors[f"{at}.mlp.experts.down_proj"]
        tensors |= {f"{at}.{block}.gate.{part}": tensor for part, tensor in parts.items()}
        shapes = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}
        made = {}
        for matrix, (rows, columns) in shapes.items():
            bits = 2 if layer and matrix == "down_proj" else 4
            each = [coded(rows, columns, bits, seed=number) for number in range(5)]
            stack = {part: torch.stack([one[0][part] for one in each]) for part in ("weight", "scales", "biases")}
            tensors |= {f"{at}.{block}.switch_mlp.{matrix}.{part}": tensor for part, tensor in stack.items()}
            made[matrix] = torch.stack([one[1] for one in each])
        experts.gate_up_proj.data = torch.cat((made["gate_proj"], made["up_proj"]), 1)
        experts.down_proj.data = made["down_proj"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    model.config.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text()) | {"quantization": own, "quantization_config": own}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with torch.no_grad():
        expected = model(torch.tensor([prompt(40)])).logits[0]
    plain = load(tmp_path, program=program, scheme="dense", dtype="float32", threads=1)
    torch.testing.assert_close(plain.logits(prompt(40)), expected, rtol=1e-4, atol=1e-4)
    kept = load(tmp_path, program=program, scheme="file", dtype="float32", threads=1)
    errors = (kept.logits(prompt(40)) - expected).abs().amax(-1)
    assert errors.median() <= 0.1 * expected.std(), "where no other expert was chosen"


@pytest.mark.parametrize("program", ["eager", "native"])
def test_stacks_of_experts_of_gemma_4(program, tmp_path):
    """As mlx-lm names them: `experts.switch_glu`, beside a dense MLP."""
    kind, numbers = TINY["gemma4_text-experts"]
    config = transformers.AutoConfig.for_model(
        kind, **numbers | {"hidden_size": HIDDEN, "moe_intermediate_size": WIDTH}
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    tensors, settings = dict(model.state_dict()), {"group_size": 32, "bits": 4}
    del tensors["lm_head.weight"]
    for layer, decoder in enumerate(model.model.layers):
        at, experts, made = f"model.layers.{layer}.experts", decoder.experts, {}
        del tensors[f"{at}.gate_up_proj"], tensors[f"{at}.down_proj"]
        for matrix, shape in {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}.items():
            each = [coded(*shape, 4, seed=number) for number in range(5)]
            stack = {part: torch.stack([one[0][part] for one in each]) for part in ("weight", "scales", "biases")}
            tensors |= {f"{at}.switch_glu.{matrix}_proj.{part}": tensor for part, tensor in stack.items()}
            made[matrix] = torch.stack([one[1] for one in each])
        experts.gate_up_proj.data, experts.down_proj.data = torch.cat((made["gate"], made["up"]), 1), made["down"]
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    model.config.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text()) | {"quantization": settings}
    (tmp_path / "config.json").write_text(json.dumps(said))
    with torch.no_grad():
        expected = model(torch.tensor([prompt(40)])).logits[0]
    plain = load(tmp_path, program=program, scheme="dense", dtype="float32", threads=1)
    torch.testing.assert_close(plain.logits(prompt(40)), expected, rtol=1e-4, atol=1e-4)
