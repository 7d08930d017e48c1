"""Answers on the page: several at once, ends of every kind, going on, a full context, code, files."""

import json

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.serve.chromium import KEY, Feed

pytestmark = pytest.mark.browser

PYTHON = """def f(x):  # a <b>comment</b>
    return "<img src=x onerror=window.broken=1>" + str(12)"""
CODE = f"""Look:
```python
{PYTHON}
```
and
```<script>window.broken=1</script>
plain </code></pre><script>window.broken=1</script>
```"""


@pytest.fixture
def page(page):
    page.set("temperature", 0)
    return page


def ask(page, text):
    """Send a message and wait until it is asked for."""
    before = page.run("return feeds.length")
    page.one("#message").send_keys(text, Keys.ENTER)
    page.until(lambda: page.run("return feeds.length") > before)


def imported(page, path, *conversations, format="tokenmill.conversations"):
    path.write_text(json.dumps({"format": format, "conversations": conversations}), encoding="utf-8")
    page.one("#file").send_keys(str(path))


def conversation(name, *texts, **more):
    """One whose turns say these texts in turn."""
    roles = ("user", "assistant")
    turns = {
        str(place + 1): {"id": place + 1, "parent": place or None, "role": roles[place % 2], "content": text}
        | ({"finish": "stop"} if place % 2 else {})
        for place, text in enumerate(texts)
    }
    return {"id": name, "title": name, "begun": 1, "turns": turns, "leaf": len(texts), "kept": False} | more


def test_other_conversations_go_on_while_one_answers(page):
    feed = Feed(page)
    ask(page, "one")
    feed.write("first ")
    page.one("#new").click()
    assert page.texts() == [] and page.one("#send").is_displayed()
    ask(page, "two")
    feed.write("second ")
    page.until(lambda: page.texts() == ["two", "second"])
    assert page.text("#conversation-list").count("answering") == 2
    feed.write("more", 0)
    feed.end(0)
    page.until(lambda: page.text("#conversation-list").count("answering") == 1)
    assert page.texts() == ["two", "second"] and page.one("#stop").is_displayed()
    page.open("one")
    assert page.texts() == ["one", "first more"] and page.one("#send").is_displayed()
    page.open("two")
    page.one("body").send_keys(Keys.ESCAPE)
    page.until_done()
    assert page.texts() == ["two", "second"] and "stopped" in page.text(".assistant .strip")


ENDS = {
    'data: {"error": {"message": "the server stops", "code": "engine_unavailable"}}\n\n': "the server stops",
    'data: {"error": {}}\n\n': "ends the answer with an error",
    "data: [DONE]\n\n": "without saying that the answer has ended",
    "data: {broken\n\n": "no JSON",
    "data: 5\n\n": "broke before the answer had ended",
    ": a comment\n\n": "broke before the answer had ended",
    'data: {"choices": [{"delta"': "broke before the answer had ended",
    'data: {"choices": []}\r\n\r\ndata:{"choices": [null]}\r\n\r\n': "broke before the answer had ended",
}


@pytest.mark.parametrize("raw", ENDS)
def test_every_end_of_a_stream_is_told_and_keeps_the_text(page, raw):
    feed = Feed(page)
    ask(page, "one")
    feed.write("some words")
    feed.raw(raw)
    page.run("try { feeds[0].close(); } catch {}")
    page.until_done()
    assert ENDS[raw] in page.text(".turn .error") and page.texts() == ["one", "some words"]
    page.press(1, "continue")
    page.until(lambda: len(feed.asked) == 2)
    feed.write(", more")
    feed.end()
    page.until_done()
    assert page.texts() == ["one", "some words, more"] and not page.all(".turn .error")
    page.reload()
    assert page.texts() == ["one", "some words, more"]


def test_it_says_how_far_the_prompt_is(page):
    feed = Feed(page)
    ask(page, "one")
    for done in (512, 1024):
        told = {"total": 3000, "cache": 0, "processed": done, "time_ms": 9}
        feed.event({"id": "chatcmpl-1", "choices": [{"delta": {}}], "prompt_progress": told})
        page.until(lambda done=done: page.text(".assistant .strip") == f"reading the prompt: {done} of 3000 tokens")
    feed.write("some words")
    page.until(lambda: "prompt" not in page.text(".assistant .strip"))
    feed.end()
    page.until_done()
    assert feed.asked[0]["return_progress"] is True and page.texts() == ["one", "some words"]


def test_a_server_that_is_gone_is_told_and_found_again(page):
    gone = "window.real ??= fetch; window.fetch = () => Promise.reject(new TypeError('Failed to fetch'))"
    page.run(gone)
    page.until(lambda: "The server does not answer" in page.text("#gone"))
    page.one("#message").send_keys("w1", Keys.ENTER)
    page.until(lambda: page.text(".turn .error"))
    assert page.text(".turn .error").startswith("the server does not answer: it was stopped")
    page.run("window.fetch = real")
    page.until(lambda: not page.one("#gone").is_displayed())
    page.set("max_tokens", 4)
    page.press(1, "retry")
    page.until(lambda: "2/2" in page.text("#turns"))
    page.until_done()
    assert page.texts()[1] and not page.all(".turn .error")


def test_a_proxy_before_a_server_that_is_gone(page):
    page.run(
        "const real = fetch; window.fetch = (path, o) => path === '/v1/chat/completions'"
        " ? Promise.resolve(new Response('<h1>no</h1>', { status: 502, statusText: 'Bad Gateway' })) : real(path, o)"
    )
    page.say("w1")
    assert "502 Bad Gateway: it is gone" in page.text(".turn .error")


def test_going_on_gives_the_text_of_one_longer_answer(page, quiet):
    page.set("max_tokens", 6)
    page.say("w1 w2")
    assert "cut at the limit" in page.text(".assistant .strip")
    page.press(1, "continue")
    page.until(lambda: "2/2" in page.text("#turns"))
    page.until_done()
    longer = quiet.chat([{"role": "user", "content": "w1 w2"}], max_new_tokens=12).text
    assert page.texts()[1].replace(" ", "") == longer.replace(" ", "")  # words of this model have spaces between only
    page.press(1, "\u2039")
    assert (
        page.texts()[0] == "w1 w2" and longer.startswith(page.texts()[1]) and page.texts()[1] != longer
    )  # the shorter one is still there


def test_how_full_the_context_is_and_a_way_out(page, tmp_path):
    """The model has 96 tokens; a message of n words takes n + 1, with the role."""
    texts = [" ".join(["w1"] * 21) for _ in range(4)]
    imported(page, tmp_path / "long.json", conversation("long", *texts))
    page.until(lambda: "89 of 96 tokens" in page.text("#context"))  # as the server counts it
    assert "full" in page.one("#context").get_attribute("class")
    page.say(" ".join(["w2"] * 14))
    assert "leave room for one more" in page.text(".turn .error")
    page.driver.get_log("browser")  # Chromium's own line about the status
    page.set("max_tokens", 4)
    page.press(5, "leave out the oldest turns")
    page.until(lambda: "2/2" in page.text("#turns"))
    page.until_done()
    assert "4 tokens after 16 (" in page.all(".assistant .strip")[-1].text  # the last message alone, since half is free
    assert len(page.texts()) == 6 and "What stands above is left out" in page.text("#turns")
    page.until(lambda: "20 of 96 tokens" in page.text("#context"))
    page.say("w3")
    assert "4 tokens after 23 (" in page.all(".assistant .strip")[-1].text
    page.reload()
    assert len(page.texts()) == 8 and "What stands above is left out" in page.text("#turns")


LABELS_STAY = "const real = setTimeout; window.setTimeout = (call, ms) => ms === 1500 ? 0 : real(call, ms)"
"""A button says for 1.5 s what it has done, which a browser that is slow might not be seen saying."""


def test_code_has_colours_and_is_copied(page):
    page.run(LABELS_STAY)
    feed = Feed(page)
    ask(page, "one")
    feed.write(CODE)
    page.until(lambda: len(page.all(".code")) == 2)
    first = page.one(".code code")
    assert {each.text for each in page.all(".code-word")} == {"def", "return"}
    assert page.text(".code-comment") == "# a <b>comment</b>" and "onerror" in page.text(".code-string")
    assert page.text(".code-number") == "12" and page.text(".code-bar span") == "python"
    page.one(".code-bar button").click()
    page.until(lambda: page.text(".code-bar button") == "copied")  # while the answer is being written
    feed.write("\n\nand so on")
    page.until(lambda: "so on" in page.texts()[1])
    assert first.is_displayed()  # what has not changed is not made anew
    feed.end()
    page.until_done()
    page.one("#message").send_keys(Keys.CONTROL, "v")
    assert page.one("#message").get_attribute("value") == PYTHON
    assert page.run("return window.broken") is None and not page.all("#turns script, #turns img, #turns b")


def test_copying_without_a_clipboard_as_over_plain_http(page):
    page.run(LABELS_STAY)
    page.run("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    feed = Feed(page)
    ask(page, "one")
    feed.write("some *words*")
    feed.end()
    page.until_done()
    page.press(1, "copy")
    page.until(lambda: "copied" in page.text(".assistant .bar"))
    page.one("#message").send_keys(Keys.CONTROL, "v")
    assert page.one("#message").get_attribute("value") == "some *words*"
    page.run("document.execCommand = () => false")
    page.press(0, "copy")
    page.until(lambda: "not possible" in page.text(".user .bar"))


def test_colours_never_change_a_text(page):
    check = """
    const done = arguments[0];
    import("/page/highlight.mjs").then(({ highlight }) => {
      const pieces = ['"', "'", "`", "#", "//", "/*", "*/", "--", "<!--", "\\\\", "\\n", "'''",
        '"'.repeat(3), "def", " ", "1.5e3", "x", "\\u00e9", "\\ud83d\\ude00", "$", "{", "SELECT"];
      const bad = [];
      for (const name of ["python", "js", "rust", "bash", "sql", "yaml", "html", "lua", "ruby", "nothing", ""])
        for (let seed = 1; seed < 300; seed += 1) {
          let state = seed, text = "";
          for (let place = 0; place < 40; place += 1) {
            state = (state * 48271) % 2147483647;
            text += pieces[state % pieces.length];
          }
          if (highlight(text, name).map((part) => part.textContent ?? part).join("") !== text) bad.push([name, text]);
        }
      const begun = performance.now();
      for (const piece of ['"', "/*", "'''", "\\\\", "<!--", "a"]) highlight(piece.repeat(30_000), "python");
      done([bad, performance.now() - begun < 20_000]);
    });"""
    assert page.driver.execute_async_script(check) == [[], True]


def test_input_methods_do_not_send(page):
    feed = Feed(page)
    page.one("#message").send_keys("one")
    for event in ("{ key: 'Enter', isComposing: true", "{ key: 'Enter', keyCode: 229"):
        page.run(
            f"document.getElementById('message').dispatchEvent(new KeyboardEvent('keydown', {event}, bubbles: true }}))"
        )
    assert page.texts() == [] and feed.asked == []
    page.one("#message").send_keys(Keys.ENTER)
    page.until(lambda: feed.asked)
    feed.write("some")
    page.run(
        "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Escape', isComposing: true, bubbles: true }))"
    )
    assert page.one("#stop").is_displayed()
    feed.end()
    page.until_done()


def test_an_edit_stays_open_while_other_things_happen(page, tmp_path):
    feed = Feed(page)
    ask(page, "one")
    page.one("#new").click()
    ask(page, "two")
    feed.write("yes")
    feed.end()
    page.until_done()
    page.press(0, "edit")
    page.one(".turn textarea").send_keys(" and more")
    feed.write("no", 0)
    feed.end(0)
    page.until(lambda: "answering" not in page.text("#conversation-list"))
    page.driver.switch_to.active_element.send_keys("!")
    assert page.one(".turn textarea").get_attribute("value") == "two and more!"


def test_the_reader_stays_where_they_are(page):
    feed = Feed(page)
    ask(page, "one")
    feed.write("line\n\n" * 100)
    page.until(lambda: "line" in page.texts()[1])
    page.run("document.getElementById('turns').scrollTop = 0")
    feed.end()
    page.until_done()
    assert page.run("return document.getElementById('turns').scrollTop") == 0


def test_titles_are_to_be_read_and_changed(page):
    feed = Feed(page)
    text = "Which rivers of Europe  are longer than a thousand kilometres, and where do they end? Say all of them."
    ask(page, text)
    feed.write("yes")
    feed.end()
    page.until_done()
    title = page.one("#conversation-list .title")
    assert title.get_attribute("title").startswith("Which rivers of Europe are longer than a thousand")
    assert title.size["height"] > 50 and "\u2026" in title.get_attribute("title")  # two lines of it
    page.press(1, "fork")
    assert page.titles()[0].startswith("Fork of Which")
    page.act("rename")
    page.driver.switch_to.active_element.send_keys("<b>Rivers</b>", Keys.ENTER)
    assert page.titles()[0] == "<b>Rivers</b>" and page.driver.title == "<b>Rivers</b> \u00b7 tokenmill"
    page.reload()
    assert page.titles()[0] == "<b>Rivers</b>"


def test_export_and_import_give_the_same_conversations(page, tmp_path):
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    feed = Feed(page)
    for text in ("one", "two"):
        page.one("#new").click()
        ask(page, text)
        feed.write(f"answer to {text}")
        feed.end()
        page.until_done()
    before = page.stored()
    page.one("#export").click()
    page.until(lambda: [*tmp_path.glob("*.json")])
    for _ in range(2):
        page.act("delete")
        page.driver.switch_to.alert.accept()
    assert page.titles() == ["New conversation"] and not page.stored()
    for _ in range(2):  # the second time there is nothing new
        page.one("#file").send_keys(str(next(tmp_path.glob("*.json"))))
        page.until(lambda: page.titles() == ["two", "one"])
    assert page.stored() == before and page.texts() == ["two", "answer to two"]


def test_import_takes_in_what_is_good_and_harms_nothing(page, tmp_path):
    hostile = "</textarea><img src=x onerror=window.broken=1><script>window.broken=1</script>"
    imported(page, tmp_path / "a.json", conversation("good", "w1", "yes"), conversation("../../x", "w1"), 5, None)
    page.until(lambda: "3 of 4 entries are no conversations" in page.text("#notice"))
    assert page.titles() == ["good"]
    imported(
        page,
        tmp_path / "b.json",
        conversation("good", "w1", "no", kept=True),
        conversation("h", hostile, hostile, title=hostile),
    )
    page.until(lambda: len(page.titles()) == 3)  # another conversation of the same name is another one
    assert page.titles().count("good") == 2 and not any(one["kept"] for one in page.stored().values())
    page.open(hostile)
    assert page.texts() == [hostile, hostile] and page.run("return window.broken") is None
    imported(page, tmp_path / "c.json", format="other")
    page.until(lambda: "no file that this page has exported" in page.text("#notice"))
    (tmp_path / "d.json").write_text("{")
    page.one("#file").send_keys(str(tmp_path / "d.json"))
    page.until(lambda: "d.json is no file" in page.text("#notice"))
    assert len(page.stored()) == 3 and all(
        key.startswith(KEY) for key in page.run("return Object.keys(localStorage)") if "conversation" in key
    )


def test_a_key_that_no_header_can_have(page):
    page.one("#key").find_element("xpath", "ancestor::details/summary").click()
    page.one("#key").send_keys("\u043a\u043b\u044e\u0447", Keys.TAB)
    page.say("w1")
    assert "no key can have" in page.text(".turn .error")


def test_the_table_of_the_cache_has_heads_only_over_rows(page):
    page.until(lambda: "blocks" in page.text("#cache-total"))
    page.until(lambda: not page.one("#cache-texts").is_displayed())
    seen = page.run("return fetch('/v1/cache').then((said) => said.json())")
    text = {"id": "chatcmpl-9", "state": "running", "tokens": 1234, "blocks": 40, "shared": 3}
    seen |= {"texts": [text], "sessions": {"texts": 2, "blocks": 7}, "others": {"texts": 1, "blocks": 1}}
    page.run(
        "const real = fetch, said = JSON.stringify(arguments[0]);"
        "window.fetch = (path, o) => path === '/v1/cache' ? Promise.resolve(new Response(said)) : real(path, o)",
        seen,
    )
    page.until(lambda: page.one("#cache-texts").is_displayed())
    rows = "[...document.querySelectorAll('#cache-texts tr')].map(row => [...row.children].map(one => one.innerText))"
    cells = page.run(f"return {rows}")  # at once, since the page draws the rows anew each second
    assert cells == [
        ["Conversation", "State", "Tokens", "Blocks", "Shared"],
        ["another client", "running", "1234", "40", "3"],
        ["2 of sessions", "kept", "", "7", ""],
        ["1 of other keys", "", "", "1", ""],
    ]
    fits = "[...document.querySelectorAll('#cache-texts th')].every(one => one.scrollWidth <= one.clientWidth)"
    assert page.run(f"return {fits}")


def test_focus_and_keys(page):
    """Buttons are reached by keyboard, and keep the focus when their turn is drawn anew."""
    feed = Feed(page)
    ask(page, "one")
    feed.write("yes")
    feed.end()
    page.until_done()
    retry = next(each for each in page.all(".assistant button") if each.text == "retry")
    retry.send_keys(Keys.ENTER)
    page.until(lambda: len(feed.asked) == 2)
    feed.write("no")
    feed.end()
    page.until_done()
    webdriver.ActionChains(page.driver).send_keys(Keys.TAB).perform()
    assert page.texts() == ["one", "no"]


def test_thinking_and_calls_are_folded(page):
    feed, hostile = Feed(page), "</summary><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    page.one("#open-panel").click() if not page.one("#panel").is_displayed() else None
    page.set("tools", json.dumps(tools))
    ask(page, "one")
    feed.delta(reasoning_content="Where is ")
    page.until(lambda: page.text(".thinking summary") == "Thinking …")
    assert not page.one(".thinking .inside").is_displayed()
    page.one(".thinking summary").click()
    feed.delta(reasoning_content=f"it? {hostile}")
    page.until(lambda: page.text(".thinking .inside") == f"Where is it? {hostile}")
    feed.write("I look.")
    feed.delta(tool_calls=[{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look"}}])
    feed.delta(tool_calls=[{"index": 0, "function": {"arguments": '{"path": "a",'}}])
    feed.delta(tool_calls=[{"index": 0, "function": {"arguments": f' "more": {json.dumps(hostile)}}}'}}])
    feed.delta(tool_calls=[{"index": 1, "id": "call_2", "function": {"name": "stay", "arguments": "{}"}}])
    page.until(lambda: len(page.all(".call")) == 2)
    assert page.one(".thinking .inside").is_displayed()  # it stays open
    assert page.text(".call summary").startswith('look {"path": "a", "more"')
    page.picture("calls")
    feed.end(reason="tool_calls")
    page.until_done()
    assert page.text(".thinking summary") == "Thinking" and page.texts() == ["one", "I look."]
    assert not page.one(".call .inside").is_displayed() and "continue" not in page.text(".assistant .bar")
    page.one(".call summary").click()
    assert page.text(".call .inside").splitlines()[:2] == ["{", '  "path": "a",'] and "onerror" in page.text(
        ".call .inside"
    )
    assert page.run("return window.broken") is None and not page.all("#turns script, #turns img")
    page.reload()
    assert page.texts() == ["one", "I look."] and len(page.all(".call")) == 2 and not page.all(".folded[open]")
    feed = Feed(page)
    ask(page, "two")
    assert feed.asked[0]["tools"] == tools
    said = feed.asked[0]["messages"][1]
    calls = said.pop("tool_calls")
    assert said == {"role": "assistant", "content": "I look.", "reasoning_content": f"Where is it? {hostile}"}
    assert [(call["id"], call["function"]["name"]) for call in calls] == [("call_1", "look"), ("call_2", "stay")]
    assert json.loads(calls[0]["function"]["arguments"]) == {"path": "a", "more": hostile}
    feed.end()
    page.until_done()
    page.set("tools", "{")
    page.one("#message").send_keys("three", Keys.ENTER)
    page.until(lambda: "no list in JSON" in page.text("#notice"))
    page.set("tools", "")
