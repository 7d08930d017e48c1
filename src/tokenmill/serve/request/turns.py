"""The conversation of an agent in the turns that the model's chat template takes.

Agents put system messages among the others, and several messages of one role in a row. A system message that stands
inside is kept where the template renders it as an insertion; else it is added to the message before it, so that a
conversation that grows keeps the text that it had, and with it the rows of the cache. It never comes between a call of
a tool and its results. Messages of one role in a row become one where the template refuses them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from tokenmill.text.turns import TurnRules

Json = dict[str, Any]
GAP = "\n\n"  # between two messages that are made one


def in_turns(messages: Iterable[Mapping[str, Any]], turns: TurnRules) -> list[Json]:
    """The messages, their contents texts, as the template takes them."""
    made: list[Json] = []
    for message in _calls_first(map(dict, messages)):
        last = made[-1] if made else None
        is_system, is_user = message["role"] == "system", message["role"] == "user"
        if last is not None and _is_more(last, message) and not turns.takes_answers_in_a_row:
            made[-1] = _joined(last, message)
        elif last is None or not (is_system or is_user):
            made.append(message)
        elif is_system and last["role"] == "system" and len(made) == 1:
            made[-1] = _joined(last, message)
        elif is_system and turns.takes_system_inside:
            made.append(message)
        elif last["role"] in (("user", "tool") if is_system else () if turns.takes_users_in_a_row else ("user",)):
            made[-1] = _joined(last, message)
        else:
            made.append({**message, "role": "user"})
    return made


def _calls_first(messages: Iterable[Json]) -> Iterable[Json]:
    """The messages, each result of a tool before what stands between it and its call."""
    held: list[Json] = []
    num_open = 0
    for message in messages:
        if message["role"] == "assistant":
            yield from held
            held, num_open = [], len(message.get("tool_calls") or ())
            yield message
        elif message["role"] == "tool":
            num_open -= 1
            yield message
        elif num_open > 0:
            held.append(message)
        else:
            yield from held
            held = []
            yield message
    yield from held


def _is_more(last: Json, message: Json) -> bool:
    """Whether a message of the assistant follows another one that has called nothing."""
    return message["role"] == last["role"] == "assistant" and not last.get("tool_calls")


def _joined(first: Json, second: Json) -> Json:
    made = {**second, **first}
    for name in ("content", "reasoning_content"):
        if any(name in each for each in (first, second)):
            made[name] = GAP.join(text for each in (first, second) if (text := each.get(name)))
    return made
