"""Law 1 for adapters (LoRA): every family with an adapter equals PEFT on the same tiny model, in float32."""

from functools import cache

import pytest
import torch

from tests.marks import crossed, needs_native
from tests.peft_adapters import logits_of, save_adapter
from tests.tiny_models import FAMILY_NAMES, prompt, save
from tokenmill import load

TOKENS = [7, 3, 11, 5, 2, 9, *prompt(17)]
LONGER = prompt(50, seed=3)  # less than a chunk of transformers' delta nets


def check(found: torch.Tensor, expected: torch.Tensor, base: torch.Tensor, bound: float) -> None:
    largest = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0.0, atol=bound * largest)
    assert float((found - base).abs().max()) > 0.05 * largest, "the adapter changes the logits"


@pytest.fixture(scope="module")
def adapter_of(tmp_path_factory):
    """Gives the folder of an adapter, and PEFT's logits: made once for both programs."""

    @cache
    def made(name, texts, kind=None):
        folder = tmp_path_factory.mktemp("adapter")
        peft = save_adapter(name, folder, **({} if kind is None else KINDS[kind][1]))
        return folder, [logits_of(peft, list(tokens)) for tokens in texts]

    return lambda name, texts, kind=None: made(name, tuple(map(tuple, texts)), kind)


@pytest.mark.parametrize(("name", "program"), crossed(FAMILY_NAMES, ("eager", "native"), ("eager", "native")))
def test_every_family_equals_peft(name, program, models, adapter_of):
    """The bound is 1e-5 of the largest logit, and law 1's for layers whose sums transformers takes in another order."""
    folder, wanted = adapter_of(name, (TOKENS, LONGER))
    engine = load(save(name, models), dtype="float32", program=program, scheme="dense", block_size=16)
    bases = [engine.logits(tokens) for tokens in (TOKENS, LONGER)]
    engine.load_adapter("a", folder)
    for tokens, expected, base in zip((TOKENS, LONGER), wanted, bases, strict=True):
        check(
            engine.logits(tokens, adapter="a"),
            expected,
            base,
            1e-5 if program == "eager" and "qwen3" not in name else 2e-4,
        )
        assert torch.equal(engine.logits(tokens), base), "the model alone has its bits"


EXPERTS = ["mlp.experts.down_proj", "mlp.experts.gate_up_proj"]
KINDS = {
    "rslora": ("llama", {"use_rslora": True, "r": 3}),
    "patterns": ("llama", {
        "rank_pattern": {"q_proj": 2, "^model.layers.1.self_attn.v_proj": 7}, "alpha_pattern": {"k_proj": 3.5},
        "target_modules": ["q_proj", "k_proj", "v_proj"]}),
    "dora": ("llama", {"use_dora": True}),
    "dora with a bias": ("qwen2", {"use_dora": True}),
    "dora, transposed": ("gpt2", {"use_dora": True, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "lora_bias": ("qwen2", {"lora_bias": True, "target_modules": ["q_proj", "up_proj"]}),
    "bias all": ("qwen2", {"bias": "all", "target_modules": ["q_proj"]}),
    "bias lora_only": ("gpt2", {"bias": "lora_only", "target_modules": ["c_attn", "c_fc"]}),
    "layers_to_transform": ("llama", {"layers_to_transform": [1], "target_modules": ["q_proj"]}),
    "regular expression": ("llama", {"target_modules": r".*layers\.\d+\.(self_attn|mlp)\.(q|up)_proj"}),
    "saved head": ("llama", {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}),
    "saved embedding": ("llama", {"modules_to_save": ["embed_tokens"], "target_modules": ["q_proj"]}),
    "saved matrix": ("llama", {"modules_to_save": ["up_proj"], "target_modules": ["q_proj"]}),
    **{f"norms of {name}": (name, {"modules_to_save": saved, "target_modules": target}) for name, saved, target in (
        ("llama", ["input_layernorm", "post_attention_layernorm", "norm"], ["q_proj"]),
        ("gpt2", ["ln_1", "ln_2", "ln_f"], ["c_attn"]),  # with biases
        ("gemma3_text", ["input_layernorm", "post_feedforward_layernorm", "q_norm"], ["q_proj"]),  # 1 + weight
        ("qwen3", ["q_norm", "k_norm", "norm"], ["q_proj"]),
        ("olmo2", ["q_norm", "post_attention_layernorm"], ["q_proj"]),  # over all heads
        ("cohere", ["input_layernorm", "norm"], ["q_proj"]),
        ("deepseek_v3", ["q_a_layernorm", "kv_a_layernorm"], ["o_proj"]),
        ("qwen3_5_text", ["linear_attn.norm", "input_layernorm"], ["o_proj"]),
        ("bamba", ["mamba.norm", "final_layernorm"], ["o_proj"]),
        ("gemma3n_text", ["router_norm", "post_laurel_norm", "per_layer_projection_norm"], ["q_proj"]),
    )},
    "embedding": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "head": ("llama", {"target_modules": ["lm_head", "q_proj"]}),
    "dora of the embedding": ("llama", {"target_modules": ["embed_tokens", "q_proj"], "use_dora": True}),
    "tied, the embedding alone": ("qwen3", {"target_modules": ["embed_tokens", "q_proj"]}),
    "tied, the head alone": ("qwen3", {"target_modules": ["lm_head", "q_proj"]}),
    "tied, saved": ("gemma3_text", {"modules_to_save": ["embed_tokens"], "target_modules": ["q_proj"]}),
    "tied, both": ("gemma3_text", {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True}),
    "tokens": ("llama", {"trainable_token_indices": [7, 3, 11], "target_modules": ["q_proj"]}),
    "tied tokens": ("gemma3_text", {"trainable_token_indices": [7, 3, 11], "target_modules": ["q_proj"]}),
    "tokens of both": ("llama", {
        "trainable_token_indices": {"embed_tokens": [5, 2], "lm_head": [9]}, "target_modules": ["q_proj"]}),
    "experts": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "experts' second matrix": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": EXPERTS[:1]}),
    "experts' first matrix": ("qwen3_moe", {
        "target_modules": ["q_proj"], "target_parameters": EXPERTS[1:], "use_rslora": True}),
    "experts, interleaved": ("gpt_oss", {"target_modules": ["q_proj"], "target_parameters": EXPERTS}),
    "experts by their old names": ("mixtral", {"target_modules": ["w1", "w2", "w3"]}),
    "router": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": ["gate.weight"]}),
    "router, patterns": ("mixtral", {
        "target_modules": ["q_proj"], "target_parameters": ["gate.weight"],
        "alpha_pattern": {"mlp.gate": 3, "gate.weight": 64}}),
    "parameter, patterns": ("llama", {
        "target_modules": ["v_proj"], "target_parameters": ["q_proj.weight"],
        "alpha_pattern": {"q_proj": 3, "q_proj.weight": 64}, "rank_pattern": {"q_proj": 2, "q_proj.weight": 3}}),
}  # fmt: skip


@needs_native
@pytest.mark.parametrize("program", ["eager", "native"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_change_equals_peft(kind, program, models, engine_of, adapter_of):
    """One after another in one engine, each under its own name."""
    name, _ = KINDS[kind]
    folder, (expected,) = adapter_of(name, (TOKENS,), kind)
    engine = engine_of(save(name, models), dtype="float32", program=program, scheme="dense")
    base = engine.logits(TOKENS)
    engine.load_adapter(kind, folder)
    check(engine.logits(TOKENS, adapter=kind), expected, base, 1e-5 if program == "eager" else 1e-4)
    assert torch.equal(engine.logits(TOKENS), base)
    engine.unload_adapter(kind)
