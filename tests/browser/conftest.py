"""A browser, and a page opened in it. The page is each module's own: its fixture `address`."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = os.environ.get("NAVIA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DESK, PHONE = {"width": 1100, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="no browser driver: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium: install it, or set NAVIA_CHROMIUM to the program")
    with driver.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Any]:
    """The page on a desk. Whatever a test does, it must leave no error and no request."""
    context = browser.new_context(viewport=DESK)
    sheet, complaints, requests = context.new_page(), [], []
    sheet.on("console", lambda message: complaints.append(message.text))
    sheet.on("pageerror", lambda error: complaints.append(str(error)))
    sheet.on("request", lambda request: requests.append(request.url))
    sheet.goto(address)
    yield sheet
    assert complaints == []
    assert [url for url in requests if url != address and not url.startswith("data:")] == []
    context.close()
