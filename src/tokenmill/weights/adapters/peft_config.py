"""The config of an adapter of PEFT (adapter_config.json), checked: fields that change the arithmetic are read or
refused, fields of training are passed over by name, and an unknown field is refused unless it says nothing.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.value_reader import ValueReader, brief

MAX_RANK = 4096  # far above any; PEFT's guides go up to 256

MAX_PATTERN, MAX_REPEATS = 300, 3  # names of modules need no more

# Fields of training, of saving, or of names that the tensors say themselves.
_PASSED_OVER = """auto_mapping base_model_name_or_path revision task_type inference_mode peft_version lora_dropout
    layers_pattern megatron_core qalora_group_size loftq_config eva_config
    corda_config lora_ga_config runtime_config modules_to_save fan_in_fan_out""".split()
# Kinds of LoRA that are computed otherwise: each of them must say nothing.
_REFUSED = """layer_replication alora_invocation_tokens use_qalora use_bdlora arrow_config kasa_config velora_config
    monteclora_config megatron_config""".split()
_PLAIN_INITS = ("gaussian", "orthogonal", "eva", "lora_ga")
"""Initial values whose adapters are plain sums. Others, such as pissa and olora, change the base model at load."""
_BIASES = ("none", "all", "lora_only")


@dataclass(frozen=True)
class PeftConfig:
    """The fields that count. ranks, alphas: (pattern, value) in the file's order, of which the first that matches a
    module holds. parameters: target_parameters, the names of tensors with all experts of a layer. token_ids: by the
    module's name, which the file may leave out ("" then). targets, excluded: the modules with factors, and which of
    them have none. layers: the only layers with factors, or empty. where: the file.
    """

    where: str

    rank: int
    alpha: float
    rslora: bool
    dora: bool
    ranks: tuple[tuple[str, float], ...]
    alphas: tuple[tuple[str, float], ...]
    parameters: tuple[str, ...]
    token_ids: Mapping[str, tuple[int, ...]]
    targets: "Modules"
    excluded: "Modules"
    ties_head: bool
    layers: tuple[int, ...]
    bias_of_factors: bool

    def scale(self, module: str) -> float:
        """Compute the factor of the adapter's product for a module."""
        rank, alpha = self.rank_of(module), _match(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def rank_of(self, module: str) -> int:
        return int(_match(self.ranks, module, self.rank))

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """Find the ids of the rows that a module replaces; of no module's name they are the embedding's."""
        return next((ids for name, ids in self.token_ids.items() if not name or names(name, module)), ())

    def is_parameter(self, path: str) -> bool:
        """Tell whether the config has a tensor among its target_parameters."""
        return any(names(each, path) for each in self.parameters)

    def check_parameter(self, path: str) -> None:
        """Raise CheckpointError for a tensor with factors that target_parameters do not name."""
        if not self.is_parameter(path):
            raise CheckpointError(f"{self.where}: target_parameters leave out {path}, and the file has factors for it")

    def check_rank(self, path: str, rank: int) -> None:
        """Raise CheckpointError for factors of another rank than the config's for them."""
        if rank != (wanted := self.rank_of(path)):
            raise CheckpointError(f"{self.where} says rank {wanted} (r, rank_pattern), and {path} has rank {rank}")

    def check_module(self, path: str, kinds: Collection[str]) -> None:
        """Raise CheckpointError for a module with factors that PEFT would pass over, or compute otherwise, by the
        config. kinds: of its tensors (factors.py).
        """
        has = "and the file has factors for it"
        for field, said, kind in (("use_dora", self.dora, "magnitude"), ("lora_bias", self.bias_of_factors, "b_bias")):
            if said != (kind in kinds):
                what = f"{path} has {'no' if said else 'a'} {kind.removeprefix('b_')} of its factors"
                raise CheckpointError(f"{self.where}: {field} is {said}, and {what}")
        if self.is_parameter(path):
            return
        if self.layers and (number := re.search(r"\.(\d+)\.", path)) and int(number[1]) not in self.layers:
            raise CheckpointError(f"{self.where}: layers_to_transform leaves out {path}, {has}")
        is_tied = self.ties_head and names("lm_head", path)
        if not is_tied and not self.targets.has(path):
            raise CheckpointError(f"{self.where}: target_modules leave out {path}, {has}")
        if self.excluded.has(path):
            raise CheckpointError(f"{self.where}: exclude_modules leave out {path}, {has}")


@dataclass(frozen=True)
class Modules:
    """The modules that a field names. ends: of their names; pattern: of the whole name. others: what it says of any
    module where it has neither.
    """

    ends: tuple[str, ...] = ()
    pattern: str = ""
    others: bool = False

    def has(self, path: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, path) is not None
        return self.others or any(names(end, path) for end in self.ends)


def names(end: str, path: str) -> bool:
    """Tell whether a name means a module: its path, or the end of it after a dot."""
    return path == end or path.endswith(f".{end}")


def _match(patterns: tuple[tuple[str, float], ...], module: str, default: float) -> float:
    """Find the value of the first pattern that matches a module's path, or the end of it after a dot, as PEFT does."""
    return next((value for key, value in patterns if re.match(rf"(.*\.)?({key})$", module)), default)


def read_peft_config(values: object, where: str) -> PeftConfig:
    """Check a config. CheckpointError, by field, for what is computed otherwise or not known."""
    reader = ValueReader(values, where, CheckpointError)
    if (kind := reader.text("peft_type")) != "LORA":
        raise reader.refuse("peft_type", kind, "LORA: no other kind of adapter is implemented")
    for name in _REFUSED:
        if reader.take(name, None) not in (None, False, {}, []):
            raise reader.refuse(name, reader.values[name], "only null, false or empty: such an adapter is no plain sum")
    _check_init(reader)
    if (bias := reader.text("bias", "none")) not in _BIASES:
        raise reader.refuse("bias", bias, f"one of {', '.join(_BIASES)}")
    reader.read.update(_PASSED_OVER)
    found = PeftConfig(
        where,
        reader.count("r", 8, maximum=MAX_RANK),
        reader.number("lora_alpha", 8, minimum=-1e9),
        reader.flag("use_rslora", False),
        reader.flag("use_dora", False),
        _patterns(reader, "rank_pattern"),
        _patterns(reader, "alpha_pattern"),
        tuple(reader.entries("target_parameters", str, [])),
        _token_ids(reader),
        _modules(reader, "target_modules"),
        _modules(reader, "exclude_modules"),
        reader.flag("ensure_weight_tying", False),
        _layers(reader),
        reader.flag("lora_bias", False),
    )
    said = [key for key, value in reader.values.items() if value not in (None, False, {}, [])]
    reader.refuse_unread(said)
    return found


def _check_init(reader: ValueReader) -> None:
    init = reader.take("init_lora_weights", True)
    if not isinstance(init, bool) and init not in _PLAIN_INITS:
        plain = ", ".join(_PLAIN_INITS)
        allowed = (
            f"true, false, {plain}: others change the base model; save it with path_initial_model_for_weight_conversion"
        )
        raise reader.refuse("init_lora_weights", init, allowed)


def _patterns(reader: ValueReader, key: str) -> tuple[tuple[str, float], ...]:
    inside, found = reader.inside(key), []
    for pattern in inside.values:
        _check_pattern(reader, key, pattern)
        is_rank = key == "rank_pattern"
        found.append(
            (pattern, inside.count(pattern, maximum=MAX_RANK) if is_rank else inside.number(pattern, minimum=-1e9))
        )
    return tuple(found)


def _check_pattern(reader: ValueReader, key: str, pattern: str) -> None:
    """Refuse what is no regular expression, and one that may take years to match."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise reader.refuse(key, pattern, f"regular expressions ({error})") from None
    if not _is_quick(pattern):
        allowed = f"patterns of at most {MAX_PATTERN} letters with {MAX_REPEATS} repetitions, and none of a group"
        raise reader.refuse(key, pattern, allowed)


def _is_quick(pattern: str) -> bool:
    repeats = len(re.findall(r"[*+{]", pattern))
    return len(pattern) <= MAX_PATTERN and repeats <= MAX_REPEATS and not re.search(r"\)[*+{?]", pattern)


def _modules(reader: ValueReader, key: str) -> Modules:
    """Read target_modules or exclude_modules: ends of names, or a regular expression. One that may take years to match,
    as some trainers write them, is not asked: then the tensors tell the modules.
    """
    is_wanted = key == "target_modules"
    given = reader.take(key, None)
    if not isinstance(given, str):
        return Modules(tuple(reader.entries(key, str, [])))
    if given == "all-linear" or not _is_quick(given):
        return Modules(others=is_wanted)
    _check_pattern(reader, key, given)
    return Modules(pattern=given)


def _layers(reader: ValueReader) -> tuple[int, ...]:
    given = reader.take("layers_to_transform", [])
    return (given,) if type(given) is int else tuple(reader.entries("layers_to_transform", int, []))


def _token_ids(reader: ValueReader) -> dict[str, tuple[int, ...]]:
    """Read trainable_token_indices: a list for the embedding, or a list for each module."""
    given: Any = reader.take("trainable_token_indices", {})
    given = {"": given} if isinstance(given, list) else given
    is_list = isinstance(given, dict) and all(
        isinstance(ids, list) and all(type(each) is int and each >= 0 for each in ids) and len(set(ids)) == len(ids)
        for ids in given.values()
    )
    if not is_list:
        raise reader.refuse(
            "trainable_token_indices", brief(given), "a list of different token ids, or one for each module"
        )
    return {name: tuple(ids) for name, ids in given.items()}
