"""Tasks of lm-evaluation-harness: found by name, in a folder or among the harness' own; loaded; evaluated.

A task is somebody's YAML, Python and data, and can fail in every way. What fails is said with the task's name, before a
model is loaded.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import lm_eval
import numpy
import torch
import yaml
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from tokenmill.errors import ConfigError, RequestError, TokenmillError
from tokenmill.measure.harness.model import SEED

LOCAL = (
    "a task reads local data if it stands in a folder given by --include-path, with dataset_path: json and "
    "dataset_kwargs: {data_files: …}"
)
FIRST_SEED = 0  # of Python's own random numbers, by default, as in the harness


@dataclass(frozen=True)
class TaskSettings:
    """The settings of an evaluation, by the harness' names.

    limit: documents of each task; below 1 a share of them. seed: None for the harness' own seeds. template: whether
    prompts go through the chat template.
    """

    num_fewshot: int | None = None
    limit: float | None = None
    template: bool = False
    system_instruction: str | None = None
    seed: int | None = None
    log_samples: bool = False


def find_tasks(names: Iterable[str], include_path: Path | None = None) -> list[Any]:
    """Find tasks and groups of tasks by their names, `*` for any letters, or by their YAML files, with their data."""
    wanted = [name for each in names for name in each.split(",") if name]
    if not wanted:
        raise ConfigError("TASK", "", "the name of at least one task; `lm_eval ls tasks` lists the harness's tasks")
    if include_path is not None:
        _check_folder(include_path)
    manager = _manager(wanted, include_path)
    found = [task for name in wanted for task in _matching(manager, name, include_path)]
    loaded = [one for name in dict.fromkeys(found) for one in _load(manager, name)]
    try:
        manager.load(loaded)
    except ValueError as error:  # two groups with a task in common
        raise ConfigError("TASK", ", ".join(wanted), f"each task once: {error}") from None
    return loaded


def evaluate(model: LM, tasks: Sequence[Any], settings: TaskSettings) -> dict[str, Any]:
    """Evaluate tasks as the harness' `evaluate` does.

    The harness' simple_evaluate adds what `pip list` and the compiler say, which takes longer than many an evaluation;
    otherwise this does the same.
    """
    loaded = TaskManager(include_defaults=False).load(list(tasks))
    for task in loaded["tasks"].values():
        _configure(task, settings)
    with _seeded(settings.seed):
        found = lm_eval.evaluate(
            lm=model,
            task_dict=loaded,
            limit=settings.limit,
            apply_chat_template=settings.template,
            fewshot_as_multiturn=settings.template,
            system_instruction=settings.system_instruction,
            log_samples=settings.log_samples,
        )
    assert found is not None, "there is one process"
    return dict(found)


@contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Begin the random numbers of the process inside as the harness does; afterwards they go on as before."""
    first, other = (FIRST_SEED, SEED) if seed is None else (seed, seed)
    before = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=()):
        random.seed(first)
        numpy.random.seed(other % 2**32)
        torch.manual_seed(other)
        try:
            yield
        finally:
            random.setstate(before[0])
            numpy.random.set_state(before[1])


def _configure(task: Any, settings: TaskSettings) -> None:
    """Set the number of examples and their seed. A task whose number is 0 wants no example."""
    number = task.get_config("num_fewshot")
    if number is None or (number and settings.num_fewshot is not None):
        task.set_config(key="num_fewshot", value=settings.num_fewshot or 0)
    task.set_fewshot_seed(seed=SEED if settings.seed is None else settings.seed)


def _check_folder(folder: Path) -> None:
    """Raise ConfigError for no folder, or one with a broken YAML file, which the harness would pass over."""
    if not folder.is_dir():
        raise ConfigError("include_path", str(folder), "a folder with the YAML files of tasks")
    for file in sorted(folder.rglob("*.yaml")):
        _check_yaml(file)


def _check_yaml(file: Path) -> None:
    try:
        with file.open(encoding="utf-8") as opened:
            yaml.compose(opened, yaml.SafeLoader)  # its form alone: no tag such as !function is carried out
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        raise TokenmillError(f"{file} is no YAML: {_line(error)}") from None


def _manager(wanted: Sequence[str], include_path: Path | None) -> Any:
    """Make the manager of the tasks: of the folder alone where it has all, as the harness' own take seconds."""
    folder = None if include_path is None else str(include_path)
    own = TaskManager(include_path=folder, include_defaults=False)
    if all(_is_file(name) or own.match_tasks([name]) for name in wanted):
        return own
    return TaskManager(include_path=folder)


def _is_file(name: str) -> bool:
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def _matching(manager: Any, name: str, include_path: Path | None) -> list[str]:
    if _is_file(name):
        _check_yaml(Path(name))
        return [name]
    if matching := manager.match_tasks([name]):
        return list(matching)
    near = get_close_matches(name, manager.all_tasks, n=3) or [one for one in manager.all_tasks if name in one][:3]
    hint = f"; near it are {', '.join(near)}" if near else ""
    folder = f", nor in {include_path}" if include_path is not None else ""
    allowed = f"no task of that name is in the harness{folder}{hint}; `lm_eval ls tasks` lists all"
    raise ConfigError("TASK", name, allowed)


def _load(manager: Any, name: str) -> list[Any]:
    try:
        loaded = manager.load([name])
    except TokenmillError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {_line(error)}"
        if _is_about_data(error):
            raise RequestError(f"the data of task {name} cannot be had: {what}; {LOCAL}") from error
        raise RequestError(f"task {name} cannot be loaded: {what}") from error
    return [loaded["groups"][name]] if name in loaded["groups"] else list(loaded["tasks"].values())


def _is_about_data(error: BaseException | None) -> bool:
    """Tell whether a file or an address could not be read, directly or as the cause of what was raised."""
    while error is not None:
        package = type(error).__module__.partition(".")[0]
        if isinstance(error, OSError) or package in ("datasets", "httpx", "huggingface_hub"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
