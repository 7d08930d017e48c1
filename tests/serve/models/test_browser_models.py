"""The page of a server of several models in headless Chromium: one is chosen, and answers."""

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.serve.chromium import Page, browser
from tests.serve.conftest import SETTINGS
from tests.serve.models.conftest import loaded, several
from tokenmill import load

pytestmark = pytest.mark.browser


def test_a_model_is_chosen_and_answers(paths, tmp_path):
    with several(paths, room=1, options={"session_dir": tmp_path / "sessions"}) as server, browser(tmp_path) as driver:
        page = Page(driver, server.url)
        page.set("temperature", 0)
        page.set("max_tokens", 8)
        page.one("#message").send_keys("w1 w2", Keys.ENTER)
        page.until(lambda: len(page.texts()) == 2 and page.texts()[1])
        page.until_done()
        assert loaded(server) == ["words"]
        Select(page.one("#models")).select_by_value("other")
        page.one("#new") if page.one("#conversations").is_displayed() else page.one("#open-conversations").click()
        page.one("#new").click()
        page.one("#message").send_keys("w1 w2", Keys.ENTER)
        page.until(lambda: len(page.texts()) == 2 and page.texts()[1])
        page.until_done()
        assert loaded(server) == ["other"]
        with load(paths["other"], **SETTINGS, speculate="off") as quiet:
            wanted = quiet.chat([{"role": "user", "content": "w1 w2"}], max_new_tokens=8).text
        assert page.texts() == ["w1 w2", wanted]
        driver.refresh()
        page.until(lambda: page.text("#model"))
        assert Select(page.one("#models")).first_selected_option.text == "other"
        assert not page.errors()


def test_one_model_has_no_choice(paths, tmp_path):
    with several({"words": paths["words"]}) as server, browser(tmp_path) as driver:
        page = Page(driver, server.url)
        assert not page.one("#models").is_displayed() and page.text("#model") == "words, 96 tokens"
