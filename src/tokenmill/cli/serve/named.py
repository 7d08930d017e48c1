"""The models that were named for a server of several: a model, NAME=MODEL, preset:NAME, or a folder of models."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenmill.cli.parser.command import Command, Context
from tokenmill.cli.parser.config_file import PRESET_VERBS, keys_of, presets_file, read_presets, take_values
from tokenmill.cli.process.display import remark
from tokenmill.errors import ConfigError
from tokenmill.settings.engine_config import EngineConfig

PRESET = "preset:"
NAMED = re.compile(r"([^=/\\]+)=(.+)")  # NAME=MODEL
OF_SERVER = {
    *("host", "port", "replicas", "api_key", "api_key_file", "drain", "keep_alive", "metrics_prefix", "log_format"),
    *("ssl_certfile", "ssl_keyfile", "record", "memory", "offline", "quiet", "models", "batch_dir", "strict"),
}
"""Options of the whole server, which a preset for one of its models does not set."""


@dataclass(frozen=True)
class NamedModel:
    """A model that was named. name: to clients. values: the options of the verb that hold for it. is_certain: it was
    named itself; one that a folder has is left out where it cannot be served.
    """

    name: str
    model: str
    values: Mapping[str, Any]
    origins: Mapping[str, str]
    is_certain: bool = True


def serves_several(values: Mapping[str, Any]) -> bool:
    """Tell whether what was given needs a server that loads and unloads models."""
    model = str(values["model"])
    is_more = model.startswith(PRESET) or NAMED.fullmatch(model) or _is_folder_of_models(model)
    return bool(values["models"] or values["memory"] is not None or values.get("idle") is not None or is_more)


def wanted_models(context: Context) -> list[NamedModel]:
    """List the models that were named: a model, NAME=MODEL, preset:NAME, or a folder of models. ConfigError where two
    have one name.
    """
    found = [each for word in [context.values["model"], *(context.values["models"] or ())]
             for each in _meant(str(word), context)]  # fmt: skip
    names = dict[str, str]()
    for each in found:
        if (other := names.setdefault(each.name.casefold(), each.model)) != each.model or not each.name:
            allowed = f"another name than that of {other}: give NAME=MODEL"
            raise ConfigError("model", each.model, allowed, "MODEL")
    unique = {each.name.casefold(): each for each in found}
    if not unique:
        raise ConfigError("model", context.values["model"], "a folder with a model in it", "MODEL")
    return list(unique.values())


def _meant(word: str, context: Context) -> Iterator[NamedModel]:
    name, model, values, origins = "", word, dict(context.values), dict(context.origins)
    if (named := NAMED.fullmatch(word)) is not None and not Path(word).exists():
        name, model = named.groups()
    if model.startswith(PRESET):
        preset = model.removeprefix(PRESET)
        given = _read_preset(preset)
        fresh = {key: each for key, each in given.items() if key not in context.origins and key not in OF_SERVER}
        values |= {key: value for key, (value, _) in fresh.items()}
        origins |= {key: where for key, (_, where) in fresh.items()}
        model = given["model"][0] if "model" in given else EngineConfig.model
        name = name or (given["name"][0] if "name" in given else preset)
    elif not name and _is_folder_of_models(model):
        yield from _in_folder(Path(model), values, origins)
        return
    yield NamedModel(name or model, model, values, origins)


def _read_preset(name: str) -> dict[str, tuple[Any, str]]:
    presets, path = read_presets(), presets_file()
    if name not in presets:
        raise ConfigError("preset", name, f"a preset of {path}: {', '.join(presets) or 'there are none'}", "MODEL")
    elsewhere = {key for verb in PRESET_VERBS for key in keys_of(Command(verb))}
    given, left_out = take_values(Command("serve"), presets[name], f"{path}, [{name}]", elsewhere)
    left_out += [key for key in given if key in OF_SERVER]
    if left_out:
        remark(f"preset {name}: a model of several has no {', '.join(left_out)}, so that is left out")
    return given


def _is_folder_of_models(model: str) -> bool:
    folder = Path(model)
    return folder.is_dir() and not (folder / "config.json").exists()


def _in_folder(folder: Path, values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[NamedModel]:
    """Yield the models below a folder, by their paths in it, without the suffix of a file."""
    from tokenmill.hub.places.folders import entries_below

    for entry in entries_below("folder", folder):
        if entry.path is None:
            remark(f"left out: {entry.name} {entry.problem}")
            continue
        relative = entry.path.relative_to(folder) if entry.path.is_relative_to(folder) else Path(entry.path.name)
        name = relative.with_suffix("") if entry.path.is_file() else relative
        yield NamedModel(name.as_posix(), str(entry.path), values, origins, is_certain=False)
