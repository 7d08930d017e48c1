"""The page in headless Chromium, as a person uses it. `make test-browser` runs this."""

import json
import threading

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.serve.chromium import Page, browser, held_stream
from tests.serve.conftest import served
from tests.word_model import ROLES, TEMPLATE, save_word_model

pytestmark = pytest.mark.browser

BEFORE = "\u2039"  # the button of the version before


@pytest.fixture(scope="module")
def server(chat_model, tmp_path_factory):
    with served(chat_model, session_dir=tmp_path_factory.mktemp("sessions")) as server:
        yield server


@pytest.fixture
def page(server, tmp_path):
    with browser(tmp_path) as driver:
        page = Page(driver, server.url)
        page.set("temperature", 0)
        page.set("max_tokens", 12)
        yield page
        assert not page.errors()


def answered(quiet, *said, new=12):
    """The answer to a conversation, by the library."""
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(said)]
    return quiet.chat(messages, max_new_tokens=new).text


def test_a_conversation_streams_and_is_that_of_the_library(page, server, quiet, monkeypatch):
    """The page shows a token before the next one is made: of an answer that comes at once there is no speed to show."""
    loop, may_step = server.driver.core.loop, threading.Semaphore(0)
    step = loop.step
    monkeypatch.setattr(loop, "step", lambda: may_step.acquire(timeout=120) and step())

    def say(text):
        while may_step.acquire(blocking=False):
            pass
        place = len(page.texts()) + 1
        page.one("#message").send_keys(text, Keys.ENTER)
        may_step.release()
        page.until(lambda: "w" in "".join(page.texts()[place:]))
        may_step.release(100)
        page.until_done()

    say("w1 w2")
    first = answered(quiet, "w1 w2")
    assert page.texts() == ["w1 w2", first]
    say("w3")
    assert page.texts()[2:] == ["w3", answered(quiet, "w1 w2", first, "w3")]
    strips = [each.text for each in page.all(".turn.assistant .strip")]
    assert all("first token" in strip and "tokens/s" in strip and "12 tokens after" in strip for strip in strips)


def test_retry_edit_and_fork_keep_what_was(page, quiet):
    page.say("w1 w2")
    page.say("w3")
    page.press(1, "retry")
    page.until_done()
    assert len(page.texts()) == 2 and "2/2" in page.all(".turn")[1].text  # another answer to the first message
    page.press(0, "edit")
    field = page.one(".turn textarea")
    field.clear()
    field.send_keys("w5", Keys.ENTER)
    page.until(lambda: page.texts()[:1] == ["w5"])
    page.until_done()
    assert page.texts() == ["w5", answered(quiet, "w5")]
    page.press(0, BEFORE)
    assert page.texts()[0] == "w1 w2"
    page.press(1, BEFORE)
    assert len(page.texts()) == 4 and page.texts()[2] == "w3"  # all of the first branch is there
    page.press(1, "fork")
    assert len(page.texts()) == 2 and len(page.all("#conversation-list li")) == 2
    page.say("w7")
    first = answered(quiet, "w1 w2")
    assert page.texts()[2:] == ["w7", answered(quiet, "w1 w2", first, "w7")]


def test_stop_ends_the_answer_on_the_server(page, server, monkeypatch):
    held = held_stream(monkeypatch)
    page.set("max_tokens", 80)
    page.one("#message").send_keys("w1", Keys.ENTER)
    page.until(lambda: page.texts()[1:] != [""] and len(page.texts()) == 2)
    page.one("body").send_keys(Keys.ESCAPE)
    page.until_done()
    assert "stopped" in page.text(".turn.assistant .strip")
    held.clear()
    page.until(lambda: server.admission.num_open == 0)
    page.say("w2")
    assert "12" not in page.text(".turn.user .body") and len(page.texts()) == 4


def test_probabilities_of_tokens(page):
    page.one("#set-logprobs").click()
    page.say("w1 w2")
    page.press(1, "tokens")
    spans = page.all(".tokens span")
    assert len(spans) == 12
    webdriver.ActionChains(page.driver).move_to_element(spans[3]).perform()
    tip = page.one("#tip")
    page.until(tip.is_displayed)
    assert spans[3].text.strip() in tip.text and tip.text.count("%") >= 5
    page.picture("tokens")
    page.one(".tokens").send_keys(Keys.ARROW_RIGHT)
    assert spans[4].text.strip() in tip.text
    page.one("body").send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_what_a_model_writes_is_inert(tmp_path, tmp_path_factory):
    """A model whose every word attacks: raw HTML, links with scripts, images, ends of elements."""
    marks = (
        "<img/src=/metrics/onerror=window.broken=1>",
        "<script>window.broken=1</script>",
        "</div><svg/onload=window.broken=1>",
        "[a](javascript:window.broken=1)",
        "[b](data:text/html,<script>window.broken=1</script>)",
        "![c](https://evil.example/c.png)",
        "<a/href=javascript:window.broken=1>d</a>",
        "<style>body{display:none}</style>",
        "<iframe/srcdoc=<script>parent.broken=1</script>>",
        "[e](https://good.example/)",
        "<math><mtext><table><mglyph><style><img/src/onerror=window.broken=1>",
        "`<b>`",
    )
    hostile = [f"{mark}{number}" for number in range(24) for mark in marks][:200]
    path = save_word_model(tmp_path_factory.mktemp("hostile"), TEMPLATE, (*hostile, *ROLES))
    with served(str(path)) as server, browser(tmp_path) as driver:
        page = Page(driver, server.url)
        page.one("#set-logprobs").click()
        page.set("temperature", 1.5)
        page.set("max_tokens", 8)
        for number in range(6):
            page.say(f"w0 {hostile[number]}")
        said = " ".join(page.texts())
        assert sum(mark in said for mark in ("onerror", "script", "onload")) == 3  # it is there to be read
        for button in page.all(".turn.assistant button"):
            if button.text == "tokens":
                button.click()
        assert driver.execute_script("return window.broken") is None
        for tag in ("img", "svg", "iframe", "math", "style", "script:not([src])"):
            assert not page.all(f"#turns {tag}"), tag
        for link in page.all("#turns a"):
            assert (link.get_attribute("href") or "https:").startswith("https:")
        asked = driver.execute_script("return performance.getEntriesByType('resource').map(one => one.name)")
        assert asked and all(name.startswith(server.url) for name in asked)
        assert page.one("main").is_displayed() and not page.errors()


def test_the_cache_is_shown(page, server):
    page.say("w1 w2 w3 w4 w5 w6 w7 w8 w9")
    page.until(lambda: "kept for prompts" in page.text("#cache-total"))
    star = "#conversation-list li button:nth-child(2)"  # keeps it on the server
    page.one(star).click()
    page.until(lambda: page.text(star) == "★")
    page.until(lambda: "session" in page.text("#cache-texts tbody"))
    drawn = "const c = document.getElementById('cache-map'); return c.getContext('2d').getImageData(2, 2, 1, 1).data[3]"
    assert page.driver.execute_script(drawn) == 255
    page.picture("cache")
    page.one(star).click()
    page.until(lambda: page.text(star) == "☆")


def test_a_reload_finds_the_conversation_and_the_settings(page):
    page.say("w1 w2")
    texts, strip = page.texts(), page.text(".assistant .strip")
    page.driver.refresh()
    page.until(lambda: page.texts() == texts)
    assert page.text(".assistant .strip") == strip
    assert page.one("#set-max_tokens").get_attribute("value") == "12"


def test_errors_are_told_and_the_conversation_goes_on(page):
    page.say(" ".join(["w1"] * 120))
    assert "at most 95 leave room" in page.text(".turn .error")
    assert page.errors()[0]["message"].count("400")  # the browser's own line about the status
    page.press(0, "edit")
    field = page.one(".turn textarea")
    field.clear()
    field.send_keys("w2", Keys.ENTER)
    page.until(lambda: page.texts()[:1] == ["w2"])
    page.until_done()
    assert not page.all(".turn .error")


def test_a_key_is_asked_for(chat_model, tmp_path):
    with served(chat_model, keys=("secret",)) as server, browser(tmp_path) as driver:
        driver.get(server.url)
        page = object.__new__(Page)
        page.driver = driver
        page.until(lambda: "wants a key" in page.text("#notice"))
        page.one("#key").send_keys("secret", Keys.TAB)
        page.until(lambda: page.text("#model"))
        page.say("w1")
        assert len(page.texts()) == 2 and page.texts()[1]
        assert driver.execute_script("return JSON.stringify(localStorage)").count("secret") == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_narrow_screen_by_keyboard(server, tmp_path, quiet, scheme):
    with browser(tmp_path, 360, 740) as driver:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        page = Page(driver, server.url)
        width = "return [document.documentElement.scrollWidth, innerWidth]"
        assert driver.switch_to.active_element.get_attribute("id") == "message"
        page.say("w1 w2 " + "w3" * 60)
        wide, room = driver.execute_script(width)
        assert wide <= room == 360
        page.picture(f"narrow-{scheme}")
        keys = webdriver.ActionChains(driver)
        keys.send_keys(Keys.TAB * 2).perform()  # past Send, to the button of the conversations
        seen = []
        for _ in range(20):
            seen.append(driver.switch_to.active_element.get_attribute("id"))
            webdriver.ActionChains(driver).send_keys(Keys.TAB).perform()
        assert {"open-conversations", "open-panel", "message", "send"} <= set(seen)
        page.one("#open-panel").send_keys(Keys.ENTER)
        assert page.one("#panel").is_displayed()
        wide, room = driver.execute_script(width)
        assert wide <= room
        page.picture(f"narrow-panel-{scheme}")
        dark = driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 25, 27)"
        assert dark == (scheme == "dark")


def test_the_servers_own_settings_are_left_alone_unless_set(server, tmp_path):
    """A field that is empty is not sent."""
    with browser(tmp_path) as driver:
        page = Page(driver, server.url)
        driver.execute_script(
            "window.sent = []; const f = fetch;window.fetch = (u, o) => {if (o.body) sent.push(o.body); return f(u, o)}"
        )
        page.say("w1")
        body = json.loads(driver.execute_script("return sent[0]"))
        assert set(body) == {"model", "messages", "stream", "stream_options", "return_progress"}
        page.set("temperature", "9")  # out of the field's range
        page.say("w1")
        assert "temperature" not in json.loads(driver.execute_script("return sent.at(-1)"))
