"""Receipts: the time of verifying over that of generating, and how many of them are told apart from changed ones.

    python benchmarks/receipts.py times [--rounds 5]
    python benchmarks/receipts.py check [--receipts 1000] [--real 60] [--seed 1]

`times` generates texts of several lengths alone, greedy and at a temperature, as the engine does by default (with
drafts), and verifies their receipts in the same engine without the prefix cache. It prints the medians as a table.

`check` makes receipts of random texts: of tiny models with random settings of every kind, in several programs and
formats, and some of the real model. All must be verified. Then each is changed at a random place, once with its hash as
it was, and once with the hash computed again. The first must always be refused. The second must be refused unless what
it says is true, which generating decides; fields that only say where a receipt was made are left out there. Exit code 1
if one verdict is wrong. `check` needs the tests, so it runs at the root of the repository.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenmill
from tokenmill.bench.rows import provenance

LENGTHS = 32, 128, 512, 1500
WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "temperature 0.8": {"temperature": 0.8, "seed": 7}}
PROMPT = "Write a long story about the miller's daughter who wanted to know where the river comes from."
SAID = "tokens", "text", "finish_reason", "stop_reason"
TINY: tuple[dict[str, Any], ...] = (
    {"program": "native", "dtype": "float32", "max_sequences": 4, "cache_tokens": 160, "block_size": 8},
    {"program": "native", "dtype": "bfloat16", "scheme": "q4", "cache_format": "int8", "max_sequences": 3},
    {"program": "native", "dtype": "float32", "scheme": "q8", "speculate": "suffix", "max_step_tokens": 16},
    {"program": "native", "dtype": "bfloat16", "speculate": "adaptive", "prefix_cache": False},
    {"program": "eager", "dtype": "float32", "max_sequences": 3},
)


# ---- times


def timed(do: Callable[[], Any]) -> tuple[Any, float]:
    begun_s = time.perf_counter()
    found = do()
    return found, time.perf_counter() - begun_s


def times(options: argparse.Namespace) -> int:
    engine = tokenmill.load(options.model, max_length=2048, threads=options.threads)
    prompt = engine.chat_prompt([{"role": "user", "content": PROMPT}])
    engine.generate(prompt, max_new_tokens=32, ignore_eos=True)
    first, digest_s = timed(lambda: engine.generate(prompt, max_new_tokens=1).receipt())
    print("| text | new tokens | generating, s | verifying, s | generating / verifying |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for way, settings in WAYS.items():
        for length in LENGTHS:
            generating, verifying = [], []
            for _ in range(options.rounds):
                engine.core.clear_prefix_cache()
                asked = {"max_new_tokens": length, "min_new_tokens": length, **settings}
                done, took_s = timed(lambda asked=asked: engine.generate(prompt, **asked))
                generating.append(took_s)
                receipt = done.receipt()
                engine.core.clear_prefix_cache()
                found, took_s = timed(lambda receipt=receipt: engine.verify(receipt))
                verifying.append(took_s)
                assert found.is_verified, found
            one, other = statistics.median(generating), statistics.median(verifying)
            ratio = statistics.median(a / b for a, b in zip(generating, verifying, strict=True))
            print(f"| {way} | {length:,} | {one:.2f} | {other:.2f} | {ratio:.1f} |", flush=True)
    facts = provenance()
    print(
        f"\n*{options.model}, {len(prompt)} tokens of prompt; {facts['processor']} ({facts['instructions']}), "
        f"{engine.config.threads} threads; {engine.config.dtype}, scheme {engine.config.scheme}, "
        f"{first.engine['program']} program; medians of {options.rounds} rounds; the digest of the model took "
        f"{digest_s:.2f} s, once; tokenmill {tokenmill.__version__}, commit {facts['commit']}, torch {facts['torch']}, "
        f"Python {facts['python']}; {facts['when'][:10]}.*"
    )
    return 0


# ---- check


def receipts_of(engine: Any, draw: random.Random, count: int, vocabulary: int, constraints: Any) -> Iterator[Any]:
    from tests.receipts.random_texts import random_prompt, random_settings

    while count > 0:
        settings = random_settings(draw, constraints=constraints)
        prompts = [random_prompt(draw, vocabulary) for _ in range(draw.randint(1, 3))]
        made = []
        try:
            made += [each.receipt() for one in engine.generate(prompts, **settings) for each in one.completions]
            settings.pop("n", None)
            with engine.session(prompts[0]) as session:
                for _ in range(draw.choice((0, 0, 3))):
                    more = None if draw.random() < 0.6 else random_prompt(draw, vocabulary)
                    made.append(session.generate(more, **settings).receipt())
        except tokenmill.TokenmillError:
            continue  # settings that do not go together
        yield from made[:count]
        count -= len(made)


def is_true(engine: Any, receipt: Any) -> bool:
    try:
        done = engine.generate(list(receipt.prompt), receipt.sampling)
    except tokenmill.TokenmillError:
        return False
    ours = (done.tokens, done.text, done.finish_reason, done.stop_reason)
    return bool(ours == (receipt.tokens, receipt.text, receipt.finish_reason, receipt.stop_reason))


class Check:
    """Counts verdicts, and keeps those that are wrong."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.counts, self.wrong = draw, Counter[str](), list[str]()

    def outcome(self, engine: Any, document: Any) -> str:
        try:
            return str(engine.verify(json.dumps(document)).verdict)
        except tokenmill.ReceiptError:
            return "refused"

    def run(self, engine: Any, count: int, vocabulary: int, constraints: Any) -> None:
        from tests.receipts.random_texts import changed, is_checkable

        receipts = list(receipts_of(engine, self.draw, count, vocabulary, constraints))
        is_native = engine.program_name == "native"
        for number, found in engine.verify_each(receipts):
            self.note("as made", found.verdict, found.is_verified or (not is_native and found.verdict == "consistent"))
            if not found.is_verified:
                print(found.reasons, receipts[number].sampling, file=sys.stderr)
        for each in receipts:
            document, path = changed(each.document, self.draw, again=False)
            outcome = self.outcome(engine, document)
            self.note("changed", outcome, outcome == "refused", path)
            # What a session would have said otherwise is not tried out: only what it did say is changed.
            only = is_checkable if each.session is None else lambda path: path.startswith(SAID)
            document, path = changed(each.document, self.draw, again=True, only=only)
            outcome = self.outcome(engine, document)
            is_right = outcome in ("verified", "consistent") and self.is_right(engine, document, path)
            said = f"{outcome}, and it is true" if is_right else outcome
            near = not is_native and outcome == "consistent"
            self.note("changed, with a right hash", said, outcome in ("refused", "unchecked") or is_right or near, path)

    def is_right(self, engine: Any, document: Any, path: str) -> bool:
        from tokenmill.receipts.read import checked_receipt

        is_tried = document["session"] is None and not path.startswith("model")
        return is_tried and is_true(engine, checked_receipt(document))

    def note(self, what: str, outcome: str, is_well: bool, path: str = "") -> None:
        self.counts[f"{what}: {outcome}"] += 1
        if not is_well:
            self.wrong.append(f"{what} at {path}: {outcome}")


def check(options: argparse.Namespace) -> int:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.byte_model import save_thinking_model
    from tests.receipts.random_texts import CONSTRAINTS

    result, begun_s = Check(random.Random(options.seed)), time.perf_counter()
    real = tokenmill.load(options.model, max_length=256, threads=options.threads, max_sequences=4)
    result.run(real, options.real, 40_000, ())
    real.close()
    with tempfile.TemporaryDirectory() as folder:
        path = save_thinking_model(Path(folder) / "bytes")
        for number, settings in enumerate(TINY):
            left = options.receipts - options.real
            count = left // len(TINY) + (left % len(TINY) > number)
            engine = tokenmill.load(path, max_length=128, threads=1, packed_cache=False, **settings)
            result.run(engine, count, 259, CONSTRAINTS)
            engine.close()
    for name, number in sorted(result.counts.items()):
        print(f"{number:6,}  {name}")
    print(f"{len(result.wrong)} wrong verdicts; {time.perf_counter() - begun_s:.0f} s")
    for each in result.wrong:
        print(each)
    return int(bool(result.wrong))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["times", "check"])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--receipts", type=int, default=1000)
    parser.add_argument("--real", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    return times(options) if options.what == "times" else check(options)


if __name__ == "__main__":
    sys.exit(main())
