"""Receipts checked: the model's files, the settings, then every token by one pass, then how the text ends."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tokenmill.engine.claim import SHIFT, Claim, Difference, end_of, sequence_of
from tokenmill.engine.core import Core
from tokenmill.engine.requests import Request
from tokenmill.errors import CapacityError, ConfigError, ReceiptError, RequestError
from tokenmill.receipts.maker import ReceiptMaker
from tokenmill.receipts.read import checked_receipt, read_receipt
from tokenmill.receipts.receipt import Receipt
from tokenmill.receipts.verification import Finding, Verification, refused
from tokenmill.schedule.sequence import Sequence
from tokenmill.units import counted
from tokenmill.version import __version__
from tokenmill.weights.fingerprint import OTHER_TOKENIZER, difference

BUILD = ("build", "machine", "torch", "threads")
"""The fields of Receipt.engine that tell the build; its other fields are settings."""

HASH = "the hash does not match the receipt's fields: a field, or the hash itself, is not as it was written"


class Receipts(ReceiptMaker):
    """The maker of one engine's receipts, and the checker of any engine's receipts; see Ended."""

    def verify(self, core: Core, receipt: Receipt | str | bytes | Mapping[str, Any]) -> Verification:
        """Check a receipt, or its JSON. ReceiptError for anything else, and for a receipt of a newer format."""
        ((_, found),) = self.verify_each(core, [_receipt_of(receipt)])
        return found

    def verify_each(
        self, core: Core, receipts: Iterable[Receipt | str | bytes | Mapping[str, Any]]
    ) -> Iterator[tuple[int, Verification]]:
        """Check several receipts, or their JSON, together; yield the place and the Verification of each as it is done.

        A damaged receipt is "unreadable", and the others are checked all the same. The first one has the digests of the
        model's files computed.
        """
        core.check_open()
        waiting, running = enumerate(receipts), dict[int, _Check]()
        try:
            while True:
                for number, given in waiting:
                    try:
                        receipt = _receipt_of(given)
                    except ReceiptError as error:
                        yield number, Verification("unreadable", (), (str(error),))
                        continue
                    check = _Check(core, self, receipt)
                    if check.claim is None:
                        yield number, check.outcome()
                        continue
                    running[number] = check
                    check.claim.start()
                    if len(running) > core.loaded.config.max_sequences:  # one of them waits, to run when another ends
                        break
                if not running:
                    return
                for number in core.wait(lambda: [each for each, check in running.items() if check.has_ended] or None):
                    yield number, running.pop(number).outcome()
        finally:
            for check in running.values():
                check.release()


def _receipt_of(given: Any) -> Receipt:
    if isinstance(given, Receipt):
        return given
    return read_receipt(given) if isinstance(given, str | bytes) else checked_receipt(given)


class _Check:
    """The check of one receipt. claim: its tokens while they are computed; None if there is nothing to compute."""

    def __init__(self, core: Core, ours: ReceiptMaker, receipt: Receipt) -> None:
        self._core, self._ours, self._receipt = core, ours, receipt
        self._findings: list[Finding] = []
        self._why_unchecked: str | None = None
        self._settings, self._build = _elsewhere(ours.engine, receipt.engine)
        self._sequence: Sequence | None = None
        self.claim: Claim | None = None
        if receipt.is_changed:
            self._find("hash", HASH)
        self._check_model()
        if not self._is_other_model and self._why_unchecked is None:
            self._prepare()

    @property
    def has_ended(self) -> bool:
        assert self.claim is not None, "it is running"
        return self.claim.has_ended

    def release(self) -> None:
        if self.claim is not None:
            self.claim.release()

    @property
    def _shift(self) -> float:
        """Look up by how much this engine's logits may differ from the logits of the receipt's engine; see SHIFT."""
        if self._core.loaded.program_name == "native" and not self._settings and not self._build:
            return 0.0
        both = (self._ours.engine, self._receipt.engine)
        return SHIFT["float32" if all(map(_is_unrounded, both)) else "rounded"]

    @property
    def _is_other_model(self) -> bool:
        return any(each.what == "model" for each in self._findings)

    def _check_model(self) -> None:
        ours, theirs = self._ours.model, self._receipt.model
        if (found := difference(theirs["files"], ours["files"])) is not None:
            self._find(
                "model", f"this is not the model of the receipt: {found}{_remedy(theirs['files'], ours['files'])}"
            )
        if theirs["chat_template"] != ours["chat_template"]:
            self._find("model", "the chat template is another one than the receipt's (--chat-template gives one)")

    def _prepare(self) -> None:
        """Make the sequence and the claim of its tokens. A text that no engine of this model could serve is refused."""
        core, receipt = self._core, self._receipt
        needed, config = len(receipt.prompt) + (receipt.sampling.max_new_tokens or 0), core.loaded.config
        if needed > config.max_length and needed <= core.loaded.model_config.context:
            self._why_unchecked = f"max_length is {config.max_length} here, and the receipt needs {needed}"
            return
        adapter = self._adapter()
        if receipt.model.get("adapter") is not None and adapter is None:
            return
        try:
            sequence = sequence_of(core, receipt, adapter)
            core.inputs.encode(list(receipt.tokens) or list(receipt.prompt))
            core.scheduler.check_length(len(receipt.prompt) + len(receipt.tokens))
        except (RequestError, ConfigError) as error:
            self._find("settings", f"no engine of this model could have served it: {error}")
            return
        except CapacityError as error:
            self._why_unchecked = str(error)
            return
        self._sequence = sequence
        if receipt.tokens:
            self.claim = Claim(core, sequence, receipt.tokens, self._shift)

    def _adapter(self) -> Any:
        """Find the loaded adapter with the bytes of the receipt's; without it nothing can be computed."""
        if (wanted := self._receipt.model.get("adapter")) is None:
            return None
        if (found := self._core.adapters.with_digest(wanted["sha256"])) is None:
            what = f"the text is of adapter {wanted['name']!r} (sha256 {wanted['sha256']}), which is not loaded"
            self._why_unchecked = f"{what}: load_adapter, or --adapter"
        return found

    def outcome(self) -> Verification:
        """Conclude the check, once the tokens have been computed."""
        notes, differences = self._notes(), list[Difference]()
        try:
            if self.claim is not None:
                differences = self.claim.take()
        except RequestError as error:
            self._find("tokens", f"the engine could not compute them: {error}")
        finally:
            self.release()
        far = [each for each in differences if not each.is_near]  # no rounding explains these
        if differences and not self._settings and not self._build and self._is_said_again():
            differences, far = [], []
            notes.append("in one pass some tokens were others, by rounding; generated again, the text is the same")
        self._findings += [self._of_difference(each) for each in far[:1]]
        if len(far) > 1:
            notes.append(f"of {counted(len(self._receipt.tokens), 'token')}, {len(far)} are others than the engine's")
        if self._sequence is not None and not differences:
            self._check_end(self._sequence)
        return self._verdict(notes, [each for each in differences if each.is_near])

    def _verdict(self, notes: list[str], near: list[Difference]) -> Verification:
        num_tokens = len(self._receipt.tokens)
        if self._findings:
            return refused(self._findings, notes, num_tokens)
        if self._why_unchecked is not None:
            return Verification("unchecked", (), (self._why_unchecked, *notes), num_tokens)
        if near:
            places = ", ".join(str(each.index) for each in near[:5])
            notes.append(
                f"{counted(len(near), 'token')} of {num_tokens} (at {places}{', …' * (len(near) > 5)}) would be chosen "
                "if logits were a little different, as those of another build may be"
            )
        is_sure = not near and not self._settings
        return Verification("verified" if is_sure else "consistent", (), tuple(notes), num_tokens)

    def _notes(self) -> list[str]:
        notes = [f"another setting than the receipt's: {each}" for each in self._settings]
        notes += [f"another build than the receipt's: {each}" for each in self._build]
        if self._receipt.tokenmill != __version__:
            notes.append(f"made by tokenmill {self._receipt.tokenmill}, and this is {__version__}")
        return notes

    def _is_said_again(self) -> bool:
        """Say whether generating gives the same text again, with a program whose last bits depend on the chunk."""
        sequence, tokens = self._sequence, self._receipt.tokens
        if self._core.loaded.program_name == "native" or sequence is None:
            return False
        longest = len(sequence.tokens) + len(tokens)  # `_check_end` finds out whether it would go on
        again = replace(sequence, tokens=list(sequence.tokens), keep=False, max_tokens=longest)
        (done,) = self._core.finish([Request([again])])
        return done.tokens == tokens

    def _of_difference(self, each: Difference) -> Finding:
        place = f"token {each.index} of {len(self._receipt.tokens)} (position {len(self._receipt.prompt) + each.index})"
        chosen = f"the engine gives no token there: {each.error}" if each.error else f"the engine chooses {each.chosen}"
        claimed, found = (self._shown(token) for token in (each.claimed, each.chosen))
        said = f"{place}: {each.claimed}{claimed} is claimed, {chosen}{found}"
        return Finding("tokens", said, each.index, each.claimed, each.chosen)

    def _shown(self, token: int | None) -> str:
        tokenizer = self._core.loaded.tokenizer
        if token is None or tokenizer is None:
            return ""
        return f" ({tokenizer.decode([token], skip_special=False)!r})"

    def _check_end(self, sequence: Sequence) -> None:
        receipt = self._receipt
        try:
            done = end_of(self._core, sequence, receipt.tokens)
        except RequestError as error:
            self._find("finish_reason", str(error).removeprefix("emitted: "))
            return
        if done is None:
            why = f"the text does not end here, so it cannot have finished by {receipt.finish_reason!r}"
            self._find("finish_reason", why, receipt.finish_reason)
            return
        for name in ("finish_reason", "stop_reason", "text"):
            claimed, found = getattr(receipt, name), getattr(done, name)
            if claimed != found or type(claimed) is not type(found):
                said = f"{name} is {_brief(claimed)} in the receipt, and {_brief(found)} by its tokens"
                self._find(name, said, claimed, found)

    def _find(self, what: str, message: str, claimed: Any = None, found: Any = None) -> None:
        self._findings.append(Finding(what, message, None, claimed, found))


def _remedy(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    """Say what helps where the tokenizer is another model's on one side only."""
    wanted, found = (any(name.startswith(OTHER_TOKENIZER) for name in files) for files in (theirs, ours))
    if wanted and not found:
        return " (it was made with another model's tokenizer: --tokenizer, or tokenizer in Python, names that model)"
    return " (it was made with the model's own tokenizer: leave --tokenizer out)" if found and not wanted else ""


def _is_unrounded(engine: Mapping[str, Any]) -> bool:
    values = engine["dtype"], engine["cache_format"], engine["scheme"]
    return values[:2] == ("float32", "dense") and values[2] in ("dense", "packed")


def _elsewhere(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """List the differences between this engine and the receipt's, in settings and in the build."""
    settings, build = list[str](), list[str]()
    for name, value in ours.items():
        if theirs[name] != value:
            said = f"{name} {_brief(theirs[name])}, here {_brief(value)}"
            (build if name in BUILD else settings).append(said)
    return settings, build


def _brief(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]} …"
