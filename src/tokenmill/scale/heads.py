"""The head of a conversation stays the same while it grows; a gate chooses a replica by it.

The next request of a conversation finds the rows of the last one where that was computed. A client can name a session
itself, in the header X-Session-Id or as agents do; then nothing else counts.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

SESSION_HEADERS = ("x-session-id", "x-claude-code-session-id", "session-id")
BILLING = "x-anthropic-billing-header:"
MAX_CHARACTERS, MAX_IDS = 256, 64  # of a first message or a prompt, which may itself grow


def session_key(tenant: bytes, name: str) -> str:
    """Return the key of a session that has a name."""
    return _digest(tenant, ["session", name])


def head_key(tenant: bytes, body: Mapping[str, Any]) -> str:
    """Return the key of a body of any route that generates, whatever is wrong with it."""
    shared = [body.get(name) for name in ("model", "cache_salt", "tools", "chat_template_kwargs", "prompt_cache_key")]
    told = [_told(body.get(name)) for name in ("system", "instructions")]
    messages = body.get("messages", body.get("input"))
    first = _first(messages) if isinstance(messages, list) else _beginning(body.get("prompt", messages))
    return _digest(tenant, [*shared, *told, first])


def _told(content: Any) -> Any:
    """Return what the system is told, without the line of Claude Code that changes with every request."""
    if isinstance(content, list):
        kept = [each for each in content if not (isinstance(each, dict) and _is_billing(each.get("text")))]
        return _beginning(kept)
    return None if _is_billing(content) else _beginning(content)


def _is_billing(text: Any) -> bool:
    return isinstance(text, str) and text.startswith(BILLING)


def _first(messages: list[Any]) -> list[Any]:
    """Return the messages up to the first one of the user, cut."""
    found: list[Any] = []
    for message in messages:
        known = message if isinstance(message, dict) else {"content": message}
        found.append([known.get("role"), _beginning(known.get("content"))])
        if known.get("role") == "user":
            break
    return found


def _beginning(content: Any) -> Any:
    if isinstance(content, str):
        return content[:MAX_CHARACTERS]
    if isinstance(content, list):
        first = content[0] if content else None
        if isinstance(first, dict) and isinstance(text := first.get("text"), str):
            return text[:MAX_CHARACTERS]  # a client may send the same message as a text later
        return [_beginning(first)] if isinstance(first, str | list) else content[:MAX_IDS]
    return content


def _digest(tenant: bytes, parts: list[Any]) -> str:
    text = json.dumps(parts, sort_keys=True, default=str)
    return blake2b(tenant + b"\0" + text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
