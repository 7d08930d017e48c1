"""The map of a file's tensors to the parameters, and parts of parameters, that they fill.

A family's names are patterns; one that ends in [{e}] or [{h}] names a tensor that has all experts, [experts, …], or all
heads of a layer. Here they are expanded for one model, and `match_tensors` proves coverage by names and shapes alone:
every parameter is filled completely, and every tensor of the file is used or known to be no weight.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from tokenmill.errors import CheckpointError
from tokenmill.model.blocks import Projection
from tokenmill.model.config import ModelConfig
from tokenmill.model.description import describe
from tokenmill.model.families import Family, read_config
from tokenmill.model.families.mixers_of import mixer_of
from tokenmill.model.families.mtp import MTP_STORED
from tokenmill.model.mixers.mamba2 import Mamba2Block
from tokenmill.model.parameters import parameter_shapes
from tokenmill.model.per_layer import STORED_AS
from tokenmill.value_reader import brief
from tokenmill.weights.plain import Checkpoint

_STACK = re.compile(r"\[\{[eh]\}\]$")  # of a tensor that has all experts, or all heads
_STACK_OF = re.compile(r"\[\d+\]$")  # of one of those, where a checkpoint shows them one by one
_HEAD = re.compile(r"\[[kv]\{h\}\]$")  # of what weights/heads.py shows of a tensor


@dataclass(frozen=True, slots=True)
class Target:
    """A parameter of the decoder, the part of it ("" for all) and the transform of the file's tensor.

    A part that is a number is one row of weights [heads, head_dim]. "qkv" means three parts, one after the other; "1/3"
    the second of three pieces as torch.chunk cuts them, and "0/2 of q" the first half of the part q.
    """

    parameter: str
    part: str
    transform: str

    @property
    def is_transposed(self) -> bool:
        """Tell whether a matrix lies in the file as [inputs, outputs]."""
        return self.transform.startswith("transpose")

    def shape_in_file(self, num_rows: int, inputs: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
        """Return the shape of a file's tensor that fills num_rows rows of [rows, *inputs]."""
        if self.part.isdigit():
            return inputs
        shape = (num_rows, *inputs)
        others = {
            "one row": (1, *shape),
            "as a row": inputs,
            "depthwise": (num_rows, 1, *inputs),
            "heads in the middle": (1, 1, num_rows, 1),
            **dict.fromkeys(("as a column", "column log of minus"), (num_rows, 1)),
        }
        if self.transform in others:
            return others[self.transform]
        if self.transform == "by groups":
            block = mixer_of(config, Mamba2Block)
            assert block is not None, "Mamba 2 alone has such a norm"
            return (block.num_groups, num_rows // block.num_groups)
        return shape[::-1] if self.is_transposed else shape


def expand(family: Family, config: ModelConfig, parameters: Iterable[str]) -> dict[str, Target]:
    """Map each name of a tensor to its target, for every parameter that this model has."""
    existing = set(parameters)
    marks = {
        "{p}": (".weight", ".bias"),
        "{i}": range(config.num_layers),
        "{n}": () if config.mtp_layer is None else (config.mtp_layer,),
        "{e}": range(num_stacked(config)),
        "{h}": range(config.num_heads),
        "{k}": range(config.num_kv_heads),
    }
    targets = {}
    for pattern, goal in family.names.items():
        pairs = [(pattern, goal)]
        for mark, values in marks.items():
            if mark in pattern:
                pairs = [(p.replace(mark, str(v)), g.replace(mark, str(v))) for p, g in pairs for v in values]
        for name, text in pairs:
            places, _, transform = text.partition(" | ")
            for place in places.split(" or "):
                parameter, _, part = place.partition(":")
                if parameter in existing and _has_part(parameter, part, config):
                    targets[name] = Target(parameter, part, transform)
    return targets


def num_stacked(config: ModelConfig) -> int:
    """Count the matrices of a stack: experts, or the further streams of a model with several."""
    return config.num_experts or getattr(config.per_layer, "num_further", 0)


def expected_tensors(family: Family, config: ModelConfig) -> dict[str, tuple[Target, tuple[int, ...]]]:
    """List the tensors that a file of this model has, by their names without the family's prefix, and their shapes."""
    shapes, found = parameter_shapes(describe(config)), {}
    for name, target in expand(family, config, shapes).items():
        outputs, *inputs = shapes[target.parameter]
        found[name] = target, target.shape_in_file(len(rows_of(target, outputs, config)), tuple(inputs), config)
    return found


def match_tensors(checkpoint: Checkpoint, config: ModelConfig) -> dict[str, Target]:
    """Match the checkpoint's own name of each tensor with its target.

    CheckpointError lists every tensor that is missing, unexpected or misshapen.
    """
    family = checkpoint.family
    wanted = expected_tensors(family, config)
    targets, unexpected, misshapen = {}, [], []
    for name, shape in checkpoint.shapes.items():
        short = name.removeprefix(family.prefix)
        if short in wanted:
            targets[name], expected = wanted.pop(short)
            if shape != expected:
                misshapen.append(f"{name} {list(shape)} where {list(expected)} goes")
        elif not (is_ignored(family, short) or is_further(family, config, short) or is_unread(family, config, short)):
            unexpected.append(name)
    if wanted or unexpected or misshapen:
        what = f"{checkpoint.path} does not fit its config"
        if wanted and unexpected and not targets:
            begins = sorted({".".join(name.split(".")[:2]) for name in unexpected})
            what += f": no tensor has a name of this family; the names begin with {brief(begins)}"
        raise CheckpointError(what, missing=wanted, unexpected=unexpected, misshapen=misshapen)
    return targets


def as_stored(family: Family, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> Family:
    """Give the family the names that files have, by the shapes of their tensors: names of `also` where they are there.

    A name of `also` that is in `names`, too, has another layout or another target there. That one counts where all
    tensors fit it, since the shape of a square matrix does not tell its layout.
    """
    stored = {name.removeprefix(family.prefix): shape for name, shape in shapes.items()}
    forms = {pattern: re.compile(_form(_HEAD.sub("", pattern))) for pattern in family.also}
    names = {pattern: list(filter(form.fullmatch, stored)) for pattern, form in forms.items()}
    both = [pattern for pattern, own in names.items() if own and pattern in family.names]
    fit = all(_fits(family, config, pattern, {name: stored[name] for name in names[pattern]}) for pattern in both)
    left = both if fit else []
    found = {pattern: family.also[pattern] for pattern, own in names.items() if own and pattern not in left}
    filled = {parameter for goal in found.values() for parameter in _parameters(goal)}
    others = {name: goal for name, goal in family.names.items() if filled.isdisjoint(_parameters(goal))}
    return replace(family, names={**others, **found}) if found else family


def _fits(family: Family, config: ModelConfig, pattern: str, stored: Mapping[str, tuple[int, ...]]) -> bool:
    """Tell whether these tensors are as `names` has them."""
    wanted = expected_tensors(replace(family, names={pattern: family.names[pattern]}), config)
    return all(name in wanted and wanted[name][1] == shape for name, shape in stored.items())


def _parameters(goal: str) -> list[str]:
    """List the paths of the parameters that a target may fill, without "weight" or "bias"."""
    places, _, _ = goal.partition(" | ")
    return [re.sub(r"(\{p\}|\.weight|\.bias)?(:.*)?$", "", place) for place in places.split(" or ")]


def _form(pattern: str) -> str:
    """Make a regular expression of the names that a pattern stands for."""
    return re.sub(r"\\\{[inehk]\\\}", r"\\d+", re.escape(pattern)).replace(r"\{p\}", r"\.(?:weight|bias)")


def stacked(family: Family) -> re.Pattern[str]:
    """Match tensors that hold all experts of a layer, by their names without the family's prefix; and their codes and
    scales in a quantised directory, which are named after them.
    """
    names = (*family.names, *family.also)
    either = "|".join(_form(_STACK.sub("", name)) for name in names if _STACK.search(name))
    return re.compile(f"(?:{either})(?:_blocks|_scales)?" if either else r"(?!)")


def known(family: Family) -> re.Pattern[str]:
    """Match the names that the family's tensors may have, whatever its config; group "stack" where a tensor has all
    experts, or all heads.
    """
    found: dict[bool, list[str]] = {True: [], False: []}
    for name in family.names:
        short = _HEAD.sub("", _STACK.sub("", name))
        found[short != name].append(_form(short))
    return re.compile(f"(?:{'|'.join(found[False])})|(?P<stack>{'|'.join(found[True]) or '(?!)'})")


def is_ignored(family: Family, name: str) -> bool:
    """Tell whether a tensor is a buffer that a file may carry beside its weights."""
    return any(re.fullmatch(_form(pattern), name) for pattern in family.ignored)


@cache
def _names_of_layer(patterns: tuple[str, ...], number: int) -> re.Pattern[str]:
    """Match the names of these patterns where {n} is that number."""
    return re.compile("|".join(_form(_STACK.sub("", each.replace("{n}", str(number)))) for each in patterns))


def is_further(family: Family, config: ModelConfig, name: str) -> bool:
    """Tell whether a tensor is part of the layers that predict further tokens; for such a layer, of all the others."""
    if config.mtp_layer is not None:
        own = _names_of_layer(tuple(family.names), config.mtp_layer)
        return own.fullmatch(_STACK_OF.sub("", name)) is None
    numbers = range(config.num_layers, config.num_layers + max(config.num_mtp, 1))
    return name.startswith(tuple(begin.replace("{n}", str(each)) for begin in family.further for each in numbers))


def is_unread(family: Family, config: ModelConfig, name: str) -> bool:
    """Tell whether a tensor is of the keys or values of a layer that reads the rows of another layer: published files
    have them, and nothing reads them.
    """
    shared = [layer for layer, source in enumerate(config.kv_sources) if source is not None]
    if not shared:
        return False
    patterns = [pattern for pattern, goal in family.names.items() if re.search(r"qkv\{p\}:[kv]|k_norm", goal)]
    found = (re.fullmatch(_form(pattern).replace(r"\d+", r"(\d+)", 1), name) for pattern in patterns)
    return any(match is not None and int(match[1]) in shared for match in found)


def name_of(checkpoint: Checkpoint, parameter: str) -> str | None:
    """Find the checkpoint's name of the tensor that fills a parameter."""
    family = checkpoint.family
    shorts = {name for name, target in family.names.items() if target == parameter}
    return next((name for name in checkpoint.shapes if name.removeprefix(family.prefix) in shorts), None)


def inputs_as_stored(checkpoint: Checkpoint) -> dict[str, str]:
    """Make the key of config.json that says how a file has the inputs of layers, where their rows can be mapped."""
    family = checkpoint.family
    names = [name for name, goal in family.names.items() if goal == "per_layer.embedding.weight"]
    there = [each for name in names for each in (name, family.prefix + name) if each in checkpoint.shapes]
    return {STORED_AS: kind} if there and (kind := checkpoint.mapped_as(there[0])) else {}


def mtp_as_stored(checkpoint: Checkpoint) -> dict[str, bool]:
    """Make the key of config.json that says that a directory has a layer that predicts further tokens."""
    family = checkpoint.family
    if family.mtp is None:
        return {}
    matrix = family.mtp.others[0].replace("{n}", str(read_config(checkpoint.config).num_layers))
    return {MTP_STORED: True} if {matrix, family.prefix + matrix} & checkpoint.shapes.keys() else {}


def rows_of(target: Target, num_rows: int, config: ModelConfig) -> range:
    """Find the rows of a merged parameter, which has num_rows, that one tensor of the file fills."""
    if not target.part:
        return range(num_rows)
    if target.part.isdigit():
        return range(int(target.part), int(target.part) + 1)
    piece, _, whole = target.part.partition(" of ")
    if "/" in piece:
        number, count = map(int, piece.split("/"))
        rows = rows_of(replace(target, part=whole), num_rows, config)
        size = -(-len(rows) // count)
        return rows[number * size : (number + 1) * size]
    if target.part in ("gate", "up"):
        half = num_rows // 2
        return range(half) if target.part == "gate" else range(half, num_rows)
    matrix = _merged(target.parameter, config)
    number = "".join(matrix.names).index(target.part)
    first = sum(matrix.parts[:number])
    return range(first, first + sum(matrix.parts[number : number + len(target.part)]))


def _merged(parameter: str, config: ModelConfig) -> Projection:
    """Find the matrix of a mixer by its parameter, layers.{i}.attention.qkv.weight."""
    _, layer, name, role, *_ = parameter.split(".")
    mixer = next(mixer for mixer in describe(config).layers[int(layer)].mixers if mixer.name == name)
    if role == "conv":  # whose channels are the first rows of the first matrix
        role = next(iter(mixer.matrices))
    return mixer.matrices[role]


def _has_part(parameter: str, part: str, config: ModelConfig) -> bool:
    """Tell whether a matrix has that part: a layer that shares rows has no keys, and values may be keys."""
    known = not part or part[0].isdigit() or part in ("gate", "up")
    return known or part in "".join(_merged(parameter, config).names)
