"""The effort of thinking that a request asks for, in the way that the model's chat template knows, or as a budget."""

from tokenmill.engine.inputs import InputProcessor
from tokenmill.serve.http.errors import ApiError
from tokenmill.serve.request.fields import ChatBody
from tokenmill.text.tools.model_tools import ModelTools

BUDGETS: dict[str, int | None] = {
    "none": 0,
    "minimal": 512,
    "low": 1024,
    "medium": 4096,
    "high": 16384,
    "xhigh": None,
    "max": None,
}
"""Efforts → the most tokens of thinking; None leaves it to the model."""
TOLD = {"minimal": "low", "xhigh": "high", "max": "high"}
"""Efforts → those that templates know."""


def settle_effort(inputs: InputProcessor, tools: ModelTools | None, body: ChatBody) -> list[str]:
    """Give the template the effort, or the request a budget; a warning where neither changes anything."""
    if (effort := body.reasoning_effort) is None:
        return []
    if effort not in BUDGETS:
        names = ", ".join(BUDGETS)
        raise ApiError(400, f"reasoning_effort = {effort[:40]!r} is not allowed: one of {names}", "reasoning_effort")
    if tools is None:
        return []
    unread = inputs.unread_variables({"reasoning_effort": effort, "enable_thinking": True})
    found: dict[str, object] = {}
    if "enable_thinking" not in unread:
        found["enable_thinking"] = effort != "none"
    if "reasoning_effort" not in unread and effort != "none":
        found["reasoning_effort"] = TOLD.get(effort, effort)
    elif tools.thinking is not None and body.thinking_budget is None and not (effort == "none" and found):
        body.thinking_budget = BUDGETS[effort]
    elif not found and body.thinking_budget is None:
        return ["reasoning_effort changes nothing: this model's answers have no marks of thinking"]
    body.chat_template_kwargs = {**found, **(body.chat_template_kwargs or {})} or None
    return []
