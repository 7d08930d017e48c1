"""Scores of how well documents answer a query (reranking).

A model with a classifier reads query and document as a pair, and scores one pooled row: a cross-encoder. A decoder is
asked whether the document meets the query, in the words of Qwen3-Reranker, and its score is the probability of "yes"
beside "no" as the first token of its answer.
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from tokenmill.engine.batch import in_order, score_each
from tokenmill.engine.core import Core
from tokenmill.engine.embedding import Pooling, vectors
from tokenmill.engine.mtp import refuse_rows
from tokenmill.engine.requests import for_each
from tokenmill.errors import ConfigError, RequestError
from tokenmill.hub.names import locate
from tokenmill.value_reader import brief, check_flag
from tokenmill.weights.classifier import Classifier, classifier_of
from tokenmill.weights.dense_step import ACTIVATIONS

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""What a decoder is told that a query asks for, where nothing else is given: Qwen3-Reranker's own words."""
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the "
    'answer can only be "yes" or "no".'
)
_ANSWERS = ("yes", "no")
_HEADS: WeakKeyDictionary[Core, Classifier | None] = WeakKeyDictionary()


class Ranking(NamedTuple):
    """The score of each document, [N] float32 on the CPU, the larger the better; and the tokens of each pair."""

    scores: Tensor
    num_tokens: tuple[int, ...]

    @property
    def order(self) -> list[int]:
        """The places of the documents, the best first."""
        return sorted(range(len(self.scores)), key=lambda place: (-float(self.scores[place]), place))


def rerank(
    core: Core,
    query: str,
    documents: List[str],
    instruction: str | None = None,
    truncate: bool = False,
    salt: bytes = b"",
    adapter: str | None = None,
    is_given_up: Callable[[], bool] = lambda: False,
) -> Ranking:
    """Score each document. instruction: what the query asks for, for a decoder. truncate: a document that is too long
    is cut at its end, not refused. salt, adapter, is_given_up: see embedding.embed.

    RequestError for a text that is empty or too long, for an instruction that a cross-encoder does not read, and for a
    model that scores no pairs.
    """
    core.check_open()
    _check("query", query)
    check_flag("truncate", truncate)
    if instruction is not None:
        _check("instruction", instruction)
    if not isinstance(documents, list | tuple):
        raise RequestError(f"documents = {brief(documents)}: give a list of texts")
    for number, document in enumerate(documents, start=1):
        _check(f"document {number} of {len(documents)}", document)
    head = _head(core)
    if head is None:
        asked = INSTRUCTION if instruction is None else instruction
        return _by_answers(core, query, documents, asked, truncate, salt, is_given_up, core.adapter(adapter))
    if instruction is not None:
        raise RequestError("instruction: this model scores pairs of texts and reads no instruction")
    if head.num_labels != 1:
        raise RequestError(f"this model gives {head.num_labels} labels to a text, and a reranker has one")
    if allowed := refuse_rows(core.loaded):
        raise ConfigError("program", core.loaded.program_name, f"for reranking, {allowed}")
    limit = core.loaded.config.max_length
    pairs = for_each("document", documents, lambda each: _pair(core, query, each, limit if truncate else None))
    for_each("document", pairs, lambda each: core.inputs.check_length(len(each)))
    how = Pooling(head.pooling, False, dimensions=1, steps=head.steps, row_steps=head.row_steps)
    found = ACTIVATIONS[head.activation](vectors(core, pairs, how, salt, is_given_up, core.adapter(adapter))[:, 0])
    return Ranking(torch.from_numpy(np.ascontiguousarray(found)), tuple(map(len, pairs)))


def _head(core: Core) -> Classifier | None:
    if core not in _HEADS:
        _HEADS[core] = classifier_of(locate(core.loaded.config.model))
    return _HEADS[core]


def _check(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{name}: {brief(text)} is no text")
    if not text:
        raise RequestError(f"{name}: it is empty")


def _pair(core: Core, query: str, document: str, limit: int | None) -> list[int]:
    """Encode a pair. limit: its most tokens; the document is cut."""
    tokenizer, model = core.loaded.tokenizer, core.loaded.model_config
    if tokenizer is None:
        raise RequestError("this model has no tokenizer, so it reads no pairs of texts")
    tokens, types, in_document = tokenizer.encode_pair(query, document)
    core.inputs.encode(tokens)  # refuses ids that the model does not have
    if limit is not None and len(tokens) > limit:
        left = len(in_document) - (len(tokens) - limit)
        if left < 1:
            raise RequestError(f"beside the query, {limit} tokens have no place for a document")
        gone = set(in_document[left:])
        kept = [place for place in range(len(tokens)) if place not in gone]
        tokens, types = [tokens[place] for place in kept], [types[place] for place in kept]
    if model.num_types < 2 or not _gives_types(tokenizer.config):
        return tokens
    if max(types) >= model.num_types:
        raise RequestError(f"the tokenizer gives the token type {max(types)}, and the model has {model.num_types}")
    return [token + kind * model.vocab_size for token, kind in zip(tokens, types, strict=True)]


def _gives_types(config: Mapping[str, Any]) -> bool:
    """Tell whether transformers gives a model the types of tokens, by tokenizer_config.json."""
    if isinstance(names := config.get("model_input_names"), list):
        return "token_type_ids" in names
    kind = config.get("tokenizer_class")
    return kind is None or str(kind).startswith("Bert")


def _by_answers(
    core: Core,
    query: str,
    documents: List[str],
    instruction: str,
    truncate: bool,
    salt: bytes,
    is_given_up: Callable[[], bool],
    adapter: Any,
) -> Ranking:
    """Ask a decoder about each document."""
    if not core.loaded.model_config.has_head:
        raise RequestError("this model makes vectors of texts, and scores no pairs: it has neither a head nor labels")
    answers = [core.inputs.encode(answer, add_special_tokens=False) for answer in _ANSWERS]
    if any(len(answer) != 1 for answer in answers):
        raise RequestError(f"of this model's vocabulary {' and '.join(_ANSWERS)} are no single tokens")

    def asked(document: str) -> list[int]:
        tokens = _question(core, instruction, query, document)
        while truncate and (excess := len(tokens) - core.loaded.config.max_length) > 0 and document:
            document = document[: max(len(document) - max(excess, len(document) * excess // len(tokens)), 0)]
            tokens = _question(core, instruction, query, document)
        return tokens

    prompts = for_each("document", documents, asked)
    for_each("document", prompts, lambda each: core.inputs.check_length(len(each)))
    both = [(prompt, answer) for prompt in prompts for answer in answers]
    found = in_order(score_each(core, both, salt, is_given_up, adapter), len(both))
    pairs = zip(found[::2], found[1::2], strict=True)
    scores = [1 / (1 + math.exp(min(no.logprob - yes.logprob, 700.0))) for yes, no in pairs]
    return Ranking(torch.tensor(scores, dtype=torch.float32), tuple(map(len, prompts)))


def _question(core: Core, instruction: str, query: str, document: str) -> list[int]:
    asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    messages: list[Mapping[str, str]] = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": asked}]
    return core.inputs.chat_prompt(messages, variables={"enable_thinking": False})
