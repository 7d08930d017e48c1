"""The routes of Ollama's API that tell about the model.

One model is served, for as long as the server runs: there are no routes that would fetch, make or delete another. A
pull of the served model succeeds, since clients pull before they chat.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.responses import Response

from tokenmill.model.counts import count_parameters
from tokenmill.quant.schemes import find_scheme
from tokenmill.serve.facts.described import Described, describe_service
from tokenmill.serve.http.errors import ApiError, Json
from tokenmill.serve.http.streams import LINES, to_line
from tokenmill.serve.loop.service import Call
from tokenmill.serve.ollama.names import VERSION, check_served, tagged, written
from tokenmill.serve.request.fields import Body
from tokenmill.value_reader import brief
from tokenmill.version import __version__

FOR_EVER = timedelta(days=100 * 365)  # how long a model stays loaded that is never unloaded
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
NAMES = {"repetition_penalty": "repeat_penalty"}  # of settings, in a list of parameters
PULLED = ({"status": "pulling manifest"}, {"status": "success"})
MAX_NAME = 100  # characters of a name that are worth giving back


class OllamaModelBody(Body):
    """A body of the routes about models. name: what older clients call it. stream: of the progress of a pull."""

    name: str | None = None
    stream: bool = True

    @property
    def asked(self) -> str:
        """The name that is given; "" for none."""
        return self.model or self.name or ""


async def tags(call: Call) -> Json:
    """Tell the model that is served."""
    return {"models": tags_of(describe_service(call.service))}


def tags_of(described: Described) -> list[Json]:
    """List a model and its adapters."""
    return [ModelFacts(described, each).listed for each in (None, *described.adapters)]


async def running(call: Call) -> Json:
    """Tell the model that is loaded, which is the same."""
    return {"models": [ModelFacts(describe_service(call.service)).running(None)]}


async def version(call: Call) -> Json:
    """Tell the version of Ollama's API that is followed, since clients refuse an older one, and tokenmill's own."""
    return {"version": VERSION, "tokenmill": __version__}


async def show(call: Call) -> Json:
    """Tell what the model is and can do."""
    _check_named(call)
    return ModelFacts(describe_service(call.service), call.service.model.adapter(call.body.asked)).shown


async def pull(call: Call) -> Response | Json:
    """Do nothing, for the model that is served."""
    name, served = call.body.asked[:MAX_NAME], call.service.options.name
    if name and tagged(call.body.asked).casefold() != tagged(served).casefold():
        message = f"model {brief(name)} is not served here: run `tokenmill pull {name}` and `tokenmill serve {name}`"
        raise ApiError(400, message, "model")
    _check_named(call)
    return pulled(call.body.stream)


def pulled(is_stream: bool) -> Response | Json:
    """Return the answer to a pull of what is there."""
    lines = b"".join(to_line(each) + b"\n" for each in PULLED)
    return Response(lines, media_type=LINES) if is_stream else PULLED[-1]


def _check_named(call: Call) -> None:
    """Raise ApiError where a body names no model, or another than the one that is served."""
    if not call.body.asked:
        raise ApiError(400, "model is required", "model")
    check_served(call.body.asked, call.service.model)


class ModelFacts:
    """The facts of a model, or of an adapter of it, as the routes that tell of it answer."""

    def __init__(self, described: Described, adapter: str | None = None) -> None:
        self._described, self._resolved, self._served = described, described.resolved, adapter or described.name
        self._parent = "" if adapter is None else described.name
        self._adapter = None if adapter is None else described.adapters[adapter]

    @property
    def listed(self) -> Json:
        """The entry in /api/tags."""
        return {
            **self._head,
            "modified_at": self._modified_at,
            "size": self._resolved.weight_bytes if self._adapter is None else self._adapter.num_bytes,
            "digest": self._digest,
            "details": self._details,
        }

    def running(self, expires: datetime | None) -> Json:
        """The entry in /api/ps. expires: when it is unloaded, if it is."""
        size = self._resolved.weight_bytes + self._resolved.cache.num_bytes
        return {
            **self._head,
            "size": size,
            "digest": self._digest,
            "details": self._details,
            "expires_at": written(expires or datetime.now(UTC) + FOR_EVER),
            "size_vram": 0 if self._resolved.config.device == "cpu" else size,
            "context_length": self._resolved.longest_text,
        }

    @property
    def shown(self) -> Json:
        """The answer of /api/show. Its length is the configured one, and its words are what clients look for."""
        parameters = {"num_ctx": self._resolved.longest_text, **self._described.defaults}
        return {
            "modelfile": f"# Served by tokenmill {__version__}, which reads no Modelfile\nFROM {self._served}\n",
            "parameters": "\n".join(f"{NAMES.get(name, name):<30} {value}" for name, value in parameters.items()),
            "template": self._described.template,
            "details": self._details,
            "model_info": self._model_info,
            "capabilities": list(self._described.can),
            "modified_at": self._modified_at,
        }

    @property
    def _head(self) -> Json:
        return {"name": tagged(self._served), "model": tagged(self._served)}

    @property
    def _digest(self) -> str:
        """A digest of the digests of the model's files, or of an adapter's bytes."""
        return self._described.digest if self._adapter is None else self._adapter.digest

    @property
    def _modified_at(self) -> str:
        """The time of the model's file or folder; the server's start where it has none of that name."""
        try:
            modified = Path(self._resolved.config.model).stat().st_mtime
        except OSError:
            modified = self._described.created
        return written(datetime.fromtimestamp(modified, UTC))

    @property
    def _details(self) -> Json:
        model = self._resolved.model
        return {
            "parent_model": self._parent,
            "format": "gguf" if self._described.is_one_file else "safetensors",
            "family": model.family,
            "families": [model.family],
            "parameter_size": _counted(sum(count_parameters(model).values())),
            "quantization_level": self._level,
        }

    @property
    def _level(self) -> str:
        """The scheme of the matrices; the bits of their numbers, where they stay as in the files; or a dtype."""
        scheme, model = self._resolved.config.scheme, self._resolved.model
        if scheme.startswith("q"):
            return scheme.upper()
        if find_scheme(scheme).keeps_codes and model.code_bits:
            return f"{model.code_bits:.3g} bits"
        return DTYPES[self._resolved.config.dtype]

    @property
    def _model_info(self) -> Json:
        """Facts by GGUF's names. The length is the one that is configured, since clients ask for as much as it says."""
        model = self._resolved.model
        family = model.family
        return {
            "general.architecture": family,
            "general.basename": self._served,
            "general.parameter_count": sum(count_parameters(model).values()),
            f"{family}.context_length": self._resolved.longest_text,
            f"{family}.embedding_length": model.hidden_size,
            f"{family}.block_count": model.num_layers,
            f"{family}.feed_forward_length": model.intermediate_size,
            f"{family}.attention.head_count": model.num_heads,
            f"{family}.attention.head_count_kv": model.num_kv_heads,
            f"{family}.attention.key_length": model.head_dim,
            f"{family}.vocab_size": model.vocab_size,
        }


def _counted(number: int) -> str:
    """Write a number as Ollama counts parameters: 134515008 → "134.52M"."""
    unit, letter = next(((unit, letter) for unit, letter in UNITS if number >= unit), (1, ""))
    return f"{number / unit:.2f}".rstrip("0").rstrip(".") + letter
