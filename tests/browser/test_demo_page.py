"""The page of `navia demo` in a real browser: a real run of the embedded model. It sorts, fits, prints, asks nobody."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from navia.cli.main import app
from tests.browser.conftest import DESK, PHONE
from tests.browser.test_report_page import chart, column_texts, point_at, told

GIVEN = ["no adaptation", "align", "navia", "align + tome:8", "navia + tome:8"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    file: Path = tmp_path_factory.mktemp("page") / "demo.html"
    run = ["demo", "-n", "64", "-b", "32", "--corruption", "contrast", "--corruption", "brightness"]
    result = CliRunner().invoke(app, [*run, "--json", "--out", str(file)], catch_exceptions=False)
    return file, json.loads(result.stdout)


@pytest.fixture(scope="module")
def address(demo: tuple[Path, list[dict[str, Any]]]) -> str:
    return demo[0].as_uri()


def methods(sheet: Any) -> list[str]:
    return sheet.locator("section table").first.locator("tbody th").all_inner_texts()


def test_the_numbers_are_those_of_the_run(opened: Any, demo: tuple[Path, list[dict[str, Any]]]) -> None:
    table = opened.locator("section table").first
    assert methods(opened) == GIVEN
    for title in ("contrast", "brightness"):
        found = list(column_texts(table, title).values())
        assert found == [f"{100 * row['top1'][title]:.1f}" for row in demo[1]]
    assert list(column_texts(table, "average").values()) == [f"{100 * row['mean']:.1f}" for row in demo[1]]


def test_it_begins_with_an_introduction_and_examples_and_ends_with_next_steps(opened: Any) -> None:
    assert opened.locator("h1").inner_text() == "navia: what shift costs, and what adaptation gives back"
    heads = opened.locator("section h2").all_inner_texts()
    assert heads[0] == "What the data look like"
    assert heads[-2:] == ["What to try next", "Protocol"]
    rows = opened.locator(".images")
    assert rows.locator("h3").all_inner_texts() == ["clean", "brightness", "contrast"]
    assert rows.nth(0).locator("img").count() == 5
    captions = rows.nth(1).locator("figcaption").all_inner_texts()
    truths = rows.nth(0).locator("figcaption").all_inner_texts()
    for caption, truth in zip(captions, truths, strict=True):
        name, before, after = caption.split("\n")
        assert name == truth
        for said, when in ((before, "before"), (after, "after")):
            word, mark, predicted = said.split(" ", 2)
            assert (word, mark) == (when, "✓" if predicted == truth else "✗")
    assert "navia evaluate embedded" in opened.locator("pre").first.inner_text()


def test_a_click_on_a_header_sorts_and_another_turns_the_order(opened: Any, demo: tuple[Path, Any]) -> None:
    head = opened.locator("section table").first.locator("thead th").nth(3)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    means = [float(text) for text in column_texts(opened.locator("section table").first, "average").values()]
    assert means == sorted(means, reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    means = [float(text) for text in column_texts(opened.locator("section table").first, "average").values()]
    assert means == sorted(means)


def test_sorting_by_keyboard_and_text(opened: Any) -> None:
    button = opened.locator("section table").first.locator("thead button").nth(0)
    button.focus()
    opened.keyboard.press("Enter")
    assert methods(opened) == sorted(GIVEN)


def test_points_and_lines_are_read_out(opened: Any, demo: tuple[Path, list[dict[str, Any]]]) -> None:
    canvas = chart(opened, "against milliseconds")
    point_at(opened, canvas, 1, 0)
    assert canvas.locator(".tip b").inner_text() == "align"
    assert told(canvas)["average, %"].startswith(f"{100 * demo[1][1]['mean']:.1f} (")
    opened.mouse.move(5, 5)
    curve = chart(opened, "Contrast")
    point_at(opened, curve, 0, 1)
    assert curve.locator(".tip b").inner_text() == "images seen: 64"
    assert list(told(curve)) == GIVEN


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_printed(browser: Any, address: str, size: dict[str, int], scheme: Any) -> None:
    sheet = browser.new_page(viewport=size, color_scheme=scheme)
    sheet.goto(address)
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for canvas in sheet.locator(".canvas").all():
        canvas.scroll_into_view_if_needed()
        box = canvas.locator("svg").bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= size["width"]
    assert len(sheet.pdf()) > 20_000
    sheet.close()
