"""Receipts are made of what completions keep."""

import copy
import pickle

import pytest

from tests.tiny_models import save
from tokenmill import Completion, EngineConfig, ReceiptError, Timing, load
from tokenmill.loader.pack import save_packed_model
from tokenmill.weights.checkpoint import open_checkpoint


@pytest.fixture(scope="module")
def engine(llama):
    return load(llama, dtype="float32", max_length=64, packed_cache=False)


def test_it_says_what_it_was_computed_with(engine):
    receipt = engine.generate([1, 2, 3], max_new_tokens=4, temperature=0.7, seed=5, n=2).completions[1].receipt()
    assert (receipt.prompt, len(receipt.tokens), receipt.finish_reason) == ((1, 2, 3), 4, "length")
    assert (receipt.sampling.seed, receipt.sampling.n, receipt.sampling.temperature) == (6, 1, 0.7)
    assert receipt.engine["program"] == engine.program_name and receipt.engine["dtype"] == "float32"
    assert receipt.session is None and set(receipt.model["files"]) >= {"config.json", "model.safetensors"}


def test_a_limit_that_was_not_given_is_told(engine):
    assert engine.generate([1]).receipt().sampling.max_new_tokens == 63
    assert engine.generate([1], max_new_tokens=-1).receipt().sampling.max_new_tokens == 63


def test_the_seed_of_a_greedy_text_is_left_out(engine):
    assert len({str(engine.generate([1], max_new_tokens=3).receipt()) for _ in range(2)}) == 1


def test_a_session_tells_where_its_answer_began(engine):
    session = engine.session([1, 2])
    session.generate(max_new_tokens=3, stop_token_ids=[200])
    more = session.generate(max_new_tokens=2).receipt()
    assert more.session == {"answer_from": 2, "constrained_from": 2, "before": {"stop_token_ids": [200]}}
    assert session.generate([5], max_new_tokens=2).receipt().session == {
        "answer_from": 8,
        "constrained_from": 8,
        "before": None,
    }


def test_a_closed_engine_and_a_copy_give_the_same(llama):
    with load(llama, max_length=32, packed_cache=False) as engine:
        done = engine.generate([1], max_new_tokens=3)
        before = done.receipt()
        late = engine.generate([1], max_new_tokens=3)
    assert copy.deepcopy(done).receipt() == late.receipt() == before
    assert pickle.loads(pickle.dumps(done)) == done
    with pytest.raises(ReceiptError, match="was not made by an engine"):
        pickle.loads(pickle.dumps(done)).receipt()
    with pytest.raises(ReceiptError, match="was not made by an engine"):
        Completion("", (), "eos", Timing(0.0, ()), 1, 0).receipt()


def test_a_packed_model_has_the_digests_of_its_model_while_that_is_there(models, tmp_path):
    path = save("llama", tmp_path / "own")
    own = load(path, dtype="float32", packed_cache=False, max_length=32).generate([1], max_new_tokens=3).receipt()
    file = tmp_path / "x.tm"
    save_packed_model(open_checkpoint(path), EngineConfig(program="native", dtype="float32"), file, lambda *_: None)
    engine = load(file, max_length=32)
    assert engine.generate([1], max_new_tokens=3).receipt().model["files"] == own.model["files"]
    assert engine.verify(own).is_verified
    for each in path.iterdir():
        each.unlink()
    path.rmdir()
    alone = load(file, max_length=32).generate([1], max_new_tokens=3).receipt()
    assert set(alone.model["files"]) == {"x.tm"}
