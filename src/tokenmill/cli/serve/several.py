"""`tokenmill serve` of several models: the settings of each, and the server."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tokenmill.cli.models import load_engine, read_template
from tokenmill.cli.parser.command import Context
from tokenmill.cli.process.display import remark
from tokenmill.cli.serve.live import live_view
from tokenmill.cli.serve.named import wanted_models
from tokenmill.cli.serve.one import warn_if_open
from tokenmill.cli.serve.shares import ModelShare, memory_of, read_memory, shares_of
from tokenmill.errors import ConfigError
from tokenmill.hub.progress import Silent
from tokenmill.serve.http.address import Address, listen
from tokenmill.units import size
from tokenmill.weights.adapters.named import named_adapters

if TYPE_CHECKING:  # these import torch and the server
    from tokenmill.serve.models.hosted import Hosted, ModelSetup
    from tokenmill.serve.models.residents import Residents
    from tokenmill.serve.start.options import Options


LONGEST_NAME = 120  # of a folder; file systems take 255 bytes


def read_idle(given: str | None, where: str = "--keep-alive") -> float | None:
    """Read how long an idle model stays loaded, in seconds; None for ever. ConfigError for another text."""
    from tokenmill.serve.ollama.names import keep_alive_s

    if (found := keep_alive_s("5m" if given is None else given.strip() or "?")) is None:
        raise ConfigError("keep_alive", given, "seconds, or a duration such as 5m; negative: for ever", where)
    return found[0]


def setups_of(shares: Sequence[ModelShare], options_of: Callable[[Mapping[str, Any]], "Options"]) -> list["ModelSetup"]:
    """Make the settings of each model."""
    from tokenmill.serve.models.hosted import ModelSetup

    setups = []
    for each in shares:
        given, values = options_of(each.named.values), each.named.values
        folder = given.session_dir and given.session_dir / _folder_name(each.named.name)
        options = replace(given, name=each.named.name, session_dir=folder, batch_dir=None, may_go=True)
        template = values["chat_template"]
        text = None if template is None else read_template(template)
        idle = read_idle(values["idle"], each.named.origins.get("idle", "--keep-alive"))
        setups.append(ModelSetup(each.engine, options, text, idle, each.num_bytes))
    _check_adapters(setups)
    return setups


def _folder_name(name: str) -> str:
    """Name the folder of a model's sessions, which a file system takes."""
    quoted = quote(name, safe="")
    return quoted if len(quoted) <= LONGEST_NAME else sha256(name.encode()).hexdigest()


def _check_adapters(setups: Sequence["ModelSetup"]) -> None:
    """Refuse adapters with the name of another model, or of an adapter of another one."""
    owners = {each.name.casefold(): each.name for each in setups}
    for each in setups:
        for name in named_adapters(each.engine.lora_modules):
            if (owner := owners.setdefault(name.casefold(), each.name)) != each.name:
                raise ConfigError("lora_modules", name, f"another name than that of {owner} or of its adapter")


def _planned_bytes(setup: "ModelSetup") -> int:
    """Count the memory of a model as its files are now, with the adapters of its settings."""
    from tokenmill.hub.names import locate
    from tokenmill.loader.load_model import resolve_checkpoint
    from tokenmill.weights.checkpoint import open_checkpoint

    return memory_of(resolve_checkpoint(open_checkpoint(locate(setup.engine.model)), setup.engine))


def residents_of(
    setups: Sequence["ModelSetup"],
    room: int,
    num_keys: int,
    quiet: bool,
    plan: Callable[["ModelSetup"], int] = _planned_bytes,
) -> "Residents":
    """Make what loads and unloads these models, whose engines share a thread, so that their steps take turns."""
    from tokenmill.engine.thread import EngineThread
    from tokenmill.serve.models.hosted import Hosted
    from tokenmill.serve.models.loading import give_memory_back, served_of
    from tokenmill.serve.models.residents import Residents

    gc.freeze()  # modules live on: no collection looks at them when a model is unloaded
    thread = EngineThread()

    def load(hosted: "Hosted", on_failure: Callable[[], None]) -> Any:
        engine = load_engine(hosted.setup.engine, Silent(), thread=thread)
        return served_of(hosted, engine, on_failure)

    hosted, tell = [Hosted(each) for each in setups], None if quiet else remark
    return Residents(hosted, room, plan, load, give_memory_back, tell, num_keys)


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
    is_watched: bool,
) -> bool:
    """Serve several models until a signal comes; tell whether no engine hung at the end."""
    _check_several(context)
    room, wanted = read_memory(context.values["memory"]), wanted_models(context)
    read_idle(context.values["idle"])
    taken = listen(address)
    address = address.at(taken)
    try:
        shares, room = shares_of(wanted, room, quiet)
        setups = setups_of(shares, options_of)
    except BaseException:
        taken.close()
        raise
    from tokenmill.serve.models.server import ModelsServer, greeting

    warn_if_open(taken, options, address)
    residents = residents_of(setups, room, len(options.keys), quiet)
    server = ModelsServer(residents, taken, replace(options, name=setups[0].name), None if quiet else remark)
    if not quiet:
        remark(greeting(residents, address.url, size(room)))
    with live_view(is_watched, lambda: [there for each in residents.all if (there := each.served) is not None]):
        return server.serve_to_end()
