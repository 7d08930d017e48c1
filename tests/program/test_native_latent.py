"""Latent attention and Kimi delta attention in program native, with heads that are wider than all else."""

import pytest
import torch

from tests.marks import needs_native
from tests.tiny_models import TINY, build, prompt
from tokenmill import load

pytestmark = needs_native

TEXT = prompt(40)


@pytest.mark.parametrize(
    ("name", "widths"),
    [
        ("deepseek_v3", {"kv_lora_rank": 65}),
        ("deepseek_v3", {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}),
        ("deepseek_v3", {"kv_lora_rank": 8, "qk_nope_head_dim": 90}),
        ("youtu", {"kv_lora_rank": 8, "qk_nope_head_dim": 400}),
        ("youtu", {"kv_lora_rank": 8, "qk_nope_head_dim": 2000}),
        ("kimi_linear", {"linear_num_heads": 2, "linear_head_dim": 49}),
    ],
    ids=str,
)
def test_heads_that_are_wider_than_the_model(name, widths, tmp_path):
    """As directories have them that a test made small in all other widths."""
    kind, settings = TINY[name]
    build(kind, settings | widths).save_pretrained(tmp_path)
    native, eager = (load(tmp_path, program=program, dtype="float32") for program in ("native", "eager"))
    logits = native.logits(TEXT)
    assert torch.allclose(logits, eager.logits(TEXT), rtol=0, atol=1e-4)
    assert torch.equal(native.logits(TEXT[:3]), logits[:3])  # a small step, which has buffers of its own
