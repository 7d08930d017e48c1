"""Adapters that clients load and unload while the server runs, by vLLM's routes: only if the server was given a folder
for that, and only what lies in it.
"""

from collections.abc import Container
from pathlib import Path

from pydantic import Field
from starlette.responses import PlainTextResponse, Response

from tokenmill.engine.engine import Engine
from tokenmill.errors import CapacityError, CheckpointError, ConfigError, RequestError
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.loop.service import Call
from tokenmill.serve.request.fields import Body
from tokenmill.serve.start.options import Options

OFF = "this server loads no adapters at request: start it with --lora-folder"


class LoadBody(Body):
    """POST /v1/load_lora_adapter. load_inplace: an adapter of that name is replaced; texts that run keep theirs."""

    lora_name: str = Field(min_length=1, max_length=200)
    lora_path: str = Field(min_length=1, max_length=4096)
    load_inplace: bool = False


class UnloadBody(Body):
    """POST /v1/unload_lora_adapter. lora_int_id: a number that vLLM's clients may send; it says nothing here."""

    lora_name: str = Field(min_length=1, max_length=200)
    lora_int_id: int | None = None


async def load(call: Call) -> Response:
    """Load an adapter (LoRA) that lies in the server's folder for them; requests name it as their model."""
    _check(call)
    name, engine = call.body.lora_name, call.service.engine
    path = adapter_path(call.body, call.service.options, engine.adapters)
    if call.service.model.is_own(name):
        raise ApiError(409, f"{name!r} is the name of the model itself", "lora_name")
    await call.service.in_thread(call.request, _load, engine, name, path, call.body.load_inplace)
    return PlainTextResponse(f"Success: LoRA adapter {name!r} added successfully.")


async def unload(call: Call) -> Response:
    """Unload an adapter. Texts of it that run go on."""
    _check(call)
    _folder(call.service.options)
    name = call.body.lora_name
    if name not in call.service.engine.adapters:
        raise ApiError(404, f"there is no adapter {name!r}", "lora_name")
    try:
        call.service.engine.unload_adapter(name)
    except RequestError as error:
        raise ApiError(409, str(error), "lora_name") from None
    return PlainTextResponse(f"Success: LoRA adapter {name!r} removed successfully.")


def adapter_path(body: LoadBody, options: Options, loaded: Container[str]) -> Path:
    """Find the adapter that is to be loaded. ApiError for a place outside the server's folder, and a name that is taken
    among the loaded ones.
    """
    path = _inside(_folder(options), body.lora_path)
    if body.lora_name in loaded and not body.load_inplace:
        raise _there_already(body.lora_name)
    return path


def _check(call: Call) -> None:
    """Raise ApiError for a field that is not known, and for a server that takes no requests."""
    call.service.check_ready()
    call.body.check()
    call.service.model.check_known(call.body.unknown)


def _folder(options: Options) -> Path:
    """Return the folder of adapters. ApiError where there is none."""
    if options.lora_folder is None:
        raise ApiError(403, OFF, code="no_lora_folder")
    return options.lora_folder


def _inside(folder: Path, given: str) -> Path:
    """Return the path of an adapter in the folder, which links do not leave."""
    try:
        path = (folder / given).resolve()
        found = path.is_relative_to(folder.resolve()) and path != folder.resolve() and path.exists()
    except (OSError, ValueError):
        found = False
    if not found:
        raise ApiError(404, f"{given[:200]!r} is not in the server's folder of adapters", "lora_path")
    return path


def _there_already(name: str) -> ApiError:
    return ApiError(409, f"{name!r} is loaded already; load_inplace replaces it", "lora_name")


def _load(engine: Engine, name: str, path: Path, replace: bool) -> None:
    try:
        engine.load_adapter(name, path, replace=replace)
    except (CheckpointError, ConfigError, CapacityError, RequestError) as error:
        if name in engine.adapters and not replace:
            raise _there_already(name) from None  # another client has loaded it meanwhile
        said = str(error).replace(f"{path.parent}/", "")  # what lies where on the server is nobody's business
        raise ApiError(400, said, "lora_path") from None
