"""Layouts of codes: the shapes that the descriptions of GPTQ and AWQ give, and what their settings may say."""

import re

import pytest

from tokenmill.errors import CheckpointError
from tokenmill.weights.codes.awq import AWQ
from tokenmill.weights.codes.checkpoint import describe_codes
from tokenmill.weights.codes.gptq import GPTQ
from tokenmill.weights.codes.layout import Layout
from tokenmill.weights.codes.own import Own


@pytest.mark.parametrize(
    ("layout", "minimums", "shapes"),
    [
        (Own(8, 64), False, {"codes": (16, 160), "scales": (16, 3)}),
        (Own(4, 64), True, {"codes": (16, 80), "scales": (16, 3), "minimums": (16, 3)}),
        (Own(4, 0), True, {"codes": (16, 80), "scales": (16, 1), "minimums": (16, 1)}),
        (GPTQ(4, 32), False, {"qweight": (20, 16), "qzeros": (5, 2), "scales": (5, 16), "g_idx": (160,)}),
        (GPTQ(8, 128), False, {"qweight": (40, 16), "qzeros": (2, 4), "scales": (2, 16), "g_idx": (160,)}),
        (GPTQ(4, 0), False, {"qweight": (20, 16), "qzeros": (1, 2), "scales": (1, 16), "g_idx": (160,)}),
        (AWQ(4, 64), False, {"qweight": (160, 2), "qzeros": (3, 2), "scales": (3, 16)}),
    ],
    ids=str,
)
def test_the_parts_of_16_rows_of_160(layout, minimums, shapes):
    assert layout.part_shapes(16, 160, minimums) == shapes
    assert layout.shape_of(shapes) == (16, 160)
    assert set(shapes) <= set(layout.parts) and layout.parts[0] == next(iter(shapes))


def test_groups_and_fields():
    assert [Own(8, group).num_groups(160) for group in (32, 64, 160, 256, 0)] == [5, 3, 1, 1, 1]
    assert [AWQ(bits, 32).fields for bits in (4, 8)] == [8, 4]


def test_a_layout_of_no_method_says_nothing():
    for make in (lambda: Layout(4, 32).shape_of({}), lambda: Layout(4, 32).part_shapes(1, 1, False)):
        with pytest.raises(NotImplementedError):
            make()


def said(method: str, **settings) -> dict:
    given = {"quant_method": method, "bits": 4, "group_size": 32} | ({"version": 1} if method == "tokenmill" else {})
    return {"quantization_config": {key: value for key, value in (given | settings).items() if value is not ...}}


@pytest.mark.parametrize(
    ("config", "bits"),
    [
        (said("tokenmill"), 5.0),
        (said("tokenmill", bits=8, group_size=256), 8.5),
        (said("gptq", bits=8), 8.5),
        (said("awq", version="GEMM", zero_point=True, format="gemm", act_bits=32, group_size=-1), 5.0),
        (said("gptq", desc_act=True, sym=False, data_type="int", pack_dtype="int32", act_bits=16), 5.0),
        (said("gptq", desc_act=None, meta={}, novel=None, checkpoint_format="GPTQ_V2"), 5.0),
    ],
    ids=str,
)
def test_settings_that_are_understood(config, bits):
    assert describe_codes(config) == config | {"stored_as_codes": bits, "stored_as_compact_codes": bits}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (said("tokenmill", version=...), "quantization_config of tokenmill has no 'version', which is required"),
        (said("tokenmill", version=2), "quantization_config of tokenmill: version = 2 is not implemented: only 1"),
        (said("tokenmill", group_size=-1), "tokenmill: group_size = -1 is not implemented: only 32, 64, 128, 256"),
        (said("tokenmill", bits=5), "tokenmill: bits = 5 is not implemented: only 4, 8"),
        (said("gptq", group_size=0), "gptq: group_size = 0 is not allowed: a whole number from 1 to 16777216"),
        (said("gptq", group_size=-2), "gptq: group_size = -2 is not allowed: a whole number from 1 to 16777216"),
        (said("gptq", group_size=...), "gptq has no 'group_size', which is required"),
        (said("gptq", act_bits=8), "gptq: act_bits = 8 is not implemented: only 16, 32"),
        (said("gptq", is_marlin_format=True), "is_marlin_format = True is not implemented: only False"),
        (said("gptq", desc_act=1), "gptq: desc_act = 1 is not implemented: only False, True"),
        (said("gptq", data_type="fp"), "gptq: data_type = 'fp' is not implemented: only 'int'"),
        (said("gptq", format="marlin"), "gptq: format = 'marlin' is not implemented: only 'gptq', 'gptq_v2'"),
        (said("gptq", novel=1), "quantization_config of gptq has keys that tokenmill does not know: novel = 1"),
        (said("awq", bits=8), "awq: bits = 8 is not implemented: only 4"),
        (said("awq", zero_point=1), "awq: zero_point = 1 is not implemented: only True, False"),
        (
            said("awq", desc_act=True),
            "quantization_config of awq: desc_act = True is not implemented: only False",
        ),
        (said("gptq", bits=5), "gptq: bits = 5 is not implemented: only 2, 3, 4, 8"),
        (said("gptq", bits=...), "gptq has no 'bits', which is required"),
        (said("gptq", group_size=True), "gptq: group_size = True is not allowed"),
        (said("gptq", checkpoint_format="marlin"), "checkpoint_format = 'marlin' is not implemented"),
        (said("gptq", pack_dtype="int16"), "pack_dtype = 'int16' is not implemented"),
        (
            said("awq", version="marlin"),
            "awq: version = 'marlin' is not implemented: only 'gemm', 'gemv', 'gemv_fast', 'llm-awq'",
        ),
        (said("gptq", quant_method=None), "quant_method None is not implemented"),
        (said("novel"), "quant_method 'novel' is not implemented: only tokenmill, gptq, awq"),
        (
            said("exl2"),
            "quant_method 'exl2' (ExLlamaV2's codes) is not implemented: give the model that it was made of, or",
        ),
    ],
)
def test_settings_that_are_refused(config, message):
    with pytest.raises(CheckpointError, match=re.escape(message)):
        describe_codes(config)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_what_stays_in_float16_counts_as_bfloat16(key):
    for given, wanted in (("float16", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32")):
        assert describe_codes(said("gptq") | {key: given})[key] == wanted
    plain = {"dtype": "float16"}
    assert describe_codes(plain) is plain
