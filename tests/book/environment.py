"""docs/environment.md: the environment variables that are read or set, each with its place in the source."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.book.markdown import ROOT, table

READ = {
    "TOKENMILL_CACHE": "The folder of what can be made or fetched again: models, packed copies, prefixes, what was "
    "measured of the machine. Default: `tokenmill` in `XDG_CACHE_HOME`, else `~/.cache/tokenmill`. All may be deleted.",
    "TOKENMILL_DATA": "The folder of users' data: sessions, files and batches of a server. Default: `tokenmill` in "
    "`XDG_DATA_HOME`, else `~/.local/share/tokenmill`. tokenmill deletes nothing there by itself.",
    "TOKENMILL_CONFIG": "The folder of `presets.toml`. Default: `tokenmill` in `XDG_CONFIG_HOME`, else "
    "`~/.config/tokenmill`.",
    "TOKENMILL_MODELS": "Folders with models of yours, for `tokenmill list`, with `:` between them.",
    "TOKENMILL_API_KEY": "A key that clients of `tokenmill serve` must send, beside the keys in the file of "
    "`--api-key-file`; `launch` sends it.",
    "TOKENMILL_NATIVE_LIBRARY": "Another file with the native program's library than the installed one.",
    "TOKENMILL_NATIVE_BUILD": "Another build of the native program's kernels than the best that this processor "
    "runs: one of those in [Releasing](releasing.md#the-same-bits-everywhere). One that it does not run is refused.",
    "XDG_CACHE_HOME": "The folder of caches, where `TOKENMILL_CACHE` is not set.",
    "XDG_DATA_HOME": "The folder of data, where `TOKENMILL_DATA` is not set.",
    "XDG_CONFIG_HOME": "The folder of settings, where `TOKENMILL_CONFIG` is not set.",
    "HF_HUB_CACHE": "The hub's cache, where models are looked for. Default: `hub` in `HF_HOME`.",
    "HF_HOME": "The folder of the hub's own cache, and of its token.",
    "OLLAMA_MODELS": "Ollama's models, where models are looked for. Default: `~/.ollama/models`.",
    "LLAMA_CACHE": "llama.cpp's cache, where models are looked for. Default: `~/.cache/llama.cpp`.",
    "NO_COLOR": "If it is set, `--show-draft` marks drafts without colours.",
    "TERM": "`dumb` turns off rendered Markdown, bars and colours.",
    "PYTHONPATH": "Ranks are started with the module path of the process that starts them.",
    "ONEDNN_MAX_CPU_ISA": "oneDNN's own: the instruction sets that it may use. Rows of program eager are shared only "
    "under the same ones.",
    "TRITON_INTERPRET": "Triton's own: with 1 the kernels of program graphs are interpreted, on a CPU and slowly.",
    "VISUAL": "The editor of `/edit` in `chat`.",
    "EDITOR": "The same, where `VISUAL` is not set.",
    "RANK": "As torchrun sets it: with the next four, this process is one of several ranks.",
    "WORLD_SIZE": "As torchrun sets it: the number of ranks, which must be `tensor_parallel`.",
    "LOCAL_RANK": "As torchrun sets it: which GPU of its machine a rank takes.",
    "MASTER_ADDR": "As torchrun sets it: where the ranks meet.",
    "MASTER_PORT": "As torchrun sets it: the port there.",
}
SET = {
    "NO_PROXY": "`launch` adds this machine to it, for the agent that it starts.",
    "HF_HUB_OFFLINE": "`serve --offline` sets it for the hub's client in this process.",
    "TMPDIR": "The folder in which pip keeps a model while it is fetched: one in the cache folder.",
    "RAY_USAGE_STATS_ENABLED": "`serve --replicas` turns Ray's reports off, unless it is set already.",
    "TQDM_DISABLE": "`eval tasks` without progress, unless it is set already.",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "The same, of the library of data sets.",
    "KINETO_LOG_LEVEL": "`profile` keeps torch's profiler quiet, unless it is set already.",
    "OMP_NUM_THREADS": "Of other engines that `bench peers` starts: their number of threads.",
    "RAYON_NUM_THREADS": "The same, of those in Rust.",
    "PIP_CONSTRAINT": "Of the pip that `bench install-peer` calls: the versions that were compared.",
    "CMAKE_ARGS": "Of the same pip: llama.cpp is compiled for this processor.",
}
BUILD = {
    "CXX": "The C++ compiler of the native program. Default: the first of `c++`, `g++` and `clang++`.",
    "TOKENMILL_KEEP_NATIVE": "An installation keeps the library that is there, and compiles nothing.",
}
OTHERS = {
    "HF_HOME": ("huggingface_hub", "The folder of the hub's own cache, and of its token."),
    "HF_TOKEN": ("huggingface_hub", "The token for gated and private models."),
    "HF_ENDPOINT": ("huggingface_hub", "The address of a mirror of the hub."),
    "HTTPS_PROXY": ("huggingface_hub, pip", "The proxy through which models are fetched."),
    "CUDA_VISIBLE_DEVICES": ("torch", "The GPUs that there are for this process."),
}
HEAD = """# Environment variables

Settings are options and keywords; the environment says where folders are, and holds secrets. This page is made by
`python -m tests.book` of a list that a test compares with the source: a variable that is read and is not told
here fails the test.
"""


def page() -> str:
    """The whole page."""
    places = found()
    head = ("variable", "what it is", "read in")
    return "\n".join(
        [
            HEAD,
            "## Read by tokenmill\n",
            table(head, rows(READ, places)),
            "## Read when tokenmill is built\n",
            table(head, rows(BUILD, places)),
            "## Set by tokenmill for others\n",
            "A library that is imported leaves the environment as it finds it: these are set by verbs of the command "
            "line, in their own process or for a process that they start.\n",
            table(("variable", "what it is", "set in"), rows(SET, places)),
            "## Read by the libraries below\n",
            "tokenmill hands these through by not touching them:\n",
            table(
                ("variable", "what it is", "read by"),
                ((f"`{name}`", told, by) for name, (by, told) in OTHERS.items() if name not in places),
            ),
        ]
    )


def rows(told: dict[str, str], places: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """A row for each variable that the source names."""
    return ((f"`{name}`", text, f"`{places[name]}`") for name, text in told.items() if name in places)


def found() -> dict[str, str]:
    """Variable → the first file that names it: every text in capitals in a file that touches the environment."""
    places: dict[str, str] = {}
    for path in [*sorted((ROOT / "src").rglob("*.py")), ROOT / "hatch_build.py"]:
        text = path.read_text(encoding="utf-8")
        if re.search(r"os\.environ|getenv|environment\[", text):
            for name in _capitals(path, text):
                places.setdefault(name, path.relative_to(ROOT).as_posix())
    return places


NOT_VARIABLES = {
    "AGENT",
    "AMD64",
    "ARGS",
    "CPU",
    "DIR",
    "ERROR",
    "FILE",
    "GET",
    "MORE",
    "NAME",
    "NAMES",
    "ONLY",
    "SIZE",
    "TASK",
    "TEXT",
    "TIME",
    "URL",
    "WITHOUT",
    "WORDS",
}


def _capitals(path: Path, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source, str(path))):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", text) and text not in NOT_VARIABLES:
            yield text
