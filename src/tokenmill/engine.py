"""The one loop. Single stream, batch, continuous batching, chunked prefill and speculation are settings of it.

    drafts  → plan → run → sample → verify → commit → outputs

`step` is that loop's body; everything else here puts sequences in or takes results out. Read this file first.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as List
from typing import Any, overload

import torch
from torch import Tensor

from tokenmill.config import EngineConfig, SamplingParams, from_keywords
from tokenmill.errors import CapacityError, RequestError
from tokenmill.intake import Intake, Prompt
from tokenmill.model.config import ModelConfig
from tokenmill.outputs import Completion, Piece, Tracker, make_detokenizer
from tokenmill.runner import Runner
from tokenmill.sample.sampler import Row, Sampled, sample
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.speculate.proposer import Proposer
from tokenmill.speculate.verify import verify
from tokenmill.text.tokenizer import Tokenizer

__all__ = ["Engine", "Prompt"]


class Engine:
    """A loaded model with its cache. Made by `tokenmill.load`; safe to use from several threads, one step at a time.

    config has every default resolved. program and kernel say what was chosen, memory what was allocated, in bytes.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer | None,
        scheduler: Scheduler,
        runner: Runner,
        proposer: Proposer,
        *,
        program: str = "",
        program_reason: str = "",
        kernel: str = "",
        memory: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config, self.model_config, self.tokenizer = config, model_config, tokenizer
        self.program_name, self.program_reason, self.kernel_name = program, program_reason, kernel
        self.memory = dict(memory or {})
        self.scheduler = scheduler
        self._runner, self._proposer, self._clock = runner, proposer, clock
        self._intake = Intake(config, model_config, tokenizer)
        self._trackers: dict[int, Tracker] = {}
        self._collectors: dict[int, Callable[[Work, Tensor], None]] = {}
        self._lock = threading.RLock()

    # ---- the loop

    def step(self) -> None:
        """Move every running sequence by one step."""
        with self._lock:
            drafts = self._proposer.propose(self.scheduler.running, self.config.num_drafts)
            plan = self.scheduler.plan(drafts)
            if not plan.work:
                return  # another thread's step has finished everything
            try:
                logits_RV = self._runner.run(plan)
                self._collect(plan, logits_RV)
                sampled = self._sample(plan, logits_RV)
                accepted = verify(plan, sampled.tokens)
            except BaseException:
                self.scheduler.restart()  # Ctrl-C, no memory, …: what the step has written is not to be relied on
                raise
            self.scheduler.commit(plan, accepted)
            self._output(plan, accepted, sampled)

    def _sample(self, plan: Plan, logits_RV: Tensor) -> Sampled:
        """One token per row of the sequences that sample; a row that cannot be sampled ends its own sequence only."""
        rows: list[Row] = []
        picked: list[int] = []
        owners: list[Sequence] = []
        first = 0
        for work in plan.work:
            if work.sequence.score_from is None:
                rows += [self._row(work.sequence, index) for index in range(work.num_logits)]
                picked += range(first, first + work.num_logits)
                owners += [work.sequence] * work.num_logits
            first += work.num_logits
        if not rows:
            return Sampled([], [])
        if len(rows) < len(logits_RV):
            logits_RV = logits_RV[picked]
        try:
            return sample(logits_RV, rows)
        except RequestError:
            return self._sample_singly(logits_RV, rows, owners)

    def _sample_singly(self, logits_RV: Tensor, rows: List[Row], owners: List[Sequence]) -> Sampled:
        """Row by row, after a refusal: rows do not depend on each other, so the others' tokens are the same."""
        sampled = Sampled([], [])
        for index, (row, owner) in enumerate(zip(rows, owners, strict=True)):
            try:
                one = sample(logits_RV[index : index + 1], [row])
            except RequestError as error:
                one = Sampled([0], [None])  # never looked at: the sequence has ended
                self._fail(owner, error)
            sampled.tokens.extend(one.tokens)
            sampled.logprobs.extend(one.logprobs)
        return sampled

    def _fail(self, sequence: Sequence, error: RequestError) -> None:
        tracker = self._trackers.get(sequence.id)
        if tracker is not None and tracker.error is None:
            tracker.error = error
            self.scheduler.finish(sequence, "error")

    def _row(self, sequence: Sequence, index: int) -> Row:
        """The choice that follows the sequence's tokens and its first `index` drafts."""
        tokens = sequence.tokens + sequence.drafts[:index] if index else sequence.tokens
        position = len(sequence.tokens) + index
        masked = tuple(sequence.stop_ids) if sequence.params.min_new_tokens else ()
        return Row(sequence.params, sequence.seed, position, tokens, sequence.num_prompt_tokens, masked)

    def _collect(self, plan: Plan, logits_RV: Tensor) -> None:
        """Hand the rows of sequences that are scored to whoever asked for them."""
        first = 0
        for work in plan.work:
            if work.sequence.id in self._collectors and work.num_logits:
                self._collectors[work.sequence.id](work, logits_RV[first : first + work.num_logits])
                work.sequence.score_from = work.start + work.count  # preempted or not, no row is handed over twice
            first += work.num_logits

    def _output(self, plan: Plan, accepted: List[List[int]], sampled: Sampled) -> None:
        now_s, place = self._clock(), 0
        for work, tokens in zip(plan.work, accepted, strict=True):
            sequence = work.sequence
            if sequence.score_from is not None:
                continue
            first, place = place, place + work.num_logits
            tracker = self._trackers.get(sequence.id)
            if tracker is None or tracker.error is not None:
                continue
            if sequence.params.logprobs is not None:
                tracker.logprobs += [entry for entry in sampled.logprobs[first : first + len(tokens)] if entry]
            # What was cut off behind a stop token, or by the length, never became part of the sequence.
            num_new = len(sequence.tokens) - sequence.num_prompt_tokens
            if tracker.push(tokens[: num_new - len(tracker.tokens)], now_s):
                self.scheduler.finish(sequence, "stop")
            if sequence.finish_reason is not None:
                tracker.finish(sequence.finish_reason)

    # ---- faces for people

    @overload
    def generate(self, prompt: str | List[int], **settings: Any) -> Completion: ...
    @overload
    def generate(self, prompt: List[str] | List[List[int]], **settings: Any) -> list[Completion]: ...
    def generate(self, prompt: Any, **settings: Any) -> Any:
        """Continue a prompt, or each of a list of prompts, ragged as they come.

        `settings` are the fields of SamplingParams. With n above 1 every prompt gives n completions, in order. Raises
        RequestError when a prompt cannot be served; then none of the list is.
        """
        params = from_keywords(SamplingParams, settings)
        many = _is_batch(prompt)
        prompts = list(prompt) if many else [prompt]
        trackers = self._submit_all(prompts, params)
        self._finish_all(trackers)
        done = [_result(tracker) for tracker in trackers]
        return done if many or params.n > 1 else done[0]

    def stream(self, prompt: Prompt, **settings: Any) -> Iterator[Piece]:
        """Continue one prompt and yield its text as it becomes safe to show; the last piece carries the completion.

        Closing the iterator early ends the sequence and frees its blocks.
        """
        params = from_keywords(SamplingParams, settings)
        if params.n != 1:
            raise RequestError(f"stream serves one continuation: n = {params.n} needs generate")
        (tracker,) = self._submit_all([prompt], params)
        return self._stream(tracker)

    def _stream(self, tracker: Tracker) -> Iterator[Piece]:
        sent, done = 0, None
        try:
            while done is None:
                if tracker.completion is None:  # a step of somebody else's may have finished it
                    self.step()
                _raise_error(tracker)
                done = tracker.completion
                text, tracker.shown = "".join(tracker.shown), []
                tokens, sent = tuple(tracker.tokens[sent:]), len(tracker.tokens)
                if text or tokens or done:
                    yield Piece(text, tokens, done)
        finally:
            self._forget([tracker])

    def logits(self, prompt: Prompt) -> Tensor:
        """Logits after every token of the prompt, [T, V] float32 on the CPU."""
        rows: list[Tensor] = []
        sequence = self._scored(self.encode(prompt), 0)
        self._score(sequence, lambda _, logits_RV: rows.append(logits_RV.float().cpu()))
        self.scheduler.drop(sequence)
        return torch.cat(rows)

    def score(self, prompt: Prompt, choices: List[Prompt]) -> list[float]:
        """Log-probability of each choice as the continuation of the prompt; the prompt is computed once."""
        start = self.encode(prompt)
        tails = [self.encode(choice, add_special_tokens=False) for choice in choices]
        if not tails:
            return []
        sequence = self._scored(start + max(tails, key=len), len(start) - 1)
        scores = []
        try:
            for number, tail in enumerate(tails):
                if number:
                    self.scheduler.rewind(sequence, len(start))
                    sequence.score_from = len(start) - 1
                    sequence.tokens += tail
                    self.scheduler.resume(sequence)
                else:
                    sequence.tokens = start + tail
                total = torch.zeros((), dtype=torch.float64)
                self._score(sequence, _sum_logprobs(sequence, total))
                scores.append(float(total))
        finally:
            self.scheduler.drop(sequence)
        return scores

    def encode(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt; ids are checked, text needs a tokenizer."""
        return self._intake.encode(prompt, add_special_tokens)

    def chat_prompt(self, messages: List[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, rendered by the model's own chat template, up to the assistant's turn."""
        return self._intake.chat_prompt(messages)

    # ---- in and out

    def _submit_all(self, prompts: Iterable[Prompt], params: SamplingParams) -> list[Tracker]:
        """Check every prompt first, then queue all of them."""
        with self._lock:
            sequences = [s for prompt in prompts for s in self._intake.sequences(self.encode(prompt), params)]
            trackers = []
            try:
                for sequence in sequences:
                    detokenizer = make_detokenizer(self.tokenizer, params.stop, params.include_stop)
                    tracker = Tracker(sequence, detokenizer, self._clock())
                    self.scheduler.add(sequence)
                    self._trackers[sequence.id] = tracker
                    trackers.append(tracker)
            except CapacityError:
                self._forget(trackers)
                raise
            return trackers

    def _finish_all(self, trackers: List[Tracker]) -> None:
        try:
            while any(tracker.completion is None for tracker in trackers):
                self.step()
                for tracker in trackers:
                    _raise_error(tracker)
        finally:
            self._forget(trackers)

    def _forget(self, trackers: List[Tracker]) -> None:
        """Let go of sequences, finished or not."""
        with self._lock:
            for tracker in trackers:
                if tracker.completion is None:
                    self.scheduler.drop(tracker.sequence)
                self._trackers.pop(tracker.sequence.id, None)

    # ---- scoring

    def _scored(self, tokens: list[int], score_from: int) -> Sequence:
        with self._lock:
            sequence = self._intake.scored(tokens, score_from)
            self.scheduler.add(sequence)
            return sequence

    def _score(self, sequence: Sequence, collect: Callable[[Work, Tensor], None]) -> None:
        self._collectors[sequence.id] = collect
        try:
            while sequence.finish_reason is None:
                self.step()
        finally:
            del self._collectors[sequence.id]


def _sum_logprobs(sequence: Sequence, total: Tensor) -> Callable[[Work, Tensor], None]:
    """Adds, row by row, the log-probability of the token that really follows."""

    def collect(work: Work, logits_RV: Tensor) -> None:
        first = work.start + work.count - work.num_logits
        following = sequence.tokens[first + 1 : first + 1 + work.num_logits]
        logprobs_RV = torch.log_softmax(logits_RV[: len(following)].float(), dim=-1)
        ids_R1 = torch.tensor(following, dtype=torch.int64, device=logits_RV.device)[:, None]
        total.add_(logprobs_RV.gather(1, ids_R1).double().sum().cpu())

    return collect


def _is_batch(prompt: Any) -> bool:
    return not isinstance(prompt, str) and bool(prompt) and not isinstance(prompt[0], int)


def _raise_error(tracker: Tracker) -> None:
    if tracker.error is not None:
        raise tracker.error


def _result(tracker: Tracker) -> Completion:
    assert tracker.completion is not None
    return tracker.completion
