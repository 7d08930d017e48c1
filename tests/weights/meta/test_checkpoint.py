"""Directories in Meta's and in Mistral's own layout: the logits are those of transformers, with rows of q and k turned
as its conversion (convert_llama_weights_to_hf.py) turns them.
"""

import json
import os
import shutil

import pytest
import torch
import transformers
from safetensors.torch import save_file

from tests.tiny_models import prompt
from tokenmill import load
from tokenmill.errors import CheckpointError
from tokenmill.model.families import read_config
from tokenmill.weights.checkpoint import foreseen_config, open_checkpoint
from tokenmill.weights.fingerprint import fingerprint

DIM, HEADS, KV_HEADS, WIDTH, VOCABULARY = 48, 6, 2, 80, 211
PARAMS = {"dim": DIM, "n_layers": 2, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "vocab_size": -1, "norm_eps": 1e-5}
PARAMS |= {"multiple_of": 16, "ffn_dim_multiplier": 0.6, "max_batch_size": 32}  # 0.6 of 128, rounded up: 80
COLUMNS = ("wo.weight", "w2.weight")


def original(params: dict, experts: int = 0, dtype=torch.float32) -> dict[str, torch.Tensor]:
    """Random tensors under Meta's names."""
    generator = torch.Generator().manual_seed(7)

    def numbers(*shape: int) -> torch.Tensor:
        mean = 1.0 if len(shape) == 1 else 0.0
        return (mean + 0.15 * torch.randn(*shape, generator=generator)).to(dtype)

    size = params.get("head_dim", DIM // HEADS)
    tensors = {"tok_embeddings.weight": numbers(VOCABULARY, DIM), "norm.weight": numbers(DIM)}
    tensors |= {"output.weight": numbers(VOCABULARY, DIM)}
    for layer in range(2):
        rows = {"wq": HEADS * size, "wk": KV_HEADS * size, "wv": KV_HEADS * size}
        parts = {f"attention.{name}": numbers(count, DIM) for name, count in rows.items()}
        parts |= {"attention.wo": numbers(DIM, HEADS * size), "attention_norm": numbers(DIM), "ffn_norm": numbers(DIM)}
        for base in [f"experts.{number}." for number in range(experts)] or [""]:
            shapes = {"w1": (WIDTH, DIM), "w2": (DIM, WIDTH), "w3": (WIDTH, DIM)}
            parts |= {f"feed_forward.{base}{name}": numbers(*shape) for name, shape in shapes.items()}
        if experts:
            parts["feed_forward.gate"] = numbers(experts, DIM)
        tensors |= {f"layers.{layer}.{name}.weight": tensor for name, tensor in parts.items()}
    return tensors


def turned(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """`permute` of transformers' conversion."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def reference(kind: str, tensors: dict[str, torch.Tensor], **numbers) -> transformers.PreTrainedModel:
    """transformers' model of these tensors, as its conversion names them."""
    sizes = {"hidden_size": DIM, "intermediate_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    sizes |= {"num_key_value_heads": KV_HEADS, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5, **numbers}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    state = {"model.embed_tokens.weight": tensors["tok_embeddings.weight"], "model.norm.weight": tensors["norm.weight"]}
    state["lm_head.weight"] = tensors["output.weight"]
    for layer in range(2):
        at, to = f"layers.{layer}.", f"model.layers.{layer}."
        for part, name in (("wq", "q"), ("wk", "k"), ("wv", "v"), ("wo", "o")):
            weight, heads = tensors[f"{at}attention.{part}.weight"], {"q": HEADS, "k": KV_HEADS}.get(name)
            state[f"{to}self_attn.{name}_proj.weight"] = weight if heads is None else turned(weight, heads)
        for part, name in (("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")):
            state[f"{to}{name}.weight"] = tensors[f"{at}{part}.weight"]
        matrices = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
        if kind != "mixtral":
            for part, name in matrices.items():
                state[f"{to}mlp.{name}.weight"] = tensors[f"{at}feed_forward.{part}.weight"]
            continue
        each = [{part: tensors[f"{at}feed_forward.experts.{i}.{part}.weight"] for part in matrices} for i in range(3)]
        state[f"{to}mlp.gate.weight"] = tensors[f"{at}feed_forward.gate.weight"]
        state[f"{to}mlp.experts.gate_up_proj"] = torch.stack([torch.cat((one["w1"], one["w3"])) for one in each])
        state[f"{to}mlp.experts.down_proj"] = torch.stack([one["w2"] for one in each])
    model.load_state_dict(state)
    return model


def written(path, params, tensors, shards=1, columns_of_table=True, legacy=False):
    """Files of torch.save, each with its slices of the matrices."""
    path.mkdir(exist_ok=True)
    (path / "params.json").write_text(json.dumps(params))
    for shard in range(shards):
        part = {}
        for name, tensor in tensors.items():
            dim = 1 if name.endswith(COLUMNS) or (name == "tok_embeddings.weight" and columns_of_table) else 0
            part[name] = tensor if tensor.dim() == 1 else tensor.chunk(shards, dim)[shard].clone()
        part["rope.freqs"] = torch.ones(4)
        file = path / f"consolidated.{shard:02}.pth"
        torch.save(part, file, _use_new_zipfile_serialization=not legacy)
    return path


def logits_of(model: transformers.PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([prompt(40)])).logits[0]


def check(path, expected: torch.Tensor, programs=("eager", "native")) -> None:
    for program in programs:
        found = load(path, program=program, scheme="dense", dtype="float32", threads=1).logits(prompt(40))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("shards", "legacy"), [(1, False), (1, True), (2, False), (2, True)])
def test_logits_are_those_of_transformers(shards, legacy, tmp_path):
    tensors = original(PARAMS)
    path = written(tmp_path / "m", PARAMS, tensors, shards, legacy=legacy)
    model = reference("llama", tensors)
    check(path, logits_of(model), ("eager", "native") if shards == 2 and not legacy else ("eager",))
    found = open_checkpoint(path)
    weight = model.model.layers[1].self_attn.k_proj.weight
    assert torch.equal(found.read("model.layers.1.self_attn.k_proj.weight", rows=range(3, 7)), weight[3:7])
    down = model.model.layers[1].mlp.down_proj.weight
    assert torch.equal(found.read("model.layers.1.mlp.down_proj.weight", rows=range(3, 7)), down[3:7])
    assert found.read_codes("lm_head.weight") is None and found.tokenizer() is None
    assert foreseen_config(path) == found.config and read_config(found.config).context == 4096


def test_llama_3s_embedding_is_sliced_by_rows_and_its_rope_scaled(tmp_path):
    params = {**PARAMS, "rope_theta": 500000.0, "use_scaled_rope": True, "vocab_size": VOCABULARY}
    tensors = original(params)
    path = written(tmp_path / "m", params, tensors, 2, columns_of_table=False)
    scaling = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    model = reference("llama", tensors, rope_parameters=scaling, max_position_embeddings=131072)
    engine = load(path, program="eager", dtype="float32", threads=1, max_length=64)
    torch.testing.assert_close(engine.logits(prompt(40)), logits_of(model), rtol=1e-4, atol=1e-4)
    config = open_checkpoint(path).config
    assert config["max_position_embeddings"] == 131072 and config["rope_scaling"]["factor"] == 32.0


@pytest.mark.parametrize("experts", [0, 3])
def test_mistrals_own_layout(experts, tmp_path):
    params = {"dim": DIM, "n_layers": 2, "head_dim": 12, "hidden_dim": WIDTH, "n_heads": HEADS, "n_kv_heads": KV_HEADS}
    params |= {"norm_eps": 1e-5, "vocab_size": VOCABULARY, "rope_theta": 1e6}
    params |= {"moe": {"num_experts_per_tok": 2, "num_experts": 3}} if experts else {"sliding_window": 5}
    tensors = original(params, experts)
    (tmp_path / "params.json").write_text(json.dumps(params))
    save_file(tensors, tmp_path / "consolidated.safetensors")
    rope = {"rope_type": "default", "rope_theta": 1e6}
    more = (
        {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None} if experts else {"sliding_window": 5}
    )
    model = reference("mixtral" if experts else "mistral", tensors, head_dim=12, rope_parameters=rope, **more)
    check(tmp_path, logits_of(model))


def test_a_head_that_is_the_embedding(tmp_path):
    tensors = original(PARAMS)
    del tensors["output.weight"]
    assert read_config(open_checkpoint(written(tmp_path / "none", PARAMS, tensors)).config).tie_embeddings
    params = {**PARAMS, "use_scaled_rope": True}  # Llama 3.2, whose files have it twice
    twice = written(tmp_path / "twice", params, tensors | {"output.weight": tensors["tok_embeddings.weight"]})
    found = open_checkpoint(twice)
    assert "lm_head.weight" not in found.shapes and read_config(found.config).tie_embeddings


def test_the_digest_is_of_all_files(tmp_path):
    path = written(tmp_path / "m", PARAMS, original(PARAMS), 2)
    before = fingerprint(path)
    (path / "params.json").write_text(json.dumps(PARAMS | {"norm_eps": 1e-6}))
    torch.save({"x": torch.ones(1)}, path / "consolidated.01.pth")
    after = fingerprint(path)
    assert before["config"] != after["config"] and before["weights"] != after["weights"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"n_heads": 7}, "n_heads = 7 is not allowed: a divisor of dim = 48"),
        ({"vocab_size": 7}, "vocab_size = 7 is not implemented: only 211, -1"),
        (
            {"vision_encoder": {}},
            "keys that tokenmill does not know: ['vision_encoder']: give the same model in Hugging",
        ),
        ({"use_biases": True}, "use_biases = True is not implemented: only False"),
        ({"dim": "48"}, "dim = '48' is not allowed"),
        ({"norm_eps": None}, "has no 'norm_eps', which is required"),
        ({"moe": 3}, "params.json: moe must be an object"),
        ({"ffn_dim_multiplier": 5}, "does not fit its config"),
        ({"model": 5}, "does not know: ['model']"),
    ],
    ids=str,
)
def test_params_that_are_refused(params, message, tmp_path):
    path = written(tmp_path / "m", PARAMS | params, original(PARAMS))
    with pytest.raises(CheckpointError) as raised:
        load(path, threads=1)
    assert message in str(raised.value) and str(path) in str(raised.value)


def test_files_that_are_refused(tmp_path):
    tensors = original(PARAMS)
    path = written(tmp_path / "m", PARAMS, tensors, 2)
    with pytest.raises(
        CheckpointError, match=r"no Llama, Mistral or Mixtral in its own layout has.* 1 unexpected: vision.x"
    ):
        open_checkpoint(written(tmp_path / "more", PARAMS, tensors | {"vision.x": torch.ones(2, 2)}))
    part = torch.load(path / "consolidated.01.pth")
    torch.save({name: each for name, each in part.items() if "wq" not in name}, path / "consolidated.01.pth")
    with pytest.raises(CheckpointError, match=r"is incomplete: layers\.0\.attention\.wq\.weight is in 1 of 2 files"):
        open_checkpoint(path)
    torch.save(part | {"norm.weight": torch.ones(3)}, path / "consolidated.01.pth")
    with pytest.raises(CheckpointError, match=r"the slices of norm.weight have the shapes .*, which do not fit"):
        open_checkpoint(path)
    (path / "consolidated.01.pth").unlink()
    with pytest.raises(CheckpointError, match="does not fit its config"):
        load(path, threads=1)
    (path / "consolidated.00.pth").write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"consolidated.00.pth is damaged, or holds more than tensors"):
        open_checkpoint(path)
    shutil.rmtree(path)
    written(path, PARAMS, {name: each for name, each in tensors.items() if "tok" not in name})
    with pytest.raises(CheckpointError, match=r"holds no tok_embeddings\.weight"):
        open_checkpoint(path)


def test_codes_without_their_scales_are_refused(tmp_path):
    """Meta's Llama 3.1 405B has fp8 there, and the scales in fp8_scales_*.pt, which nothing here reads."""
    tensors = original(PARAMS)
    for dtype in (torch.float8_e4m3fn, torch.int8):
        coded = {"layers.1.feed_forward.w1.weight": tensors["layers.1.feed_forward.w1.weight"].to(dtype)}
        path = written(tmp_path / str(dtype), PARAMS, tensors | coded)
        with pytest.raises(CheckpointError, match=r"holds codes, whose scales are not read: .*layers\.1\.mlp\.gate_pr"):
            open_checkpoint(path)


def test_only_files_are_opened(tmp_path):
    """A pipe of that name would be waited for, and a folder is no file."""
    path = written(tmp_path / "m", PARAMS, original(PARAMS))
    os.mkfifo(path / "consolidated.01.pth")
    (path / "consolidated.02.pth").mkdir()
    assert open_checkpoint(path).shapes["model.norm.weight"] == (DIM,)
    (path / "consolidated.00.pth").unlink()
    with pytest.raises(CheckpointError, match=r"but no consolidated\.\* beside it"):
        open_checkpoint(path)
