"""The methods of an Engine that write no text: logits, scores of continuations, vectors of texts, rankings."""

from collections.abc import Sequence as List
from typing import Any

from torch import Tensor

from tokenmill.engine.batch import Score
from tokenmill.engine.core import Core
from tokenmill.engine.embedding import embed
from tokenmill.engine.requests import Prompt, batch_of
from tokenmill.engine.reranking import rerank
from tokenmill.engine.scoring import last_logits, score, score_pairs


class Readings:
    """Computes what a model makes of given texts."""

    core: Core

    def logits(self, prompt: Prompt) -> Tensor:
        """Compute the logits after every token of the prompt, [T, V] float32 on the CPU."""
        tokens = self.core.inputs.encode(prompt)
        return last_logits(self.core, tokens, len(tokens))

    def score(self, prompt: Prompt, choices: List[Prompt]) -> list[float]:
        """Compute the log-probability of each choice as the continuation of the prompt, which is computed once."""
        return score(self.core, prompt, choices)

    def score_pairs(self, pairs: List[tuple[Prompt, Prompt]]) -> list[Score]:
        """Score each (context, continuation): the log-probability of every token of the continuation, and whether it
        is the likeliest there. max_sequences contexts are in flight together, and equal ones are computed once.

        A pair may have one token more than max_length, since its last one is not fed.
        """
        return score_pairs(self.core, pairs)

    def embed(self, texts: str | List[int] | List[str] | List[List[int]], **settings: Any) -> Tensor:
        """Compute the vector of a text, [D] float32 on the CPU, or of each of a list, [N, D]. settings: see
        embedding.embed.
        """
        prompts, many = batch_of(texts)
        vectors = embed(self.core, prompts, **settings).vectors
        return vectors if many else vectors[0]

    def rerank(self, query: str, documents: List[str], **settings: Any) -> Tensor:
        """Score how well each document answers the query, [N] float32 on the CPU; the larger the better. settings: see
        reranking.rerank.
        """
        return rerank(self.core, query, documents, **settings).scores
