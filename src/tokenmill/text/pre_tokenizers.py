"""Pre-tokenizers, which split a text before the merges, by the names that GGUF files give in `tokenizer.ggml.pre`.

The names and their meanings are llama.cpp's (src/llama-vocab.cpp). Each regular expression takes its matches out of the
pieces that the ones before it left. Where llama.cpp rewrote an expression for its own matcher and quotes the original
of the tokenizer.json, the original stands here: the two differ for some letters. Missing are the names of encoders that
end a text with a separator, and of vocabularies without merges or whose splitter is C++ alone.
"""

from dataclasses import dataclass

import tokenizers
from tokenizers import pre_tokenizers


@dataclass(frozen=True)
class PreTokenizer:
    """A split of texts before the merges. splits: regular expressions. takes_words: a piece that is a token is taken
    whole, without asking the merges. begins: where the file has no add_bos_token, a text begins with the begin-of-text
    token.
    """

    splits: tuple[str, ...]
    takes_words: bool = False
    begins: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Build the splits in order, then the step that spells bytes as GPT-2's letters."""
        steps = [
            pre_tokenizers.Split(tokenizers.Regex(split), behavior="isolated", invert=False) for split in self.splits
        ]
        return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"


def _words(digits: str, short: str = _SHORT, word: str = _WORD, marks: str = _MARKS, spaces: str = _SPACES) -> str:
    """Return Llama 3's expression and its kin: contractions, letters, digits, punctuation, line ends and spaces."""
    return "|".join(part for part in (short, word, digits, marks, spaces) if part)


_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _cased(short: str, digits: str) -> str:
    """Return the expression of GPT-4o and Tekken: a word ends where an upper case letter follows a lower case one."""
    first = r"[^\r\n\p{L}\p{N}]?"
    words = f"{first}{_UPPER}*{_LOWER}+{short}|{first}{_UPPER}+{_LOWER}*{short}"
    return _words(digits, "", words, r" ?[^\s\p{L}\p{N}]+[\r\n/]*")


_LLAMA_3, _QWEN_2 = _words(r"\p{N}{1,3}"), _words(r"\p{N}")
_GPT_4O = _cased(f"{_SHORT}?", r"\p{N}{1,3}")
# DeepSeek's: Chinese and Japanese, then words; in the second, letters of scripts with upper and lower case.
_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_CJK = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
_ASCII_MARK = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK_WORD = _ASCII_MARK + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK_3 = _words("", "", _DEEPSEEK_WORD, r" ?[\p{P}\p{S}]+[\r\n]*")
_SPARK = _words("", "", _DEEPSEEK_WORD, r" ?[\p{P}\p{S}]+", r"[\r\n]|\s+(?!\S)|\s+")
_MARKS_OF_BOTH_WIDTHS = r"[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"
_CASED_LETTERS = (
    r"A-Za-z"
    r"\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}"
    r"\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}"
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}"
    r"\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}"
    r"\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}"
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}"
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}"
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}"
    r"\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}"
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}"
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}"
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}"
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}"
)
_KOREAN = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|"
    r"[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|"
    r"[\x{3105}-\x{312F}]+|" + _KANA
)
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
_LONG_RUNS = "|".join(rf"\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s{1}"

DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
"""The pre-tokenizer that llama.cpp takes where a file of 2023 names none, and where one says "default"."""


def _named(names: str, *splits: str, **facts: bool) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), PreTokenizer(splits, **facts))


PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **_named("gpt-2 gpt2 phi-2 mpt olmo jais jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum", GPT2),
    **_named("modern-bert exaone4 trillion granite-docling", GPT2),
    **_named("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", r"\p{N}", GPT2),
    **_named("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral", _LLAMA_3, takes_words=True, begins=True),
    **_named("midm-2.0 lfm2 jina-v5-nano", _LLAMA_3, takes_words=True, begins=True),
    **_named("dbrx smaug-bpe chatglm-bpe", _LLAMA_3),
    **_named("glm4 glm5", _LLAMA_3, takes_words=True),
    **_named("qwen2 deepseek-r1-qwen stablelm2 megrez kormo f2llmv2 hunyuan solar-open grok-2", _QWEN_2),
    **_named(
        "qwen35", _words(r"\p{N}", word=r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", marks=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")
    ),
    **_named("tekken", _cased("", r"\p{N}"), takes_words=True, begins=True),
    **_named("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT_4O),
    **_named("granite-embed-multi-97m", _GPT_4O, takes_words=True),
    **_named("tiny_aya cohere2moe", r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O),
    **_named("deepseek-v3 hunyuan-dense joyai-llm hy_v4", r"\p{N}{1,3}", _KANA, _DEEPSEEK_3),
    **_named("spark2_5", r"\p{N}{1,3}", _KANA, _SPARK, r"\p{N}"),
    **_named("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"),
    **_named(
        "deepseek-llm", r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", rf"\s?{_MARKS_OF_BOTH_WIDTHS}", r"\s+$", _CJK, r"\p{N}+"
    ),
    **_named("youtu", _KOREAN, _cased(f"{_SHORT}?", r"\p{N}"), takes_words=True),
    **_named("seed-coder", _words(r"\p{N}", marks=r" ?[^\s\p{L}\p{N}\r\n]+")),
    **_named(
        "bailingmoe bailingmoe2 llada-moe",
        _words(
            r"\p{N}",
            r"'(?i:[sdmt]|ll|ve|re)",
            r"[^\r\n\p{L}\p{N}]?+\p{L}+",
            r" ?[^\s\p{L}\p{N}]++[\r\n]*",
            r"\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    **_named("minicpm5", r"\p{N}{1,3}", _words(r"\p{N}+"), takes_words=True),
    **_named("ufakzeka", _words(r"\p{N}", "")),
    **_named("laguna", r"[^\n]+|[\n]+", _QWEN_2),
    **_named(
        "exaone-moe",
        _words(
            r"\p{N}",
            word=r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            marks=r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            spaces=r"\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    **_named("jais-2", _words(r"\p{N}{1,3}", spaces=rf"\s*[\r\n]+|{_LONG_RUNS}")),
    **_named("falcon", r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    **_named("poro-chat bloom gpt3-finnish", _BLOOM),
    **_named("viking", _BLOOM, r"\p{N}"),
    **_named("superbpe", r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **_named(
        "chameleon",
        "<sentinel:[0-9]+>",
        "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
        begins=True,
    ),
    "default": DEFAULT,
}
"""The pre-tokenizers by `tokenizer.ggml.pre`; of several names that mean the same the first is written."""
