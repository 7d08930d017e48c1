"""The fields of vLLM's API by which the likeliest texts are searched for, use_beam_search and length_penalty: what a
search does not read is refused, and n is its width.
"""

from collections.abc import Callable

from tokenmill.engine.beam import PLAIN, WITHOUT_EFFECT, beam_search
from tokenmill.engine.core import Core
from tokenmill.engine.outputs import Completion
from tokenmill.errors import ConfigError, DeadlinePassed
from tokenmill.serve.http.errors import ApiError, about
from tokenmill.serve.request.ask import Ask
from tokenmill.serve.request.prepare import Prepared
from tokenmill.settings.sampling_params import HTTP_FIELDS, SamplingParams


def check_search(ask: Ask) -> None:
    """Raise ApiError for what a search does not read."""
    plain = SamplingParams()
    set_to = {name: value for name, value in ask.sampling.items() if value is not None}
    off = {"top_k": -1}
    other = [name for name, value in set_to.items() if value not in (getattr(plain, name), [], (), off.get(name))]
    found = [HTTP_FIELDS.get(name) or name for name in other if name not in ("n", *PLAIN, *WITHOUT_EFFECT)]
    given = {
        "stream": ask.stream,
        "best_of": ask.best_of not in (None, ask.sampling.get("n") or 1),
        "echo": ask.echo,
        "receipt": ask.wants_receipt,
        "prompt_logprobs": ask.num_prompt_logprobs is not None,
        "tools": bool(ask.tools),
        ask.constraint[0]: bool(ask.constraint[0]),
        "prompt": len(ask.prompts) > 1,
    }
    if wrong := [*found, *(name for name, is_there in given.items() if is_there)]:
        what = "several prompts are" if wrong[0] == "prompt" else f"{wrong[0]} is"
        raise ApiError(400, f"{what} not possible with use_beam_search", wrong[0])


def searched(core: Core, ask: Ask, prepared: Prepared, is_given_up: Callable[[], bool]) -> list[Completion]:
    """Search for the likeliest texts, the best first."""
    asked = prepared.request.sequences[0]
    params = SamplingParams(**{name: getattr(asked.choosing.params, name) for name in PLAIN})
    assert ask.length_penalty is not None, "a search is asked for"

    def given_up() -> bool:
        if core.loop.clock() > prepared.request.deadline_s:
            raise DeadlinePassed("the deadline has passed before the search was over")
        return is_given_up()

    with about("prompt"):
        try:
            found = beam_search(
                core,
                prepared.prompts[0],
                prepared.num_shown,
                params,
                ask.length_penalty,
                "heuristic",
                ask.cache_salt,
                ask.adapter,
                given_up,
                asked,
            )
        except ConfigError as error:
            name = "n" if error.name == "width" else error.name
            raise ApiError(400, str(error).replace("width", "n", 1), name) from None
    return [beam.completion for beam in found]
