"""Families: the differences between architectures, as data.

A family is a Family in one file, which close relatives share, and one line of FAMILIES in the registry. It says how its
config and its tensors depart from Llama's. A target of a tensor is "parameter", "parameter:part" for one of the
matrices merged into it, "one or another" for the one that a layer has, and "… | transform" where the file stores it in
another layout. {i} is the layer, {e} the expert; a name that ends in {p} stands for .weight and, where the model has
one, .bias.

Some tensors have two names or layouts: the published files have one, and transformers' own modules the other, as
`save_pretrained(save_original_format=False)` and a state_dict show it. The second stands in `also`. in_gguf.py
says how llama.cpp stores a family.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.model.config import MAX_LAYERS, ConfigReader, ModelConfig
from tokenmill.model.families.in_gguf import InGGUF, as_stored
from tokenmill.model.families.mtp import (
    MTP,
    MTP_STORED,
    NUM_MTP,
    MtpNames,
    mtp_fields,
    mtp_names,
    mtp_names_in_gguf,
)
from tokenmill.model.families.refused import features_of_config, why_not
from tokenmill.model.harmless import is_harmless
from tokenmill.model.rope_config import read_rope
from tokenmill.registry import ASSISTANTS, ENCODERS, FAMILIES, lookup
from tokenmill.value_reader import ValueReader, brief

_SAME = {"kimi_k2": "deepseek_v3"}  # a family of code beside its models → the family whose class that code is
_OF_WHOLE = ("dtype", "torch_dtype", "eos_token_id", "tie_word_embeddings", "quantization_config")
ACTIVATIONS = ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu", "swish", "xielu")
"""The activations that are implemented, by transformers' names; layers.py computes them."""


def sizes(
    vocabulary: int,
    hidden: int,
    intermediate: int | None,
    layers: int,
    heads: int,
    kv_heads: int | None = None,
    *,
    head_dim: int | None = None,
    context: int = 2048,
) -> dict[str, Any]:
    """Name the sizes of a class by their keys. Without kv_heads there are as many as heads; without head_dim a head has
    its share of the hidden size.
    """
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": context,
    }


# An absent key has the default of its class in transformers. Llama's defaults stand here; a family's file has the
# defaults in which its class differs.
DEFAULTS: Mapping[str, Any] = {
    **sizes(32000, 4096, 11008, 32, 32),
    "attention_bias": False,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "layer_types": None,
    "mlp_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
# A null is a value of its own, as in transformers: NULLS or a family's `nulls` have its meaning, or it means None where
# the default is None, too; elsewhere transformers refuses it, and so does the reader.
HEADLESS = "without_head"
"""A key of our own in config.json: see ModelConfig.has_head."""

NULLS: Mapping[str, Any] = {"eos_token_id": None, "sliding_window": None}


@dataclass(frozen=True)
class InnerTextModel:
    """The place of the text part in a model that sees or hears, too; nothing else of the model is read.

    families: the `model_type`s that this part may have, the first where its config has none. key: of config.json, under
    which the config of the part stands. default: the part's config where the file has none. ignored: keys of other
    parts. tied: whether the whole has its embeddings for a head where it does not say so; the text part's own key does
    not count. untied_by_null: whether a null means that it is not tied; otherwise null is refused. is_flat: whether
    older files have the keys of the part outside, and inside whether the whole is tied; keys inside go first. read_as:
    the family of the text part, where that is not its `model_type`. words: puts the part's config into the words of
    that family.
    """

    families: tuple[str, ...]
    key: str = "text_config"
    ignored: tuple[str, ...] = ()
    default: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = True
    untied_by_null: bool = False
    is_flat: bool = False
    read_as: str | None = None
    words: Callable[[Mapping[str, Any]], dict[str, Any]] = dict

    def flatten(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Make the config of the text part, with the keys outside of it that hold for it. CheckpointError for a key
        that is not known.
        """
        outer = ValueReader(config, "config.json", CheckpointError)
        given = config if config.get(self.key) is not None else {self.key: self.default}
        inner = ValueReader(given, "config.json", CheckpointError).inside(self.key)
        family = inner.expect("model_type", *self.families)
        tie, tied = "tie_word_embeddings", self.tied
        if tie in config and config[tie] is None:
            if not self.untied_by_null:
                raise outer.refuse(tie, None, f"true or false; where the key is left out, it is {self.tied}")
            tied = False
        left = ("model_type", self.key, *self.ignored)
        shared = {key: value for key, value in config.items() if key not in left and value is not None}
        if self.is_flat:
            tied = inner.flag(tie, tied)
            shared = {key: value for key, value in shared.items() if key in _OF_WHOLE or key not in inner.values}
        found = self.words({**inner.values, tie: tied, **shared})
        return {**found, "model_type": self.read_as or family}


@dataclass(frozen=True)
class Family:
    """The differences between one family and Llama.

    names: tensor of the file → target. also: the same for other names; a file has them in the place of names that fill
    the same parameter (weights/names.py). read: reads the keys that only this family has, and returns the fields of the
    ModelConfig in which it departs. keys: Llama's name of a key → the family's own. defaults: the values that its class
    takes for absent keys, where Llama's class takes others; "partial_rotary_factor" is among them where the class reads
    it. nulls: the meaning of null where it is not the default. aliases: other names of a key → the name by which it is
    read. expected: keys that transformers does not read and published files have → the value that is implemented.
    harmless: keys that change nothing. prefix: may stand before every name in the file. ignored: names of tensors that
    are no weights and may be there. constants: ignored numbers that transformers cannot do without: last part of the
    name of a weight → the numbers beside it, by the last parts of their names. further: beginnings of the names of
    layers that predict further tokens, or words in the place of others; {n} is the number of layers. mtp: how the
    first of them is stored, where it can draft. gguf: None where no GGUF file holds the family. text: of a model that
    has other parts. norms_in_embedding: the module of the embedding norms its rows, so that an adapter's come after.
    """

    names: Mapping[str, str]
    read: Callable[[ConfigReader], dict[str, Any]]
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    nulls: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
    prefix: str = "model."
    ignored: tuple[str, ...] = ()
    constants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    further: tuple[str, ...] = ()
    mtp: MtpNames | None = None
    gguf: InGGUF | None = None
    text: InnerTextModel | None = None
    also: Mapping[str, str] = field(default_factory=dict)
    norms_in_embedding: bool = False


def _named(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a config the name of its family, where its own is the one of another: jina's code takes BERT's."""
    is_jina = config.get("model_type") == "bert" and config.get("position_embedding_type") == "alibi"
    return {**config, "model_type": "jina_bert"} if is_jina else config


def find_family(config: Mapping[str, Any]) -> Family:
    """Find the family that `model_type` names; CheckpointError that says why another family is not implemented.

    A name that ends in MTP stands for the layer of such a model that predicts further tokens, or for an assistant.
    """
    name = _named(config).get("model_type")
    if isinstance(name, str) and name.endswith(MTP):
        whole = name.removesuffix(MTP)
        assistant: Family | None = lookup(ASSISTANTS, whole, "model_type") if whole in ASSISTANTS else None
        return assistant or of_mtp(find_family({"model_type": whole}))
    name = _SAME.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or (name not in FAMILIES and name not in ENCODERS):
        why = why_not(name, [*FAMILIES, *ENCODERS], features_of_config(config), config.get("architectures"))
        raise CheckpointError(f"config.json: model_type {why}")
    family: Family = lookup(FAMILIES, name, "model_type") if name in FAMILIES else lookup(ENCODERS, name, "model_type")
    return family


def of_mtp(family: Family) -> Family:
    """Make the family of the layer that predicts further tokens: a model of one layer, which has the embedding and the
    head of the whole.
    """
    facts, text = family.gguf, family.text
    names, also = ({} if family.mtp is None else mtp_names(each, family.mtp) for each in (family.names, family.also))
    return replace(
        family,
        names=names,
        also=also,
        read=partial(_read_mtp, family),
        gguf=facts and replace(facts, names=mtp_names_in_gguf(facts.names), older={}),
        text=text and replace(text, read_as=(text.read_as or text.families[0]) + MTP),
    )


def _read_mtp(family: Family, reader: ConfigReader) -> dict[str, Any]:
    reader.expect("mtp_use_dedicated_embeddings", False)
    return mtp_fields(family.read(reader), reader.num_layers())


def gguf_facts(name: str) -> InGGUF:
    """Find how llama.cpp stores the family of that name; CheckpointError for a family that it does not store."""
    facts = find_family({"model_type": name}).gguf
    if facts is None:
        raise CheckpointError(f"{name} is not implemented as a GGUF file: llama.cpp has no architecture for it")
    return facts


def in_gguf(name: str, stored: Collection[str] = ()) -> Family:
    """Find the family of that name, with llama.cpp's names of tensors in the place of Hugging Face's.

    stored: the names of a file's tensors, of which one may hold rows that other files have in several.
    """
    facts = gguf_facts(name)
    further = ("blk.{n}.",) if facts.further else ()
    family = find_family({"model_type": name})
    ends = (pattern.partition("}")[2].partition("[")[0] for pattern in facts.older)
    there = (any(each.partition("[")[0].endswith(end) for each in stored) for end in ends)
    older = facts.older if all(there) else {}
    filled = {re.split("[: ]", goal)[0] for goal in older.values()}
    kept = {pattern: goal for pattern, goal in facts.names.items() if re.split("[: ]", goal)[0] not in filled}
    names = {**kept, **older}
    return replace(family, names=as_stored(names, stored), prefix="", ignored=facts.ignored, further=further)


def architectures() -> dict[str, str]:
    """Map llama.cpp's names of architectures to families; of families that share one to the first, the plain one."""
    found = {name: find_family({"model_type": name}).gguf for name in reversed([*FAMILIES, *ENCODERS])}
    return {each: name for name, facts in found.items() if facts for each in facts.architectures}


def read_config(config: Mapping[str, Any]) -> ModelConfig:
    """Read the ModelConfig that a config.json describes; unknown keys that may matter are errors.

    Four keys are our own: "mtp_as_stored" says whether the files have a layer that predicts further tokens and can
    draft; "stored_as_codes" has the bits per number of a quantised file, or True where they are not
    known; "stored_as_compact_codes" the same where a program has 4 bits two in a byte; "embedding_as_codes" the bits
    per number of its embedding, where that is kept without rounding.
    """
    family = find_family(config)
    if family.text is not None:
        config = family.text.flatten(config)
        family = find_family(config)
    config = _without_aliases(_named(config), family)
    reader = ConfigReader(config, family.keys, {**DEFAULTS, **family.defaults}, {**NULLS, **family.nulls})
    codes = reader.take("stored_as_codes", False)
    bits = 0.0 if isinstance(codes, bool) else reader.number("stored_as_codes", maximum=64.0)
    compact_bits, embedding_bits = (
        0.0 if reader.take(key, None) is None else reader.number(key, maximum=64.0)
        for key in ("stored_as_compact_codes", "embedding_as_codes")
    )
    for key, value in family.expected.items():
        reader.expect(key, value)
    fields = family.read(reader)
    heads = reader.count("num_attention_heads")
    shared: dict[str, Callable[[], Any]] = {
        "vocab_size": lambda: reader.count("vocab_size"),
        "hidden_size": lambda: reader.count("hidden_size"),
        "num_layers": reader.num_layers,
        "num_heads": lambda: heads,
        "num_kv_heads": lambda: reader.count("num_key_value_heads", heads),
        "head_dim": reader.head_dim,
        "intermediate_size": lambda: reader.count("intermediate_size"),
        "max_position_embeddings": reader.context,
        "norm_eps": lambda: reader.number("rms_norm_eps", maximum=1.0),
        "activation": lambda: reader.text("hidden_act"),
        "tie_embeddings": lambda: reader.flag("tie_word_embeddings"),
        "eos_token_ids": lambda: reader.token_ids("eos_token_id"),
        "dtype": reader.dtype,
    }
    fields |= {name: read() for name, read in shared.items() if name not in fields}
    if (activation := fields["activation"]) not in ACTIVATIONS:
        key = next(each for each in ("hidden_act", "hidden_activation") if reader.name(each) in reader.read)
        raise reader.refuse(key, activation, ", ".join(ACTIVATIONS))
    if "rope" not in fields:
        fields["rope"] = read_rope(reader, fields["head_dim"], fields["max_position_embeddings"])
    has_mtp, has_head = reader.take(MTP_STORED, False) is True, reader.take(HEADLESS, False) is not True
    num_mtp = (reader.count(NUM_MTP, 1, minimum=0, maximum=MAX_LAYERS) or 1) if has_mtp else 0
    reader.refuse_unread(key for key in config if key not in family.harmless and not is_harmless(key, config))
    fields |= {
        "num_mtp": num_mtp,
        "has_head": has_head and fields.get("has_head", True),
        "codes": bool(codes),
        "code_bits": bits,
        "compact_bits": compact_bits,
        "embedding_bits": embedding_bits,
    }
    fields["tie_embeddings"] &= fields["has_head"]
    return ModelConfig(family=reader.family, **fields)


def _without_aliases(config: Mapping[str, Any], family: Family) -> Mapping[str, Any]:
    """Rename every alias to its key. CheckpointError where two names of a key have different values."""
    found = {alias: family.keys.get(key, key) for alias, key in family.aliases.items() if alias in config}
    found = {alias: name for alias, name in found.items() if config[alias] is not None or name not in config}
    for alias, name in found.items():
        if config.get(name, config[alias]) != config[alias]:
            values = f"{brief(config[name])}, and {alias}, another name of it, is {brief(config[alias])}"
            raise CheckpointError(f"config.json: {name} is {values}")
    left = {key: value for key, value in config.items() if key not in family.aliases}
    return left | {name: config[alias] for alias, name in found.items()}
