"""Points to measure, of batch, prompt, new tokens and depth, and the names people know them by: pp512, tg128.

`pp512` is the prefill of 512 tokens, `tg128` the generation of 128; `@ d1000` says how many tokens lie before. A sweep
is the product of its lists.
"""

import re
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass
from itertools import product

from tokenmill.errors import ConfigError

_NAME = re.compile(r"(?:pp(?P<prompt>\d+))?(?:\+?tg(?P<new>\d+))?")


@dataclass(frozen=True)
class Point:
    """`batch` sequences with `depth` tokens behind them are given `prompt` tokens and generate `new`.

    prompt 0: only generation is measured. new 0: only prefill.
    """

    prompt: int
    new: int
    batch: int = 1
    depth: int = 0

    @property
    def name(self) -> str:
        """The name of the point, such as `pp512`, `tg128`, `pp128+tg32`."""
        return "+".join(([f"pp{self.prompt}"] if self.prompt else []) + ([f"tg{self.new}"] if self.new else []))

    @property
    def title(self) -> str:
        """The name, with depth and batch where they are not the usual ones."""
        return self.name + (f" @ d{self.depth}" if self.depth else "") + (f" x{self.batch}" if self.batch > 1 else "")

    @property
    def num_fed(self) -> int:
        """Tokens of each sequence before it generates: a sequence starts from at least one."""
        return self.depth + self.prompt or 1

    @property
    def length(self) -> int:
        """Tokens of each sequence at its end."""
        return self.num_fed + max(self.new, 1)


def parse_tests(text: str) -> list[tuple[int, int]]:
    """Parse "pp512,tg128,pp64+tg16" into (prompt, new) of each."""
    tests = []
    for word in text.split(","):
        match = _NAME.fullmatch(word.strip())
        test = (int(match["prompt"] or 0), int(match["new"] or 0)) if match else (0, 0)
        if not any(test):
            allowed = "pp and tg with a number of tokens, as pp512,tg128 or pp128+tg32"
            raise ConfigError("--tests", word.strip(), allowed)
        tests.append(test)
    return tests


def parse_counts(text: str, option: str, minimum: int = 1) -> list[int]:
    """Parse "1,4,16" into [1, 4, 16]."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= minimum for word in words):
        raise ConfigError(option, text, f"integers of at least {minimum} separated by commas, as 1,4,16")
    return [int(word) for word in words]


def sweep(batches: List[int], prompts: List[int], news: List[int], depths: Iterable[int] = (0,)) -> list[Point]:
    """Return every combination, the cheap ones first within each batch size."""
    return [Point(prompt, new, batch, depth) for batch, depth, prompt, new in product(batches, depths, prompts, news)]
