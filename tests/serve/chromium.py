"""Headless Chromium, and what a person sees of the server's page and does with it."""

import asyncio
import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tokenmill.serve.loop import answer

PICTURES = os.environ.get("TOKENMILL_PICTURES")  # a directory: what the page looks like is written there
KEY = "tokenmill.conversation."  # what the keys of conversations begin with in the browser's storage
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --window-size=1280,900"
).split()


@contextmanager
def browser(tmp_path, width=1280, height=900):
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    # Headless windows have a least width, so a narrow one is emulated.
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page as a person sees it, and what a person does with it."""

    def __init__(self, driver, url):
        self.driver = driver
        driver.get(url)
        self.until(lambda: self.text("#model"))

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def text(self, selector):
        """Read at once, since the page may draw it anew at any time."""
        return self.driver.execute_script("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, check, seconds=90):
        return WebDriverWait(self.driver, seconds, 0.02).until(lambda _: check())

    def say(self, text):
        self.one("#message").send_keys(text, Keys.ENTER)
        self.until_done()

    def until_done(self):
        self.until(lambda: self.one("#send").is_displayed())

    def press(self, turn, label):
        """A button of one of the turns that are shown, which may be drawn anew while it is looked for."""

        def pressed():
            with suppress(StaleElementReferenceException):
                buttons = self.all(".turn")[turn].find_elements(By.CSS_SELECTOR, "button")
                next(button for button in buttons if button.text == label).click()
                return True

        self.until(pressed)

    def texts(self):
        read = "return [...document.querySelectorAll('.turn .body')].map(one => one.innerText)"
        return self.driver.execute_script(read)

    def set(self, name, value):
        field = self.one(f"#set-{name}")
        field.clear()
        field.send_keys(str(value), Keys.TAB)

    def run(self, script, *values):
        return self.driver.execute_script(script, *values)

    def stored(self):
        """The conversations in the browser's storage, by their ids."""
        items = self.run("return Object.entries(localStorage)")
        return {key.removeprefix(KEY): json.loads(value) for key, value in items if key.startswith(KEY)}

    def titles(self):
        return self.run(
            "return [...document.querySelectorAll('#conversation-list .title span')].map(one => one.innerText)"
        )

    def open(self, title):
        """A conversation out of the list."""
        buttons = "[...document.querySelectorAll('#conversation-list .title')]"
        self.run(f"{buttons}.find(one => one.title === arguments[0]).click()", title)

    def act(self, name):
        """Press a button of the conversation that is open: rename, star, export, delete."""
        buttons = self.all("#conversation-list [aria-current] .bar button")
        next(each for each in buttons if each.text == name).click()

    def reload(self):
        self.driver.refresh()
        self.until(lambda: self.text("#model"))

    def picture(self, name):
        if PICTURES:
            self.driver.save_screenshot(str(Path(PICTURES) / f"{name}.png"))

    def errors(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


def held_stream(monkeypatch):
    """Streams stop after their first pieces while the list that is returned is not empty."""
    held, events = ["hold"], answer._events

    async def slow(*arguments):
        async for event in events(*arguments):
            yield event
            while held and b'"content":"w' in event[0]:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(answer, "_events", slow)
    return held


FEED = """
const real = window.fetch;
Object.assign(window, { asked: [], feeds: [] });
window.fetch = async (path, options) => {
  if (path !== "/v1/chat/completions") return real(path, options);
  asked.push(JSON.parse(options.body));
  const start = (feed) => {
    feeds.push(feed);
    options.signal.addEventListener("abort", () => feed.error(options.signal.reason));
  };
  return new Response(new ReadableStream({ start }), { headers: { "Content-Type": "text/event-stream" } });
};
"""


class Feed:
    """Answers that a test writes in the server's place, in the tab that is open now, numbered from 0."""

    def __init__(self, page):
        self._page = page
        page.run(FEED)

    @property
    def asked(self):
        """The bodies of the requests."""
        return self._page.run("return asked")

    def raw(self, text, number=-1):
        self._page.run("feeds.at(arguments[0]).enqueue(new TextEncoder().encode(arguments[1]))", number, text)

    def event(self, value, number=-1):
        self.raw(f"data: {json.dumps(value)}\n\n", number)

    def write(self, text, number=-1):
        self.delta(number, content=text)

    def delta(self, number=-1, **fields):
        """A piece of an answer, of any kind."""
        self.event({"id": "chatcmpl-1", "choices": [{"delta": fields}]}, number)

    def close(self, number=-1):
        """End the answer as a connection that ends does."""
        self._page.run("feeds.at(arguments[0]).close()", number)

    def end(self, number=-1, reason="stop", usage=None):
        self.event({"choices": [{"delta": {}, "finish_reason": reason}], "usage": usage}, number)
        self.raw("data: [DONE]\n\n", number)


@contextmanager
def opened(driver, url):
    """A page in a browser that has kept nothing; what it logs as an error fails the test."""
    driver.get(f"{url}/health")
    driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    driver.get_log("browser")
    yield Page(driver, url)
    severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    logged = [message for message in severe if "favicon" not in message]  # which Chromium looks for beside /health
    for handle in driver.window_handles[1:]:
        driver.switch_to.window(handle)
        driver.close()
    driver.switch_to.window(driver.window_handles[0])
    assert not logged, logged
