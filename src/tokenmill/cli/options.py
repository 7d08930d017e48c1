"""Options that verbs share. The fields of EngineConfig and SamplingParams become options by themselves.

Name, type and default come from the dataclass, the help from the tables here; a test holds the two together. A verb
decorated with `with_settings` is handed finished settings objects.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, get_type_hints

import typer

from tokenmill.config import DTYPES, EngineConfig, SamplingParams
from tokenmill.errors import ConfigError

__all__ = [
    "HELP",
    "MODEL",
    "OUTPUT",
    "PROMPT",
    "Json",
    "Model",
    "Quiet",
    "examples",
    "is_given",
    "option_name",
    "parse_ids",
    "with_defaults",
    "with_settings",
]

MODEL, PROMPT, SAMPLING, ENGINE, OUTPUT = "Model", "Prompt", "Sampling", "Engine", "Output"

Model = Annotated[
    str,
    typer.Argument(
        metavar="[MODEL]",
        help="Directory in Hugging Face layout, .gguf file, hub name (owner/name\\[:file.gguf]), or short name.",
        show_default=True,
        rich_help_panel=MODEL,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT)]

HELP: dict[type, dict[str, str]] = {
    EngineConfig: {
        "program": "What computes the forward pass; auto takes the fastest that runs here.",
        "dtype": f"Of weights and cache: auto, {', '.join(DTYPES)}. Auto keeps the checkpoint's own.",
        "device": "cpu, cuda, cuda:1, … Auto takes cuda where there is one.",
        "max_length": "Longest sequence in tokens, prompt included. Default: the model's context, at most 2048.",
        "max_sequences": "Maximum number of sequences in one step.",
        "block_size": "Tokens per cache block. Default: max-length, one block per sequence.",
        "cache_tokens": "Slots in the cache over all sequences. Default: max-sequences times max-length.",
        "max_step_tokens": "Maximum tokens per step; longer prompts are prefilled in chunks.",
        "prefix_cache": "Share cache blocks between equal prefixes (needs a block-size below max-length).",
        "prefix_dir": "Also keep shared blocks in this directory, for use after a restart.",
        "prefix_limit": "Maximum size of that directory in MB; the least recently used blocks are deleted.",
        "cache": "Keep K and V of past tokens. Without it every step computes all of them again (a slow baseline).",
        "kernel": "How attention reads the cache.",
        "cache_format": "How the cache stores a row.",
        "scheme": "How matrices are stored and multiplied.",
        "proposer": "Who proposes draft tokens: auto, none, prompt_lookup, or multi_step (several steps in one call).",
        "num_drafts": "Maximum number of draft tokens per step.",
        "threads": "CPU threads. Default: torch's choice.",
        "fingerprint": "How saved rows know their model: sampled (some pages of its files), or full (every byte).",
        "compile": "Program compiled: no, static (few shapes), fullgraph (no graph breaks), dynamic (any length).",
        "compile_phases": "Which steps are compiled: decode, prefill, or both.",
        "compile_backend": "A backend of torch.compile, by name.",
        "compile_in_background": "The plain modules serve until the compiled form is ready.",
        "max_waiting": "Sequences that may wait to run; one more is refused. Default: any number.",
        "async_scheduling": "Begin each step before the last one's tokens are read: on, off, or auto (on a GPU).",
        "fuse": "Operations that are fused: qkv, gate_up, norm, rotary, separated by commas; all, or none.",
        "aot_package": "An AOT package of this model: a directory of compiled code from `tokenmill compile`.",
        "aot_fallback": "Where the AOT package does not fit, warn and go on with the plain modules.",
        "generation_config": "Sample as the model's files recommend, where no option says otherwise.",
    },
    SamplingParams: {
        "max_new_tokens": "Maximum number of new tokens. Default: 128, or what the context leaves.",
        "min_new_tokens": "Minimum number of new tokens before the text may end.",
        "temperature": "0 takes the likeliest token; higher is more random.",
        "top_k": "Sample from the k likeliest tokens. 0: off.",
        "top_p": "Sample from the likeliest tokens that together have this probability. 1: off.",
        "min_p": "Drop tokens less likely than this times the likeliest one. 0: off.",
        "repetition_penalty": "Above 1: tokens of prompt and output become less likely.",
        "presence_penalty": "Subtracted from the logit of every token that is in the output.",
        "frequency_penalty": "Subtracted from a token's logit for each time it is in the output.",
        "logit_bias": "ID=AMOUNT, added to that token's logit. May be repeated.",
        "stop": "Text that ends the output. May be repeated.",
        "include_stop": "Keep the text that stopped the output.",
        "stop_token_ids": "Ids that end the output, as 1,2,3.",
        "ignore_eos": "Continue past the model's end-of-text token.",
        "seed": "The same seed gives the same tokens. Default: a new one each time, reported in --json.",
        "logprobs": "Log-probability of each token, with the k likeliest beside it (in --json).",
        "n": "Continuations of each prompt.",
    },
}

_PANELS = {EngineConfig: ENGINE, SamplingParams: SAMPLING}
_SHORT = {"max_new_tokens": "-n"}


def option_name(field: str) -> str:
    """--max-length for max_length."""
    return "--" + field.replace("_", "-")


def examples(*lines: str) -> str:
    """An epilog, one example to a line."""
    return "Examples:\n\n" + "\n\n".join(lines)


def parse_ids(texts: Iterable[str], option: str) -> list[int]:
    """Token ids out of "1,2,3", or several such."""
    words = [word.strip() for text in texts for word in text.split(",")]
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ConfigError(option, ",".join(words), "integers separated by commas, as 1,2,3") from None


def with_settings(
    without: tuple[str, ...] = (), **kinds: type[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of each settings class; it gets the finished object under the keyword.

    EngineConfig's model is the verb's MODEL argument. `without` are fields that the verb sets by itself.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(verb).parameters
        parameters = [parameter for name, parameter in own.items() if name not in kinds]
        left_out = without if SamplingParams in kinds.values() else (*without, "generation_config")
        parameters += [option for kind in kinds.values() for option in _options(kind) if option.name not in left_out]

        def run(**values: Any) -> None:
            settings = {keyword: _build(kind, values) for keyword, kind in kinds.items()}
            verb(**{name: values[name] for name in own if name not in kinds}, **settings)

        run.__doc__ = verb.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _options(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    parameters = []
    for field in fields(kind):
        if field.name == "model":
            continue
        listed = field.name in ("logit_bias", "stop", "stop_token_ids")
        annotation = list[str] if listed else hints[field.name]
        name = option_name(field.name)
        if field.default is True:
            name += f"/--no-{name[2:]}"
        option = typer.Option(
            name,
            *([_SHORT[field.name]] if field.name in _SHORT else []),
            help=HELP[kind][field.name],
            rich_help_panel=_PANELS[kind],
            show_default=field.default is not None and field.default is not False and not listed,
        )
        default = [] if listed else field.default
        kind_of = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(field.name, kind_of, default=default, annotation=Annotated[annotation, option])
        )
    return parameters


def is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was typed."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def with_defaults(context: typer.Context, sampling: SamplingParams, defaults: Mapping[str, Any]) -> SamplingParams:
    """The settings with a model's defaults in the place of options that were not typed."""
    return replace(sampling, **{name: value for name, value in defaults.items() if not is_given(context, name)})


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The settings object; its errors name the option."""
    settings = {field.name: values[field.name] for field in fields(kind) if field.name in values}
    if kind is SamplingParams:
        settings["stop"] = tuple(settings["stop"])
        settings["stop_token_ids"] = tuple(parse_ids(settings["stop_token_ids"], "--stop-token-ids"))
        settings["logit_bias"] = dict(_parse_bias(text) for text in settings["logit_bias"])
    try:
        return kind(**settings)
    except ConfigError as error:
        field = re.match(r"\w+", error.name)
        assert field is not None
        raise ConfigError(error.name, error.value, error.allowed, option_name(field[0])) from None


def _parse_bias(text: str) -> tuple[int, float]:
    token, _, amount = text.partition("=")
    try:
        return int(token), float(amount)
    except ValueError:
        raise ConfigError("--logit-bias", text, "ID=AMOUNT, a token id and a number, as 42=-5") from None
