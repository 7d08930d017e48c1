"""Keys of quantization_config that say nothing of how codes are stored, by name; any other key must be known to its
method.
"""

from collections.abc import Mapping
from typing import Any

# How the codes were chosen, and settings of other programs.
_HARMLESS = frozenset(
    """act_data_type act_dynamic act_group_aware act_group_size act_sym adapter amp apply_clip autoround_version backend
    batch_size block_name_to_quantize cache_block_outputs damp_auto_increment damp_percent dataset dequantize
    disable_exllama do_fuse duo_scaling enable_minmax_tuning enable_norm_bias_tuning enable_quanted_input exllama_config
    export_compatible fail_safe failsafe fuse_max_seq_len gptaq gptaq_alpha gradient_accumulate_steps hessian
    inject_fused_attention inject_fused_mlp iters lm_head low_gpu_mem_usage lr max_calib_samples max_calib_seq_len
    max_input_length meta minmax_lr mock_quantization model_file_base_name model_free model_name_or_path model_seqlen
    module_name_preceding_first_block modules_in_block_to_quantize modules_to_fuse modules_to_not_convert mse
    n_parallel_calib_samples nsamples offload_to_disk offload_to_disk_path pack_impl pad_token_id provider quant_method
    regex_config sampler scale_dtype seqlen static_attention_granularity static_groups static_kv_granularity sym
    to_quant_block_names tokenizer true_sequential use_cuda_fp16 use_exllama use_triton v2 v2_alpha
    vram_strategy""".split()
)
# What is asked of the computation and not done, whatever the method: the remark on it.
_NOT_DONE = {
    "activation": "activations are not rounded",
    "attention_input_activations": "the inputs of attention are not rounded",
    "static_attention_dtype": "the inputs of attention are not rounded",
    "static_kv_dtype": "the cache is not rounded",
}
KNOWN = _HARMLESS | _NOT_DONE.keys()


def remarks_of(settings: Mapping[str, Any]) -> str:
    """Say which requests of a quantization_config are not met, beside those that its method knows; empty for none."""
    return "; ".join(f"{what} as its config asks ({key})" for key, what in _NOT_DONE.items() if settings.get(key))
