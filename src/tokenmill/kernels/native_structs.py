"""The structs of native/abi.h in ctypes, under the names that they have there."""

from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p, sizeof
from typing import Any


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """List the fields of a struct, from (type, names) in the order of abi.h."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class TmUnit(Structure):
    """Rows of a matrix that are computed together."""

    _fields_ = _fields((c_void_p, "data gate"), (c_int32, "scheme gate_scheme first count"))


class TmOp(Structure):
    _fields_ = _fields(
        (
            c_int32,
            "kind epilogue activation centred from_ to inputs outputs num_units scheme num_kv_heads head_dim value_dim",
        ),
        (c_int32, "kv_parts"),
        (c_int32, "of_inputs by_head rotary norm_scope norms_after_rope gated column gate block taps unit_blocks"),
        (c_int32, "query key value decay strength heads key_heads key_dim columns gate_first decays"),
        (c_int32, "sparse streams stream rows coded"),
        (POINTER(TmUnit), "units"),
        (
            c_void_p,
            "weight bias factors router coefficients input_norm q_norm k_norm v_norm q_norm_bias k_norm_bias cosines "
            "sines temperatures sinks distance_bias correction",
        ),
        (c_void_p, "expert_scales biases table positions k_rows v_rows k_scales v_scales a_log dt_bias skip state"),
        (c_float, "eps scale rescale softcap act_a act_b cutoff min_step max_step clip margin"),
        (c_int32, "window experts chosen normalise sigmoid groups chosen_groups group_best shared"),
        (c_int32, "on_inputs within_margin both_ways"),
    )


class TmModel(Structure):
    _fields_ = _fields(
        (c_int32, "hidden intermediate vocab cache_format"),
        (POINTER(TmOp), "ops"),
        (c_int32, "num_ops num_threads"),
        (c_char_p, "build"),
        (c_int64, "num_positions num_slots num_states"),
        (c_int32, "rank num_ranks max_tokens num_processors"),
        (POINTER(c_int32), "processor_nodes thread_nodes"),
        (c_void_p, "shared"),
    )


class TmChange(Structure):
    """The change of rows of one matrix by an adapter."""

    _fields_ = _fields((c_int32, "first count rank at unit type"), (c_float, "scale"), (c_void_p, "a b factors bias"))


class TmNorm(Structure):
    """A tensor of a norm that an adapter replaces, by its address."""

    _fields_ = _fields((c_void_p, "before after"))


class TmAdapter(Structure):
    _fields_ = _fields(
        (POINTER(TmChange), "changes"),
        (c_void_p, "firsts"),
        (c_int64, "num_matrices"),
        (c_int32, "max_lowered rank type"),
        (c_float, "scale"),
        (c_void_p, "table a b rows ids"),
        (c_int64, "num_ids"),
        (POINTER(TmNorm), "norms"),
        (c_int64, "num_norms"),
        (c_void_p, "in_ranks"),
    )


class TmSave(Structure):
    """A slot for the states after some tokens of a span; two numbers of an array, as TmSpan is nine."""

    _fields_ = _fields((c_int64, "count slot"))


class TmSpan(Structure):
    """A span. Steps have it as numbers of an array; the struct only compares the layout."""

    _fields_ = _fields(
        (c_int64, "first count start base"),
        (c_void_p, "slots"),
        (c_int64, "state first_save num_saves"),
        (c_void_p, "adapter"),
    )


class TmStep(Structure):
    _fields_ = _fields(
        (c_int32, "num_tokens num_spans num_rows num_stops"),
        (c_void_p, "tokens positions slots rows spans saves stops logits given hidden places"),
    )


class TmSample(Structure):
    """The settings by which the token of a row of logits is chosen, and the result."""

    _fields_ = _fields(
        (c_void_p, "words"),
        (c_int64, "num_words"),
        (c_double, "temperature top_p uniform"),
        (c_float, "log_min_p"),
        (c_int32, "top_k"),
        (c_int64, "token total"),
        (c_float, "largest admitted"),
    )


class TmScore(Structure):
    """The numbers from which the log-probability of a token follows."""

    _fields_ = _fields((c_int64, "token rank total"), (c_double, "largest"))


def layout() -> str:
    """Write size of each struct, offset and size of each field, as tm_layout does if it was built for these."""
    lines = []
    for struct in (TmUnit, TmOp, TmModel, TmChange, TmNorm, TmAdapter, TmSave, TmSpan, TmStep, TmSample, TmScore):
        name = struct.__name__
        lines.append(f"{name} 0 {sizeof(struct)}")
        for field, *_ in struct._fields_:
            place = getattr(struct, field)
            lines.append(f"{name}.{field.rstrip('_')} {place.offset} {place.size}")
    return "".join(f"{line}\n" for line in lines)
