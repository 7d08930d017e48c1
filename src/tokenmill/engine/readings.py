"""The methods of an Engine that write no text: memory, adapters, logits, scores of continuations, vectors of texts,
rankings, receipts.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from tokenmill.engine.batch import Score
from tokenmill.engine.beam import Beam, beam_search
from tokenmill.engine.core import Core
from tokenmill.engine.embedding import embed
from tokenmill.engine.outputs import Ended
from tokenmill.engine.requests import Prompt, batch_of
from tokenmill.engine.reranking import rerank
from tokenmill.engine.scoring import last_logits, score, score_pairs
from tokenmill.receipts.receipt import Receipt
from tokenmill.receipts.verification import Verification
from tokenmill.settings.sampling_params import SamplingKeywords, SamplingParams
from tokenmill.value_reader import path_of
from tokenmill.weights.adapters.adapter import Adapter


class Readings:
    """Computes what a model makes of given texts."""

    core: Core

    @property
    def memory(self) -> dict[str, int]:
        """Count the bytes of the weights, the cache, a draft model and adapters."""
        self.core.check_open()
        draft, adapters = self.core.speculation.draft, sum(each.num_bytes for each in self.adapters.values())
        found = self.core.loaded.memory | ({} if draft is None else {"draft_bytes": draft.num_bytes})
        return found | ({"adapters_bytes": adapters} if adapters else {})

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """Return the loaded adapters by their names."""
        found: Mapping[str, Adapter] = self.core.adapters.by_name
        return found

    def load_adapter(self, name: str, path: str | Path, *, replace: bool = False) -> Adapter:
        """Load an adapter (LoRA) of the model: a directory of PEFT or a GGUF file of llama.cpp. Requests name it.

        replace: an adapter of that name; texts that run go on with the earlier one. CheckpointError unless every tensor
        of it has a place in the model, with a list of the others; ConfigError for a program that computes no adapters.
        """
        self.core.check_open()
        found: Adapter = self.core.adapters.load(name, path_of(path), replace=replace)
        return found

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter. Texts and sessions that have it go on. RequestError for a name that none has."""
        self.core.adapters.unload(name)

    def logits(self, prompt: Prompt, *, adapter: str | None = None) -> Tensor:
        """Compute the logits after every token of the prompt, [T, V] float32 on the CPU."""
        tokens = self.core.inputs.encode(prompt)
        return last_logits(self.core, tokens, len(tokens), self.core.adapter(adapter))

    def score(self, prompt: Prompt, choices: List[Prompt], *, adapter: str | None = None) -> list[float]:
        """Compute the log-probability of each choice as the continuation of the prompt, which is computed once."""
        return score(self.core, prompt, choices, adapter=self.core.adapter(adapter))

    def score_pairs(self, pairs: List[tuple[Prompt, Prompt]], *, adapter: str | None = None) -> list[Score]:
        """Score each (context, continuation): the log-probability of every token of the continuation, and whether it
        is the likeliest there. max_sequences contexts are in flight together, and equal ones are computed once.

        A pair may have one token more than max_length, since its last one is not fed.
        """
        return score_pairs(self.core, pairs, adapter=self.core.adapter(adapter))

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

    def beam(
        self,
        prompt: Prompt,
        width: int = 4,
        params: SamplingParams | None = None,
        *,
        length_penalty: float = 1.0,
        stopping: str = "heuristic",
        adapter: str | None = None,
        **settings: Unpack[SamplingKeywords],
    ) -> list[Beam]:
        """Search for the likeliest continuations of a prompt: `width` of them at most, the best first. See
        beam.beam_search. settings: max_new_tokens, ignore_eos, stop_token_ids.
        """
        given = self.core.inputs.params(settings, params or SamplingParams())
        return beam_search(self.core, prompt, width, given, length_penalty, stopping, adapter=adapter)

    def verify(self, receipt: Receipt | str | bytes | Mapping[str, Any]) -> Verification:
        """Check a Receipt, or its JSON, by one pass over prompt and tokens, several times as fast as generating, and
        return the Verification. ReceiptError for anything else, and for a receipt of a newer format.
        """
        found: Verification = self._receipts.verify(self.core, receipt)
        return found

    def verify_each(
        self, receipts: Iterable[Receipt | str | bytes | Mapping[str, Any]]
    ) -> Iterator[tuple[int, Verification]]:
        """Check many receipts, or their JSON, max_sequences of them together; yield the place and the Verification of
        each as it is done. Something that is no receipt is "unreadable".
        """
        return self._receipts.verify_each(self.core, receipts)

    @property
    def _receipts(self) -> Ended:
        assert self.core.receipts is not None, "a draft model alone has none"
        return self.core.receipts
