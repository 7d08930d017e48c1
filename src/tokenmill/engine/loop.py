"""The loop's body: one step of every running sequence, from drafts to delivered text; start reading here.

drafts → plan → copy and load → run → sample → verify → commit → store → deliver
"""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from math import inf

from torch import Tensor

from tokenmill.engine.inflight import InFlight
from tokenmill.engine.outputs import Tracker
from tokenmill.errors import DeadlinePassed, RequestError
from tokenmill.loader.loaded import LoadedModel
from tokenmill.sample.matchers import Matchers
from tokenmill.sample.sampler import Sampled
from tokenmill.schedule.scheduler import Scheduler
from tokenmill.schedule.sequence import WHOLE, Plan, Sequence
from tokenmill.speculate.speculation import Speculation, verify


class Observer:
    """An observer of steps inside `Core.observed_by`, which does nothing; a subclass overrides the calls that it needs.

    in_order: it needs each step to be read before the next begins, so async scheduling is off meanwhile.
    """

    in_order = False

    def phase(self, name: str, plan: Plan | None) -> None:
        """Note that a phase has ended: begin, plan (with the plan), run, sample (with the computed plan) or deliver."""

    def logits(self, plan: Plan, logits_RV: Tensor) -> None:
        """Note the wanted rows of a plan, as computed."""


class Loop:
    """The loop of one loaded model and its scheduler, which one thread at a time calls, see Core.

    trackers: of the sequences that have not ended, by the sequence's id. in_flight: a step that has begun and is not
    read.
    """

    def __init__(self, loaded: LoadedModel, scheduler: Scheduler, speculation: Speculation) -> None:
        self.loaded, self.scheduler, self.speculation = loaded, scheduler, speculation
        self.clock: Callable[[], float] = time.perf_counter
        self.observers: list[Observer] = []
        self.trackers: dict[int, Tracker] = {}
        self.in_flight: InFlight | None = None
        self.matchers = Matchers()
        self._is_async = loaded.config.async_scheduling == "on"

    def leave_out_finished(self) -> None:
        """Take sequences that have ended out of the step in flight, even if they are resumed before it is read."""
        if self.in_flight is not None and not self.in_flight.leave_out_finished():
            self.in_flight = None

    def step(self) -> None:
        """Begin a step unless one is in flight, begin the next one if possible, end this one."""
        self._phase("begin")
        current, self.in_flight = self.in_flight, None
        if current is None:
            plan = self._plan()
            if not plan.work:
                return  # a step of another thread has finished everything
            self._phase("plan", plan)
            current = self._run(plan)
            self._phase("run")
            self._begin_next(current)
        else:
            self._phase("plan", current.plan)
            self._begin_next(current)
            self._phase("run")
        self._end(current)

    def _begin_next(self, current: InFlight) -> None:
        """With async scheduling, begin the next step before the tokens of `current` are read, if possible."""
        is_async = self._is_async and not any(each.in_order for each in self.observers)
        if not is_async or not current.next_can_be_planned:
            return
        self.scheduler.advance(current.plan, current.unread)
        current.next_is_planned = True
        plan = self._plan()
        if plan.work:
            self.in_flight = self._run(plan, current.ids_R)

    def _plan(self) -> Plan:
        """Make the next plan and copy and load its blocks; sequences whose rows could not be loaded are left out."""
        if self.speculation.proposer.is_off:
            plan = self.scheduler.plan()
        else:
            plan = self.scheduler.plan(self.speculation.drafts(self.scheduler.running, self.matchers))
            if self.matchers.certain:
                self.matchers.leave_out_certain(plan)
        failed = self.loaded.runner.prepare(plan)
        plan = self.scheduler.withdraw(plan, failed) if failed else plan
        if plan.found:
            self.loaded.runner.store(self.scheduler.end_found(plan))
        return plan

    def _run(self, plan: Plan, fed_R: Tensor | None = None) -> InFlight:
        """Run a plan and begin to sample, without waiting for the device. fed_R: see Step."""
        plan, logits_RV = self.loaded.runner.run(plan, fed_R)
        for observer in self.observers:
            observer.logits(plan, logits_RV)
        is_masked = any(work.sequence.choosing.is_constrained for work in plan.work)
        masks = self.matchers.masks(plan) if is_masked else {}  # made while a device still computes the logits
        return InFlight(plan, logits_RV, masks)

    def _end(self, current: InFlight) -> None:
        """Wait for the chosen tokens, commit the accepted ones, store full blocks, deliver."""
        sampled, errors = current.read()
        self._phase("sample", current.plan)
        accepted = verify(current.plan, [sampled.tokens[rows.start : rows.stop] for rows in current.rows_of])
        if errors:
            _leave_out_errors(current, accepted, errors)
        if current.masks:
            accepted = self.matchers.settle(current.plan, accepted)
        if errors or sampled.logprobs is not None:
            self._note(current, accepted, sampled, errors)
        stores = self.scheduler.commit(current.plan, accepted, current.next_is_planned)
        for sequence in self.matchers.whole(current.plan, accepted) if current.masks else ():
            self.scheduler.finish(sequence, WHOLE)
        if stores:
            self.loaded.runner.store(stores)
        self.deliver([t for work in current.plan.work if (t := self.trackers.get(work.sequence.id)) is not None])
        if not self.speculation.proposer.is_off:
            self.speculation.learn(current.plan, accepted)
        self._phase("deliver")

    def _note(
        self, current: InFlight, accepted: List[List[int]], sampled: Sampled, errors: Mapping[int, RequestError]
    ) -> None:
        """Keep the log-probabilities of accepted tokens; end a sequence if one of its accepted rows has an error."""
        logprobs = sampled.logprobs
        for work, rows, tokens in zip(current.plan.work, current.rows_of, accepted, strict=True):
            tracker = self.trackers.get(work.sequence.id)
            position = work.start + work.count - work.num_logits + 1
            for index, row in enumerate(rows[: max(len(tokens) - work.num_certain, 0)]):
                if tracker is not None and logprobs is not None:
                    tracker.logprobs[position + index] = logprobs[row]
                if row in errors:
                    self.fail(work.sequence, errors[row])
                    self.scheduler.memory.distrust(work.sequence)
                    break

    def fail(self, sequence: Sequence, error: Exception) -> None:
        """End one sequence with an error; the others go on."""
        tracker = self.trackers.get(sequence.id)
        if tracker is not None:
            tracker.error = error
            del self.trackers[sequence.id]
        self.scheduler.finish(sequence, "error")

    def fail_overdue(self) -> None:
        """End the sequences whose deadline has passed."""
        for tracker in [each for each in self.trackers.values() if each.deadline_s < inf]:
            if self.clock() >= tracker.deadline_s:
                after = len(tracker.tokens)
                self.fail(tracker.sequence, DeadlinePassed(f"the deadline has passed after {after} tokens"))

    def end(self, sequences: List[Sequence]) -> None:
        """End sequences whether they wait, run or are parked. Those that are kept may be resumed."""
        for sequence in sequences:
            (self.scheduler.park if sequence.keep else self.scheduler.drop)(sequence)
            sequence.on_logits = None
            if (tracker := self.trackers.pop(sequence.id, None)) is not None:
                tracker.error = RequestError("this was cancelled, or its session was closed")
        self.leave_out_finished()

    def begin_anew(self, error: BaseException) -> None:
        """End everything that ran or waited with the error that a step has raised, and keep no row."""
        for tracker in self.trackers.values():
            tracker.error = error
        self.trackers.clear()
        self.in_flight = None
        self.scheduler.reset()

    def close(self) -> None:
        """End every sequence with an error, and let go of weights and cache."""
        for sequence in (*self.scheduler.running, *self.scheduler.waiting):
            self.fail(sequence, RequestError("this engine is closed"))
        self.in_flight = None
        self.speculation.close()
        self.loaded.release()

    def deliver(self, trackers: List[Tracker]) -> None:
        """Hand each tracker the tokens of its sequence that it does not have yet; one that has ended is forgotten."""
        now_s = self.clock()
        for tracker in trackers:
            sequence = tracker.sequence
            new = sequence.tokens[sequence.num_prompt_tokens + len(tracker.tokens) :]
            try:
                if not tracker.has_ended and tracker.push(new, now_s):
                    self.scheduler.finish(sequence, "stop")
                if not tracker.has_ended and sequence.finish_reason is not None:
                    tracker.finish(sequence.finish_reason)
                if tracker.has_ended:
                    del self.trackers[sequence.id]
            except Exception as error:  # noqa: BLE001  (an error in decoding one text must not end the others)
                self.fail(sequence, error)

    def _phase(self, name: str, plan: Plan | None = None) -> None:
        for observer in self.observers:
            observer.phase(name, plan)


def _leave_out_errors(current: InFlight, accepted: List[list[int]], errors: Mapping[int, RequestError]) -> None:
    """Accept nothing from the first row with an error on, unless it is a sequence's first row: the tokens before that
    row may end the text; if they do not, it is the first row of a later step.
    """
    for work, rows, tokens in zip(current.plan.work, current.rows_of, accepted, strict=True):
        place = next((work.num_certain + index for index, row in enumerate(rows) if row in errors), 0)
        if place:
            del tokens[place:]
