"""`tokenmill serve` of several models: what was named, the settings of each, and the memory that each may take."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tokenmill.cli.models import check_model, load_engine, read_model_config, read_template
from tokenmill.cli.parser.command import Command, Context
from tokenmill.cli.parser.config_file import PRESET_VERBS, keys_of, presets_file, read_presets, take_values
from tokenmill.cli.parser.options import built_settings
from tokenmill.cli.process.display import progress_on_stderr, remark
from tokenmill.cli.serve.folders import with_prefixes
from tokenmill.cli.serve.one import warn_if_open
from tokenmill.errors import CapacityError, ConfigError, TokenmillError
from tokenmill.hub.progress import Progress, Silent
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.serve.http.address import Address, listen
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.units import size

if TYPE_CHECKING:  # these import torch and the server
    from tokenmill.model.config import ModelConfig
    from tokenmill.serve.models.hosted import Hosted, ModelSetup
    from tokenmill.serve.models.residents import Residents
    from tokenmill.serve.start.options import Options

PRESET = "preset:"
NAMED = re.compile(r"([^=/\\]+)=(.+)")  # NAME=MODEL
OF_SERVER = {
    *("host", "port", "replicas", "api_key", "api_key_file", "drain", "keep_alive", "metrics_prefix", "log_format"),
    *("ssl_certfile", "ssl_keyfile", "record", "memory", "offline", "quiet", "models", "batch_dir", "strict"),
}
"""Options of the whole server, which a preset for one of its models does not set."""
WEIGHTS_SHARE = 0.8
"""The share of the room that weights of models may take that stay loaded together: caches need the rest."""
OWN_BYTES = 400_000_000
"""Memory beside the models: Python, torch, and what requests take on the way. Measured: 330 MB with torch 2.13."""
FREE_SHARE = 0.9
"""The share of the free memory that the models take where --memory does not say it."""
UNITS = {"": 1e9, "G": 1e9, "GB": 1e9, "GIB": 2**30, "M": 1e6, "MB": 1e6, "MIB": 2**20}


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
    return bool(values["models"] or values["memory"] is not None or values["idle"] is not None or is_more)


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


def read_memory(given: str | None) -> int | None:
    """Read a size of memory: 8, 8GB or 6000MB. ConfigError for another text."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", given.strip())
    if found is None or found[2].upper() not in UNITS or not float(found[1]):
        raise ConfigError("memory", given, "a size such as 8, 8GB or 6000MB", "--memory")
    return int(float(found[1]) * UNITS[found[2].upper()])


def read_idle(given: str | None) -> float | None:
    """Read how long an idle model stays loaded, in seconds; None for ever. ConfigError for another text."""
    from tokenmill.serve.ollama.names import keep_alive_s

    if (found := keep_alive_s("5m" if given is None else given.strip() or "?")) is None:
        raise ConfigError("keep_alive", given, "seconds, or a duration such as 5m; negative: for ever", "--keep-alive")
    return found[0]


def setups_of(
    wanted: Sequence[NamedModel], options_of: Callable[[Mapping[str, Any]], "Options"], room: int | None, quiet: bool
) -> tuple[list["ModelSetup"], int]:
    """Make the settings of each model, with a cache of its share; and the room for all that are loaded at once.

    CapacityError for a model that does not fit alone. room: as --memory says it.
    """
    with held_interrupts():
        from tokenmill.kernels.devices import free_bytes, kind_of
        from tokenmill.loader.resolve import resolve
        from tokenmill.serve.models.hosted import ModelSetup

    found = list[tuple[NamedModel, EngineConfig, "ModelConfig", int]]()
    with progress_on_stderr(quiet) as progress:
        for each in wanted:
            progress.stage(f"reading {each.model}")
            if (read := _read(each, progress, resolve)) is not None:
                found.append((each, *read))
    if not found:
        raise ConfigError("model", wanted[0].model, "a model that can be served", "MODEL")
    device = resolve(found[0][1], found[0][2]).config.device
    own = OWN_BYTES if kind_of(device) == "cpu" else 0
    available = int(FREE_SHARE * free_bytes(device)) if room is None else room - own
    cache = _cache_share([weights for *_, weights in found], available)
    setups = []
    for each, engine, model, weights in found:
        fitted, num_bytes = _fitted(each, engine, model, weights, cache, available)
        given = options_of(each.values)
        folder = given.session_dir and given.session_dir / quote(each.name, safe="")
        options = replace(given, name=each.name, session_dir=folder, batch_dir=None, may_go=True)
        template = each.values["chat_template"]
        text = None if template is None else read_template(template)
        setups.append(ModelSetup(fitted, options, text, read_idle(each.values["idle"]), num_bytes))
    return setups, available


def _read(each: NamedModel, progress: Progress, resolve: Any) -> tuple[EngineConfig, "ModelConfig", int] | None:
    """Read the config of a model; None, which is said, for one of a folder that cannot be served."""
    try:
        engine = replace(built_settings(EngineConfig, each.values), model=each.model)
        engine = replace(engine, generation_config=each.values["generation_config"])
        if engine.tensor_parallel > 1:
            raise ConfigError("tensor_parallel", engine.tensor_parallel, "1 for a server of several models")
        check_model(each.model, progress)
        model = read_model_config(each.model, progress)
        return engine, model, resolve(engine, model).weight_bytes
    except TokenmillError as error:
        if each.is_certain:
            raise
        remark(f"left out: {each.name}: {error}")
        return None


def _cache_share(weights: Sequence[int], available: int) -> int:
    """Compute the bytes for the cache of each model: what is left beside the weights of those that fit together.

    For each model, the smallest others join it while the weights of all leave a fifth of the room; the models of that
    set share the rest. The share of the tightest set holds for all, so that any such set stays loaded.
    """
    shares = []
    for place, own in enumerate(weights):
        total, number = own, 1
        for other in sorted([*weights[:place], *weights[place + 1 :]]):
            if total + other > WEIGHTS_SHARE * available:
                break
            total, number = total + other, number + 1
        shares.append((available - total) // number)
    return max(min(shares), 0)


def _within(num_bytes: int, device: str) -> int:
    """Count the bytes that a model may take of a device."""
    return num_bytes


def _fitted(
    each: NamedModel, engine: EngineConfig, model: "ModelConfig", weights: int, cache: int, available: int
) -> tuple[EngineConfig, int]:
    """Fit the cache of a model into its share, or into all of the room where one text needs more; with its memory."""
    from tokenmill.loader.fit import fit_for_many
    from tokenmill.loader.resolve import resolve
    from tokenmill.measure.cost import cost_of
    from tokenmill.weights.adapters.named import adapter_bytes

    number = engine.max_sequences if "max_sequences" in each.origins else None
    adapters = adapter_bytes(engine)
    for room in dict.fromkeys((min(weights + cache, available), available)):
        try:
            fitted = fit_for_many(with_prefixes(engine), model, number, partial(_within, room - adapters), True)
            return fitted, cost_of(resolve(fitted, model)).total_bytes + adapters
        except CapacityError as error:
            refusal = error
    raise ConfigError("model", each.model, f"one that fits into {size(available)} (--memory): {refusal}", "MODEL")


def residents_of(setups: Sequence["ModelSetup"], room: int, max_waiting: int, quiet: bool) -> "Residents":
    """Make what loads and unloads these models, whose engines share a thread, so that their steps take turns."""
    from tokenmill.engine.thread import EngineThread
    from tokenmill.serve.models.hosted import Hosted
    from tokenmill.serve.models.loading import served_of, unload
    from tokenmill.serve.models.residents import Residents

    thread = EngineThread()

    def load(hosted: "Hosted", on_failure: Callable[[], None]) -> Any:
        engine = load_engine(hosted.setup.engine, Silent(), thread=thread)
        return served_of(hosted, engine, on_failure)

    return Residents([Hosted(each) for each in setups], room, load, unload, None if quiet else remark, max_waiting)


def _check_several(context: Context) -> None:
    """Refuse options of one model beside several."""
    one = {
        "name": "NAME=MODEL, which names each of them",
        "replicas": "none: several models have an engine each",
        "batch_dir": "none: a server of several models takes no batches",
    }
    for name, allowed in one.items():
        if name in context.origins:
            raise ConfigError(name, context.values[name], allowed, context.origins[name])


def serve_several(
    context: Context,
    options_of: Callable[[Mapping[str, Any]], "Options"],
    options: "Options",
    address: Address,
    quiet: bool,
) -> bool:
    """Serve several models until a signal comes; tell whether no engine hung at the end."""
    _check_several(context)
    room, wanted = read_memory(context.values["memory"]), wanted_models(context)
    read_idle(context.values["idle"])
    taken = listen(address)
    address = address.at(taken)
    try:
        setups, room = setups_of(wanted, options_of, room, quiet)
    except BaseException:
        taken.close()
        raise
    from tokenmill.serve.models.router import greeting
    from tokenmill.serve.models.server import ModelsServer

    warn_if_open(taken, options, address)
    residents = residents_of(setups, room, options.max_queued, quiet)
    server = ModelsServer(residents, taken, replace(options, name=setups[0].name), None if quiet else remark)
    if not quiet:
        remark(greeting(residents, address.url, size(room)))
    return server.serve_to_end()
