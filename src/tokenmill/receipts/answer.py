"""Answers of a server: the choices that have receipts, and whether what they show is what their receipts say."""

from typing import Any, NamedTuple

from tokenmill.receipts.receipt import Receipt
from tokenmill.receipts.verification import Finding
from tokenmill.value_reader import brief

ELSEWHERE = ("reasoning", "reasoning_content", "tool_calls")
"""Parts of a message in which a text of the model stands otherwise than it said it."""

NO_RECEIPT = 'this choice of an answer has no receipt (a request asks for it with "receipt": true)'


class ShownText(NamedTuple):
    """What came of comparing. finding: the shown text is another one. note: why it was not compared."""

    finding: Finding | None = None
    note: str | None = None


def choices_of(document: Any) -> list[Any] | None:
    """The choices of an answer, or of a line of a batch's answers; None if it is no answer."""
    if not isinstance(document, dict) or "receipt" in document:
        return None
    response = document.get("response")
    body = response.get("body") if isinstance(response, dict) else document
    found = body.get("choices") if isinstance(body, dict) else None
    return found if isinstance(found, list) else None


def compare(choice: dict[str, Any], receipt: Receipt) -> ShownText:
    """Compare what a choice shows with its receipt's text, where that can be seen without the request."""
    message = choice.get("message")
    if not isinstance(message, dict):
        shown, others = choice.get("text"), []
    else:
        shown, others = message.get("content"), [name for name in ELSEWHERE if message.get(name)]
    if others:
        return _not_compared(f"its parts stand in {' and '.join(others)}, too")
    if not isinstance(shown, str):
        return _not_compared("there is none where an answer has it")
    if shown == receipt.text:
        return ShownText()
    if message is None and receipt.text and shown.endswith(receipt.text):
        return _not_compared("something stands before the receipt's text, as the prompt does with echo")
    if message is not None and shown.strip() in receipt.text:
        return _not_compared("it is a part of the receipt's text, as where the marks of thinking are left out")
    claimed, found = brief(shown), brief(receipt.text)
    return ShownText(
        Finding("shown", f"the answer shows {claimed}, and the receipt is of {found}", None, shown, receipt.text)
    )


def _not_compared(why: str) -> ShownText:
    return ShownText(None, f"the shown text was not compared with the receipt: {why}")
