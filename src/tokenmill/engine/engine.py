"""The one loop. Single stream, batch, continuous batching, chunked prefill and speculation are settings of it.

    drafts  → plan → run → sample → verify → commit → outputs

`_step` is that loop's body; everything else here puts sequences in or takes results out. Read this file first.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as List
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from tokenmill.config import EngineConfig, SamplingParams
from tokenmill.engine.inflight import Flight
from tokenmill.engine.outputs import Completion, Piece, Tracker, make_detokenizer
from tokenmill.engine.requests import Intake, Prompt, is_batch
from tokenmill.engine.runner import Runner
from tokenmill.engine.scoring import collect
from tokenmill.engine.scoring import logits as compute_logits
from tokenmill.engine.scoring import score as compute_score
from tokenmill.errors import RequestError
from tokenmill.model.config import ModelConfig
from tokenmill.registry import resolve
from tokenmill.sample.sampler import Sampled
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import Plan, Sequence, Work
from tokenmill.speculate.proposer import Proposer
from tokenmill.speculate.verify import verify
from tokenmill.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenmill.engine.session import Session

__all__ = ["Engine", "Prompt"]


class Engine:
    """A loaded model with its cache. Made by `tokenmill.load`; safe to use from several threads, one step at a time.

    config has every default resolved. program and kernel say what was chosen, memory what was allocated, in bytes.
    mark(phase, plan) is called through every step, for whoever measures: begin, plan (with it), run, sample, deliver.
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
        fingerprint: Mapping[str, str] | None = None,
        generation_defaults: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.config, self.model_config, self.tokenizer = config, model_config, tokenizer
        self.program_name, self.program_reason, self.kernel_name = program, program_reason, kernel
        self.memory = dict(memory or {})
        self.fingerprint = dict(fingerprint or {})
        """Digests of the files that the model came from, when it was loaded; see weights/fingerprint.py."""
        self.scheduler = scheduler
        self.runner, self._proposer, self._clock = runner, proposer, clock
        self.intake = Intake(config, model_config, tokenizer, generation_defaults or {})
        self._trackers: dict[int, Tracker] = {}
        self.collectors: dict[int, Callable[[Work, Tensor], None]] = {}
        self._abandoned: deque[Sequence] = deque()
        self.mark: Callable[[str, Plan | None], None] = _nobody_measures
        self._lock = threading.RLock()
        self._busy = self._unsettled = False
        self._flight: Flight | None = None
        self.ahead = config.run_ahead == "on"
        """Whether each step begins before the one before it is read."""

    # ---- the loop

    def step(self) -> None:
        """Move every running sequence by one step."""
        with self.alone():
            try:
                if self._unsettled:
                    self._deliver(list(self._trackers.values()))
                    self._unsettled = False
                self._step()
            except BaseException:
                # Ctrl-C, no memory, …: what this step has written is not to be relied on, and not all was delivered.
                self._flight, self._unsettled = None, True
                self.scheduler.restart()
                raise

    def _step(self) -> None:
        """The body: begin a step, unless one is begun; begin the next where that can be; end this one."""
        self.mark("begin", None)
        flight, self._flight = self._flight, None
        if flight is None:
            if (flight := self._begin()) is None:
                return  # another thread's step has finished everything
            self._overtake(flight)
        else:
            self.mark("plan", flight.plan)
            self._overtake(flight)
            self.mark("run", None)
        self._end(flight)

    def _begin(self) -> Flight | None:
        """Plan, run and choose, as far as that goes without waiting for the device."""
        plan = self._plan()
        if not plan.work:
            return None
        self.mark("plan", plan)
        logits_RV = self.runner.run(plan)
        self.mark("run", None)
        collect(self.collectors, plan, logits_RV)
        return Flight(plan, logits_RV)

    def _overtake(self, flight: Flight) -> None:
        """Begin the next step before this one is read, where that is wanted and possible."""
        if not (self.ahead and flight.can_be_overtaken):
            return
        self.scheduler.advance(flight.plan, flight.unread)
        flight.is_overtaken = True
        plan = self._plan()
        if plan.work:
            logits_RV = self.runner.run(plan, flight.ids_R)
            collect(self.collectors, plan, logits_RV)
            self._flight = Flight(plan, logits_RV)

    def _end(self, flight: Flight) -> None:
        """Wait for what was chosen, and keep and deliver what stands."""
        sampled, errors = flight.read()
        self.mark("sample", None)
        accepted = verify(flight.plan, [sampled.tokens[place.start : place.stop] for place in flight.places])
        self._note(flight, accepted, sampled, errors)
        if flight.is_overtaken:
            self.scheduler.settle(flight.plan, accepted)
        else:
            self.scheduler.commit(flight.plan, accepted)
        self._deliver([t for work in flight.plan.work if (t := self._trackers.get(work.sequence.id)) is not None])
        self.mark("deliver", None)

    def _plan(self) -> Plan:
        running, config = self.scheduler.running, self.config
        limit = min(config.num_drafts, config.max_step_tokens // max(len(running), 1) - 1)  # room for everybody's
        return self.scheduler.plan(self._proposer.propose(running, limit))

    def _note(
        self, flight: Flight, accepted: List[List[int]], sampled: Sampled, errors: Mapping[int, RequestError]
    ) -> None:
        """Keep the log-probabilities of accepted tokens; end sequences one of whose accepted rows is bad."""
        for work, place, tokens in zip(flight.plan.work, flight.places, accepted, strict=True):
            tracker = self._trackers.get(work.sequence.id)
            position = work.start + work.count - work.num_logits + 1
            for index, row in enumerate(place[: len(tokens)]):
                if tracker is not None:
                    tracker.logprobs[position + index] = sampled.logprobs[row]
                if row in errors:
                    self._fail(work.sequence, errors[row])
                    break

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End one sequence with an error; the others go on."""
        tracker = self._trackers.get(sequence.id)
        if tracker is not None and tracker.error is None:
            tracker.error = error
        self.scheduler.finish(sequence, "error")

    def _deliver(self, trackers: List[Tracker]) -> None:
        """Hand each tracker the tokens that its sequence has and it has not."""
        now_s = self._clock()
        for tracker in trackers:
            if tracker.completion is not None or tracker.error is not None:
                continue
            sequence = tracker.sequence
            new = sequence.tokens[sequence.num_prompt_tokens + len(tracker.tokens) :]
            try:
                if tracker.push(new, now_s):
                    self.scheduler.finish(sequence, "stop")
                if sequence.finish_reason is not None:
                    tracker.finish(sequence.finish_reason)
            except Exception as error:  # noqa: BLE001  (whatever the decoding of one text raises, the others go on)
                self._fail(sequence, error)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else touches the scheduler inside; what was abandoned since is let go first."""
        with self._lock:
            self._busy = True
            try:
                self._let_go()
                yield
            finally:
                self._busy = False
                self._leave_out_finished()

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
        params = self.intake.params(settings)
        many = is_batch(prompt)
        prompts = list(prompt) if many else [prompt]
        done = self._finish_all(self._check(prompts, params))
        return done if many or params.n > 1 else done[0]

    def stream(self, prompt: Prompt, **settings: Any) -> Iterator[Piece]:
        """Continue one prompt and yield its text as it becomes safe to show; the last piece carries the completion.

        The prompt is checked at once and queued with the first piece. Closing the iterator early ends the sequence and
        frees its blocks.
        """
        params = self.intake.params(settings)
        if params.n != 1:
            raise RequestError(f"stream serves one continuation: n = {params.n} needs generate")
        return self.follow(self._check([prompt], params))

    def follow(self, sequences: List[Sequence]) -> Iterator[Piece]:
        """The text of one checked sequence as it grows; it is let go of, or parked, in the end."""
        sent, done = 0, None
        try:
            (tracker,) = self._submit(sequences)
            while done is None:
                if tracker.completion is None:  # a step of somebody else's may have finished it
                    self.step()
                with self._lock:
                    _raise_error(tracker)
                    done = tracker.completion
                    text = tracker.take_text()
                    tokens, sent = tuple(tracker.tokens[sent:]), len(tracker.tokens)
                if text or tokens or done:
                    yield Piece(text, tokens, done)
        finally:
            self.abandon(sequences)

    def logits(self, prompt: Prompt) -> Tensor:
        """Logits after every token of the prompt, [T, V] float32 on the CPU."""
        return compute_logits(self, prompt)

    def score(self, prompt: Prompt, choices: List[Prompt]) -> list[float]:
        """Log-probability of each choice as the continuation of the prompt; the prompt is computed once."""
        return compute_score(self, prompt, choices)

    def session(self, prompt: Prompt | None = None) -> "Session":
        """A text that grows from call to call, its rows kept. See Session."""
        session: Session = resolve("tokenmill.engine.session:Session")(self)
        if prompt is not None:
            session.append(prompt)
        return session

    def open(self, path: str | Path, convert: bool = False) -> "Session":
        """A session from a file that Session.save wrote, here or elsewhere: the same text as if it had never stopped.

        `convert` takes rows of another dtype or weight scheme too, whose text may then differ. SnapshotError, by field,
        for a file that is damaged or of another model.
        """
        session: Session = resolve("tokenmill.engine.session:open_session")(self, Path(path), convert)
        return session

    def encode(self, prompt: Prompt, add_special_tokens: bool = True, *, after: List[int] = ()) -> list[int]:
        """Token ids of a prompt, or of what continues the tokens `after`; ids are checked, text needs a tokenizer."""
        return self.intake.encode(prompt, add_special_tokens, after=after)

    def chat_prompt(self, messages: List[Mapping[str, Any]], allow_special: bool = False) -> list[int]:
        """Token ids of a conversation; a message that spells `<|im_end|>` gets its letters, unless allow_special."""
        return self.intake.chat_prompt(messages, allow_special)

    # ---- in and out

    def _check(self, prompts: List[Prompt], params: SamplingParams) -> list[Sequence]:
        """The sequences of all prompts, or a refusal that says which prompt it is about."""
        sequences: list[Sequence] = []
        for number, prompt in enumerate(prompts, start=1):
            try:
                with self._lock:
                    sequences += self.intake.sequences(self.encode(prompt), params)
            except RequestError as error:
                which = f"prompt {number} of {len(prompts)}: " if len(prompts) > 1 else ""
                raise RequestError(f"{which}{error}") from None
        for sequence in sequences:
            self.scheduler.check(sequence)
        return sequences

    def _submit(self, sequences: List[Sequence]) -> list[Tracker]:
        with self.alone():
            trackers = []
            for sequence in sequences:
                detokenizer = make_detokenizer(self.tokenizer, sequence)
                tracker = self._trackers[sequence.id] = Tracker(sequence, detokenizer, self._clock())
                trackers.append(tracker)
                (self.scheduler.resume if sequence in self.scheduler.parked else self.scheduler.add)(sequence)
            return trackers

    def _finish_all(self, sequences: List[Sequence]) -> list[Completion]:
        try:
            trackers = self._submit(sequences)
            while any(tracker.completion is None for tracker in trackers):
                self.step()
                for tracker in trackers:
                    _raise_error(tracker)
            return [tracker.completion for tracker in trackers if tracker.completion is not None]
        finally:
            self.abandon(sequences)

    def abandon(self, sequences: List[Sequence]) -> None:
        """Nobody waits for these any more: they are dropped, or parked if they are to be kept.

        May come from the garbage collector, in the middle of a step."""
        self._abandoned.extend(sequences)
        with self._lock:
            if not self._busy:
                self._let_go()

    def _leave_out_finished(self) -> None:
        """What has ended since it was planned takes no part, even if it goes on before that step is read."""
        if self._flight is not None and not self._flight.leave_out_finished():
            self._flight = None

    def _let_go(self) -> None:
        while self._abandoned:
            sequence = self._abandoned.popleft()
            (self.scheduler.park if sequence.keep else self.scheduler.drop)(sequence)
            self._trackers.pop(sequence.id, None)
            self.collectors.pop(sequence.id, None)
        self._leave_out_finished()


def _raise_error(tracker: Tracker) -> None:
    if tracker.error is not None:
        raise tracker.error


def _nobody_measures(phase: str, plan: Plan | None) -> None:
    """What `Engine.mark` is while nobody has put something else there."""
