"""Mutation testing: does a room's own test folder notice a small change of the room's code?

    pip install coverage
    python benchmarks/mutants.py --per-room 6 --seed 1 --output mutants.jsonl
    python benchmarks/mutants.py --rooms schedule,sample --per-room 100

Each mutant is one change of one expression or statement: a comparison, an arithmetic or logical operator, a condition
that is negated, a number that is one larger, a constant that is inverted, a call or assignment that is left out. The
mutant lies in a copy of src/ and is run with those tests of the room that reach its line (all of the room's tests if
none does in this process), fastest first, until one fails. What survives is printed with its place, for a person who
decides whether the change means anything at all: a mutant that computes the same result counts for nothing.

MUTANTS_LOG names a file for what pytest prints.
torch is imported once; each mutant runs in a fork of that process, with a time limit, and a hang counts as noticed.
"""

import argparse
import ast
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tokenmill"
TESTS = ROOT / "tests"

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: `place` numbers the mutable places of the file in the order of ast.walk."""

    file: str
    line: int
    place: int
    change: str


def changes(tree: ast.Module) -> list[tuple[int, str, "ast.AST"]]:
    """(line, description, node) of every place that can be changed, in a fixed order."""
    typing = {id(inner) for node in ast.walk(tree) for inner in _annotations(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        text = _describe(node)
        if text:
            found.append((node.lineno, text, node))
    return found


def _annotations(node):
    """Everything inside annotations, decorators and docstrings, where a change means nothing to a test."""
    roots = []
    if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
        roots.append(node.annotation)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        roots += [node.returns] if node.returns else []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        roots += node.decorator_list
    if isinstance(node, ast.Raise):  # the words of an error
        roots += [node.exc] if node.exc else []
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
        roots.append(node)
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        roots.append(node)
    return [inner for root in roots for inner in ast.walk(root)]


def _describe(node) -> str:
    """The change at a node, in words; "" where nothing can be changed."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            text = f"{type(op).__name__} → {COMPARISONS[type(op)].__name__}"
        case ast.BinOp(op=op) if type(op) in OPERATORS and not _is_text(node):
            text = f"{type(op).__name__} → {OPERATORS[type(op)].__name__}"
        case ast.BoolOp(op=op):
            text = "and → or" if isinstance(op, ast.And) else "or → and"
        case ast.UnaryOp(op=ast.Not()):
            text = "not x → x"
        case ast.If() | ast.While() | ast.IfExp():
            text = "condition negated"
        case ast.Constant(value=bool(value)):
            text = f"{value} → {not value}"
        case ast.Constant(value=int(value)):
            text = f"{value} → {value + 1}"
        case ast.Expr(value=ast.Call()):
            text = "call left out"
        case ast.AugAssign():
            text = "assignment left out"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            text = "returns None"
        case _:
            text = ""
    return text


def _is_text(node) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


class Change(ast.NodeTransformer):
    """Carries out the change at one node."""

    def __init__(self, target: ast.AST) -> None:
        self.target = target

    def visit(self, node):
        if node is not self.target:
            return self.generic_visit(node)
        if isinstance(node, ast.Compare):
            node.ops = [COMPARISONS[type(node.ops[0])]()]
        elif isinstance(node, ast.BinOp):
            node.op = OPERATORS[type(node.op)]()
        elif isinstance(node, ast.BoolOp):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        elif isinstance(node, ast.UnaryOp):
            return node.operand
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        elif isinstance(node, ast.Constant):
            node.value = not node.value if isinstance(node.value, bool) else node.value + 1
        elif isinstance(node, ast.Return):
            node.value = None
        else:
            return ast.Pass()
        return node


def mutated(source: str, place: int) -> str:
    """The source with its place of that number changed."""
    tree = ast.parse(source)
    target = changes(tree)[place][2]
    return ast.unparse(ast.fix_missing_locations(Change(target).visit(tree)))


def draw(room: str, count: int, chance: random.Random) -> list[Mutant]:
    """Random mutants of one room, each on a line of its own."""
    folder = PACKAGE / room
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
    every = []
    for path in files:
        if "peers/programs" in path.as_posix():  # run by the Python of another engine
            continue
        for place, (line, text, _) in enumerate(changes(ast.parse(path.read_text()))):
            every.append(Mutant(str(path.relative_to(PACKAGE)), line, place, text))
    chance.shuffle(every)
    return every[:count]


class Watch:
    """A pytest plugin: a coverage context and the seconds of each test."""

    def __init__(self, cover=None) -> None:
        self.cover, self.seconds = cover, {}

    def pytest_runtest_logstart(self, nodeid):
        if self.cover:
            self.cover.switch_context(nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration


OPTIONS = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=short", "-W", "ignore:Module already imported"]


def tests_of(room: str) -> Path:
    """The folder of a room's tests; of a single module, its file."""
    folder = TESTS / room
    return folder if folder.is_dir() else TESTS / f"test_{room}.py"


def in_child(work, limit: float) -> tuple[int, float]:
    """Exit status of work() in a fork, and its seconds; -1 when it was killed at its limit."""
    start = time.monotonic()
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        said = os.open(os.environ.get("MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number in (1, 2):
            os.dup2(said, number)
        status = 70
        try:
            status = int(work())
        except BaseException:  # noqa: BLE001  (this process ends here, whatever was raised)
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    while time.monotonic() - start < limit:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.05)
    else:
        status = -1
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    if status == -1:
        os.waitpid(child, 0)
        return -1, time.monotonic() - start
    return os.waitstatus_to_exitcode(status), time.monotonic() - start


@contextlib.contextmanager
def copied(mutant: Mutant | None = None):
    """A copy of src/ with the mutant in it."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        if mutant:
            target = copy / "tokenmill" / mutant.file
            target.write_text(mutated(target.read_text(), mutant.place))
        yield copy


def run_tests(copy: Path, arguments: list[str], plugins: list[object]) -> int:
    """Pytest's exit status, with the package taken from the copy, also by the processes that tests start."""
    import pytest

    os.environ["PYTHONPATH"] = str(copy)
    sys.path.insert(0, str(copy))
    return pytest.main([*OPTIONS, *arguments], plugins=plugins)


def leave_forks_untraced() -> None:
    """No process that a test forks is traced: another thread may have held coverage's lock at that moment, and the
    child would wait for it for ever.
    """
    tracers = []

    def stop() -> None:
        tracers.append((sys.gettrace(), threading.gettrace()))  # of this thread, and of those that are begun
        sys.settrace(None)
        threading.settrace(None)

    def go_on() -> None:
        own, of_others = tracers.pop()
        threading.settrace(of_others)
        sys.settrace(own)

    os.register_at_fork(before=stop, after_in_parent=go_on)


def reach(room: str, limit: float) -> dict[str, list[str]]:
    """`file:line` → tests of the room that run this line in their own process, fastest first."""
    with copied() as copy:
        result = copy / "reach.json"

        def work() -> int:
            import coverage

            package = copy / "tokenmill"
            cover = coverage.Coverage(data_file=None, source=[str(package)], config_file=False)
            watch = Watch(cover)
            cover.start()
            leave_forks_untraced()
            status = run_tests(copy, [str(tests_of(room))], [watch])
            cover.stop()
            data, lines = cover.get_data(), {}
            for path in data.measured_files():
                for line, tests in data.contexts_by_lineno(path).items():
                    key = f"{Path(path).relative_to(package)}:{line}"
                    lines[key] = sorted(filter(None, tests), key=lambda test: watch.seconds.get(test, 0.0))
            result.write_text(json.dumps(lines))
            return status

        status, _ = in_child(work, limit)
        if status:
            raise SystemExit(f"the tests of {room} fail without any mutant (exit {status})")
        return json.loads(result.read_text())


def judge(mutant: Mutant, tests: list[str], limit: float) -> tuple[str, float]:
    """ "noticed", "hung" or "survived", and the seconds that it took."""
    with copied(mutant) as copy:
        status, seconds = in_child(lambda: run_tests(copy, ["-x", *tests], []), limit)
    return {0: "survived", -1: "hung"}.get(status, "noticed"), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    rooms = sorted(path.name for path in TESTS.iterdir() if (PACKAGE / path.name).is_dir())
    parser.add_argument("--rooms", default=",".join(rooms), help="rooms, with commas; default: all that have tests")
    parser.add_argument("--per-room", type=int, default=6, help="mutants of each room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=240, help="seconds for one mutant; longer counts as noticed")
    parser.add_argument("--most", type=int, default=400, help="tests for one mutant at most, the fastest")
    parser.add_argument("--output", type=Path, help="a row for each mutant, as JSON lines")
    options = parser.parse_args()
    import pytest  # noqa: F401  (once, before the forks)
    import torch  # noqa: F401
    import transformers  # noqa: F401

    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    counts = {"noticed": 0, "hung": 0, "survived": 0}
    for room in options.rooms.split(","):
        chosen = draw(room, options.per_room, random.Random(f"{options.seed} {room}"))
        lines = reach(room, 20 * options.limit)
        for mutant in chosen:
            reached = lines.get(f"{mutant.file}:{mutant.line}", [])
            tests = reached[: options.most] or [str(tests_of(room))]
            verdict, seconds = judge(mutant, tests, options.limit)
            counts[verdict] += 1
            row = {
                "room": room,
                **asdict(mutant),
                "tests": len(reached),
                "verdict": verdict,
                "seconds": round(seconds, 1),
            }
            print(
                f"{verdict:9} {mutant.file}:{mutant.line} {mutant.change} ({len(reached)} tests, {seconds:.0f} s)",
                flush=True,
            )
            if options.output:
                with options.output.open("a") as out:
                    out.write(json.dumps(row) + "\n")
    print(", ".join(f"{count} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
