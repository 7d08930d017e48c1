"""Law 7: save, open, continue = continue, in any shape of engine; what is opened, converted too, changes no other text.

Damaged files: tests/engine/test_session.py and test_mutated_files.py.
"""

import pytest

from tests.empty import check_empty
from tests.marks import crossed, each
from tests.tiny_models import FAMILY_NAMES, prompt, save
from tokenmill import SnapshotError, load
from tokenmill.kernels.native_library import why_not

START = prompt(13, seed=2)
PROGRAMS = ["eager", *(["native"] if why_not() is None else [])]


def engine_for(path, **how):
    settings = {"dtype": "float32", "max_length": 96, "block_size": 8, "max_sequences": 3, "threads": 1}
    return load(path, **{**settings, **how})


@pytest.mark.parametrize("family", each(FAMILY_NAMES))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_saved_and_opened_elsewhere_it_goes_on_as_if_nothing_had_been(family, temperature, models, tmp_path):
    path = save(family, models)
    engine = engine_for(path)
    settings = {"temperature": temperature, "seed": 7, "ignore_eos": True}
    wanted = engine.generate(START, max_new_tokens=24, **settings).tokens
    with engine.session(START) as session:
        first = session.generate(max_new_tokens=9, **settings).tokens
        session.save(tmp_path / "x.kv")
        assert first + session.generate(max_new_tokens=15).tokens == wanted
    check_empty(engine.core)
    for how in ({"block_size": 5}, {"block_size": None, "max_sequences": 1}, {"max_step_tokens": 3}):
        other = engine_for(path, **how)
        with other.open_session(tmp_path / "x.kv") as session:
            assert session.tokens == tuple(START) + first
            assert session.num_cached == len(session) - 1
            assert first + session.generate(max_new_tokens=15).tokens == wanted
        check_empty(other.core)


@pytest.mark.parametrize(("family", "theirs"), crossed(FAMILY_NAMES, PROGRAMS, PROGRAMS[-1:]))
@pytest.mark.parametrize("ours", PROGRAMS)
def test_rows_of_other_conditions_change_no_other_text(family, theirs, ours, models, tmp_path):
    """Of another dtype, and of another program: nothing of them is found by requests that begin alike."""
    path = save(family, models)
    settings = {"max_new_tokens": 8, "ignore_eos": True}
    wanted = engine_for(path, program=ours).generate([*START, 3], **settings).tokens
    engine = engine_for(path, program=ours, block_size=4)
    for number, dtype in enumerate(("float32", "bfloat16")):
        with engine_for(path, program=theirs, dtype=dtype).session(START) as session:
            session.save(tmp_path / f"{number}.kv")
        with engine.open_session(tmp_path / f"{number}.kv", convert=True) as session:
            session.generate(**settings)
            assert engine.generate([*START, 3], **settings).tokens == wanted
    with pytest.raises(SnapshotError, match="convert"):
        engine.open_session(tmp_path / "1.kv")
    check_empty(engine.core)
