"""tokenizer_config.json, read as strictly as config.json: every key is used, or known to change nothing.

What a key means depends on the class that transformers 5 takes, which the file and the model's kind name together.
Right values come from transformers 5.24's AutoTokenizer.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import tokenizers

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief

log = logging.getLogger(__name__)

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
_MODEL_TOKEN = re.compile(r"[A-Za-z0-9_]+_token")  # such as image_token, of models that see
_TOKEN_IDS = re.compile(r"[A-Za-z0-9_]+_token_ids?")  # which repeat what the vocabulary says

# model_type → the class that is registered for it; a kind without one takes what the file names.
_GENERIC = "TokenizersBackend"
_REGISTERED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("cohere", "cohere2"), "CohereTokenizer"),
        **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"), "GemmaTokenizer"),
        **dict.fromkeys(("gpt2", "phi", "starcoder2"), "GPT2Tokenizer"),
        **dict.fromkeys(("gpt_neox", "mamba2", "olmo", "olmoe"), "GPTNeoXTokenizer"),
        **dict.fromkeys(
            "qwen2 qwen2_5_vl qwen2_moe qwen2_vl qwen3 qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe".split(),
            "Qwen2Tokenizer",
        ),
        **dict.fromkeys("qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text".split(), "Qwen3_5Tokenizer"),
        **dict.fromkeys(
            """ernie4_5 ernie4_5_moe glm glm4 glm4_moe glm4_moe_lite gpt_bigcode granite granitemoe granitemoehybrid
            granitemoeshared internlm3 kimi_k25 kimi_linear mimo_v2_flash minicpm3 minimax_m2 ministral3 mistral
            mistral3 mixtral nemotron olmo2 olmo3 olmo_hybrid phi3 phimoe stablelm""".split(),
            _GENERIC,
        ),
    }
)
# Whatever class the file names.
_REGISTERED_COUNTS = ("qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text")
# Classes that put a space before a text where `add_prefix_space` says so, and only there.
_BYTE_LEVEL = frozenset(
    "CodeGenTokenizer CohereTokenizer GPT2Tokenizer GPTNeoXTokenizer Qwen2Tokenizer Qwen3_5Tokenizer".split()
)
_SENTENCEPIECE = frozenset("CodeLlamaTokenizer LlamaTokenizer".split())  # classes that put one unless it says no

# The tokens that a class has where a file does not name its own, if they are in the vocabulary.
_ENDOFTEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_DEFAULT_TOKENS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "CodeGenTokenizer": _ENDOFTEXT,
        "CohereTokenizer": dict(
            zip(SPECIAL, "<BOS_TOKEN> <|END_OF_TURN_TOKEN|> <UNK> <SEP> <PAD> <CLS> <MASK_TOKEN>".split(), strict=True)
        ),
        "GPT2Tokenizer": _ENDOFTEXT,
        "GPTNeoXTokenizer": {**_ENDOFTEXT, "pad_token": "<|padding|>"},
        "GemmaTokenizer": {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "unk", "pad", "mask")},
        "LlamaTokenizer": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        **dict.fromkeys(
            ("Qwen2Tokenizer", "Qwen3_5Tokenizer"),
            dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>"),
        ),
    }
)

_SWITCHES = """add_bos_token add_eos_token clean_up_tokenization_spaces do_basic_tokenize do_lower_case
    fix_mistral_regex from_slow is_local keep_accents legacy local_files_only remove_space return_token_type_ids
    spaces_between_special_tokens split_special_tokens strip_accents suffix_first tokenize_chinese_chars trim_offsets
    trust_remote_code use_default_system_prompt use_fast verbose""".split()
# These keys say how many tokens, on which side, of which files, for whom, or something of chats that is read elsewhere.
# `add_bos_token` and `add_eos_token` change nothing beside a tokenizer.json, which says what is put around a text.
_HARMLESS = frozenset(
    """add_generation_prompt added_tokens_file additional_chat_templates auto_map backend cache_dir chat_control_tokens
    chat_template _commit_hash default_chat_template device_map errors fast files_loaded _from_auto image_size
    init_inputs language max_len max_length max_seq_length merges_file model_input_names model_max_length
    model_type name_or_path num_additional_image_tokens pad_to_multiple_of pad_token_type_id padding patch_size
    predict_timestamps processor_class response_schema response_template revision seq_length sp_model_kwargs
    special_tokens special_tokens_map_file src_lang stride task tgt_lang token tokenizer_class tokenizer_file
    tokenizer_type tokenizer_version tool_parser_type torch_dtype transformers_version truncation
    truncation_strategy unsloth_fixed unsloth_version use_auth_token vision_feature_select_strategy vocab_file
    vocab_size""".split()
)
# Settings of classes that do not read a tokenizer.json of a decoder, and arguments of other calls, of reading a model
# and of encoding, which transformers 4 wrote down beside the tokenizer's settings.
_OF_OTHERS = frozenset(
    """extra_ids mode never_split num_image_tokens num_img_tokens wordpieces_prefix
    _attn_implementation _from_pipeline _name_or_path architectures attn_implementation code_revision dtype
    force_download from_flax from_tf gguf_file ignore_mismatched_sizes is_fast is_split_into_words load_in_4bit
    load_in_8bit low_cpu_mem_usage max_memory max_new_tokens max_position_embeddings mirror num_labels offload_folder
    output_attentions output_hidden_states proxies quantization_config resume_download return_attention_mask
    return_dict return_length return_offsets_mapping return_overflowing_tokens return_special_tokens_mask
    return_tensors rope_scaling rope_theta skip_special_tokens subfolder use_cache use_flash_attention_2
    use_safetensors variant""".split()
)


@dataclass(frozen=True)
class TokenizerConfig:
    """The contents of tokenizer_config.json and special_tokens_map.json.

    values: the keys as they stand. class_name: the class that transformers takes. prefix_space: whether a space goes
    before a text, None where the tokenizer's own file says it. special: the named tokens' spellings, by name. declared:
    tokens with their flags, in the order of their ids. named: tokens that are special, whatever the tokenizer's file
    says. listed: tokens that are special where it says nothing of them.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    class_name: str = _GENERIC
    prefix_space: bool | None = None
    special: Mapping[str, str] = field(default_factory=dict)
    declared: tuple[tokenizers.AddedToken, ...] = ()
    named: tuple[tokenizers.AddedToken, ...] = ()
    listed: tuple[tokenizers.AddedToken, ...] = ()


def read_tokenizer_config(
    values: Mapping[str, Any],
    special_map: Mapping[str, Any],
    model_type: object = None,
    is_byte_level: bool = False,
    is_token: Callable[[str], bool] = lambda _: False,
) -> TokenizerConfig:
    """Read the config that these two files hold. CheckpointError for an unknown key, and for a value of another type.

    model_type: of config.json. is_byte_level: whether a tokenizer.json has tokens of GPT-2's letters for bytes.
    is_token: whether a text is in its vocabulary.
    """
    reader = ValueReader(values, "tokenizer_config.json", CheckpointError)
    for key in _SWITCHES:
        if reader.take(key, None) is not None:
            reader.flag(key)
    for key in ("padding_side", "truncation_side"):
        reader.expect(key, "right", "left")
    reader.expect("split_special_tokens", False)
    reader.expect("decode_with_prefix_space", False)
    reader.expect("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    declared_class = reader.take("tokenizer_class", None)
    if declared_class is not None:
        declared_class = reader.text("tokenizer_class")
    class_name = _class_of(model_type, declared_class, is_byte_level)
    if values.get("added_tokens_decoder") is not None:
        special_map = {}  # of older releases, and not read beside the newer key
    others = ValueReader(special_map, "special_tokens_map.json", CheckpointError)
    usual = {key: text for key, text in _DEFAULT_TOKENS.get(class_name, {}).items() if is_token(text)}
    default = ValueReader(usual, f"the class {class_name}", CheckpointError)
    found = dict[str, tokenizers.AddedToken | None]()
    for each in (default, others, reader):
        found |= {key: _token(each, key, each.take(key, None)) for key in SPECIAL if key in each.values}
    for each in (others, reader):
        found |= {key: _token(each, key, each.take(key)) for key in _model_tokens(each.values)} | _named(each)
    named = {key: token for key in (*SPECIAL, *found) if (token := found.get(key)) is not None}
    listed = (*_listed(others), *_listed(reader))
    prefix = None if reader.take("add_prefix_space", None) is None else reader.flag("add_prefix_space")
    if class_name in _BYTE_LEVEL and is_byte_level:
        prefix = bool(prefix)
    elif class_name not in _SENTENCEPIECE or is_byte_level:
        prefix = None
    declared = _declared(reader)
    for each in (reader, others):
        each.refuse_unread(key for key, value in each.values.items() if value is not None and not _is_harmless(key))
    return TokenizerConfig(
        values, class_name, prefix, {key: named[key].content for key in SPECIAL if key in named}, declared,
        tuple(named.values()), listed,
    )  # fmt: skip


def _is_harmless(key: str) -> bool:
    return key in _HARMLESS or key in _OF_OTHERS or _TOKEN_IDS.fullmatch(key) is not None


def _class_of(model_type: object, declared: str | None, is_byte_level: bool) -> str:
    """Return the class that transformers' AutoTokenizer takes for a tokenizer.json."""
    registered = _REGISTERED.get(model_type) if isinstance(model_type, str) else None
    declared = None if declared is None else declared.removesuffix("Fast")
    if declared is None:
        return registered or _GENERIC
    if declared == "LlamaTokenizer" and is_byte_level:
        return _GENERIC
    if registered in (None, declared):
        return declared
    return _GENERIC if registered == _GENERIC else registered if model_type in _REGISTERED_COUNTS else declared


def _token(reader: ValueReader, key: str, given: Any) -> tokenizers.AddedToken | None:
    """Read a token: a text, or an object with its flags."""
    if given is None or given == "":
        return None
    if isinstance(given, str):
        return tokenizers.AddedToken(given, special=True, normalized=False)
    entry = ValueReader(given, f"{reader.where}: {key}", CheckpointError)
    content = entry.text("content")
    flags = {flag: entry.flag(flag, False) for flag in FLAGS}
    entry.expect("__type", "AddedToken")
    entry.refuse_unread(name for name in entry.values if name != "id")
    return tokenizers.AddedToken(content, **(flags | {"special": True})) if content else None


def _model_tokens(values: Mapping[str, Any]) -> list[str]:
    """Return the keys of tokens that only some models have."""
    return [key for key, value in values.items() if _MODEL_TOKEN.fullmatch(key) and isinstance(value, str | dict)]


def _named(reader: ValueReader) -> dict[str, tokenizers.AddedToken]:
    """Return special tokens with names of their own, such as image_token."""
    found: dict[str, tokenizers.AddedToken] = {}
    for key in ("extra_special_tokens", "model_specific_special_tokens"):
        if isinstance(given := reader.take(key, None), dict):
            found |= {name: token for name, entry in given.items() if (token := _token(reader, key, entry))}
    return found


def _listed(reader: ValueReader) -> list[tokenizers.AddedToken]:
    """Return special tokens without a name."""
    found = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        given = reader.take(key, None) or []
        if isinstance(given, dict):
            continue
        if not isinstance(given, list) or not all(isinstance(entry, str | dict) for entry in given):
            raise reader.refuse(key, given, "a list of tokens, or an object with named ones")
        found += [token for entry in given if (token := _token(reader, key, entry))]
    return found


def _declared(reader: ValueReader) -> tuple[tokenizers.AddedToken, ...]:
    """Return the entries of `added_tokens_decoder`, in the order of their ids."""
    given = reader.take("added_tokens_decoder", None) or {}
    if not isinstance(given, dict) or not all(re.fullmatch(r"[0-9]{1,9}", number) for number in given):
        raise CheckpointError(f"{reader.where}: added_tokens_decoder = {brief(given)} must map token ids to tokens")
    found = {}
    for number, entry in given.items():
        each = ValueReader(entry, f"{reader.where}: added_tokens_decoder: {number}", CheckpointError)
        content = each.text("content")
        flags = {flag: each.flag(flag, False) for flag in FLAGS}
        if content:
            found[int(number)] = tokenizers.AddedToken(content, **flags)
    return tuple(token for _, token in sorted(found.items(), key=lambda pair: pair[0]))
