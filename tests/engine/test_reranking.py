"""Scores of pairs against transformers' classifiers, types of tokens, and a decoder's answers."""

import json
from functools import cache

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import models, normalizers, pre_tokenizers, processors
from transformers.models.bert.modeling_bert import BertPooler

from tests.empty import check_empty
from tests.marks import needs_native
from tests.tiny_encoders import encoder, save_encoder
from tests.tiny_models import VOCABULARY, reference
from tests.word_model import ROLES, TEMPLATE, save_word_model
from tokenmill.engine.load import load
from tokenmill.errors import CheckpointError, RequestError

QUERY = "w7 w20 w33"
DOCUMENTS = ["w9 w8 w7", "w50", "w7 w20 w33 w34 w35 w36 w37 w38", " ".join(f"w{number}" for number in range(10, 60))]
PROGRAMS = ["eager", pytest.param("native", marks=needs_native)]
CLASSES = {
    "bert": "BertForSequenceClassification",
    "roberta": "RobertaForSequenceClassification",
    "xlm-roberta": "XLMRobertaForSequenceClassification",
    "camembert": "CamembertForSequenceClassification",
    "mpnet": "MPNetForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
    "modernbert": "ModernBertForSequenceClassification",
    "eurobert": "EuroBertForSequenceClassification",
}
_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def save_tokenizer(path, pair):
    vocabulary = [*_MARKS, *(f"w{number}" for number in range(VOCABULARY - len(_MARKS)))]
    words = tokenizers.Tokenizer(models.WordLevel({name: i for i, name in enumerate(vocabulary)}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    words.save(str(path / "tokenizer.json"))
    return words


def save_classifier(name, directory, num_labels=1, is_plain=False, **more):
    """A tiny model with a classifier, its path, and a function that scores as transformers does."""
    config = type(encoder(name).config)(**encoder(name).config.to_dict() | more)
    config.num_labels = num_labels
    torch.manual_seed(5)
    model = getattr(transformers, CLASSES[name])(config).eval()
    with torch.no_grad():
        for name_of, weight in model.named_parameters():
            weight.normal_(std=0.5).add_(1.0 * (weight.ndim == 1 and name_of.endswith("weight")))
    path = directory / name
    if is_plain:
        config.sentence_transformers = {"activation_fn": "torch.nn.modules.linear.Identity"}
    model.save_pretrained(path)
    words = save_tokenizer(path, "[CLS] $A [SEP] $B:1 [SEP]:1" if name in ("bert",) else "[CLS] $A [SEP] $B [SEP]")

    @cache
    @torch.no_grad()
    def score(query, document):
        found = words.encode(query, document)
        given = {"input_ids": torch.tensor([found.ids])}
        if name == "bert":
            given["token_type_ids"] = torch.tensor([found.type_ids])
        return float(model(**given).logits[0, 0])

    return path, score


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """Gives what save_classifier gives, made once for tests that change no file of it."""
    return cache(lambda name, **how: save_classifier(name, tmp_path_factory.mktemp(name), **how))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", CLASSES)
def test_scores_are_those_of_transformers(name, program, classifier):
    path, score = classifier(name, is_plain=True)
    engine = load(path, dtype="float32", scheme="dense", program=program, max_length=64, max_sequences=3)
    found, wanted = engine.rerank(QUERY, DOCUMENTS), torch.tensor([score(QUERY, each) for each in DOCUMENTS])
    assert (found - wanted).abs().max() < 1e-3 * (wanted.max() - wanted.min())
    assert torch.equal(torch.cat([engine.rerank(QUERY, [each]) for each in DOCUMENTS]), found) or program == "eager"
    check_empty(engine.core)


@pytest.mark.parametrize("pooling", ["bos", "mean", "late"])
def test_poolings_of_eurobert(pooling, tmp_path):
    path, score = save_classifier("eurobert", tmp_path, is_plain=True, classifier_pooling=pooling)
    engine = load(path, dtype="float32", scheme="dense", max_length=64, max_sequences=3)
    found, wanted = engine.rerank(QUERY, DOCUMENTS), torch.tensor([score(QUERY, each) for each in DOCUMENTS])
    assert (found - wanted).abs().max() < 1e-3 * (wanted.max() - wanted.min())
    config = json.loads((path / "config.json").read_text())
    for key in ("classifier_pooling", "clf_pooling"):
        (path / "config.json").write_text(json.dumps({**config, key: "cls"}))
        with pytest.raises(CheckpointError, match=key):
            load(path, max_length=64).rerank(QUERY, DOCUMENTS)


def test_a_reranker_of_jinas(tmp_path):
    """jina-reranker-v1: a pooler and a matrix, as BERT has them."""
    path, model = save_encoder("jina_bert", tmp_path), encoder("jina_bert")
    torch.manual_seed(8)
    pooler, labels = BertPooler(model.config), torch.nn.Linear(48, 1)
    tensors = load_file(path / "model.safetensors")
    tensors |= {f"pooler.{name}": each.detach() for name, each in pooler.named_parameters()}
    tensors = {f"bert.{name}": each for name, each in tensors.items()}
    tensors |= {f"classifier.{name}": each.detach() for name, each in labels.named_parameters()}
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config |= {"architectures": ["JinaBertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (path / "config.json").write_text(json.dumps(config))
    words = save_tokenizer(path, "[CLS] $A [SEP] $B [SEP]")
    with torch.no_grad():
        ids = [torch.tensor([words.encode(QUERY, each).ids]) for each in DOCUMENTS]
        wanted = torch.cat([labels(pooler(model(each).last_hidden_state))[0].sigmoid() for each in ids])
    found = load(path, dtype="float32", scheme="dense", max_length=64).rerank(QUERY, DOCUMENTS)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_decoder_with_a_classifier_scores_the_last_token(program, tmp_path):
    config = transformers.Qwen3Config(**{**reference("qwen3").config.to_dict(), "pad_token_id": 0})
    config.num_labels = 1
    torch.manual_seed(3)
    model = transformers.Qwen3ForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    words = save_tokenizer(tmp_path, "[CLS] $A [SEP] $B [SEP]")
    found = load(tmp_path, dtype="float32", program=program, max_length=64).rerank(QUERY, DOCUMENTS)
    with torch.no_grad():
        ids = [torch.tensor([words.encode(QUERY, each).ids]) for each in DOCUMENTS]
        wanted = torch.cat([model(each).logits[0].sigmoid() for each in ids])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_sigmoid_is_applied_unless_the_config_names_another_activation(tmp_path):
    path, score = save_classifier("bert", tmp_path)
    found = load(path, dtype="float32", max_length=64).rerank(QUERY, DOCUMENTS)
    wanted = torch.tensor([score(QUERY, each) for each in DOCUMENTS]).sigmoid()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    config = json.loads((path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "os.system"}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="sentence_transformers"):
        load(path, dtype="float32", max_length=64).rerank(QUERY, DOCUMENTS)


def test_a_document_that_is_too_long_is_cut_if_that_is_asked_for(classifier):
    path, score = classifier("bert", is_plain=True)
    engine = load(path, dtype="float32", max_length=32)
    with pytest.raises(RequestError, match="document 4 of 4"):
        engine.rerank(QUERY, DOCUMENTS)
    found = engine.rerank(QUERY, DOCUMENTS, truncate=True)
    words = DOCUMENTS[3].split()[: 32 - 3 - 3]  # three words of the query, three marks
    assert abs(float(found[3]) - score(QUERY, " ".join(words))) < 1e-3
    with pytest.raises(RequestError, match="no place for a document"):
        engine.rerank("w1 " * 30, DOCUMENTS, truncate=True)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_decoder_is_asked_for_yes_or_no(program, tmp_path):
    last = ("yes", "no", *ROLES)
    path = save_word_model(tmp_path, TEMPLATE, last)
    engine = load(path, dtype="float32", program=program, max_length=128, max_sequences=2)
    found = engine.rerank(QUERY, DOCUMENTS)
    for document, value in zip(DOCUMENTS, found.tolist(), strict=True):
        text = (
            f"<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {QUERY}"
        )
        system = (
            "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that "
            'the answer can only be "yes" or "no".'
        )
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"{text}\n<Document>: {document}"},
        ]
        logits = engine.logits(engine.chat_prompt(messages))[-1]
        ids = [engine.tokenizer.backend.token_to_id(word) for word in ("yes", "no")]
        assert abs(float(logits[ids].softmax(0)[0]) - value) < 1e-5
    assert not torch.equal(engine.rerank(QUERY, DOCUMENTS, instruction="w1 w2"), found)
    check_empty(engine.core)


@pytest.mark.parametrize(
    ("query", "documents", "settings", "message"),
    [
        ("", DOCUMENTS, {}, "query: it is empty"),
        (5, DOCUMENTS, {}, "query: 5 is no text"),
        (QUERY, ["w1", ""], {}, "document 2 of 2: it is empty"),
        (QUERY, ["w1", None], {}, "document 2 of 2"),
        (QUERY, "w1", {}, "give a list of texts"),
        (QUERY, DOCUMENTS, {"instruction": "Find it."}, "reads no instruction"),
    ],
)
def test_bad_input_is_refused_by_name(query, documents, settings, message, classifier, engine_of):
    path, _ = classifier("bert")
    with pytest.raises(RequestError, match=message):
        engine_of(path, max_length=64).rerank(query, documents, **settings)


def test_models_that_score_no_pairs_say_so(tmp_path):
    path, _ = save_classifier("bert", tmp_path, num_labels=3)
    with pytest.raises(RequestError, match="gives 3 labels"):
        load(path, max_length=64).rerank(QUERY, DOCUMENTS)
    with pytest.raises(RequestError, match="makes vectors of texts"):
        load(save_encoder("bert", tmp_path / "other"), max_length=64).rerank(QUERY, DOCUMENTS)


def test_no_document_has_no_score(classifier, engine_of):
    path, _ = classifier("bert")
    assert len(engine_of(path, max_length=64).rerank(QUERY, [])) == 0


@pytest.mark.parametrize(
    ("config", "gives"),
    [
        ({}, True),
        ({"tokenizer_class": "BertTokenizer"}, True),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, False),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}, True),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}, False),
    ],
)
def test_types_are_given_as_transformers_gives_them(config, gives, tmp_path):
    path, score = save_classifier("bert", tmp_path, is_plain=True)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    found = load(path, dtype="float32", max_length=64).rerank(QUERY, DOCUMENTS[:1])
    assert (abs(float(found[0]) - score(QUERY, DOCUMENTS[0])) < 1e-3) == gives


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path):
    path, _ = save_classifier("bert", tmp_path)
    words = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    words.add_tokens(["strange"])
    words.save(str(path / "tokenizer.json"))
    engine = load(path, max_length=64)
    with pytest.raises(RequestError, match=f"token id {VOCABULARY} is out of range"):
        engine.rerank("strange", DOCUMENTS)
    with pytest.raises(RequestError, match="document 2 of 2"):
        engine.rerank(QUERY, ["w1", "strange"])
    with pytest.raises(RequestError, match="no Unicode text"):
        engine.rerank("\ud83d", DOCUMENTS)
    check_empty(engine.core)
