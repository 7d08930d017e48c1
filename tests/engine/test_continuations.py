"""Text that continues text: the same tokens and the same spaces as if all of it had come at once."""

import shutil

import pytest
import tokenizers
import torch

from tests.text.test_tokenizer import CORPUS, FIRST_SPACES, write
from tokenmill import load


@pytest.fixture(scope="module", params=["prepend", "metaspace first"])
def engine(request, llama, tmp_path_factory):
    """A tiny model with a tokenizer that, as sentencepiece does, begins every text with a space."""
    path = shutil.copytree(llama, tmp_path_factory.mktemp("spaces") / "model")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    special = ["<s>", "</s>"]
    backend.train_from_iterator(CORPUS, tokenizers.trainers.BpeTrainer(vocab_size=120, special_tokens=special))
    normalizer, backend.pre_tokenizer, backend.decoder = FIRST_SPACES[request.param]
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    write(path, backend)
    return load(path, dtype="float32", max_sequences=2)


def test_the_text_of_an_answer_keeps_its_first_space(engine):
    (brown,) = engine.encode("brown", add_special_tokens=False)
    done = engine.generate("the quick", max_new_tokens=1, logit_bias={brown: 1000.0})
    assert (done.tokens, done.text) == ((brown,), " brown")
    pieces = list(engine.stream("the quick", max_new_tokens=1, logit_bias={brown: 1000.0}))
    assert "".join(piece.text for piece in pieces) == " brown"
    # At the beginning of a text the space is sentencepiece's own.
    assert engine.generate([0], max_new_tokens=1, logit_bias={brown: 1000.0}).text == "brown"


def test_a_session_that_grows_by_texts_has_the_tokens_of_the_whole_text(engine):
    whole = engine.encode("the quick brown fox")
    with engine.session("the quick") as session:
        session.append(" brown")
        session.append(" fox")
        assert list(session.tokens) == whole
        assert session.text.endswith("the quick brown fox")
    with engine.session([0]) as session:  # only the special token is there: a text begins
        session.append("the quick brown fox")
        assert list(session.tokens) == whole
    with engine.session("the quick") as session:
        assert session.generate(" brown fox", max_new_tokens=1).num_prompt_tokens == len(whole)


def test_a_choice_is_scored_by_the_tokens_of_the_whole_text_alone(engine):
    whole = engine.encode("the quick brown fox")
    logprobs_TV = torch.log_softmax(engine.logits(whole), dim=-1)
    wanted = sum(float(logprobs_TV[position - 1, whole[position]]) for position in range(3, len(whole)))
    assert engine.encode("the quick") == whole[:3]
    assert engine.score("the quick", [" brown fox"]) == [pytest.approx(wanted, abs=1e-4)]
