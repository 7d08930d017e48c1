"""The model that a verb was given, opened. torch is imported here, when a verb runs."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.process.display import remark, say_on_stderr
from tokenmill.cli.process.torch_import import without_meta_kernels
from tokenmill.errors import CheckpointError, ConfigError
from tokenmill.hub.progress import Progress, Silent
from tokenmill.memory.interrupts import held_interrupts
from tokenmill.settings.engine_config import EngineConfig

if TYPE_CHECKING:
    from tokenmill.engine.engine import Engine
    from tokenmill.engine.thread import EngineThread
    from tokenmill.model.config import ModelConfig
    from tokenmill.weights.checkpoint import Checkpoint

NEW = 2
"""Tokens that a text needs for one step of decoding."""


@contextmanager
def _importing() -> Iterator[None]:
    """Hold Ctrl-C back inside, and import numpy, which readers of files would import outside of this context."""
    with held_interrupts():
        import numpy  # noqa: F401

        yield


def find_path(model: str, progress: Progress) -> Path:
    """Locate the files of a model, and fetch them if need be."""
    with _importing():
        from tokenmill.hub.names import locate
    return locate(model, progress=progress)


def check_model(model: str, progress: Progress) -> Path:
    """Locate the files of a model. A file that is no model is refused by its first bytes, before slow imports."""
    from tokenmill.hub.names import locate
    from tokenmill.weights.file_kind import file_kind

    path = locate(model, progress=progress)
    if looks_saved(path):
        raise CheckpointError(f"{path} is a saved cache, not a model: tokenmill decode {path}")
    file_kind(path)
    return path


def find_checkpoint(model: str, progress: Progress) -> "Checkpoint":
    """Locate, fetch if need be, and open; no tensor is read."""
    with _importing():
        from tokenmill.hub.names import locate
        from tokenmill.weights.checkpoint import open_checkpoint
    return open_checkpoint(locate(model, progress=progress))


def read_model_config(model: str, progress: Progress) -> "ModelConfig":
    """Read the config that a load of the model would find: a directory needs no weights for it."""
    with _importing():
        from tokenmill.hub.names import locate
        from tokenmill.model.families import read_config
        from tokenmill.weights.checkpoint import foreseen_config
    return read_config(foreseen_config(locate(model, progress=progress)))


def looks_saved(path: Path) -> bool:
    """Tell a safetensors file with the header of a snapshot; `tokenmill decode` says what is wrong with it."""
    try:
        with path.open("rb") as opened:
            start = opened.read(200)
    except OSError:
        return False
    return start[8:9] == b"{" and b'"tokenmill"' in start


def load_engine(
    config: EngineConfig,
    progress: Progress,
    chat_template: Path | None = None,
    adjust: Callable[[EngineConfig], EngineConfig] | None = None,
    thread: "EngineThread | None" = None,
    writes_text: bool = True,
) -> "Engine":
    """Load as tokenmill.load does, with progress for the fetch as well. chat_template: a file in the place of the
    model's own. adjust: changes settings when the longest text is known. thread: see load_files. writes_text: False
    where no text is asked for, so that nothing is compiled for one."""
    from tokenmill.hub.names import is_there
    from tokenmill.loader.copies import start_reading

    template = None if chat_template is None else read_template(chat_template)
    path = check_model(config.model, progress)
    is_snapshot = path.is_dir() and not is_there(Path(config.model))  # in the hub's cache, with a commit as its name
    progress.stage(f"loading {config.model if is_snapshot else path.name}")
    if not isinstance(progress, Silent):
        say_on_stderr()
    reader = start_reading(path, config)

    # Program native, which "auto" takes where it can, traces nothing. A draft model may be for another program.
    may_be_native = config.program in ("auto", "native") and not config.has_draft_model
    with held_interrupts(), without_meta_kernels() if may_be_native else nullcontext():
        # After the reader: it reads while torch is imported here.
        from tokenmill.engine.load import load_files
        from tokenmill.quant.schemes import find_scheme
    engine, checkpoint = load_files(path, config, progress, reader, adjust, thread)
    if checkpoint.rounded and find_scheme(engine.config.scheme).keeps_codes and not isinstance(progress, Silent):
        remark(checkpoint.rounded)
    if checkpoint.dequantized and not isinstance(progress, Silent):
        remark(checkpoint.dequantized)
    if template is not None:
        if engine.tokenizer is None:
            raise ConfigError("chat_template", str(chat_template), "none, because this model has no tokenizer")
        engine.tokenizer.use_template(template)
    if writes_text:
        _prepare(engine, progress)
    if thread is None:  # an engine that shares its thread is one of several models, and may be unloaded
        gc.freeze()  # objects that exist now live on: looking at them in the midst of a text took as long as ten steps
    return engine


def read_template(path: Path) -> str:
    """Read a chat template out of a file, and try it before a model is loaded."""
    from tokenmill.text.chat import check_template

    try:
        template = path.read_text(encoding="utf-8")
        check_template(template)
    except (OSError, UnicodeDecodeError, CheckpointError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError("chat_template", str(path), f"a file with a template in Jinja ({why})") from None
    return template


def _prepare(engine: "Engine", progress: Progress) -> None:
    """Do now what would otherwise be done within the first answer: compile."""
    config = engine.config
    assert config.max_length is not None, "resolved when the engine is built"
    if engine.program_name != "compiled" or config.compile_in_background or config.max_length <= NEW:
        return
    progress.stage("compiling")
    engine.generate([[0]], max_new_tokens=NEW, ignore_eos=True)
    if config.max_sequences > 1:
        engine.generate([[0], [0]], max_new_tokens=NEW, ignore_eos=True)
