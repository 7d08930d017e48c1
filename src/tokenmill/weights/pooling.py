"""How the vector of a text is pooled from a model's rows, as its files say: files of sentence-transformers beside a
directory's weights, or the metadata of a GGUF file.

A directory has modules.json, which names a folder for each step after the model: pooling, normalisation, matrices. The
prompts that stand before texts are in config_sentence_transformers.json, the most tokens of a text, and whether its
letters are made small, in sentence_bert_config.json. The first sentence-transformers put the model itself into such a
folder, too, 0_Transformer. llama.cpp has one number for the pooling.
"""

import json
import shutil
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tokenmill.errors import CheckpointError
from tokenmill.registry import CHECKPOINT_CHECKS, lookup
from tokenmill.text.tokenizer import read_json
from tokenmill.value_reader import ValueReader, brief
from tokenmill.weights.file_kind import DIRECTORY, PACKED, file_kind
from tokenmill.weights.files import has_weights
from tokenmill.weights.packed.reader import REMEDY, read_header

POOLINGS = ("last", "mean", "cls", "weighted")
"""The row of the last token, the mean of all rows, the row of the first, and the mean with weights 1, 2, 3 …"""

_MODES = {
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_weightedmean_tokens": "weighted",
}
_NAMES = {"lasttoken": "last", "mean": "mean", "cls": "cls", "weightedmean": "weighted"}
_MODULE, _PROMPTS = "modules.json", "config_sentence_transformers.json"
_MODEL = "Transformer"  # the type of the module that is the model itself
TOKENS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Files of which a model has one; sentence-transformers takes the first that is there."""


@dataclass(frozen=True)
class TextPooling:
    """A pooling, one of POOLINGS, as a model's files say it.

    is_told: the files say it. prompts: by their names; default_prompt: the one that stands before a text unless another
    is asked for. max_tokens: of a text, None where the model's context counts. lowers: letters are made small. strips:
    spaces around a text go. steps: the folder of each matrix by which a pooled vector is multiplied, in order, or its
    name behind the path of a GGUF file; None for a normalisation between them.
    """

    pooling: str = "last"
    normalize: bool = True
    is_told: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_tokens: int | None = None
    lowers: bool = False
    strips: bool = False
    steps: tuple[Path | None, ...] = ()


def pooling_of(path: Path) -> TextPooling:
    """Read what the files of a model say, "last" where they say nothing, as for a decoder. CheckpointError where they
    ask for more than a pooling and a normalisation.
    """
    kind = file_kind(path)
    if kind == DIRECTORY:
        return _of_directory(path) if has_modules(path) else TextPooling(**_of_config(path), **_prompts(path))
    if kind == PACKED:
        return _of_packed(path)
    found, matrices = lookup(CHECKPOINT_CHECKS, "pooling", "reader")(path)  # which imports gguf
    steps = tuple(path / name for name in matrices)
    return TextPooling(steps=steps) if found is None else TextPooling(found, is_told=True, steps=steps)


def packed_pooling(path: Path) -> dict[str, Any]:
    """Make what the header of a packed model says of the pooling of its model's files."""
    try:
        told = pooling_of(path)
    except CheckpointError as error:  # it may write texts, for which no pooling is needed
        return {"refused": str(error)}
    if told.steps:
        return {"refused": f"its pooled vectors are multiplied by matrices, which are not in the file: give {path}"}
    return {entry.name: getattr(told, entry.name) for entry in fields(told) if entry.name != "steps"}


def _of_packed(path: Path) -> TextPooling:
    found = read_header(path)[0].get("pooling")
    if not isinstance(found, dict):  # an older file
        return TextPooling()
    if "refused" in found:
        raise CheckpointError(f"{path}: {found['refused']}")
    try:
        return TextPooling(**found)
    except TypeError as error:
        raise CheckpointError(f"{path} is damaged: its pooling is {brief(found)}; {REMEDY}") from error


def copy_modules(path: Path, out: Path) -> None:
    """Copy what sentence-transformers has saved beside a directory's weights."""
    root = _root_of(path) or path
    for name in (_PROMPTS, *TOKENS):
        if (file := (root if name == _PROMPTS else path) / name).is_file():
            shutil.copyfile(file, out / name)
    modules = _list_of_modules(root / _MODULE) if has_modules(path) else []
    for module in modules:
        folder = _folder_in(root, module.get("path", ""))
        if _kind(module) == _MODEL:
            module["path"] = ""  # where the weights are written
        elif folder != root and folder.is_dir():
            shutil.copytree(folder, out / folder.relative_to(root), dirs_exist_ok=True)
    if modules:
        (out / _MODULE).write_text(json.dumps(modules, indent=2), encoding="utf-8")


def has_modules(path: Path) -> bool:
    """Say whether a directory was saved by sentence-transformers."""
    return _root_of(path) is not None


def check_place(path: Path) -> None:
    """Refuse the folder around a model of the first sentence-transformers, and name the one of the model."""
    inner = _inner(path)
    if inner != path and (inner / "config.json").is_file() and not has_weights(path):
        raise CheckpointError(
            f"{path} is a model of an older sentence-transformers, with its weights in {inner}: give that folder; its "
            f"vectors are made as {_MODULE} says"
        )


def _root_of(path: Path) -> Path | None:
    """Find the folder of the modules.json of a model: its own, or the one around it if that names it; else None."""
    if (path / _MODULE).is_file():
        return path
    path = path.resolve()
    return path.parent if _inner(path.parent) == path else None


def _inner(root: Path) -> Path:
    """Find the folder that a modules.json names for the model itself; `root` where there is none that can be read."""
    try:
        modules = _list_of_modules(root / _MODULE) if (root / _MODULE).is_file() else []
        return _folder_in(root, next((each.get("path", "") for each in modules if _kind(each) == _MODEL), ""))
    except CheckpointError:
        return root


def _kind(module: dict[str, Any]) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


def _of_directory(path: Path) -> TextPooling:
    root = _root_of(path) or path
    modules = _list_of_modules(root / _MODULE)
    pooling, steps = None, list[Path | None]()
    for module in modules:
        kind = _kind(module)
        if kind == "Pooling":
            pooling = _mode(_folder_in(root, module.get("path", "")) / "config.json")
        elif kind == "Normalize":
            steps.append(None)
        elif kind == "Dense":
            steps.append(_folder_in(root, module.get("path", "")))
        elif kind != _MODEL:
            raise CheckpointError(f"{root / _MODULE} has a module of type {brief(kind)}, which is not supported yet")
    if pooling is None:
        raise CheckpointError(f"{root / _MODULE} has no pooling")
    normalize = bool(steps) and steps[-1] is None
    file = next((path / name for name in TOKENS if (path / name).is_file()), path / TOKENS[0])
    tokens = ValueReader(read_json(file), str(file), CheckpointError)
    return TextPooling(
        pooling,
        normalize,
        True,
        max_tokens=tokens.count("max_seq_length", None),
        lowers=tokens.flag("do_lower_case", False),
        strips=True,
        steps=tuple(steps[:-1] if normalize else steps),
        **_prompts(root),
    )


def _of_config(path: Path) -> dict[str, Any]:
    """Read what config.json says in the words of jina's own code, which leaves vectors at their length."""
    is_mean = read_json(path / "config.json").get("emb_pooler") == "mean"
    return {"pooling": "mean", "normalize": False, "is_told": True} if is_mean else {}


def _list_of_modules(file: Path) -> list[dict[str, Any]]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(module, dict) for module in found):
        raise CheckpointError(f"{file} must hold a list of modules")
    return found


def _folder_in(path: Path, name: object) -> Path:
    folder = path / str(name)
    if not folder.resolve().is_relative_to(path.resolve()):
        raise CheckpointError(f"{path / _MODULE} names the folder {brief(name)}, which is outside of the model's")
    return folder


def _mode(file: Path) -> str:
    reader = ValueReader(read_json(file), str(file), CheckpointError)
    if reader.flag("include_prompt", True) is False:
        raise reader.refuse("include_prompt", False, "true: rows of a prompt are pooled like others")
    if (name := reader.text("pooling_mode", "")) in _NAMES:
        return _NAMES[name]
    modes = [key for key in reader.values if key.startswith("pooling_mode_") and reader.flag(key, False)]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise CheckpointError(
            f"{file} asks for {', '.join(modes) or 'no pooling'}; one is wanted of {', '.join(_MODES)}"
        )
    return _MODES[modes[0]]


def _prompts(path: Path) -> dict[str, Any]:
    reader = ValueReader(read_json(path / _PROMPTS), str(path / _PROMPTS), CheckpointError)
    found = reader.take("prompts", {})
    found = found if isinstance(found, dict) else {}
    prompts = {str(name): prompt for name, prompt in found.items() if isinstance(prompt, str)}
    default = reader.take("default_prompt_name", None)
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise reader.refuse("default_prompt_name", default, f"one of {', '.join(prompts) or 'none'}")
    return {"prompts": prompts, "default_prompt": default}
