"""A key that one family's class reads, in a config of every other: it changes a model where it changes transformers'.

Each key is set to a value that no config of tests/tiny_models.py has. What is read of it may differ from what is read
without it only where transformers' model of the same weights gives other logits, or has other weights. A refusal is
right in any case: code beside a model may read what its class does not.
"""

import json
import logging
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.tiny_models import FAMILY_NAMES, TINY, auto_class, config_of, prompt
from tokenmill.errors import CheckpointError
from tokenmill.model.config import ModelConfig
from tokenmill.model.families import read_config

_WIDTH, _NUMBER = 24, 0.37
KEYS: dict[str, Any] = {
    **dict.fromkeys(
        """add_bias_linear alibi attention_bias attention_out_bias attn_bias attn_temperature_tuning bias is_decoder
        lm_head_bias mlp_bias mup norm_topk_prob parallel_attn post_norm qk_layernorm qkv_bias qkv_proj_bias
        reorder_and_upcast_attn rope_interleaved scale_attn_by_inverse_layer_idx tie_word_embeddings use_bias use_mup
        use_bidirectional_attention use_parallel_residual use_qk_norm use_qkv_bias use_sliding_window""".split(),
        True,
    ),
    **dict.fromkeys(("multi_query", "scale_attn_weights", "use_cache"), False),
    **dict.fromkeys(
        """attention_dropout attention_multiplier attn_logit_softcapping clip_qkv embedding_multiplier
        final_logit_softcapping initializer_range layer_norm_epsilon layer_norm_eps logit_scale logit_softcap
        logits_scaling norm_eps norm_epsilon residual_dropout residual_multiplier rms_norm_eps routed_scaling_factor
        swiglu_alpha swiglu_limit""".split(),
        _NUMBER,
    ),
    **dict.fromkeys(("rope_local_base_freq", "rope_theta", "rotary_emb_base"), 77.0),
    **dict.fromkeys(("activation_function", "hidden_act", "hidden_activation"), "relu"),
    **dict.fromkeys(
        """intermediate_size moe_intermediate_size n_inner shared_expert_intermediate_size
        shared_intermediate_size""".split(),
        _WIDTH,
    ),
    **dict.fromkeys(("attention_head_dim", "kv_channels", "num_experts", "num_local_experts", "rotary_dim"), 4),
    **dict.fromkeys(("num_key_value_heads", "sliding_window"), 3),
    **dict.fromkeys(
        ("decoder_sparse_step", "interpolate_factor", "moe_layer_interval", "n_group", "pretraining_tp"), 2
    ),
    **dict.fromkeys(
        """_sliding_window_pattern first_k_dense_replace max_window_layers moe_layer_start_index
        no_rope_layer_interval num_experts_per_tok sliding_window_pattern topk_group""".split(),
        1,
    ),
    "head_dim": 14,
    "mlp_only_layers": [0],
    "moe_layer_end_index": 0,
    "no_rope_layers": [0, 0, 0, 0],
    "norm_type": "layer",
    "original_max_position_embeddings": 16,
    "position_embedding_type": "nope",
    "query_pre_attn_scalar": 5,
    "rotary_pct": 0.5,
    "scoring_func": "softmax",
}
# The length of the prompt, or the weights that there are, do not show these.
UNSEEN = {
    "dots1": ("intermediate_size", "n_group"),  # of layers without experts, as in the next four; twice two groups
    "mellum": ("intermediate_size",),
    "qwen2_moe": ("intermediate_size",),
    "qwen3_moe": ("intermediate_size",),
    "qwen3_next": ("intermediate_size",),
    "mistral4": ("n_group",),
    "gpt_oss": ("original_max_position_embeddings",),  # of so few frequencies
}


def read(config: dict[str, Any]) -> ModelConfig | None:
    try:
        return read_config(config)
    except CheckpointError:
        return None


def made(config: dict[str, Any], is_drawn: bool = True) -> PreTrainedModel:
    theirs = CONFIG_MAPPING[config["model_type"]].from_dict(deepcopy(config))
    with torch.random.fork_rng():
        torch.manual_seed(20)
        model = auto_class(theirs).from_config(theirs, attn_implementation="eager").float().eval()
        for name, parameter in model.named_parameters() if is_drawn else ():
            is_norm = parameter.dim() == 1 and name.endswith("weight")
            torch.nn.init.normal_(parameter, mean=1.0 if is_norm else 0.0, std=0.15)
    return model


IDS = torch.tensor([prompt(10)])


def logits_of(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(IDS).logits
    return found


def changes(config: dict[str, Any], weights: dict[str, Tensor], logits: Tensor) -> bool | None:
    """Whether transformers' model is another one than that of these weights; None where it cannot be made, or run."""
    try:
        model = made(config, is_drawn=False)
        own = {name: weight.shape for name, weight in model.state_dict().items()}
        if own != {name: weight.shape for name, weight in weights.items()}:
            return True
        model.load_state_dict(weights)
        return not torch.allclose(logits_of(model), logits, atol=1e-5)
    except Exception:  # noqa: BLE001  (whatever goes wrong there)
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FAMILY_NAMES if "text_config" not in TINY[name][1]])
def test_a_key_of_another_family_changes_what_it_changes_in_transformers(name, caplog):
    caplog.set_level(logging.ERROR)
    config = json.loads(json.dumps(config_of(*TINY[name]).to_dict(), default=str))
    ours, theirs, found = read_config(config), made(config), []
    weights, logits = theirs.state_dict(), logits_of(theirs)
    for key, value in KEYS.items():
        changed = config | {key: value}
        mine = read(changed)
        if mine is not None and key not in UNSEEN.get(name, ()):
            theirs_changes = changes(changed, weights, logits)
            if theirs_changes is not None and theirs_changes != (mine != ours):
                found.append(f"{key} = {value} changes {'transformers' if theirs_changes else 'tokenmill'} alone")
    assert found == []
