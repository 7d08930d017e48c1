"""Prints the Python functions of tokenmill that one greedy token passes, in the engine's thread and the caller's.

    python benchmarks/functions_per_token.py [MODEL] [--speculate off|multi_step|adaptive] [--calls]

It counts the distinct functions of one steady step of a greedy stream with program native, and their modules. With
speculation a step gives several tokens, and what the stream calls to take each of them counts as well. Comprehensions
and lambdas count with the function in which they stand.
"""

import argparse
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import tokenmill

SOURCE = str(Path(tokenmill.__file__).parent)
STEADY = 8  # tokens that are generated before counting begins


class Calls:
    """Counts calls by function while it is on, in all threads that were begun after it was made."""

    def __init__(self) -> None:
        self.counts: Counter[CodeType] = Counter()
        self.is_on = False
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """See sys.setprofile."""
        code = frame.f_code
        if self.is_on and event == "call" and code.co_filename.startswith(SOURCE) and "<" not in code.co_name:
            self.counts[code] += 1

    def stop(self) -> None:
        """Give the profiler back."""
        self.is_on = False
        sys.setprofile(None)
        threading.setprofile(None)


def functions_of_a_token(model: str, **settings: object) -> Counter[CodeType]:
    """Calls by function from one piece of a greedy stream to the end of the first step after it."""
    calls = Calls()
    try:
        engine = tokenmill.load(model, **settings)  # type: ignore[arg-type]
        num_tokens = 0
        for piece in engine.stream([1, 2, 3, 4, 5], max_new_tokens=16 * STEADY, ignore_eos=True):
            calls.is_on = num_tokens > STEADY and "Core._step" not in {code.co_qualname for code in calls.counts}
            num_tokens += len(piece.tokens)
    finally:
        calls.stop()
    return calls.counts


def main() -> None:
    """Print one line for each function, by module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--speculate", default="off")
    parser.add_argument("--calls", action="store_true", help="with how often each is called")
    given = parser.parse_args()
    counts = functions_of_a_token(given.model, program="native", speculate=given.speculate)
    lines = sorted((str(Path(code.co_filename).relative_to(SOURCE)), code.co_qualname, n) for code, n in counts.items())
    for module, name, count in lines:
        print(f"{module:32} {name}" + f"  {count}" * given.calls)
    print(f"{len(lines)} functions in {len({module for module, _, _ in lines})} modules, {counts.total()} calls")


if __name__ == "__main__":
    main()
