"""Fill in the middle: the prompt of a text that stands between two others, by a model's own marks.

    [repository] [file] name ↵ text … [file] name ↵ [prefix] before [suffix] after [middle]

as Qwen2.5-Coder's report has it (arXiv 2409.12186), and llama.cpp lays it out. Marks are found by their spellings:
llama.cpp's lists, and StarCoder 2's. Where a model has no marks of files, other files stand before all, each behind a
line that says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenmill.errors import RequestError
from tokenmill.text.literal import encode_plain
from tokenmill.text.tokenizer import Tokenizer

_PREFIX = "<|fim_prefix|> <fim-prefix> <fim_prefix> <\uff5cfim▁begin\uff5c> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>"
_SUFFIX = "<|fim_suffix|> <fim-suffix> <fim_suffix> <\uff5cfim▁hole\uff5c> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>"
_MIDDLE = "<|fim_middle|> <fim-middle> <fim_middle> <\uff5cfim▁end\uff5c> <MID> ▁<MID> <|code_middle|> <|middle|>"
_REPOSITORY = "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <repo_name> <reponame>"
_FILE = "<|file_sep|> <file_sep>"
_ENDS = "<|fim_pad|> <fim-pad> <fim_pad> ▁<EOT> <EOT>"
SNIPPET = "\n\n--- snippet ---\n\n"  # llama.cpp's line before another file's text
NO_MARKS = "this model fills in nothing: its vocabulary has no marks for a prefix, a suffix and a middle"
PROJECT, THIS_FILE = "myproject\n", "filename\n"  # llama.cpp's names, since no client tells any


@dataclass(frozen=True)
class InfillMarks:
    """The ids of a model's marks; repository and file are None where it has none. ends: ids that end the middle."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None
    ends: tuple[int, ...]


@dataclass(frozen=True)
class Infill:
    """The texts before and after a gap. files: other files, (name, text), the nearest last."""

    before: str
    after: str
    files: tuple[tuple[str, str], ...] = ()


def marks_of(tokenizer: Tokenizer) -> InfillMarks | None:
    """Find the marks of a model; None for a model that fills in nothing."""

    def find(spellings: str) -> list[int]:
        found = (tokenizer.backend.token_to_id(each) for each in spellings.split())
        return [number for number in found if number is not None]

    needed = [find(each) for each in (_PREFIX, _SUFFIX, _MIDDLE)]
    if not all(needed):
        return None
    repository, file = find(_REPOSITORY), find(_FILE)
    ends = tuple(dict.fromkeys([*find(_ENDS), *repository, *file]))
    prefix, suffix, middle = (each[0] for each in needed)
    return InfillMarks(prefix, suffix, middle, next(iter(repository), None), next(iter(file), None), ends)


def infill_prompt(tokenizer: Tokenizer, asked: Infill, limit: int) -> tuple[list[int], bool]:
    """Make the token ids of a prompt of at most `limit` tokens, and say whether something was left out of it: first of
    the other files, from their begin; then of the text before, from its begin, to three quarters of the room; then of
    the text after, from its end. RequestError for a model without marks.
    """
    marks = marks_of(tokenizer)
    if marks is None:
        raise RequestError(NO_MARKS)
    bos = tokenizer.encode("")[:1] if tokenizer.bos_token_id is not None else []
    begin = [number for number in bos if number == tokenizer.bos_token_id]
    before = encode_plain(tokenizer, asked.before)
    after = encode_plain(tokenizer, asked.after, continues=True)
    room = limit - len(begin) - 3
    if room < 1:
        raise RequestError(
            f"a prompt of {limit} tokens has no place for the marks of an infill: ask for fewer new tokens"
        )
    files = _files(tokenizer, marks, asked.files)
    is_cut = len(files) + len(before) + len(after) > room
    if is_cut:
        kept_after = min(len(after), max(room // 4, room - len(before)))
        before, after = before[max(len(before) - (room - kept_after), 0) :], after[:kept_after]
        left = max(room - len(before) - len(after), 0)
        files = files[len(files) - min(left, len(files)) :]
    return [*begin, *files, marks.prefix, *before, marks.suffix, *after, marks.middle], is_cut


def _files(tokenizer: Tokenizer, marks: InfillMarks, files: Sequence[tuple[str, str]]) -> list[int]:
    if not files:
        return []
    found = [] if marks.repository is None else [marks.repository, *encode_plain(tokenizer, PROJECT)]
    for name, text in files:
        if marks.file is None:
            found += encode_plain(tokenizer, f"{SNIPPET}{text}")
        else:
            found += [marks.file, *encode_plain(tokenizer, f"{name}\n{text}")]
    if marks.file is not None:
        found += [marks.file, *encode_plain(tokenizer, THIS_FILE)]
    return found
