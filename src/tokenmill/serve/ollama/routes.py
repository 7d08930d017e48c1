"""The routes of Ollama's API that tell about the model.

One model is served, for as long as the server runs: there are no routes that would fetch, make or delete another. A
pull of the served model succeeds, since clients pull before they chat.
"""

from typing import Any, ClassVar

from starlette.responses import Response

from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.http.streams import LINES, to_line
from tokenmill.serve.loop.service import Call
from tokenmill.serve.ollama.facts import ModelFacts
from tokenmill.serve.ollama.names import VERSION, check_served, tagged
from tokenmill.serve.request.fields import Body
from tokenmill.value_reader import brief
from tokenmill.version import __version__

Json = dict[str, Any]
PULLED = ({"status": "pulling manifest"}, {"status": "success"})
MAX_NAME = 100  # characters of a name that are worth giving back


class OllamaModelBody(Body):
    """The bodies of routes about models. name: what older clients call it. stream: of the progress of a pull."""

    UNSERVED: ClassVar[dict[str, tuple[Any, ...]]] = {}

    name: str | None = None
    stream: bool = True

    @property
    def asked(self) -> str:
        """The name that is given; "" for none."""
        return self.model or self.name or ""


async def tags(call: Call) -> Json:
    """Tell the model that is served."""
    return {"models": [ModelFacts(call.service).listed]}


async def running(call: Call) -> Json:
    """Tell the model that is loaded, which is the same."""
    return {"models": [ModelFacts(call.service).running]}


async def version(call: Call) -> Json:
    """Tell the version of Ollama's API that is followed, since clients refuse an older one, and tokenmill's own."""
    return {"version": VERSION, "tokenmill": __version__}


async def show(call: Call) -> Json:
    """Tell what the model is and can do."""
    _check_named(call)
    return ModelFacts(call.service).shown


async def pull(call: Call) -> Response | Json:
    """Do nothing, for the model that is served."""
    name, served = call.body.asked[:MAX_NAME], call.service.options.name
    if name and tagged(call.body.asked).casefold() != tagged(served).casefold():
        message = f"model {brief(name)} is not served here: run `tokenmill pull {name}` and `tokenmill serve {name}`"
        raise ApiError(400, message, "model")
    _check_named(call)
    lines = b"".join(to_line(each) + b"\n" for each in PULLED)
    return Response(lines, media_type=LINES) if call.body.stream else PULLED[-1]


def _check_named(call: Call) -> None:
    """Raise ApiError where a body names no model, or another than the one that is served."""
    if not call.body.asked:
        raise ApiError(400, "model is required", "model")
    check_served(call.body.asked, call.service.options.name)
