"""The tokenizer that travels with a model: text to ids and back, also in the middle of a text or with other names of
control tokens.

`tokenizers` does the work. The ids equal the ids of transformers' fast tokenizer for a tokenizer.json, and
sentencepiece's for a `tokenizer.model` that comes without one; transformers converts other files (vocab.json with
merges.txt, tiktoken's ranks), and says which tokens are added. Nothing here knows models or engines.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from tokenmill.errors import CheckpointError, RequestError
from tokenmill.text.backend import configured, for_continuation, is_byte_level, without_chance
from tokenmill.text.sentencepiece import TextRules, any_of, holds_ranks, read_sentencepiece
from tokenmill.text.templates import templates_from_directory
from tokenmill.text.tokenizer_config import read_tokenizer_config
from tokenmill.text.wordpiece import normalized_as, read_vocabulary
from tokenmill.value_reader import ValueReader

_CONTROL = re.compile(r"<[|\uff5c].*[|\uff5c]>")  # DeepSeek writes the bar in full width
LONG = 10_000  # characters of a text that takes milliseconds to encode
_VOCABULARY = "vocab.txt"  # of BERT
CONVERTIBLE = ("tokenizer.model", "vocab.json")


class Tokenizer:
    """Text to ids and back.

    eos_token_ids: every id that ends a text. special_ids: ids that are no text. special_texts: their names as chat
    templates use them ("bos_token", "eos_token", …). control_ids: spelling → id of the tokens that give a conversation
    its structure, which are the special ones and others of the form <|…|>, such as DeepSeek's marks of a turn.
    added_ids: ids of tokens that stand in no merge, the special ones among them. is_byte_level: tokens are spelled in
    GPT-2's letters for bytes. byte_ids: ids of the byte-fallback tokens <0x00> to <0xFF>; consecutive ones are decoded
    together, and unless all their bytes are valid UTF-8, each becomes U+FFFD. chat_template: the one that is used,
    unless `template_for` finds another among named_templates, which the model brings under their own names.
    suppressed_ids: ids that are never drawn. config: what tokenizer_config.json says, if there is one. rules: what is
    done with a text before the backend gets it.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        named_templates: Mapping[str, str] | None = None,
        special_texts: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        suppressed_ids: Iterable[int] = (),
        rules: TextRules | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        without_chance(backend)
        self.backend, self.rules = backend, rules
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.chat_template, self.named_templates = chat_template, dict(named_templates or {})
        self.suppressed_ids = tuple(dict.fromkeys(suppressed_ids))
        self.special_texts, self.config = dict(special_texts or {}), dict(config or {})
        added = backend.get_added_tokens_decoder().items()
        self.added_ids = frozenset(i for i, _ in added)
        self.special_ids = frozenset(i for i, token in added if token.special)
        self.control_ids = {
            token.content: i for i, token in added if token.special or _CONTROL.fullmatch(token.content)
        }
        self.is_byte_level = is_byte_level(backend)
        falls_back = backend.decoder is not None and b"ByteFallback" in backend.decoder.__getstate__()
        byte_ids = [backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)] if falls_back else []
        self.byte_ids = frozenset(number for number in byte_ids if number is not None)
        self._continuation = for_continuation(backend)
        # The library reads such a spelling as GPT-2's letters for bytes: é as a byte that is no UTF-8 alone.
        self._spelled = {
            number: token.content
            for number, token in added
            if not token.content.isascii() and self.is_byte_level and backend.decode([number], False) != token.content
        }

    @classmethod
    def from_directory(cls, path: Path) -> "Tokenizer | None":
        """Read the tokenizer of a model directory; None when it holds no tokenizer at all."""
        values = read_json(path / "tokenizer_config.json")
        if (read := _read_backend(path, values)) is None:
            return None
        backend, rules = read
        model = read_json(path / "config.json")
        config = read_tokenizer_config(
            values,
            read_json(path / "special_tokens_map.json"),
            model.get("model_type"),
            is_byte_level(backend),
            lambda text: backend.token_to_id(text) is not None,
        )
        if (path / "tokenizer.json").is_file():
            backend = configured(backend, config, _rows_of(model))
        texts = dict(config.special)
        file = path / "generation_config.json"
        generation = ValueReader(read_json(file), str(file), CheckpointError)
        ends = generation.take("eos_token_id", None)
        ends = ends if isinstance(ends, list) else [] if ends is None else [ends]
        if any(type(number) is not int for number in ends):
            raise generation.refuse("eos_token_id", ends, "a token id, or several")
        eos = [backend.token_to_id(texts["eos_token"])] if "eos_token" in texts else []
        eos += ends
        templates = templates_from_directory(path, values)
        return cls(
            backend,
            rules=rules,
            bos_token_id=backend.token_to_id(texts["bos_token"]) if "bos_token" in texts else None,
            eos_token_ids=[number for number in eos if isinstance(number, int)],
            chat_template=templates.pop("default", None),
            named_templates=templates,
            special_texts=texts,
            config=values,
            suppressed_ids=generation.token_ids("suppress_tokens"),
        )

    def template_for(self, tools: object) -> str | None:
        """Return the chat template of a request: the one named "tool_use" for one with tools, as in transformers.

        RequestError where the model has templates and none of them is meant.
        """
        if tools is not None and "tool_use" in self.named_templates:
            return self.named_templates["tool_use"]
        if self.chat_template is None and self.named_templates:
            names = ", ".join(sorted(self.named_templates))
            raise RequestError(f"this model has chat templates for special uses only ({names}), and no default one")
        return self.chat_template

    def use_template(self, template: str) -> None:
        """Have all conversations rendered by a template in the place of the model's own ones."""
        self.chat_template, self.named_templates = template, {}

    @property
    def templates(self) -> tuple[str, ...]:
        """The chat templates that `template_for` may choose, the one for tools first."""
        found = (self.named_templates.get("tool_use"), self.chat_template)
        return tuple(dict.fromkeys(template for template in found if template is not None))

    @cached_property
    def num_tokens(self) -> int:
        """One more than the largest id. Finding it takes half as long as reading the tokenizer did."""
        return 1 + max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def spellings(self) -> dict[int, str]:
        """Every token by its id, as the vocabulary spells it."""
        return {number: text for text, number in self.backend.get_vocab(with_added_tokens=True).items()}

    def is_text(self, ids: Iterable[int]) -> bool:
        """Return whether there is anything but special tokens, so that what follows continues a text."""
        return any(number not in self.special_ids for number in ids)

    def encode(self, text: str, add_special_tokens: bool = True, *, continues: bool = False) -> list[int]:
        """Return token ids; names of special tokens in the text become those tokens, as in transformers.

        `continues`: the text follows other text, so that no space is put before it.
        """
        try:
            text = self.prepared(text, special=self.control_ids, continues=continues)
            if not continues or self._continuation is self.backend:
                return list(_encoded(self.backend, text, add_special_tokens).ids)
            # Up to the first added token as in the middle of a text, and from there on as ever.
            found = _encoded(self._continuation, text)
            added = self.backend.get_added_tokens_decoder()
            cut = next((i for i, number in enumerate(found.ids) if number in added), len(found.ids))
            rest = text[found.offsets[cut][0] :] if cut < len(found.ids) else ""
            return [*found.ids[:cut], *_encoded(self.backend, rest).ids]
        except (TypeError, UnicodeEncodeError) as error:  # half a surrogate pair is a Python text, but no UTF-8
            raise RequestError("the prompt is not text in UTF-8: it holds half of a surrogate pair") from error

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int], list[int]]:
        """Encode two texts that a model reads as a pair: token ids, their types, and the places of the second text."""
        first, second = (text if self.rules is None else self.rules.apply(text) for text in (first, second))
        try:
            found = self.backend.encode(first, second)
        except TypeError as error:  # half of a surrogate pair
            raise RequestError(f"a text of a pair is no Unicode text: {error}") from None
        places = [place for place, number in enumerate(found.sequence_ids) if number == 1]
        return found.ids, found.type_ids, places

    def prepared(self, text: str, *, special: Iterable[str], continues: bool = False) -> str:
        """Return the text that the backend gets: changed by the rules between the names of `special` tokens.

        RequestError where the changes make such a name of other letters, since it would become that token.
        """
        if self.rules is None:
            return text
        names = any_of(special)
        texts = re.split(f"({names.pattern})", text)
        for number in range(0, len(texts), 2):
            texts[number] = self.rules.apply(texts[number], continues=continues and number == 0)
            if found := names.search(texts[number]):
                what = f"letters that this model's tokenizer turns into {found[0]!r}, a control token"
                raise RequestError(f"the text holds {what}: leave them out")
        return "".join(texts)

    def decode(self, ids: Iterable[int], skip_special: bool = True, *, continues: bool = False) -> str:
        """Return the text of the ids; ids that the tokenizer does not know are left out.

        `continues`: the ids follow others that are text, so that a space before their first word is kept.
        """
        backend = self._continuation if continues else self.backend
        if not self._spelled:
            return str(backend.decode(list(ids), skip_special_tokens=skip_special))
        run, texts = list[int](), list[str]()
        for number in ids:
            if number not in self._spelled:
                run.append(number)
            elif not (skip_special and number in self.special_ids):
                texts += [backend.decode(run, skip_special_tokens=skip_special), self._spelled[number]]
                run.clear()
        return "".join([*texts, backend.decode(run, skip_special_tokens=skip_special)])

    def decode_each(self, ids: Iterable[int]) -> list[str]:
        """Return the text of each id alone, as if it followed others that are text. Other threads run meanwhile."""
        ids = list(ids)
        texts = self._continuation.decode_batch([[number] for number in ids], skip_special_tokens=False)
        return [self._spelled.get(number, text) for number, text in zip(ids, texts, strict=True)]


def _rows_of(model: Mapping[str, Any]) -> int:
    """Return the rows of the embedding, which config.json may tell in its text part; 0 where it does not tell them."""
    inner = model.get("text_config")
    rows = inner.get("vocab_size") if isinstance(inner, dict) else model.get("vocab_size")
    return rows if type(rows) is int else 0


def _encoded(backend: tokenizers.Tokenizer, text: str, add_special_tokens: bool = False) -> tokenizers.Encoding:
    """Encode a text; a long one as a batch of one, since only there the library lets other threads run meanwhile."""
    if len(text) < LONG:
        return backend.encode(text, add_special_tokens=add_special_tokens)
    return backend.encode_batch([text], add_special_tokens=add_special_tokens)[0]


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; return an empty one when there is no such file."""
    if not file.is_file():
        return {}
    try:
        text = file.read_text(encoding="utf-8")
        value = json.loads(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # refuses half of a surrogate pair, which is no text
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} must hold a JSON object, not {type(value).__name__}")
    return value


def _read_backend(path: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TextRules | None] | None:
    file = path / "tokenizer.json"
    if file.is_file():
        try:
            read = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception
            raise CheckpointError(f"{file} is damaged or no tokenizer file: {str(error).splitlines()[0]}") from error
        normalized_as(read, config)
        return read, None
    found = [name for name in CONVERTIBLE if (path / name).is_file()]
    if not found and (path / _VOCABULARY).is_file():
        return read_vocabulary(path / _VOCABULARY, config), None
    return _convert(path, found[0], config) if found else None


def _convert(path: Path, name: str, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, TextRules | None]:
    """Read a sentencepiece file as it is, with the added tokens and what is put around a text as transformers tells
    them. Any other file is converted by transformers.
    """
    file = path / name
    try:
        from transformers import AutoTokenizer  # noqa: PLC0415  (optional, and seconds to import)

        is_sentencepiece = name == "tokenizer.model" and not holds_ranks(file)
        own = read_sentencepiece(file, config) if is_sentencepiece else None
    except ImportError as error:
        remedy = "pip install 'tokenmill[sentencepiece]'"
        raise CheckpointError(f"{file} needs a conversion that is not installed: {remedy}") from error
    try:
        converted = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        backend: tokenizers.Tokenizer = converted.backend_tokenizer
    except (OSError, ValueError, ImportError, AttributeError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{file} cannot be converted to a fast tokenizer: {reason}") from error
    if own is None:
        return backend, None
    own[0].add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    if backend.post_processor is not None:
        own[0].post_processor = backend.post_processor
    return own
