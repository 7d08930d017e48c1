"""Options that verbs share. The fields of EngineConfig and SamplingParams become options by themselves.

Name, type and default come from the dataclass, help and order from the tables here; a test holds the two together. A
verb decorated with `with_settings` is handed finished settings objects.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_type_hints

import typer

from tokenmill.cli.command import is_given
from tokenmill.cli.imports import uninterrupted
from tokenmill.config import DTYPES, EngineConfig, SamplingParams
from tokenmill.errors import ConfigError

__all__ = [
    "HELP",
    "MODEL",
    "NAMES",
    "OUTPUT",
    "PROMPT",
    "ChatTemplate",
    "Json",
    "Model",
    "Quiet",
    "examples",
    "option_name",
    "parse_ids",
    "with_defaults",
    "with_settings",
]

MODEL, PROMPT, SAMPLING, ENGINE, OUTPUT = "Model", "Prompt", "Sampling", "Engine", "Output"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Directory in Hugging Face layout, .gguf file, hub name (owner/name[:file.gguf]), or short name.",
        show_default=True,
        rich_help_panel=MODEL,
    ),
]
ChatTemplate = Annotated[
    Path | None,
    typer.Option(
        "--chat-template",
        metavar="FILE",
        help="A chat template, in Jinja, in the place of the model's own.",
        rich_help_panel=PROMPT,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.", rich_help_panel=OUTPUT)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Nothing on stderr but warnings and errors.", rich_help_panel=OUTPUT)
]

NAMES = {
    "program": ("native", "aot", "compiled", "eager"),
    "kernel": ("rows", "gather", "padded"),
    "cache_format": ("dense", "int8"),
    "scheme": ("packed", "dense", "q8", "q4", "file"),
    "speculate": ("off", "adaptive", "multi_step", "suffix", "draft_model"),
}
"""What the registries hold, which are in modules that import torch. A test holds the two together."""


def _named(setting: str) -> str:
    *first, last = ["auto", *NAMES[setting]]
    return f"{', '.join(first)} or {last}"


HELP: dict[type, dict[str, str]] = {
    EngineConfig: {
        "program": f"What computes the forward pass: {_named('program')}. Auto takes the fastest that runs here.",
        "dtype": f"Data type of weights and cache: auto, {', '.join(DTYPES)}. Auto keeps the checkpoint's own.",
        "device": "cpu, cuda, cuda:1, … Auto takes cuda where there is one.",
        "max_length": "Longest sequence in tokens, prompt included. Default: the model's context, at most 2048.",
        "max_sequences": "Maximum number of sequences in one step.",
        "block_size": "Tokens per cache block. Default: one sequence; 32 with program native, prefix-dir and in chat.",
        "cache_tokens": "Slots in the cache over all sequences. Default: max-sequences times max-length.",
        "max_step_tokens": "Maximum number of tokens in one step; longer prompts are prefilled in chunks.",
        "prefix_cache": "Share cache blocks between equal prefixes (needs a block-size below max-length).",
        "prefix_dir": "Also keep shared blocks in this directory, for use after a restart.",
        "prefix_limit": "Size limit of that directory in MB; least recently used blocks are deleted.",
        "cache": "Keep K and V of past tokens. Without it every step computes all of them again (a slow baseline).",
        "kernel": f"How attention reads the cache: {_named('kernel')}. Program native reads it by itself.",
        "cache_format": f"How the cache stores a row: {_named('cache_format')} (half the memory). Auto is dense.",
        "scheme": f"How matrices are stored: {_named('scheme')} (as the model's files have them).",
        "speculate": f"Who proposes draft tokens: {_named('speculate')}. Auto: adaptive with program native.",
        "num_draft_tokens": "Maximum number of draft tokens per sequence and step. Default: by proposer.",
        "draft_model": "A second, smaller model that proposes: its name, or q8 or q4 for this one with such weights.",
        "suffix_dir": "Keep finished texts in this directory, as tokens, and draft from them, also after a restart.",
        "suffix_limit": "Size limit of that directory in MB; the oldest texts are deleted.",
        "threads": "CPU threads. Default: torch's choice.",
        "fingerprint": "How a saved cache knows its model: sampled (some pages of its files) or full (every byte).",
        "packed_cache": "Keep a packed copy of the model in the cache folder: the next start takes a fraction.",
        "packed_limit": "Size limit of all such copies in MB; least recently used ones are deleted.",
        "compile": "Program compiled: auto, no, static (few shapes), dynamic (any length), fullgraph (as static).",
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
        "max_new_tokens": "Maximum number of new tokens; -1: all that the context leaves. Default: at most 128.",
        "min_new_tokens": "Minimum number of new tokens before the text may end.",
        "temperature": "0 takes the likeliest token; higher is more random.",
        "top_k": "Sample from the k likeliest tokens. 0 and -1: off.",
        "top_p": "Sample from the likeliest tokens that together have this probability. 1: off.",
        "min_p": "Drop tokens less likely than this times the likeliest one. 0: off.",
        "repetition_penalty": "Above 1: tokens of prompt and output become less likely.",
        "presence_penalty": "Subtracted from the logit of every token that is in the output.",
        "frequency_penalty": "Subtracted from a token's logit for each time it is in the output.",
        "logit_bias": "ID=AMOUNT, added to that token's logit. May be repeated.",
        "allowed_token_ids": "The only ids that may be chosen, as 1,2,3.",
        "bad_words": "A word that the output must not hold. May be repeated.",
        "stop": "Text that ends the output. May be repeated.",
        "include_stop": "Keep the text that stopped the output.",
        "stop_token_ids": "Ids that end the output, as 1,2,3.",
        "ignore_eos": "Continue past the model's end-of-text token.",
        "skip_special_tokens": "Leave special tokens out of the text.",
        "seed": "The same seed gives the same tokens. Default: a new one each time, which --json reports.",
        "logprobs": "Show the log-probability of each token, and the N likeliest tokens in its place.",
        "n": "Continuations of each prompt.",
    },
}


def option_name(field: str) -> str:
    """--max-length for max_length."""
    return "--" + field.replace("_", "-")


def examples(*lines: str) -> str:
    """An epilog, one example to a line, to be copied as it stands."""
    return "Examples:\n" + "".join(f"  {line}\n" for line in lines)


def parse_ids(texts: Iterable[str], option: str) -> list[int]:
    """Token ids out of "1,2,3", or several such."""
    words = [word.strip() for text in texts for word in text.split(",")]
    try:
        return [int(word) for word in words]
    except ValueError:
        raise ConfigError(option, ",".join(words), "integers separated by commas, as 1,2,3") from None


def with_settings(
    without: tuple[str, ...] = (),
    only: tuple[str, ...] = (),
    words: Mapping[str, str] = MappingProxyType({}),
    **kinds: type[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb the options of each settings class; it gets the finished object under the keyword.

    EngineConfig's model is the verb's MODEL argument. `without` are fields that the verb sets by itself; `only`, if it
    is given, are the fields that are options. `words` are the help of fields that mean something else here.
    """

    def decorate(verb: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(verb).parameters
        parameters = [parameter for name, parameter in own.items() if name not in kinds]
        left_out = without if SamplingParams in kinds.values() else (*without, "generation_config")
        options = [option for kind in kinds.values() for option in _options(kind, words)]
        parameters += [each for each in options if each.name not in left_out and (not only or each.name in only)]

        def run(**values: Any) -> None:
            settings = {keyword: _build(kind, values) for keyword, kind in kinds.items()}
            verb(**{name: values[name] for name in own if name not in kinds}, **settings)

        run.__doc__ = verb.__doc__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


_SHORT = {"max_new_tokens": "-n"}
_METAVARS = {
    "logit_bias": "ID=AMOUNT",
    "stop_token_ids": "IDS",
    "allowed_token_ids": "IDS",
    "bad_words": "TEXT",
    "fuse": "NAMES",
    "prefix_dir": "DIR",
    "suffix_dir": "DIR",
    "aot_package": "DIR",
    "stop": "TEXT",
}


def _options(kind: type[Any], words: Mapping[str, str]) -> list[inspect.Parameter]:
    """The options of a settings class in the order of HELP, by which people look for them."""
    hints, defaults = get_type_hints(kind), {field.name: field.default for field in fields(kind)}
    parameters = []
    for field, text in HELP[kind].items():
        listed, default = field in LISTED, defaults[field]
        annotation = list[str] if listed else hints[field]
        name = option_name(field)
        if default is True:
            name += f"/--no-{name[2:]}"
        is_name = annotation in (str, str | None) and field not in _METAVARS
        shown = words.get(field, text)
        option = typer.Option(
            name,
            *([_SHORT[field]] if field in _SHORT else []),
            help=shown,
            metavar="NAME" if is_name else _METAVARS.get(field),
            rich_help_panel=ENGINE if kind is EngineConfig else SAMPLING,
            show_default=not (default is None or isinstance(default, bool) or listed or "Default:" in shown),
        )
        kind_of = inspect.Parameter.KEYWORD_ONLY
        given = [] if listed else default
        parameters.append(inspect.Parameter(field, kind_of, default=given, annotation=Annotated[annotation, option]))
    return parameters


def with_defaults(context: typer.Context, sampling: SamplingParams, defaults: Mapping[str, Any]) -> SamplingParams:
    """The settings with a model's defaults in the place of options that were not typed."""
    return replace(sampling, **{name: value for name, value in defaults.items() if not is_given(context, name)})


def _build(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The settings object, its names checked before anything is loaded."""
    settings = {field.name: values[field.name] for field in fields(kind) if values.get(field.name) is not None}
    if kind is SamplingParams:
        given = {name: settings.pop(name) for name in LISTED if name in settings}
        settings |= {name: LISTED[name](texts, option_name(name)) for name, texts in given.items() if texts}
    for name in settings.keys() & NAMES.keys():
        _check_name(name, settings[name])
    built = kind(**settings)
    if settings.get("device", "auto") not in ("auto", "cpu"):
        with uninterrupted():
            from tokenmill.kernels.devices import find_device
        find_device(settings["device"])
    return built


CALLED_ELSEWHERE = {
    "prompt_lookup": "suffix",
    "prompt-lookup": "suffix",
    "ngram": "suffix",
    "lookup": "suffix",
    "none": "off",
    "q8_0": "q8",
    "int8": "q8",
    "q4_0": "q4",
    "int4": "q4",
    "inductor": "compiled",
}
"""What names of ours are called elsewhere: hinted at, where the name beside it is one of the setting."""


def _check_name(setting: str, name: str) -> None:
    allowed = ("auto", *NAMES[setting])
    if name not in allowed:
        near = [meant] if (meant := CALLED_ELSEWHERE.get(name)) in allowed else get_close_matches(name, allowed, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ConfigError(setting, name, f"use one of {', '.join(allowed)}{hint}")


def _parse_bias(texts: Iterable[str], option: str) -> dict[int, float]:
    biases = {}
    for text in texts:
        token, _, amount = text.partition("=")
        try:
            biases[int(token)] = float(amount)
        except ValueError:
            raise ConfigError(option, text, "ID=AMOUNT, a token id and a number, as 42=-5") from None
    return biases


LISTED: Mapping[str, Callable[[list[str], str], Any]] = {
    "logit_bias": _parse_bias,
    "allowed_token_ids": parse_ids,
    "bad_words": lambda texts, _: texts,
    "stop": lambda texts, _: texts,
    "stop_token_ids": parse_ids,
}
"""Settings whose options may be repeated, and what is made of the texts."""
