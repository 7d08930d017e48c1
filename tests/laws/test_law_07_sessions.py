"""Law 7: save, open, continue = continue, in any shape of engine; what is opened, converted too, changes no other text.

Damaged files: tests/engine/test_session.py and test_mutated_files.py.
"""

from functools import cache
from itertools import product

import pytest

from tests.empty import check_empty
from tests.marks import QUICK_FAMILIES
from tests.tiny_models import FAMILY_NAMES, HYBRIDS, KINDS, UNLIKE, prompt, save
from tokenmill import SnapshotError, load
from tokenmill.kernels.native_library import why_not

START = prompt(13, seed=2)
TRIED = (*KINDS, *HYBRIDS, *UNLIKE)
PROGRAMS = ["eager", *(["native"] if why_not() is None else [])]


def engine_for(path, **how):
    settings = {"dtype": "float32", "max_length": 96, "block_size": 8, "max_sequences": 3, "threads": 1}
    return load(path, **{**settings, **how})


def cases(others, is_default):
    """Every other condition with families for which everything is tried, and with the others those that are named;
    `make test-long` tries all."""
    return [
        pytest.param(
            *case,
            marks=() if case[0] in QUICK_FAMILIES or (case[0] in TRIED and is_default(*case)) else pytest.mark.long,
        )
        for case in product(FAMILY_NAMES, *others)
    ]


@pytest.mark.parametrize(("family", "temperature"), cases([(0.0, 0.8)], lambda _, temperature: temperature > 0))
def test_saved_and_opened_elsewhere_it_goes_on_as_if_nothing_had_been(family, temperature, models, tmp_path):
    path = save(family, models)
    engine = engine_for(path)
    settings = {"temperature": temperature, "seed": 7, "ignore_eos": True}
    wanted = engine.generate(START, max_new_tokens=24, **settings).tokens
    with engine.session(START) as session:
        first = session.generate(max_new_tokens=9, **settings).tokens
        session.save(tmp_path / "x.kv")
        assert first + session.generate(max_new_tokens=15).tokens == wanted
    others = [
        engine_for(path, **how)
        for how in ({"block_size": 5, "max_step_tokens": 3}, {"block_size": None, "max_sequences": 1})
    ]
    for other in (engine, *others):
        with other.open_session(tmp_path / "x.kv") as session:
            assert session.tokens == tuple(START) + first
            assert session.num_cached == len(session) - 1
            assert first + session.generate(max_new_tokens=15).tokens == wanted
        check_empty(other.core)


@pytest.fixture(scope="module")
def saved_by(models, tmp_path_factory):
    """Gives the files of a session that engines of both dtypes began, which every engine opens."""

    @cache
    def saved(family, program):
        files = [tmp_path_factory.mktemp("rows") / "x.kv" for _ in range(2)]
        for file, dtype in zip(files, ("float32", "bfloat16"), strict=True):
            engine = engine_for(save(family, models), program=program, dtype=dtype)
            with engine, engine.session(START) as session:
                session.save(file)
        return files

    return saved


@pytest.mark.parametrize(
    ("family", "theirs", "ours"),
    cases([PROGRAMS, PROGRAMS], lambda _, theirs, ours: theirs != ours or not PROGRAMS[1:]),
)
def test_rows_of_other_conditions_change_no_other_text(family, theirs, ours, models, saved_by):
    """Of another dtype, and of another program: nothing of them is found by requests that begin alike."""
    path = save(family, models)
    settings = {"max_new_tokens": 8, "ignore_eos": True}
    wanted = engine_for(path, program=ours).generate([*START, 3], **settings).tokens
    engine = engine_for(path, program=ours, block_size=4)
    files = saved_by(family, theirs)
    for file in files:
        with engine.open_session(file, convert=True) as session:
            session.generate(**settings)
            assert engine.generate([*START, 3], **settings).tokens == wanted
    with pytest.raises(SnapshotError, match="convert"):
        engine.open_session(files[1])
    check_empty(engine.core)
