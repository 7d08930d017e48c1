"""Keys of GGUF files that change nothing, by value, and descriptions that are not known."""

import math

import pytest

from tokenmill.weights.gguf.neutral import is_neutral, warn_of_unknown

MINUS_ONE = (1 << 32) - 1  # as an unsigned number


def neutral(key: str, value: object, **others: object) -> bool:
    found = is_neutral(key, {f"llama.{key}": value} | {f"llama.{name}": each for name, each in others.items()}, "llama")
    assert isinstance(found, bool)
    return found


@pytest.mark.parametrize("value", [0, 0.0, False, [], [0, 0], [False]], ids=str)
def test_what_is_off(value):
    assert neutral("expert_shared_count", value)
    assert not neutral("an_unknown_key", value)


@pytest.mark.parametrize("value", [1, 0.5, True, "", "x", [1, 1], [0, 1], [1, 0]], ids=str)
def test_what_is_not_off(value):
    assert not neutral("expert_shared_count", value)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("num_loops", 1, True),
        ("num_loops", [1, 1], True),
        ("num_loops", [1, 2], False),
        ("num_loops", 2, False),
        ("num_loops", True, False),
        ("attention.indexer.kpool_select_tail", True, True),
        ("attention.indexer.kpool_select_tail", 1, False),
        ("attention.indexer.kpool_select_tail", False, False),
        ("attn_logit_softcapping", 50.0, True),
        ("attn_logit_softcapping", 50.0 * (1 + 5e-7), True),
        ("attn_logit_softcapping", 50.001, False),
        ("attn_logit_softcapping", 0.0, True),
        ("attn_logit_softcapping", "50", False),
        ("final_logit_softcapping", 30.0, True),
        ("router_logit_softcapping", 30.0, True),
        ("activation.situ_beta", 1.0, True),
        ("attention.rope_pattern", 1, True),
        ("decoder_start_token_id", -1, True),
        ("decoder_start_token_id", MINUS_ONE, True),
        ("decoder_start_token_id", 0, False),
        ("deepstack_mapping", [-1, -1, -1], True),
        ("deepstack_mapping", [-1, 0, -1], False),
        ("embedding_scale", 1.0, True),
        ("expert_group_scale", 0.05, True),
        ("kda.gate_lower_bound", -math.inf, True),
        ("logit_scale", 1.0, True),
        ("logit_scale", 0.5, False),
        ("pooling_type", MINUS_ONE, True),
        ("pooling_type", 1, False),
        ("residual_scale", 1.0, True),
        ("rope.scaling.attn_factor", 1.0, True),
        ("token_shift_count", 2, True),
        ("token_shift_count", 0, False),
    ],
    ids=str,
)
def test_values_that_stand_for_nothing(key, value, wanted):
    assert neutral(key, value) == wanted


@pytest.mark.parametrize(
    ("key", "full"),
    [
        ("attention.key_length_swa", "attention.key_length"),
        ("attention.value_length_swa", "attention.value_length"),
        ("rope.dimension_count_swa", "rope.dimension_count"),
        ("rope.freq_base_swa", "rope.freq_base"),
    ],
)
def test_layers_with_a_window_are_as_the_others(key, full):
    assert neutral(key, 64, **{full: 64})
    assert not neutral(key, 32, **{full: 64})
    assert neutral(key, 10000.0) == (full == "rope.freq_base")
    assert neutral(key, 10000.0, **{full: 500000.0}) == (full == "rope.freq_base")


KNOWN = """architecture type alignment quantization_version file_type sampling.top_k tensor_extra.x name author version
organization description url doi uuid repo_url finetune basename quantized_by size_label tags languages datasets license
license.name license.link source.url source.doi source.uuid source.repo_url source.huggingface.repository
base_model.count base_model.0.name base_model.12.repo_url dataset.count dataset.0.author""".split()


def warned(*keys: str) -> list[str]:
    said: list[str] = []
    values = dict.fromkeys(keys, "x")
    warn_of_unknown("x.gguf", values, lambda text, *given: said.append(text % given))
    return said


def test_descriptions_that_are_known():
    assert warned(*(f"general.{key}" for key in KNOWN), "llama.novel", "tokenizer.novel") == []


@pytest.mark.parametrize("key", ["novel", "names", "license.novel", "base_model.x.name", "base_model.0", "source.name"])
def test_a_description_that_is_not_known_is_named(key):
    told = f"x.gguf: keys that tokenmill does not know are ignored: general.{key} = 'x'"
    assert warned(f"general.{key}", "general.name") == [told]


def test_the_first_twenty_are_named_in_order():
    (told,) = warned(*(f"general.novel{number:02}" for number in reversed(range(25))))
    assert told.endswith(", ".join(f"general.novel{number:02} = 'x'" for number in range(20)))
