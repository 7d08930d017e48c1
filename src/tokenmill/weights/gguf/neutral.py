"""Keys of GGUF files that change nothing, by name and allowed value.

llama.cpp writes its own record of a model into a file that it saves (src/llama-model-saver.cpp): the numbers of every
architecture. Numbers that this architecture does not have get the values which stand for "not there". Other values of
these keys are refused like unknown keys, since they belong to arithmetic that is not computed. Keys `general.…`
describe a file.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from tokenmill.value_reader import brief

# Keys without the architecture before them. They are 0, 0.0 or false where the architecture has no such thing.
_OFF = frozenset(
    """activation.situ_linear_beta attention.clamp_kqv attention.compress_ratios attention.compress_rope_freq_base
    attention.decay_lora_rank attention.gate_lora_rank attention.group_norm_epsilon attention.group_norm_groups
    attention.iclr_lora_rank attention.indexer.block_size attention.indexer.head_count attention.indexer.key_length
    attention.indexer.kpool attention.indexer.local_blocks attention.indexer.top_k attention.indexer.types
    attention.key_length_mla attention.key_length_mla_swa attention.kv_lora_rank attention.kv_lora_rank_swa
    attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.max_alibi_bias
    attention.output_group_count attention.output_lora_rank attention.output_scale attention.q_lora_rank
    attention.recurrent_layers attention.relative_buckets_count attention.scale attention.shared_kv_layers
    attention.sliding_window attention.sliding_window_pattern attention.temperature_length
    attention.temperature_scale attention.value_expert_count attention.value_expert_used_count
    attention.value_length_mla attention.value_length_mla_swa attention.value_residual_mix_lora_rank
    attention.value_scale attn_logit_softcapping attn_res.block_size classifier.output_labels convnext.block_count
    convnext.embedding_length decoder_block_count dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out
    embedding_length_out embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length expert_count
    expert_feed_forward_length expert_gating_func expert_group_count expert_group_used_count expert_latent_length
    expert_shared_count expert_shared_feed_forward_length expert_used_count expert_weights_norm expert_weights_scale
    experts_per_group final_logit_softcapping hash_layer_count hrm.h_cycles hrm.l_cycles hrm.layers_per_stack
    hrm.prefix_lm hyper_connection.count hyper_connection.epsilon hyper_connection.low_rank hyper_connection.magnitude
    hyper_connection.sinkhorn_iterations interleave_moe_layer_step kda.head_dim kda.safe_gate
    leading_dense_block_count logit_scale moe_every_n_layers moe_latent_size n_deepstack_layers nextn_predict_layers
    pooling_type posnet.block_count posnet.embedding_length rescale_every_n_layers residual_scale
    rope.dimension_sections rope.scaling.alpha rope.scaling.yarn_log_multiplier router_logit_softcapping
    shortconv.l_cache skip_loop_final_norm ssm.conv_kernel ssm.dt_b_c_rms ssm.group_count ssm.inner_size ssm.state_size
    ssm.time_step_rank swiglu_clamp_exp swiglu_clamp_shexp swin_norm time_decay_extra_dim time_mix_extra_dim
    use_parallel_residual wkv.head_size""".split()
)
# Keys that have other values there, or these beside 0: 4294967295 is -1 as an unsigned number, and caps have their
# values where nothing is capped.
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "activation.situ_beta": (1.0,),
    "attention.indexer.kpool_select_tail": (True,),
    "attention.rope_pattern": (1,),
    "attn_logit_softcapping": (50.0,),
    "decoder_start_token_id": (-1, 2**32 - 1),
    "deepstack_mapping": (-1,),
    "embedding_scale": (1.0,),
    "expert_group_scale": (0.05,),
    "final_logit_softcapping": (30.0,),
    "kda.gate_lower_bound": (float("-inf"),),
    "logit_scale": (1.0,),
    "num_loops": (1,),
    "pooling_type": (2**32 - 1,),
    "residual_scale": (1.0,),
    "rope.scaling.attn_factor": (1.0,),
    "router_logit_softcapping": (30.0,),
    "token_shift_count": (2,),
}
# Keys of layers with a window where others have none → the key for all layers, which must say the same; a base may
# also be llama.cpp's default.
_OF_WINDOWS = {
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
    "rope.freq_base_swa": "rope.freq_base",
}
_FREQ_BASE = 10000.0

_SOURCES = r"name|author|version|organization|description|url|doi|uuid|repo_url"
_GENERAL = re.compile(
    rf"""general\.(
    architecture | type | alignment | quantization_version | file_type | sampling\.\w+ | tensor_extra\.\w+
    | {_SOURCES.replace("|", " | ")} | finetune | basename | quantized_by | size_label | tags | languages | datasets
    | license(\.(name|link))? | source\.(url|doi|uuid|repo_url|huggingface\.repository)
    | (base_model|dataset)\.(count | \d+\.({_SOURCES}))
    )""",
    re.VERBOSE,
)


def is_neutral(key: str, values: Mapping[str, Any], arch: str) -> bool:
    """Tell whether a key of the architecture, which is named without it, changes nothing."""
    value = values[f"{arch}.{key}"]
    if isinstance(value, list):  # of layers, or of parts
        if any(entry != value[0] for entry in value):
            return False
        value = value[0] if value else 0
    if full := _OF_WINDOWS.get(key):
        return value in (values.get(f"{arch}.{full}"), _FREQ_BASE if full == "rope.freq_base" else None)
    allowed = [choice for choice in _VALUES.get(key, ()) if isinstance(choice, bool) == isinstance(value, bool)]
    is_off = key in _OFF and isinstance(value, int | float) and not value
    return is_off or any(
        isinstance(value, int | float) and math.isclose(value, choice, rel_tol=1e-6) for choice in allowed
    )


def warn_of_unknown(where: str, values: Mapping[str, Any], warn: Callable[..., None]) -> None:
    """Name the keys `general.…` that are not known. They are no error, since by convention they are descriptions."""
    unknown = [key for key in values if key.startswith("general.") and not _GENERAL.fullmatch(key)]
    if unknown:
        said = ", ".join(f"{key} = {brief(values[key])}" for key in sorted(unknown)[:20])
        warn("%s: keys that tokenmill does not know are ignored: %s", where, said)
