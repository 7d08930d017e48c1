"""The demo model, served to a newcomer who sets nothing: the page, a client of OpenAI's API and one of Ollama's.

Each gets the answers that the model gives at its maker's settings. Where TOKENMILL_PICTURES names a folder, the page's
picture is written there, as it stands in docs/images.
"""

import httpx2
import pytest

from tests.serve.chromium import Page, browser
from tests.serve.conftest import served
from tokenmill import load

NAME = "smollm2-135m"
QUESTIONS = {
    "Why is the sky blue?": ("light", 20),
    "Name three colors.": ("blue", 48),
    "What is the boiling point of water?": ("100", 20),
}
"""What the answer has within so many tokens."""
SETTINGS = {"dtype": "auto", "max_length": 512, "block_size": None, "generation_config": True}
SEED = 5


@pytest.fixture(scope="module")
def demo(real_model):
    with served(str(real_model), SETTINGS, name=NAME, seed=SEED) as server:
        yield server


@pytest.fixture(scope="module")
def answer(real_model):
    """The answer of the library with the model card's settings, and others."""
    engine, card = load(str(real_model), max_length=512), {"temperature": 0.2, "top_p": 0.9, "seed": SEED}

    def answer(question, count, **more):
        return engine.chat([{"role": "user", "content": question}], max_new_tokens=count, **card, **more).text

    return answer


@pytest.mark.model
@pytest.mark.parametrize(
    "question", [pytest.param(each, marks=pytest.mark.long if "colors" in each else ()) for each in QUESTIONS]
)
def test_clients_that_set_nothing_get_sensible_answers(demo, answer, question):
    messages, (word, count) = [{"role": "user", "content": question}], QUESTIONS[question]
    with httpx2.Client(base_url=demo.url, timeout=120, trust_env=False) as http:
        openais = http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": count}).json()
        body = {"model": NAME, "messages": messages, "stream": False, "options": {"num_predict": count}}
        ollamas = http.post("/api/chat", json=body).json()
    found = [openais["choices"][0]["message"]["content"], ollamas["message"]["content"]]
    assert found == [answer(question, count), answer(question, count, top_k=40)]
    assert all(word in text.lower() for text in found), "an answer to what was asked"


@pytest.mark.browser
def test_the_page_answers_sensibly_and_shows_by_which_settings(demo, answer, tmp_path):
    with browser(tmp_path, width=1280, height=600) as driver:
        page = Page(driver, demo.url)
        page.one("#cache-details summary").click()
        page.set("max_tokens", 79)
        question = next(iter(QUESTIONS))
        page.say(question)
        assert page.texts() == [question, answer(question, 79).strip()]
        assert page.one("#set-temperature").get_attribute("placeholder") == "0.2"
        assert "temperature 0.2, top_p 0.9 (the maker's model card)" in page.text("#set-origins")
        page.picture("first-answer")
        assert not page.errors()
