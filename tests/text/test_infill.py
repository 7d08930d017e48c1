"""The prompt of a text that is filled in: the ids in llama.cpp's order, cut to fit."""

import pytest
import tokenizers

from tests.byte_model import FIM, save_infill_model
from tokenmill import RequestError
from tokenmill.text.infill import Infill, infill_prompt, marks_of
from tokenmill.text.tokenizer import Tokenizer

PRE, SUF, MID, PAD, REPO, FILE = range(257, 263)


def ids(text):
    return list(text.encode())


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    return Tokenizer.from_directory(save_infill_model(tmp_path_factory.mktemp("coder")))


def test_a_text_between_two_others(coder):
    prompt, is_cut = infill_prompt(coder, Infill("def f(x):\n    ", "\n    return y"), 100)
    assert prompt == [PRE, *ids("def f(x):\n    "), SUF, *ids("\n    return y"), MID] and not is_cut


def test_other_files_stand_before(coder):
    """As llama.cpp's format_prompt_infill lays them out."""
    files = (("a.py", "x = 1"), ("b.py", "y = 2"))
    prompt, _ = infill_prompt(coder, Infill("f(", ")", files), 200)
    assert prompt == [
        *(REPO, *ids("myproject\n"), FILE, *ids("a.py\nx = 1"), FILE, *ids("b.py\ny = 2"), FILE, *ids("filename\n")),
        *(PRE, *ids("f("), SUF, *ids(")"), MID),
    ]


def test_without_marks_of_files_a_line_stands_between(tmp_path):
    """As in llama.cpp."""
    tokenizer = Tokenizer.from_directory(save_infill_model(tmp_path, FIM[:3]))
    prompt, _ = infill_prompt(tokenizer, Infill("f(", ")", (("a.py", "x = 1"),)), 200)
    assert prompt == [*ids("\n\n--- snippet ---\n\nx = 1"), PRE, *ids("f("), SUF, *ids(")"), MID]
    assert marks_of(tokenizer).ends == ()


def test_marks_in_the_code_are_letters(coder):
    """Somebody's own tokenizer is edited: its marks are not the model's."""
    text = "PRE = '<|fim_prefix|>'"
    prompt, _ = infill_prompt(coder, Infill(text, "<|file_sep|>", (("x", "<end>"),)), 200)
    assert prompt[-len(ids(text)) - 15 :] == [PRE, *ids(text), SUF, *ids("<|file_sep|>"), MID]
    assert prompt.count(PRE) == 1 and 256 not in prompt and prompt.count(FILE) == 2


@pytest.mark.parametrize("limit", [4, 5, 11, 24, 40, 61])
def test_what_is_too_long_is_cut(limit, coder):
    """Other files first, from their begin; then before and after, three to one, nearest to the gap."""
    before, after, files = "a" * 30 + "b", "c" + "d" * 19, (("f", "e" * 40),)
    prompt, is_cut = infill_prompt(coder, Infill(before, after, files), limit)
    assert is_cut and len(prompt) == limit
    left, suffix = prompt[prompt.index(PRE) + 1 : prompt.index(SUF)], prompt[prompt.index(SUF) + 1 : -1]
    assert bytes(left) == before.encode()[len(before) - len(left) :] and left
    assert bytes(suffix) == after.encode()[: len(suffix)]
    room = limit - 3
    if room >= 51:
        assert len(left) == 31 and len(suffix) == 20
    else:
        assert len(suffix) == min(20, max(room // 4, room - 31)) and prompt[0] == PRE


def test_no_place_for_anything_is_refused(coder):
    with pytest.raises(RequestError, match="no place for the marks"):
        infill_prompt(coder, Infill("a", "b"), 3)


def test_a_model_without_marks_fills_in_nothing(tmp_path):
    tokenizer = Tokenizer.from_directory(save_infill_model(tmp_path, FIM[:2]))
    with pytest.raises(RequestError, match="no marks for a prefix, a suffix and a middle"):
        infill_prompt(tokenizer, Infill("a", "b"), 100)


@pytest.mark.parametrize(
    "marks",
    [
        ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"),  # StarCoder 2
        ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
        ("<\uff5cfim▁begin\uff5c>", "<\uff5cfim▁hole\uff5c>", "<\uff5cfim▁end\uff5c>"),  # DeepSeek-Coder
        ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4.5
    ],
)
def test_marks_of_other_models(marks, tmp_path):
    found = marks_of(Tokenizer.from_directory(save_infill_model(tmp_path, marks)))
    assert (found.prefix, found.suffix, found.middle) == (257, 258, 259)
    assert (found.repository, found.file) == ((260, 261) if len(marks) > 3 else (None, None))


def test_the_text_after_gets_no_space_of_its_own():
    """As Code Llama's encode_infilling: sentencepiece would put a space before it. The text before gets one."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁a", -1.0), ("b", -1.0), ("▁", -2.0), ("a", -2.0)]
    pieces += [("▁<PRE>", 0.0), ("▁<SUF>", 0.0), ("▁<MID>", 0.0), ("▁<EOT>", 0.0)]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=0))
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("▁"), tokenizers.normalizers.Replace(" ", "▁")]
    )
    backend.add_special_tokens(["<s>", "</s>", "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = Tokenizer(backend, bos_token_id=1)
    prompt, _ = infill_prompt(tokenizer, Infill("a", "a"), 100)
    assert prompt == [1, 7, 3, 8, 6, 9]
    assert marks_of(tokenizer).ends == (10,)
