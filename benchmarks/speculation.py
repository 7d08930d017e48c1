"""Speedup of speculative decoding where the output copies the prompt, and its overhead on prose.

    python benchmarks/speculation.py [--speculate adaptive] [--dtype bfloat16] [--batch 8] [--fresh] [--json FILE]
    python benchmarks/speculation.py --forced [--shape llama-1b]

Two engines of one model take turns, prompt by prompt: plain decoding (speculate multi_step) and another proposer, or
several of them with commas between. Their texts must be the same, or it ends with exit code 1. Prints a row per prompt:
how much of the answer stands in 8-grams of the prompt, tokens per second of both after the first token, the median over
the rounds of their ratio, and tokens of each sequence per pass. Then the mean of the ten best, of copying and of prose.
NAME:MODEL is a proposer with a draft model, as draft_model:q8. With --batch, prompts run together and a row is a batch;
the last one mixes copying and prose.

With --forced every draft is right, because the text is known: the speed by the number of drafts is what the passes
cost and nothing else. This also measures shapes, with random weights.
"""

import argparse
import json
import platform
import statistics
from collections.abc import Callable
from collections.abc import Sequence as List
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import torch
from prompts_speculation import COPYING, PROSE, Asked, all_prompts
from turns import Contender, Group, Run, Runs, Turns, ratios

import tokenmill
from tokenmill.bench.points import Point
from tokenmill.bench.rows import provenance
from tokenmill.bench.run import make_prompts
from tokenmill.bench.shapes import find_shape
from tokenmill.engine.engine import Engine
from tokenmill.engine.load import load_checkpoint
from tokenmill.engine.outputs import hash_tokens
from tokenmill.registry import PROPOSERS, lookup
from tokenmill.schedule.sequence import Plan, Sequence
from tokenmill.settings.engine_config import EngineConfig
from tokenmill.speculate.proposer import Forced, Proposer, ProposerContext, default_drafts
from tokenmill.speculate.speculation import described

FORCED = (1, 3, 7, 15, 31)  # drafts
MIXED = "mixed"
SHAPE_PROMPT = 256
NEW, NEW_FORCED = 224, 129  # after the first token whole passes with any number of drafts

Row = dict[str, Any]


# ---- engines and their prompts


def make_engine(options: argparse.Namespace, speculate: str, **more: Any) -> Engine:
    settings = more | {
        "speculate": speculate,
        "scheme": options.scheme,
        "dtype": options.dtype,
        "threads": options.threads,
        "max_sequences": options.batch,
        "max_length": options.max_length,
        "prefix_cache": False,
    }
    if options.shape:
        return load_checkpoint(find_shape(options.shape), EngineConfig(model=options.shape, **settings))
    return tokenmill.load(options.model, **settings)


def new_proposer(engine: Engine, name: str) -> Proposer:
    """Make a proposer as an engine makes its own."""
    made: Proposer = lookup(PROPOSERS, name, "speculate")(ProposerContext(engine.core.loaded.spec.finds_drafts))
    return made


def make_contender(options: argparse.Namespace, name: str) -> Contender:
    proposer, _, draft = name.partition(":")
    engine = make_engine(options, proposer, draft_model=draft or None)
    return Contender(name, engine, (lambda: new_proposer(engine, name)) if options.fresh else None)


def make_groups(engine: Engine, options: argparse.Namespace) -> list[Group]:
    """Each prompt alone; or batches of each kind, the last filled up with its first prompts, and a mixed one."""
    batch = options.batch
    prompts = {kind: [asked for asked in all_prompts() if asked.kind == kind] for kind in (COPYING, PROSE)}
    prompts = {kind: members[:: options.every] for kind, members in prompts.items() if options.kind in (None, kind)}
    groups = []
    for kind, members in prompts.items():
        for first in range(0, len(members), batch):
            chosen = list(islice(cycle(members), first, first + batch))
            name = chosen[0].name if batch == 1 else f"{kind}, from {chosen[0].name} on"
            groups.append(Group(name, kind, [tokens_of(engine, asked) for asked in chosen]))
    if batch > 1 and options.kind is None:
        mixed = islice(cycle(chain.from_iterable(zip(*prompts.values(), strict=False))), batch)
        groups.append(Group("copying and prose in turn", MIXED, [tokens_of(engine, asked) for asked in mixed]))
    return groups


def tokens_of(engine: Engine, asked: Asked) -> list[int]:
    tokens = engine.chat_prompt(asked.messages)
    return tokens + engine.encode(asked.begin, after=tokens) if asked.begin else tokens


def print_header(engine: Engine, groups: List[Group], options: argparse.Namespace) -> None:
    config, tokens = engine.config, [token for group in groups for prompt in group.prompts for token in prompt]
    print(
        f"{options.shape or options.model}, {engine.program_name}, {config.dtype}, scheme {config.scheme}, "
        f"{config.threads} threads, batch {options.batch}, {options.rounds} rounds, "
        f"{'new proposers for each run, ' if options.fresh else ''}at most {options.new} new tokens"
    )
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}"
    print(f"{versions}, hash of the prompts {hash_tokens(tokens)}", flush=True)


# ---- proposers compared


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Each prompt with plain decoding and with the proposers."""
    names = [options.plain, *options.speculate.split(",")]
    contenders = [make_contender(options, name) for name in names]
    groups = make_groups(contenders[0].engine, options)
    print_header(contenders[0].engine, groups, options)
    sampling = {"temperature": options.temperature, "seed": 1} if options.temperature else {}
    turns = Turns(groups, options.new, sampling=sampling)
    turns.answer(contenders[0])
    for contender in contenders[1:]:
        turns.check(contender)
    found = turns.measure(contenders, options.rounds)
    rows = [row_of(group, runs, names) for group, runs in zip(groups, found, strict=True)]
    print_rows(rows, names)
    summary = {name: summary_of(rows, name) for name in names[1:]}
    for name, figures in summary.items():
        words = ", ".join(f"{key.replace('_', ' ')} {value:.2f}" for key, value in figures.items())
        print(f"{name} over {names[0]}: {words}")
    drafts = {each.name: each.engine.core.speculation.stats.columns for each in contenders[1:]}
    for name, columns in drafts.items():
        print(f"{name}: {described(columns)}")
    return {"rows": rows, "summary": summary, "drafts": drafts}


def row_of(group: Group, runs: Runs, names: List[str]) -> Row:
    """The row of a group that is printed and written; the first name is that of plain decoding."""
    plain, others = names[0], names[1:]
    return {
        "name": group.name,
        "kind": group.kind,
        "prompt_tokens": sum(map(len, group.prompts)),
        "new_tokens": sum(map(len, group.answers)),
        "copied": group.copied,
        "hash": hash_tokens(list(chain.from_iterable(group.answers))),
        "tok_s": {name: statistics.median(run.rate for run in runs[name]) for name in names},
        "pass_ms": {name: statistics.median(run.pass_ms for run in runs[name]) for name in names},
        "tokens_per_pass": {name: statistics.median(run.tokens_per_pass for run in runs[name]) for name in names},
        "ratio": {name: statistics.median(ratios(runs, name, plain)) for name in others},
        "ratios": {name: ratios(runs, name, plain) for name in others},
    }


def print_rows(rows: List[Row], names: List[str]) -> None:
    plain, others = names[0], names[1:]
    width = max(len(row["name"]) for row in rows)
    head = f"{'':{width}} {'prompt':>6} {'new':>5} {'copied':>6} {plain:>10}"
    print(head + "".join(f" {name:>10} {'ratio':>5} {'least to most':>13} {'tok/pass':>8}" for name in others))
    for row in rows:
        counts = f"{row['prompt_tokens']:>6} {row['new_tokens']:>5} {row['copied']:>6.2f}"
        line = f"{row['name']:{width}} {counts} {row['tok_s'][plain]:>10.1f}"
        for name in others:
            spread = f"{min(row['ratios'][name]):.2f} to {max(row['ratios'][name]):.2f}"
            line += f" {row['tok_s'][name]:>10.1f} {row['ratio'][name]:>5.2f} {spread:>13}"
            line += f" {row['tokens_per_pass'][name]:>8.2f}"
        print(line)


def summary_of(rows: List[Row], name: str) -> dict[str, float]:
    """The mean ratio of the ten best copying rows, and mean and least of each kind."""
    by_kind = {kind: [row["ratio"][name] for row in rows if row["kind"] == kind] for kind in (COPYING, PROSE, MIXED)}
    best = sorted(by_kind[COPYING], reverse=True)[:10]
    found = {"best_ten_mean": statistics.mean(best), "best_ten_least": best[-1]} if len(best) == 10 else {}
    for kind, values in by_kind.items():
        if values:
            found |= {f"{kind}_mean": statistics.mean(values), f"{kind}_least": min(values)}
    return found


# ---- drafts that are always right


class Known(Proposer):
    """Knows the texts by their prompts, and always proposes so many tokens that are right."""

    def __init__(self, texts: dict[tuple[int, ...], list[int]], num_drafts: int) -> None:
        self._texts, self._num_drafts = texts, num_drafts

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        """See Proposer."""
        drafts = {}
        for sequence in sequences:
            if sequence.num_pending_tokens == 1:
                text, at = self._texts[tuple(sequence.tokens[: sequence.num_prompt_tokens])], len(sequence.tokens)
                drafts[sequence.id] = text[at : at + min(limit, self._num_drafts)]
        return drafts


class AtMost(Proposer):
    """Another proposer with fewer drafts than the engine allows."""

    def __init__(self, inner: Proposer, num_drafts: int) -> None:
        self._inner, self._num_drafts = inner, num_drafts

    def propose(self, sequences: List[Sequence], limit: int, forced: Forced) -> dict[int, list[int]]:
        """See Proposer."""
        return self._inner.propose(sequences, min(limit, self._num_drafts), forced)

    def learn(self, plan: Plan, accepted: List[List[int]]) -> None:
        """See Proposer."""
        self._inner.learn(plan, accepted)


def force(options: argparse.Namespace) -> dict[str, Any]:
    """Measure plain decoding, and speculative decoding whose drafts are all accepted. One engine runs both in turn."""
    engine = make_engine(options, "suffix", num_draft_tokens=max(FORCED))
    most = default_drafts(options.plain)
    plain = Contender(options.plain, engine, lambda: AtMost(new_proposer(engine, options.plain), most))
    groups = forced_groups(engine, options)
    print_header(engine, groups, options)
    turns = Turns(groups, options.new, to_the_end=True)
    turns.answer(plain)
    contenders = [plain, *(forced_contender(engine, groups, num_drafts) for num_drafts in FORCED)]
    found = turns.measure(contenders, options.rounds)
    rows = [forced_row(found, contender.name, plain.name) for contender in contenders]
    print_forced(rows)
    return {"rows": rows}


def forced_groups(engine: Engine, options: argparse.Namespace) -> list[Group]:
    """A few, because with drafts that are always right the texts hardly matter."""
    if options.shape:
        point = Point(SHAPE_PROMPT, options.new, options.batch)
        return [Group("random tokens", MIXED, make_prompts(point, engine.model_config.vocab_size))]
    groups = [group for group in make_groups(engine, options) if group.kind == COPYING]
    return groups[::7] if options.batch == 1 else groups[:1]


def forced_contender(engine: Engine, groups: List[Group], num_drafts: int) -> Contender:
    pairs = [pair for group in groups for pair in zip(group.prompts, group.answers, strict=True)]
    texts = {tuple(prompt): prompt + answer for prompt, answer in pairs}
    return Contender(str(num_drafts), engine, lambda: Known(texts, num_drafts))


def forced_row(found: List[Runs], name: str, plain: str) -> Row:
    """Means over the groups of the medians over the rounds."""

    def mean(figure: Callable[[Run], float]) -> float:
        return statistics.mean(statistics.median(map(figure, runs[name])) for runs in found)

    return {
        "drafts": name,
        "ratio": statistics.mean(statistics.median(ratios(runs, name, plain)) for runs in found),
        "tok_s": mean(lambda run: run.rate),
        "tokens_per_pass": mean(lambda run: run.tokens_per_pass),
        "pass_ms": mean(lambda run: run.pass_ms),
    }


def print_forced(rows: List[Row]) -> None:
    print(f"{'drafts':>10} {'tokens/s':>9} {'ratio':>6} {'tok/pass':>8} {'ms/pass':>8} {'over plain':>10}")
    for row in rows:
        over = row["pass_ms"] / rows[0]["pass_ms"]
        figures = f"{row['tok_s']:>9.1f} {row['ratio']:>6.2f} {row['tokens_per_pass']:>8.2f} {row['pass_ms']:>8.2f}"
        print(f"{row['drafts']:>10} {figures} {over:>10.2f}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shape", help="an architecture with random weights, for --forced")
    parser.add_argument("--scheme", default="auto")
    parser.add_argument("--dtype", default="auto", help="bfloat16 takes the matrices of a quantised file in bfloat16")
    parser.add_argument("--plain", default="multi_step", help="the proposer that is plain decoding; else off")
    parser.add_argument("--speculate", default="adaptive", help="one proposer, or several with commas between")
    parser.add_argument("--forced", action="store_true", help="drafts that are always right, by their number")
    parser.add_argument("--fresh", action="store_true", help="a proposer that has learnt nothing for each run")
    parser.add_argument("--batch", type=int, default=1, help="prompts that run together")
    parser.add_argument("--kind", choices=[COPYING, PROSE], help="these prompts alone")
    parser.add_argument("--every", type=int, default=1, help="take every so many of the prompts, for a quick look")
    parser.add_argument("--temperature", type=float, default=0.0, help="with a seed, so that texts are equal")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--new", type=int, help=f"most new tokens (default: {NEW}; {NEW_FORCED} with --forced)")
    parser.add_argument("--max-length", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write settings and rows to this file")
    options = parser.parse_args()
    if options.shape and not options.forced:
        parser.error("--shape needs --forced: random weights copy nothing")
    options.new = options.new or (NEW_FORCED if options.forced else NEW)
    return options


def main() -> None:
    options = parse()
    found = force(options) if options.forced else compare(options)
    if options.json is not None:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        document = {"settings": settings, **provenance(), **found}
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
