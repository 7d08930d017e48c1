"""The names that options and verbs have in other programs."""

from collections.abc import Iterator

from tokenmill.settings.engine_config import EngineConfig
from tokenmill.settings.field import settings_of
from tokenmill.settings.sampling_params import SamplingParams


def _of_settings() -> Iterator[tuple[str, str]]:
    for name, told in (settings_of(EngineConfig) | settings_of(SamplingParams)).items():
        for option in told.options:
            yield option, f"--{'no-' * option.startswith('--no-')}{name.replace('_', '-')}"


ALIASES = dict(_of_settings()) | {"-f": "--prompt-file", "--file": "--prompt-file", "-m": "--model"}
"""Names that llama.cpp, Ollama, vLLM and mlx-lm have for options of ours. A verb takes a name if it has the option and
does not use the name itself; --help does not list them. MODEL is --model where a verb has no such option."""

ELSEWHERE = {"--ctx": "--max-length", "--profile": "--preset", "--verify": "--check-float32"}
"""More such names, and some that options had before, which are refused with a question."""

VERBS_ELSEWHERE = {
    "run": ["chat", "generate"],
    "complete": ["generate"],
    "convert": ["pull"],
    "download": ["pull"],
    "ls": ["list"],
    "models": ["list"],
    "profiles": ["presets"],
    "remove": ["rm"],
    "delete": ["rm"],
    "show": ["info"],
    "version": ["--version"],
    "help": ["--help"],
}
"""Names that other programs have for verbs, and our verbs or options that are meant; cli/elsewhere has more of them."""
