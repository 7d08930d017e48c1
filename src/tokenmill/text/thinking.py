"""How a family's answers show what the model thinks before them: the marks, from the words of its chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenmill.text.tokenizer import Tokenizer

NUM_LAST = 32  # tokens at the end of a prompt, among which the mark is looked for

# By their first marks, in the order in which they are looked for.
MARKS = {
    "<think>": "</think>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|channel|>analysis<|message|>": "<|end|>",
}


@dataclass(frozen=True)
class Thinking:
    """The marks around thinking, which stands at the beginning of an answer or nowhere."""

    begin: str
    end: str

    def is_open(self, prompt: str) -> bool:
        """Return whether an answer begins inside thinking because the prompt, or its end, ends with the mark."""
        return prompt.rstrip().endswith(self.begin)

    def is_open_after(self, prompt: Sequence[int], tokenizer: Tokenizer) -> bool:
        """Return whether an answer to a prompt begins inside thinking."""
        return self.is_open(tokenizer.decode(list(prompt[-NUM_LAST:]), skip_special=False))

    def marks(self) -> tuple[str, str]:
        """Return both marks."""
        return self.begin, self.end


def marks_of(tokenizer: Tokenizer) -> Thinking | None:
    """Return the marks in the answers of a model, by the chat templates that it has now; see thinking_of.

    Where a thought begins and ends is asked here alone: by the server, which splits it off, and by the engine, which
    limits it and begins a constraint behind it.
    """
    return thinking_of("\n".join(tokenizer.templates), tokenizer.control_ids)


def thinking_of(template: str | None, spellings: Mapping[str, int] = {}) -> Thinking | None:
    """Return the marks that a template speaks of; where it does not speak of thinking, the marks that are tokens."""
    told = template or ""
    found = [begin for begin, end in MARKS.items() if begin in told or (end in told and end != "<|end|>")]
    found += [begin for begin, end in MARKS.items() if begin in spellings and end in spellings]
    return Thinking(found[0], MARKS[found[0]]) if found else None
