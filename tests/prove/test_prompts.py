"""Prompts are functions of a seed and a number, begin differently, and have the length that was asked for."""

from tokenmill.prove.prompts import prompt


def test_prompts():
    made = [prompt(3, number, 24) for number in range(500)]
    assert made == [prompt(3, number, 24) for number in range(500)] != [prompt(4, number, 24) for number in range(500)]
    assert len({each[:6] for each in made}) > 495
    assert {len(each.split(" ")) - 1 for each in made} == set(range(1, 25))
    assert len(prompt(3, 1, 600, 600).split(" ")) == 601
    assert all(word in "".join(made) for word in ("почему".title(), "水", "🚀"))
