"""Nothing that is written on the page is lost: several tabs, reloads, full, damaged and missing storage."""

import json

import pytest
from selenium.webdriver.common.keys import Keys

from tests.serve.chromium import KEY, Feed, Page, browser

pytestmark = pytest.mark.browser

FILL = """
let piece = "x".repeat(1 << 22), number = 0;
while (piece) {
  try { localStorage.setItem(`fill${number++}`, piece); } catch { piece = piece.slice(0, piece.length >> 1); }
}
"""
EMPTY = "for (const key of Object.keys(localStorage)) if (key.startsWith('fill')) localStorage.removeItem(key)"


@pytest.fixture
def tabs(page, server):
    """Two tabs of the same browser, as functions that go to each. The first is open."""
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    second = page.driver.current_window_handle
    Page(page.driver, server.url)
    page.driver.switch_to.window(first)
    return (lambda: page.driver.switch_to.window(first)), (lambda: page.driver.switch_to.window(second))


def said(text, feed, page, answer="yes"):
    """A message, and its answer to the end."""
    page.one("#message").send_keys(text, Keys.ENTER)
    page.until(lambda: page.run("return feeds.length"))
    feed.write(answer)
    feed.end()
    page.until_done()


def contents(page):
    """All texts of the one conversation that is stored."""
    return {turn["content"] for one in page.stored().values() for turn in one["turns"].values()}


def test_two_tabs_keep_each_others_conversations(page, tabs):
    first, second = tabs
    said("one", Feed(page), page)
    second()
    page.until(lambda: "one" in page.titles())
    page.one("#new").click()
    said("two", Feed(page), page)
    first()
    page.until(lambda: page.titles() == ["two", "one"])
    page.one("#new").click()
    said("three", Feed(page), page)
    assert sorted(each["title"] for each in page.stored().values()) == ["one", "three", "two"]
    page.reload()
    assert page.titles() == ["three", "two", "one"] and page.texts() == ["three", "yes"]


def test_two_tabs_answer_in_one_conversation(page, tabs):
    first, second = tabs
    said("one", Feed(page), page)
    feeds = []
    for go, text in ((first, "from the first"), (second, "from the second")):
        go()
        page.until(lambda: "one" in page.titles())
        page.open("one")
        feeds.append(Feed(page))
        page.one("#message").send_keys(text, Keys.ENTER)
        page.until(lambda: page.run("return feeds.length") == 1)
        feeds[-1].write(f"answer {text}, ")
    for go, feed in ((first, feeds[0]), (second, feeds[1]), (first, feeds[0])):
        go()
        feed.write("and more, ")
    for go, feed in ((first, feeds[0]), (second, feeds[1])):
        go()
        feed.end()
        page.until_done()
    turns = {"one", "yes", "from the first", "from the second"}
    answers = {"answer from the first, and more, and more, ", "answer from the second, and more, "}
    for go in (first, second):
        go()
        page.until(lambda: contents(page) == turns | answers)
    page.reload()
    assert len(page.texts()) >= 4 and len(page.stored()) == 1


def test_an_answer_that_is_being_written_survives_a_reload_and_goes_on(page):
    feed = Feed(page)
    page.one("#message").send_keys("one", Keys.ENTER)
    page.until(lambda: page.run("return feeds.length"))
    feed.write("The first half")
    page.until(lambda: page.texts()[1:] == ["The first half"])
    page.reload()
    assert page.texts() == ["one", "The first half"] and "not ended" in page.text(".turn.assistant .strip")
    feed = Feed(page)
    page.press(1, "continue")
    page.until(lambda: page.run("return feeds.length"))
    body = feed.asked[0]
    assert body["continue_final_message"] and not body["add_generation_prompt"]
    assert body["messages"][-1] == {"role": "assistant", "content": "The first half"}
    feed.write(" and the second")
    feed.end()
    page.until_done()
    assert page.texts() == ["one", "The first half and the second"] and "2/2" in page.text(".turn.assistant")


def test_an_answer_is_written_each_second_while_it_grows(page, tabs):
    """So that a browser that dies loses a second of it. Another tab sees it grow."""
    first, second = tabs
    feed = Feed(page)
    page.one("#message").send_keys("one", Keys.ENTER)
    page.until(lambda: page.run("return feeds.length"))
    feed.write("some ")
    feed.write("words")
    page.until(lambda: "some words" in json.dumps(page.stored()))
    second()
    page.until(lambda: "one" in page.titles())
    page.open("one")
    page.until(lambda: page.texts() == ["one", "some words"])
    first()
    feed.write(" more")
    feed.end()
    second()
    page.until(lambda: page.texts() == ["one", "some words more"] and "not ended" not in page.text("#turns"))


def test_deleted_in_one_tab_while_another_answers(page, tabs):
    first, second = tabs
    feed = Feed(page)
    page.one("#message").send_keys("one", Keys.ENTER)
    page.until(lambda: page.run("return feeds.length"))
    feed.write("some words")
    page.until(page.stored)
    second()
    page.until(lambda: "one" in page.titles())
    page.open("one")
    page.act("delete")
    page.driver.switch_to.alert.accept()
    first()
    page.until(lambda: "was deleted in another tab" in page.text("#notice"))
    assert page.texts() == [] and page.one("#send").is_displayed()
    for go in (second, first):
        go()
        page.until(lambda: page.titles() == ["New conversation"] and not page.stored())
    said("two", Feed(page), page)
    page.reload()
    assert page.titles() == ["two"]


def test_a_full_storage_says_so_and_loses_nothing(page):
    said("one", Feed(page), page)
    before = page.stored()
    page.run(FILL)
    page.one("#new").click()
    said("two " + "long " * 500, Feed(page), page, "kept " * 500)
    assert "will be lost when this tab is closed" in page.text("#unsaved") and "export" in page.text("#unsaved")
    assert "not saved" in page.text("#conversation-list") and page.stored() == before
    page.open("one")
    page.open(page.titles()[0])
    assert page.texts()[1] == "kept " * 499 + "kept"
    page.run(EMPTY)
    page.act("rename")
    page.driver.switch_to.active_element.send_keys("two", Keys.ENTER)
    page.until(lambda: not page.one("#unsaved").is_displayed())
    page.reload()
    assert page.titles() == ["two", "one"] and page.texts()[1] == "kept " * 499 + "kept"


@pytest.mark.parametrize(
    "value",
    [
        "{",
        "[1]",
        "null",
        '{"id": "a", "title": "", "turns": {"1": {"id": 1, "parent": 1}}, "leaf": 1}',
        '{"id": "a", "title": "", "turns": {"1": {"id": 1, "parent": null, "role": "tool", "content": ""}}, "leaf": 1}',
        '{"id": "a", "title": "", "turns": {"__proto__": {"id": 1}}, "leaf": 1}',
        '{"id": "b", "title": "", "turns": {"1": {"id": 1, "parent": null, "role": "user", "content": ""}}, "leaf": 1}',
        '{"id": "a", "title": "", "turns": {}, "leaf": null}',
    ],
)
def test_a_damaged_entry_stays_and_the_page_goes_on(page, value):
    said("one", Feed(page), page)
    page.run("localStorage.setItem(arguments[0], arguments[1])", f"{KEY}a", value)
    page.reload()
    assert page.titles() == ["one"] and page.texts() == ["one", "yes"]
    said("two", Feed(page), page)
    assert page.run("return localStorage.getItem(arguments[0])", f"{KEY}a") == value
    page.one("#conversation-list .error + .bar button:last-child").click()
    page.driver.switch_to.alert.accept()
    page.until(lambda: "can read" not in page.text("#conversation-list"))
    assert page.run("return localStorage.getItem(arguments[0])", f"{KEY}a") is None


def test_fields_of_the_wrong_kind_do_no_harm(page):
    answer = {"id": 2, "parent": 1, "role": "assistant", "content": "yes", "finish": {}, "error": [], "since": "9"}
    answer |= {"stats": {"usage": 5, "firstMs": "x"}, "tokens": 7}
    turns = {"1": {"id": 1, "parent": None, "role": "user", "content": "one"}, "2": answer}
    one = {"id": "one", "title": "one", "turns": turns, "leaf": 2, "kept": False, "count": 2}
    page.run("localStorage.setItem(arguments[0], arguments[1])", f"{KEY}one", json.dumps(one))
    page.reload()
    assert page.texts() == ["one", "yes"]


def test_a_browser_that_keeps_nothing(server, tmp_path):
    denied = "{ get() { throw new DOMException('denied', 'SecurityError'); } }"
    hidden = f"for (const kind of ['localStorage', 'sessionStorage']) Object.defineProperty(window, kind, {denied})"
    with browser(tmp_path) as driver:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": hidden})
        page = Page(driver, server.url)
        said("one", Feed(page), page)
        assert page.texts() == ["one", "yes"] and "set to keep nothing" in page.text("#unsaved")
        page.one("#new").click()
        said("two", Feed(page), page)
        page.open("one")
        assert page.texts() == ["one", "yes"] and not page.errors()


def test_settings_of_any_step_are_sent_and_shared_by_tabs(page, tabs):
    first, second = tabs
    page.set("temperature", 0.75)
    second()
    page.until(lambda: page.one("#set-temperature").get_attribute("value") == "0.75")
    page.set("min_p", 0.02)
    first()
    page.until(lambda: page.one("#set-min_p").get_attribute("value") == "0.02")
    page.set("top_p", 0.925)
    page.one("#set-system").send_keys("be brief")  # and the field is never left
    page.reload()
    feed = Feed(page)
    said("one", feed, page)
    body = feed.asked[0]
    assert (body["temperature"], body["min_p"], body["top_p"]) == (0.75, 0.02, 0.925)
    assert body["messages"][0] == {"role": "system", "content": "be brief"}


@pytest.mark.parametrize("value", ["1e", "9007199254740993", "-"])
def test_a_setting_that_is_no_number_is_told_and_nothing_is_sent(page, value):
    feed = Feed(page)
    page.set("seed", value)
    page.one("#message").send_keys("one", Keys.ENTER)
    page.until(lambda: "Seed" in page.text("#notice"))
    assert feed.asked == [] and page.texts() == [] and page.one("#message").get_attribute("value") == "one"
    page.set("seed", 5)
    page.one("#message").send_keys(Keys.ENTER)
    page.until(lambda: feed.asked)
    assert feed.asked[0]["seed"] == 5


def test_what_is_typed_and_not_sent_survives_a_reload(page):
    said("one", Feed(page), page)
    page.one("#new").click()
    page.one("#message").send_keys("half a quest")
    page.reload()
    assert page.one("#message").get_attribute("value") == "half a quest" and page.texts() == []
