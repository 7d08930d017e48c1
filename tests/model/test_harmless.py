"""Keys of a config.json that change nothing: by name, or by name and value."""

import pytest

from tokenmill.model.harmless import is_harmless


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("architectures", ["X"]),
        ("use_cache", False),
        ("unknown", None),
        ("use_mrope", None),
        ("use_mrope", False),
        ("pretraining_tp", 2),
        ("scale_attn_weights", True),
        ("is_causal", True),
        ("is_decoder", False),
        ("is_decoder", True),
        ("embedding_multiplier", 1),
        ("embedding_multiplier", 1.0),
        ("logits_scaling", 1),
        ("residual_multiplier", 1),
        ("num_nextn_predict_layers", 0),
        ("pruned_heads", {}),
        ("pruned_heads", []),
        ("layer_types", []),
        ("layer_types", ["full_attention", "full_attention"]),
        *((f"{key}", False) for key in ("add_cross_attention", "is_encoder_decoder", "mup", "qk_layernorm", "qk_norm")),
        *((f"{key}", False) for key in ("use_dynamic_ntk", "use_logn_attn", "use_qk_norm", "use_sliding_window")),
    ],
)
def test_what_changes_nothing(key, value):
    assert is_harmless(key, {key: value}) is True


def test_a_second_name_says_the_same():
    both = {"sliding_window": 4096, "sliding_window_size": 4096}
    assert is_harmless("sliding_window_size", both)
    assert not is_harmless("sliding_window_size", {**both, "sliding_window": 512})
    assert not is_harmless("sliding_window_size", {"sliding_window_size": 4096})
    assert not is_harmless("sliding_window_size", {"sliding_window": 1, "sliding_window_size": True})
    assert is_harmless("rms_norm_eps", {"norm_epsilon": 1e-5, "rms_norm_eps": 1e-05})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown", False),
        ("unknown", 0),
        ("use_mrope", True),
        ("use_mrope", 0),
        ("is_causal", False),
        ("is_causal", 1),
        ("is_decoder", 1),
        ("is_decoder", 0),
        ("embedding_multiplier", True),
        ("embedding_multiplier", 2),
        ("logits_scaling", 2),
        ("residual_multiplier", 2),
        ("num_nextn_predict_layers", 1),
        ("num_nextn_predict_layers", False),
        ("cross_attention_hidden_size", 0),
        ("pruned_heads", {"0": [1]}),
        ("layer_types", ["full_attention", "sliding_attention"]),
        ("layer_types", "full_attention"),
        *((f"{key}", True) for key in ("add_cross_attention", "is_encoder_decoder", "mup", "qk_layernorm", "qk_norm")),
        *((f"{key}", True) for key in ("use_dynamic_ntk", "use_logn_attn", "use_qk_norm", "use_sliding_window")),
    ],
)
def test_what_may_change_something(key, value):
    assert is_harmless(key, {key: value}) is False
