"""The facts of a served model that clients ask for, whether it is loaded or not, and what it can do, in words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from json import dumps
from pathlib import Path
from time import time

from tokenmill.loader.load_model import resolve_checkpoint
from tokenmill.loader.loaded import LoadedModel
from tokenmill.loader.model_facts import find_tokenizer
from tokenmill.loader.resolve import ResolvedModel
from tokenmill.serve.loop.service import Service
from tokenmill.serve.request.calling import model_tools
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.recommended import Recommended
from tokenmill.text.infill import marks_of
from tokenmill.text.tokenizer import Tokenizer
from tokenmill.weights.checkpoint import open_checkpoint
from tokenmill.weights.fingerprint import ModelFiles
from tokenmill.weights.generation import recommended


@dataclass(frozen=True)
class DescribedAdapter:
    """The facts of an adapter. folder: the last part of its path. digest: of its bytes, in hexadecimal digits."""

    folder: str
    digest: str
    num_bytes: int


@dataclass(frozen=True)
class Described:
    """The facts of a model. name: to clients. created: when it was first described, in seconds. digest: of the digests
    of its files; empty before they were read. state: loaded, or what it is instead. can: see capabilities_of. files:
    from which the facts are.
    """

    name: str
    resolved: ResolvedModel
    template: str
    can: tuple[str, ...]
    defaults: Recommended
    files: ModelFiles
    digest: str = ""
    is_one_file: bool = False
    state: str = "loaded"
    adapters: Mapping[str, DescribedAdapter] = field(default_factory=dict)
    created: float = field(default_factory=time)

    @property
    def max_length(self) -> int:
        """The length of a text that is configured."""
        return self.resolved.config.max_length


def capabilities_of(resolved: ResolvedModel, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    """List what a model can do, in Ollama's words."""
    if not resolved.model.has_head:
        return ("embedding",)
    found = {"completion": True}
    if tokenizer is not None:
        found["tools"] = tokenizer.template_for(None) is not None
        found["thinking"] = model_tools(tokenizer).thinking is not None
        found["insert"] = marks_of(tokenizer) is not None
    return tuple(word for word, is_there in found.items() if is_there)


def describe_service(service: Service) -> Described:
    """Describe the model of a service."""
    loaded: LoadedModel = service.engine.core.loaded
    adapters = {name: service.engine.adapters[name] for name in service.model.adapters}
    return Described(
        service.options.name,
        loaded.resolved,
        (loaded.tokenizer and loaded.tokenizer.chat_template) or "",
        capabilities_of(loaded.resolved, loaded.tokenizer),
        loaded.generation_defaults,
        loaded.files,
        sha256(dumps(dict(loaded.fingerprint), sort_keys=True).encode()).hexdigest(),
        [*loaded.fingerprint] == ["weights"],  # one file has all
        adapters={
            name: DescribedAdapter(Path(each.path).name, each.digest.hex(), each.num_bytes)
            for name, each in adapters.items()
        },
        created=service.created,
    )


def describe_files(name: str, path: Path, config: EngineConfig, template: str | None) -> Described:
    """Describe a model by its files, of which headers and the tokenizer are read. template: in the place of its own."""
    files = ModelFiles(path)  # before they are read, lest a change meanwhile is missed
    checkpoint = open_checkpoint(path)
    resolved = resolve_checkpoint(checkpoint, config)
    tokenizer = find_tokenizer(checkpoint, config.tokenizer, resolved.model.vocab_size)
    if tokenizer is not None and template is not None:
        tokenizer.use_template(template)
    return Described(
        name,
        resolved,
        (tokenizer and tokenizer.chat_template) or "",
        capabilities_of(resolved, tokenizer),
        recommended(checkpoint, config.generation_config),
        files,
        is_one_file=path.suffix == ".gguf",
        state="unloaded",
    )
