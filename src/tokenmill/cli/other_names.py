"""What options and verbs of ours are called by other programs, and other ways to write them."""

from collections.abc import Collection

__all__ = ["ALIASES", "ELSEWHERE", "VERBS_ELSEWHERE", "with_hyphens"]

ALIASES = {
    "--temp": "--temperature",
    "--max-tokens": "--max-new-tokens",
    "--num-predict": "--max-new-tokens",
    "--n-predict": "--max-new-tokens",
    "--predict": "--max-new-tokens",
    "--assistant-model": "--draft-model",
    "--model-draft": "--draft-model",
    "-c": "--max-length",
    "--ctx-size": "--max-length",
    "--max-model-len": "--max-length",
    "--max-num-seqs": "--max-sequences",
    "--parallel": "--max-sequences",
    "--batch-size": "--max-sequences",
    "--max-num-batched-tokens": "--max-step-tokens",
    "--kv-cache-dtype": "--cache-format",
    "--enable-prefix-caching": "--prefix-cache",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    "--no-prefix-caching": "--no-prefix-cache",
    "-t": "--threads",
    "-f": "--prompt-file",
    "--file": "--prompt-file",
    "-m": "--model",
}
"""Names that llama.cpp, Ollama, vLLM and mlx-lm have for options of ours. A verb takes those whose option it has and
whose name it does not use itself; --help does not list them. MODEL is --model where a verb has no such option."""

ELSEWHERE = {"--ctx": "--max-length"}
"""More such names, which are refused with a question."""

VERBS_ELSEWHERE = {"run": ["chat", "generate"], "complete": ["generate"], "convert": ["pull"], "download": ["pull"]}
"""What verbs of ours are called elsewhere."""


def with_hyphens(args: list[str], known: Collection[str]) -> list[str]:
    """The words of a command line in which --max_new_tokens is --max-new-tokens. What follows -- stays."""
    found: list[str] = []
    rest = iter(args)
    for word in rest:
        if word == "--":
            return [*found, word, *rest]
        name, equals, value = word.partition("=")
        hyphened = name.replace("_", "-")
        found.append(hyphened + equals + value if word.startswith("--") and hyphened in known else word)
    return found
