"""Lines of OpenAI's batches: a body for one of the routes that generate, answered as the server answers it.

The body of an answer has the bytes that the route would send, but for what depends on the moment: ids are made of the
row's key, `created` is 0, and so is `cached_tokens`, which tells what was computed before. A request without a seed
gets one that depends on the line alone.
"""

from collections.abc import Sequence as List
from typing import Any

from pydantic import ValidationError

from tokenmill.batches.row import Columns, Json, TableRow
from tokenmill.batches.task import Key, RowWork, Task
from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion
from tokenmill.errors import RequestError, TokenmillError
from tokenmill.serve.http.errors import NOT_SPELLED, ApiError, api_error_of
from tokenmill.serve.loop.resumption import Resumption
from tokenmill.serve.protocols import BATCHED, Route, refusals_at
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.fields import Body
from tokenmill.serve.request.prepare import prepare
from tokenmill.serve.request.prompt import Model
from tokenmill.serve.request.writer import system_fingerprint, with_adapter

MAX_TEXTS = 1024  # of one request
FIELDS = ("custom_id", "method", "url", "body")


class BatchLines(Task):
    """The task of answering lines. name: of the model, to clients. seed: of requests that name none; None gives each
    one of its own. is_strict: unknown fields are refused. url: the only one that lines may have. tenant, priority: see
    Core.request. client: the name under which lines share the engine with others.
    """

    id_field = "custom_id"

    def __init__(
        self,
        name: str,
        seed: int | None = None,
        is_strict: bool = False,
        url: str | None = None,
        tenant: bytes = b"",
        priority: int = 0,
        client: bytes | None = None,
    ) -> None:
        self._name, self._seed, self._is_strict, self._url = name, seed, is_strict, url
        self._tenant, self._priority, self._client = tenant, priority, tenant if client is None else client
        self._fingerprint = ""

    def begin(self, core: Core) -> None:
        self._fingerprint = system_fingerprint(core.loaded)

    def check(self, columns: Columns) -> None:
        if missing := [name for name in FIELDS if name not in columns]:
            there = ", ".join(map(repr, list(columns)[:20])) or "none"
            raise RequestError(
                f"no line has {missing[0]!r}: a line of a batch has {', '.join(FIELDS)}, and these have {there}; of a "
                "table, say what the prompt is, with prompt or column"
            )

    def facts(self, core: Core) -> Json:
        return {
            "kind": "requests",
            "served_model_name": self._name,
            "seed": self._seed,
            "strict": self._is_strict,
            "url": self._url,
            "defaults": dict(core.inputs.defaults),
        }

    def columns(self, columns: Columns) -> Columns:
        return {"id": "text", "custom_id": "text", "response": "json", "error": "json"}

    def prepare(self, core: Core, row: TableRow, key: Key) -> RowWork:
        route, ask = self._read(core, row)
        if ask.seed is None or ask.seed == -1:
            ask.seed = key.seed if self._seed is None else self._seed
        ask.priority, ask.tenant = self._priority, self._tenant
        prepared = prepare(core, ask)
        scored = [sequence for sequence, _ in prepared.prompt_logprobs]
        for sequence in (*scored, *prepared.request.sequences):
            sequence.client = self._client

        def answer(completions: List[Completion]) -> Any:
            assert route.writer is not None, "the route generates"
            name = ask.adapter or self._name
            fingerprint = with_adapter(self._fingerprint, prepared.request.sequences[0].kept.adapter)
            made = route.writer(ask, prepared, name, fingerprint, core.loaded.tokenizer)
            made.resume(Resumption({"id": f"{made.prefix}{key.text}"}), {})  # of which the ids of calls are made
            return self._response(key, 200, _without_moment(made.answer(completions), made.prefix, key))

        return RowWork(prepared.request, prepared.prompts[0], answer, scored)

    def _read(self, core: Core, row: TableRow) -> tuple[Route, Ask]:
        """Read what a line asks, checked as the server does."""
        if (problem := self.problem(row)) is not None:
            raise _NoRequest(*problem)
        assert row.values is not None, "it has no problem"
        route = BATCHED[row.values["url"]]
        assert route.body is not None and route.parse is not None, "the route generates"
        body = route.body.model_validate(row.values["body"])
        model = Model(core.loaded, self._name, self._is_strict, core.adapters)
        ask = route.parse(body, model)
        assert isinstance(ask, Ask), "a body of these protocols has a prompt"
        ask.adapter = model.adapter(row.values["body"].get("model"))
        searches = ask.length_penalty is not None
        given = {"stream": ask.stream, "timeout": ask.timeout_s is not None, "use_beam_search": searches}
        for name, is_given in given.items():
            if is_given:
                raise ApiError(400, f"{name} is not possible in a batch, whose rows wait for their turn", name)
        if (count := ask.num_sequences) > MAX_TEXTS:
            raise ApiError(400, f"{count} texts are more than the {MAX_TEXTS} that one request may ask for")
        return route, ask

    def problem(self, row: TableRow) -> tuple[str, str, str | None] | None:
        """Return why a line is no request at all: a code, a message, and the field; None for a request."""
        if (values := row.values) is None:
            return "invalid_json_line", row.problem, None
        where = f"line {row.line}"
        if not isinstance(values.get("custom_id"), str) or not values["custom_id"]:
            return "missing_required_parameter", f"{where} has no custom_id, which is a text", "custom_id"
        if values.get("method") != "POST":
            return (
                "invalid_method",
                f"{where}: method is {values.get('method')!r}, and only 'POST' is possible",
                "method",
            )
        urls = list(BATCHED) if self._url is None else [self._url]
        if values.get("url") not in urls:
            allowed = " or ".join(map(repr, urls))
            return "invalid_url", f"{where}: url is {values.get('url')!r}, and has to be {allowed}", "url"
        if not isinstance(values.get("body"), dict):
            return "missing_required_parameter", f"{where} has no body, which is an object", "body"
        return None

    def refusal(self, row: TableRow, key: Key, error: Exception) -> Any:
        if isinstance(error, _NoRequest):
            return {"response": None, "error": {"code": error.code, "message": str(error)}}
        if not isinstance(error, TokenmillError | ValidationError | ApiError):
            raise error
        values = row.values or {}
        told, url, body = api_error_of(error), str(values.get("url")), values.get("body")
        form = BATCHED[url].body if url in BATCHED else None
        spelled = NOT_SPELLED
        if form is not None and issubclass(form, Body) and isinstance(body, dict):
            spelled = form.spelled(body)
        return self._response(key, told.status, refusals_at(url).body(told, spelled))

    def output(self, row: TableRow, key: Key, answer: Any) -> Json:
        custom_id = None if row.values is None else row.values.get("custom_id")
        return {"id": f"batch_req_{key.text}", "custom_id": custom_id, **answer}

    def key_of(self, written: Json) -> object:
        return str(written.get("id")).removeprefix("batch_req_")

    def has_failed(self, answer: Any) -> bool:
        return answer["response"] is None or answer["response"]["status_code"] != 200

    def _response(self, key: Key, status: int, body: Any) -> Json:
        return {"response": {"status_code": status, "request_id": f"req_{key.text}", "body": body}, "error": None}


class _NoRequest(Exception):
    """A line that no route could be asked with."""

    def __init__(self, code: str, message: str, field: str | None) -> None:
        super().__init__(message)
        self.code, self.field = code, field


def _without_moment(answer: Json, prefix: str, key: Key) -> Json:
    """Return an answer without what depends on the moment at which it is made."""
    created, usage = "created_at" if "created_at" in answer else "created", answer["usage"]
    details = "input_tokens_details" if "input_tokens_details" in usage else "prompt_tokens_details"
    usage = {**usage, details: {**usage.get(details, {}), "cached_tokens": 0}}
    return {**answer, "id": f"{prefix}{key.text}", created: 0, "usage": usage}
