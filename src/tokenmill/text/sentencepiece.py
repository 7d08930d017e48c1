"""sentencepiece's tokenizers, in a GGUF file or a tokenizer.model: BPE and Unigram from pieces and scores, and its
normalisation of a text before it is split.

Its BPE has no list of merges. It joins, again and again, the two neighbours that make the piece with the best score, so
every way to make a piece of two others is a merge, ranked by the score of what it makes.

The normalisation (its src/normalizer.cc) changes characters, then removes needless spaces. Among the keys of the map
that begin at a place, the longest is replaced. The `Precompiled` of `tokenizers` reads the same map and applies it to
what is one character on a screen: there "\\r\\n" is one space, and two for sentencepiece.

transformers' conversion of a tokenizer.model leaves out what sentencepiece does with characters and with spaces, so
nothing of it is used here.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tokenmill.errors import CheckpointError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces: sentencepiece's own numbers, which GGUF has taken over."""

Prefix = Literal["never", "first", "always"]
"""The places at which a space is added to a text: none, its beginning, or after every added token too."""

_RANK = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
_MARK = re.compile(r"<\S+>|\[\S+\]")
_SPACE = "▁"  # sentencepiece's letter for a space
_LONGEST = 64  # bytes of a key; published ones have at most 12
_Path = tuple[bytes, int, bool]  # its bytes, where its node's children begin, whether it is a key


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern for any of these texts, the longest that begins at a place; without texts it finds nothing."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")


class TextRules:
    """The changes that sentencepiece makes to a text before it is split.

    charsmap: sentencepiece's `precompiled_charsmap`, maybe empty. removes_spaces: spaces around a text go, and all but
    one of several in a row. symbols: texts of the user, which stay as they are.
    """

    def __init__(self, charsmap: bytes, removes_spaces: bool, symbols: Sequence[str] = ()) -> None:
        self.charsmap, self.removes_spaces, self.symbols = charsmap, removes_spaces, tuple(symbols)
        self._kept = any_of(symbols)
        size = int.from_bytes(charsmap[:4], "little")
        if charsmap and (size % 4 or 4 + size >= len(charsmap) or charsmap[-1]):
            raise ValueError("its map of characters is damaged")
        self._units = memoryview(charsmap[4 : 4 + size]).cast("I")  # a double array as darts-clone writes it
        self._texts = charsmap[4 + size :]
        self._from = cache(self._keys_from)

    def as_json(self) -> dict[str, Any]:
        return {
            "charsmap": b64encode(self.charsmap).decode(),
            "removes_spaces": self.removes_spaces,
            "symbols": self.symbols,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "TextRules":
        """Read what as_json made; ValueError, TypeError or KeyError for anything else."""
        symbols = [str(symbol) for symbol in values["symbols"]]
        return cls(b64decode(values["charsmap"], validate=True), bool(values["removes_spaces"]), symbols)

    def apply(self, text: str, *, continues: bool = False) -> str:
        """Return the text that is split. `continues`: it follows other text, so that a space at its beginning stays."""
        if not text:
            return text
        shown, after_space = [], self.removes_spaces and not continues
        for part in self._parts(text):
            rest = part.lstrip(" ") if after_space else part
            if rest:
                shown.append(rest)
                after_space = self.removes_spaces and rest.endswith(" ")
        return "".join(shown).rstrip(f" {_SPACE}") if self.removes_spaces else "".join(shown)

    def _parts(self, text: str) -> Iterator[str]:
        """Yield the replacement of each key of the map, of each symbol and of each other character."""
        begin = 0
        for found in self._kept.finditer(text):
            yield from self._mapped(text[begin : found.start()])
            yield found[0]
            begin = found.end()
        yield from self._mapped(text[begin:])

    def _mapped(self, text: str) -> Iterable[str]:
        if not self.charsmap:
            yield from text
            return
        begin = 0
        while begin < len(text):
            keys, longest = self._from(text[begin])
            key = text[begin : begin + longest]
            while len(key) > 1 and key not in keys:
                key = key[:-1]
            yield keys.get(key, key)
            begin += len(key)

    def _keys_from(self, first: str) -> tuple[dict[str, str], int]:
        """Return the replacements of the keys that begin with a character, and the length of the longest key."""
        paths = [(b"", self._offset(0), False)]
        for byte in first.encode():
            paths = [self._step(path, byte) for path in paths if self._has(path, byte)]
        found: dict[str, str] = {}
        try:
            while paths:
                key, place, is_key = path = paths.pop()
                if is_key:
                    begin = self._units[place] & 0x7FFFFFFF
                    found[key.decode()] = self._texts[begin : self._texts.index(0, begin)].decode()
                if len(key) < _LONGEST:
                    paths += [self._step(path, byte) for byte in range(1, 256) if self._has(path, byte)]
        except (IndexError, ValueError) as error:
            raise CheckpointError("the tokenizer's map of characters is damaged") from error
        return found, max(map(len, found), default=1)

    def _offset(self, place: int) -> int:
        unit = self._units[place]
        return (unit >> 10) << ((unit & 512) >> 6)

    def _has(self, path: _Path, byte: int) -> bool:
        place = path[1] ^ byte
        return place < len(self._units) and self._units[place] & 0x800000FF == byte

    def _step(self, path: _Path, byte: int) -> _Path:
        """Return a path through the double array, one byte longer."""
        place = path[1] ^ byte
        return path[0] + bytes([byte]), place ^ self._offset(place), bool(self._units[place] >> 8 & 1)


def bpe_backend(
    tokens: Sequence[str],
    types: Sequence[int],
    scores: Sequence[float],
    prefix: Prefix,
    merges: list[tuple[str, str]] | None = None,
) -> tokenizers.Tokenizer:
    """Return BPE over characters with bytes as a last resort. merges: where there is a list of them, and no scores."""
    merges = _merges_from_scores(tokens, types, scores) if merges is None else merges
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    _spell_spaces(backend, prefix)
    return backend


def unigram_backend(
    tokens: Sequence[str], types: Sequence[int], scores: Sequence[float], prefix: Prefix
) -> tokenizers.Tokenizer:
    """Return a tokenizer that finds the likeliest pieces of a text. ValueError for pieces of which `tokenizers` would
    make others.

    `tokenizers` finds pieces of every type in a text, and sentencepiece finds pieces of letters alone. So all other
    pieces are made unlikelier than any letters. That moves the score of letters which the model does not know: it does
    not matter where they are in no piece, and they stand alone so that no byte piece is found in their spelling.
    """
    letters = {token for token, kind in zip(tokens, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    normal = [token for token, kind in zip(tokens, types, strict=True) if kind == NORMAL]
    if strange := sorted({letter for token in normal for letter in token} - letters):
        raise ValueError(f"{strange[0]!r} is part of a piece and no piece itself")
    if UNUSED in types:
        raise ValueError("it has pieces that are not used")
    entries = [
        (token, score if kind == NORMAL else _OF_SYMBOL if kind == USER_DEFINED else _NEVER)
        for token, kind, score in zip(tokens, types, scores, strict=True)
    ]
    backend = tokenizers.Tokenizer(models.Unigram(entries, types.index(UNKNOWN), BYTE in types))
    _spell_spaces(backend, prefix)
    unknown = "".join(letter for letter in "<0x123456789ABCDEF>" if letter not in letters)
    if BYTE in types and unknown:
        alone = pre_tokenizers.Split(tokenizers.Regex(f"[{unknown}]"), "isolated")
        steps = [backend.pre_tokenizer, alone] if backend.pre_tokenizer is not None else [alone]
        backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return backend


_NEVER = -1e6
_OF_SYMBOL = 0.1  # the score of a symbol of the user, whatever the file says (sentencepiece 0.2.3, found by trying)


def _spell_spaces(backend: tokenizers.Tokenizer, prefix: Prefix) -> None:
    """Have spaces written as ▁, one more of them where the prefix says so, and read back.

    Metaspace alone adds no ▁ to a text that begins with a space, and sentencepiece does. Spelled with another letter
    than the one that stands for spaces by then, it adds one to every text.
    """
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces] if prefix == "always" else [spaces])
    if prefix == "first":
        first = pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)
        back = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="never", split=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([first, back])
    strip = [] if prefix == "never" else [decoders.Strip(content=" ", left=1, right=0)]
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])


def add_tokens(
    backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int], stripping: Sequence[str] = ()
) -> None:
    """Make control, unknown and user-defined tokens known in texts. `stripping` ones take the spaces after them.

    All at once, since each call builds the automaton of all added tokens anew: 6,000 single ones take eight seconds.
    """
    backend.add_tokens(
        [
            # One with ▁ is looked for where spaces have become it.
            AddedToken(token, special=kind != USER_DEFINED, normalized="▁" in token, rstrip=token in stripping)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )


def _merges_from_scores(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every way to make a token of two tokens, best token first: what sentencepiece's search does, as a list.

    Control, unknown and byte tokens are not made of letters, and nothing is made of them.
    """
    made = {token: i for i, token in enumerate(tokens) if types[i] not in (UNKNOWN, CONTROL, BYTE)}
    found = []
    for token, number in made.items():
        cuts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        local = [(made[left], made[right]) for left, right in cuts if left in made and right in made]
        found += [(scores[number], pair) for pair in sorted(local)]
    found.sort(key=lambda entry: -entry[0])
    return [(tokens[left], tokens[right]) for _, (left, right) in found]


_BUILDERS = {"BPE": bpe_backend, "UNIGRAM": unigram_backend}


def holds_ranks(file: Path) -> bool:
    """Return whether a file named tokenizer.model is tiktoken's list of bytes and ranks, as Llama 3's is."""
    try:
        with file.open("rb") as opened:
            return _RANK.match(opened.read(2**10)) is not None
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror or error}") from error


def read_sentencepiece(file: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TextRules | None]:
    """Return the tokenizer of a sentencepiece file, and its rules for texts; None where it changes no text.

    config: tokenizer_config.json, of which `add_prefix_space` and `legacy` count. CheckpointError, with its name, for a
    file that is damaged or of a kind that is not read. ImportError without the package sentencepiece.
    """
    from sentencepiece import sentencepiece_model_pb2 as protocol  # noqa: PLC0415  (optional)

    model = protocol.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
    except Exception as error:  # google.protobuf has no type stubs and an error of its own
        raise CheckpointError(f"{file} is damaged or no sentencepiece model: {error}") from error
    if not (model.pieces and model.HasField("trainer_spec") and model.HasField("normalizer_spec")):
        raise CheckpointError(f"{file} is damaged or no sentencepiece model: it is cut off, or has no pieces")
    kind = protocol.TrainerSpec.ModelType.Name(model.trainer_spec.model_type)
    _check_settings(file, model, kind)
    tokens, types, scores = zip(*((each.piece, each.type, each.score) for each in model.pieces), strict=True)
    if types.count(UNKNOWN) != 1 or len(set(tokens)) != len(tokens) or "" in tokens:
        raise CheckpointError(f"{file} is damaged: its pieces must differ, and one must be of type UNKNOWN")
    rules, symbols = (
        model.normalizer_spec,
        [token for token, of in zip(tokens, types, strict=True) if of == USER_DEFINED],
    )
    try:
        backend = _BUILDERS[kind](tokens, types, scores, _prefix(rules.add_dummy_prefix, config))
        texts = TextRules(rules.precompiled_charsmap, rules.remove_extra_whitespaces, symbols)
    except ValueError as error:
        raise CheckpointError(f"{file} cannot be used: {error}") from error
    # Other pieces may win over a symbol of Unigram, unless it is a mark that stands in no word. One with a space, which
    # is ▁ by then, is found in no text.
    inner = {each for each in symbols if " " in each or (kind == "UNIGRAM" and not _MARK.fullmatch(each))}
    add_tokens(backend, tokens, [NORMAL if token in inner else of for token, of in zip(tokens, types, strict=True)])
    return backend, texts if texts.charsmap or texts.removes_spaces else None


def _check_settings(file: Path, model: Any, kind: str) -> None:
    """Raise CheckpointError for settings of a sentencepiece model that are not read."""
    for name, value, allowed in (
        ("model_type", kind, tuple(_BUILDERS)),
        ("treat_whitespace_as_suffix", model.trainer_spec.treat_whitespace_as_suffix, (False,)),
        ("escape_whitespaces", model.normalizer_spec.escape_whitespaces, (True,)),
    ):
        if value not in allowed:
            raise CheckpointError(f"{file}: {name} = {value} is not allowed: {' or '.join(map(str, allowed))}")


def _prefix(adds: bool, config: Mapping[str, Any]) -> Prefix:
    """Read the prefix as transformers 5 does: `legacy` adds a space after every control token too."""
    if config.get("add_prefix_space") is not None:
        adds = bool(config["add_prefix_space"])
    if not adds:
        return "never"
    return "always" if config.get("legacy") else "first"
