"""Prompts of many lengths and scripts, each a function of a seed and a number: no two begin alike, so that a prompt is
in no prefix cache before it is sent.
"""

import random

# ruff: noqa: RUF001  (letters of other scripts that look like Latin ones)
_SCRIPTS = (
    "the mill river stone wheel grain night why does every water turn old house asks who built it and when",
    "мельница река камень вода почему старый дом ночь кто построил колесо зерно долго поёт",
    "ο μύλος το ποτάμι γιατί το νερό γυρίζει παλιό σπίτι ποιος έχτισε τον τροχό νύχτα",
    "磨坊 河流 为什么 水 转动 老房子 谁 建造 了 石头 夜晚 粮食 请 解释",
    "水車 川 なぜ 石 古い 家 誰 が 建てた 夜 穀物 説明 して ください",
    "الطاحونة النهر لماذا الماء حجر بيت قديم من بنى الليل حبوب اشرح",
    "चक्की नदी क्यों पानी पत्थर पुराना घर किसने बनाया रात अनाज समझाओ",
    "def mill(x): return x + 1 # if for while import print([1, 2, 3]) {'a': 0} != == -> \"text\"",
    "naïve façade über straße coöperate señor 🙂 🚀 ½ € 3.14 10^6 x≥y «quote» — dash",
)
_QUESTIONS = ("", "Why?", "Please explain.", "1.", "Then", "?", "\n\n")


def prompt(seed: int, number: int, max_words: int, min_words: int = 1) -> str:
    """A prompt of a length between the two, in words of one script or of several."""
    draw = random.Random(f"prompt {seed} {number}")  # noqa: S311  a text, not a secret
    count = draw.randint(min_words, max_words)
    scripts = [words.split() for words in draw.sample(_SCRIPTS, draw.choice((1, 1, 1, 2)))]
    words = [draw.choice(draw.choice(scripts)) for _ in range(count)]
    head = f"{draw.randrange(16**6):06x}"  # one beginning for each prompt
    return " ".join(filter(None, (head, *words, draw.choice(_QUESTIONS))))
