"""Keys of config.json that change nothing, by name and allowed value.

transformers ignores every key that a family does not have; other programs, among them code beside a model, do not. So
an unknown key is refused, a key that is listed with values may have these alone, and a key that repeats another must
agree with it.
"""

from collections.abc import Mapping
from typing import Any

# Keys that change nothing whatever their value: of training, precision, implementations of the same arithmetic,
# generation, labels, remarks. pretraining_tp: the pieces in which older releases of transformers multiplied.
_ANY = frozenset(
    """_attn_implementation _attn_implementation_autoset _attn_implementation_internal _commit_hash
    _experts_implementation _flash_attn_2_enabled _name_or_path _num_labels afn architectures attention_dropout
    attention_probs_dropout_prob attention_softmax_in_fp32 attn_implementation attn_pdrop auto_map bad_words_ids
    begin_suppress_tokens bos_token_id chunk_size_feed_forward classifier_dropout custom_pipeline custom_pipelines
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping embd_pdrop embedding_dropout
    encoder_no_repeat_ngram_size eos_token_id eos_token_ids exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id freeze_embeddings fused_bias_residual fused_dropout_add_ln fused_mlp
    gradient_checkpointing hidden_dropout hidden_dropout_prob id2label initializer_range internal_version
    is_llama_config keys_to_ignore_at_inference label2id length_penalty max_length max_new_tokens
    max_sequence_length min_length model_max_length model_type n_special neftune_noise_alpha no_repeat_ngram_size
    num_beam_groups num_beams num_labels num_return_sequences output_attentions output_hidden_states output_past
    output_router_logits output_scores pad_token_id padding_side predict_special_tokens prefix pretraining_tp
    problem_type remove_invalid_values repetition_penalty resid_pdrop residual_dropout return_dict
    return_dict_in_generate router_aux_loss_coef router_jitter_noise sbert_ce_default_activation_function
    scale_attention_softmax_in_fp32 sentence_transformers sep_token_id
    seq_length summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class
    tokenizer_model_max_length tokenizer_padding_side top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unk_token_id unsloth_fixed unsloth_version use_bfloat16 use_cache
    use_flash_attention use_flash_attention_2 use_flash_attn xla_device""".split()
)
# Switches of arithmetic, as they stand where that arithmetic is not used.
_VALUES: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "embedding_multiplier": (1,),
    "is_causal": (True,),
    "is_decoder": (False, True),  # of encoders; decoders are causal in any case
    "is_encoder_decoder": (False,),
    "logits_scaling": (1,),
    "mup": (False,),
    "num_nextn_predict_layers": (0,),
    "pruned_heads": ({}, []),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "residual_multiplier": (1,),
    "scale_attn_weights": (True,),
    "use_dynamic_ntk": (False,),
    "use_logn_attn": (False,),
    "use_mrope": (False,),
    "use_qk_norm": (False,),
    "use_sliding_window": (False,),
}
# Second names of a key, which some files have beside the first. transformers reads the first alone.
_REPEATS: Mapping[str, str] = {
    "layer_norm_epsilon": "norm_epsilon",
    "rms_norm_eps": "norm_epsilon",
    "sliding_window_size": "sliding_window",
}


def is_harmless(key: str, config: Mapping[str, Any]) -> bool:
    """Tell whether this key of a config, whose family does not read it, changes nothing. Null is like no key."""
    value = config[key]
    if key in _ANY or value is None:
        return True
    if key == "layer_types":  # of a family whose layers are all alike
        return isinstance(value, list) and set(map(str, value)) <= {"full_attention"}
    if key in _REPEATS and type(value) is not bool and value == config.get(_REPEATS[key]):
        return True
    allowed = [choice for choice in _VALUES.get(key, ()) if isinstance(choice, bool) == isinstance(value, bool)]
    return value in allowed
