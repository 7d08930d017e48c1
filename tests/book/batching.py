"""docs/images/batching.svg and the table of docs/continuous-batching.md: the plans of a real run of four requests."""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from tests.book.markdown import table
from tests.word_model import save_word_model
from tokenmill import SamplingParams, load
from tokenmill.engine.loop import Observer
from tokenmill.schedule.sequence import Plan

BUDGET, PLACES, BLOCK = 16, 3, 8  # tokens of a step, sequences that run together, tokens of a block
LONG = list(range(1, 41))
REQUESTS = {  # name → the step before which it comes, its prompt, its new tokens
    "A": (1, list(range(50, 60)), 9),
    "B": (3, LONG, 6),
    "C": (4, list(range(60, 66)), 8),
    "D": (5, [*LONG[:32], 45, 46, 47, 48], 5),
}
PREFILL, DECODE, WAITING = "prompt", "new token", "waiting"
COLOURS = {PREFILL: "#1f9e8f", DECODE: "#f28e2b", WAITING: "#d9d9d9"}


class Cell(NamedTuple):
    """One request in one step: the kind of what it fed, the number of tokens, and how many were found in the cache."""

    kind: str
    count: int
    num_found: int = 0


class _Recorder(Observer):
    """Notes the plan of each step, by the ids of the sequences."""

    def __init__(self) -> None:
        self.plans: list[dict[int, Cell]] = []

    def phase(self, name: str, plan: Plan | None) -> None:
        if name == "plan" and plan is not None:
            self.plans.append({work.sequence.id: _cell(work) for work in plan.work})


def _cell(work: Any) -> Cell:
    is_first = work.start == (work.sequence.num_cached_tokens or 0)
    kind = PREFILL if work.start < work.sequence.num_prompt_tokens else DECODE
    return Cell(kind, work.count, work.sequence.num_cached_tokens if is_first else 0)


def run() -> list[dict[str, Cell]]:
    """For each step the requests that were there, from the plans of an engine with a tiny model."""
    with tempfile.TemporaryDirectory() as folder:
        model = save_word_model(Path(folder))
        settings = {"max_sequences": PLACES, "max_step_tokens": BUDGET, "block_size": BLOCK, "max_length": 64}
        with load(model, dtype="float32", threads=1, packed_cache=False, speculate="off", **settings) as engine:
            return _steps(engine.core)


def _steps(core: Any) -> list[dict[str, Cell]]:
    recorder, steps = _Recorder(), []
    requests: dict[str, Any] = {}
    with core.observed_by(recorder):
        while len(requests) < len(REQUESTS) or not all(each.is_done for each in requests.values()):
            for name, (first, prompt, num_new) in REQUESTS.items():
                if first == len(steps) + 1:
                    requests[name] = core.request(prompt, SamplingParams(max_new_tokens=num_new))
                    core.submit(requests[name])
            waiting = [name for name, each in requests.items() if not each.is_done]
            core.step()
            ids = {name: each.sequences[0].id for name, each in requests.items()}
            plan = recorder.plans[-1]
            steps.append({name: plan.get(ids[name], Cell(WAITING, 0)) for name in waiting})
    return steps


# ---- the page

WIDTH, HEIGHT, LEFT, TOP = 40, 40, 96, 92


def picture(steps: list[dict[str, Cell]]) -> str:
    """The steps from left to right, a row for each request, and the tokens of each step under the budget."""
    parts = [_text(LEFT - 14, TOP - 24, "tokens", "end"), *_budget(steps)]
    for row, name in enumerate(REQUESTS):
        y = TOP + row * HEIGHT
        parts.append(_text(LEFT - 14, y + 25, f"request {name}", "end"))
        for column, step in enumerate(steps):
            if name in step:
                parts += _square(LEFT + column * WIDTH, y, step[name])
    bottom = TOP + len(REQUESTS) * HEIGHT + 20
    parts += [_text(LEFT + (column + 0.5) * WIDTH, bottom, str(column + 1)) for column in range(len(steps))]
    parts.append(_text(LEFT - 14, bottom, "step", "end"))
    for index, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + index * 150
        parts.append(f'<rect x="{x}" y="{bottom + 18}" width="16" height="16" rx="3" fill="{colour}"/>')
        parts.append(_text(x + 24, bottom + 31, kind, "start"))
    size = (LEFT + len(steps) * WIDTH + 24, bottom + 52)
    box = f"0 0 {size[0]} {size[1]}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" font-family="sans-serif" font-size="13">'
    back = f'<rect width="{size[0]}" height="{size[1]}" rx="8" fill="#ffffff"/>'
    return "\n".join([head, f"<title>{TITLE}</title>", back, *parts, "</svg>\n"])


TITLE = "Four requests in the steps of one engine"


def _budget(steps: list[dict[str, Cell]]) -> list[str]:
    """A bar over each step, as high as it feeds tokens, and the line of the budget."""
    unit, floor = 44 / BUDGET, TOP - 28
    line = floor - BUDGET * unit
    end = LEFT + len(steps) * WIDTH
    parts = [f'<path d="M{LEFT} {line:g}H{end}" stroke="#888888" stroke-dasharray="4 3"/>']
    parts.append(_text(LEFT - 14, line + 5, f"at most {BUDGET}", "end"))
    for column, step in enumerate(steps):
        tall = sum(cell.count for cell in step.values()) * unit
        x = LEFT + column * WIDTH + 8
        parts.append(f'<rect x="{x}" y="{floor - tall:g}" width="{WIDTH - 16}" height="{tall:g}" fill="#9aa5b1"/>')
        parts.append(_text(x + WIDTH / 2 - 8, floor + 15, str(sum(cell.count for cell in step.values()))))
    return parts


def _square(x: float, y: float, cell: Cell) -> list[str]:
    colour, ink = COLOURS[cell.kind], "#ffffff" if cell.kind == PREFILL else "#222222"
    parts = [f'<rect x="{x + 2}" y="{y + 2}" width="{WIDTH - 4}" height="{HEIGHT - 4}" rx="4" fill="{colour}"/>']
    if cell.num_found:
        parts.append(_text(x + WIDTH / 2, y + 17, str(cell.count), ink=ink))
        parts.append(_text(x + WIDTH / 2, y + 32, f"+{cell.num_found}", ink=ink))
    elif cell.count:
        parts.append(_text(x + WIDTH / 2, y + 25, str(cell.count), ink=ink))
    return parts


def _text(x: float, y: float, text: str, anchor: str = "middle", ink: str = "#222222") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}">{text}</text>'


def as_table(steps: list[dict[str, Cell]]) -> str:
    """The same in words, for readers who see no picture."""
    rows = []
    for name in REQUESTS:
        cells = [_word(step[name]) if name in step else "" for step in steps]
        rows.append([name, *cells])
    rows.append(["all", *(sum(cell.count for cell in step.values()) for step in steps)])
    return table(["step", *map(str, range(1, len(steps) + 1))], rows)


def _word(cell: Cell) -> str:
    if cell.kind == WAITING:
        return "waits"
    found = f" (+{cell.num_found})" if cell.num_found else ""
    return f"{cell.count}{'p' if cell.kind == PREFILL else ''}{found}"
