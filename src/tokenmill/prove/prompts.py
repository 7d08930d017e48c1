"""Prompts of many lengths and scripts, each a function of a seed and a number: no two begin alike, so that a prompt is
in no prefix cache before it is sent.

They are sentences, not mere words: a model goes on in more ways after sentences, and a text with near ties shows sooner
that it was computed otherwise.
"""

import random

# ruff: noqa: RUF001  (letters of other scripts that look like Latin ones)
_SUBJECTS = [
    *("a mill", "an old river", "the first steam engine", "a village doctor", "the sky at night", "rye bread", "goats"),
    *("a lost letter", "a chess match", "the city of Lisbon", "photosynthesis", "a quiet harbour", "the number seven"),
    *("an honest thief", "compilers", "a whale", "the winter of 1709", "two sisters", "a broken clock", "light"),
]
_SENTENCES = (
    "Write a short story about {}.",
    "What should everybody know about {} and {}?",
    "It was late when the letter about {} arrived, and nobody in the house had expected it.",
    "List three reasons why {} is more interesting than {}.",
    "Once upon a time there was {} beside {}, and",
    "The report begins with {}; its second chapter explains",
    "Explain {} to a child of five, and then to a professor who has never heard of {}.",
    "My grandmother used to say that {} is like {}:",
    "def describe(thing):\n    # {}\n    return",
    "| subject | year |\n|---|---|\n| {} | 1709 |\n|",
    "Напиши короткий рассказ о старой мельнице у реки. Жили-были",
    "Почему небо ночью тёмное, хотя звёзд так много?",
    "Γράψε μια μικρή ιστορία για ένα παλιό σπίτι δίπλα στο ποτάμι.",
    "请 解释 为什么 河水 会 转动 磨坊 的 轮子 。",
    "水車 は なぜ 夜 も 回る のですか 。 短い 話 を 書いて ください 。",
    "اكتب قصة قصيرة عن طاحونة قديمة بجانب النهر",
    "एक पुरानी चक्की और नदी के बारे में एक छोटी कहानी लिखो।",
    "Erzähle von {}, aber kurz, und erwähne die Brücke über den Fluß.",
    "Raconte l'histoire de {} à travers les yeux d'un élève naïf:",
    "🙂 {} → 🚀 {} → ?",
)


def prompt(seed: int, number: int, max_words: int, min_words: int = 1) -> str:
    """Make a prompt of min_words to max_words words, or of one more; words are what spaces separate."""
    draw = random.Random(f"prompt {seed} {number}")  # noqa: S311  a text, not a secret
    count, words = draw.randint(min_words, max_words), list[str]()
    while len(words) < count:
        sentence = draw.choice(_SENTENCES)
        words += sentence.format(*draw.sample(_SUBJECTS, sentence.count("{}"))).split(" ")
    # One beginning for each prompt. The last words stay: a prompt ends where a sentence does.
    return " ".join((f"{draw.randrange(16**6):06x}", *words[-count:]))
