"""The demonstration's page in a real browser: it sorts, reads out, fits a phone, follows dark mode, and asks nobody."""

from pathlib import Path
from typing import Any

import pytest
from navia.report.bars import bars
from navia.report.demo_page import demo_page

from navia.report.page import Section, page
from tests.browser.conftest import DESK, PHONE
from tests.report.made_up import RUNS, story


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("page") / "demo.html"
    file.write_text(demo_page(story()), encoding="utf-8")
    return file.as_uri()


def methods(sheet: Any) -> list[str]:
    return sheet.locator("section table tbody th").evaluate_all("cells => cells.map(cell => cell.dataset.key)")


def point_at(sheet: Any, name: str) -> None:
    """Move the mouse to the centre of a point, after the page has come to rest."""
    point = sheet.locator(f".point[aria-label^='{name}. ']:visible .hit")
    point.scroll_into_view_if_needed()
    sheet.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = point.bounding_box()
    sheet.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2)


GIVEN = [f"{method} {reduce}" for method, reduce, *_ in RUNS]


def test_a_click_on_a_header_sorts_and_another_turns_the_order(opened: Any) -> None:
    assert methods(opened) == GIVEN
    head = opened.locator("thead th").nth(3)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    best_first = ["navia tome:2", "align none", "align tome:2", "tent none", "none none"]
    assert methods(opened) == best_first
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert methods(opened) == best_first[::-1]


def test_sorting_by_keyboard_text_and_equal_values(opened: Any) -> None:
    opened.locator("thead button").nth(0).focus()
    opened.keyboard.press("Enter")
    assert methods(opened) == sorted(GIVEN)
    opened.locator("thead button").nth(4).focus()
    opened.keyboard.press("Space")
    cheap = ["align tome:2", "navia tome:2"]
    assert methods(opened) == [*cheap, *(name for name in sorted(GIVEN) if name not in cheap)]  # equal ones keep their order
    assert opened.locator("thead th").nth(0).get_attribute("aria-sort") == "none"


def test_a_hovered_point_is_read_out(opened: Any) -> None:
    tip = opened.locator(".tip")
    assert not tip.is_visible()
    for name, words in (("align + tome:2", "66.0 (61.1–70.9)"), ("navia + tome:2", "70.0 (65.2–74.8)"), ("tent", "1.12")):
        point_at(opened, name)
        assert tip.is_visible()
        assert name == tip.locator("b").inner_text()
        assert words in tip.inner_text()
    opened.mouse.move(5, 5)
    assert not tip.is_visible()


def test_arrow_keys_go_from_point_to_point(opened: Any) -> None:
    opened.locator(".point[tabindex='0']:visible").focus()
    opened.keyboard.press("ArrowRight")
    first = opened.locator(".tip b").inner_text()
    opened.keyboard.press("ArrowRight")
    second = opened.locator(".tip b").inner_text()
    assert first != second
    opened.keyboard.press("ArrowLeft")
    assert opened.locator(".tip b").inner_text() == first
    opened.keyboard.press("Escape")
    assert not opened.locator(".tip").is_visible()


def test_lines_are_read_out_at_the_nearest_place(opened: Any) -> None:
    plot = opened.locator("svg[data-readout]:visible").first
    plot.scroll_into_view_if_needed()
    opened.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = plot.bounding_box()
    opened.mouse.move(box["x"] + 0.97 * box["width"], box["y"] + 0.5 * box["height"])
    assert opened.locator(".tip b").inner_text() == "images seen: 176"
    assert opened.locator(".tip td:first-child").all_inner_texts() == [row.name for row in story().rows]
    opened.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 0.5 * box["height"])
    assert opened.locator(".tip b").inner_text() == "images seen: 32"
    assert opened.locator(".guide[visibility='visible']").count() == 1
    plot.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.locator(".tip b").inner_text() == "images seen: 64"


@pytest.mark.parametrize("width", [320, 390, 768, 1100])
def test_nothing_runs_off_the_side(browser: Any, address: str, width: int) -> None:
    sheet = browser.new_page(viewport={"width": width, "height": 844})
    sheet.goto(address)
    sheet.locator("summary").click()
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shown = sheet.locator("svg.plot:visible")
    assert shown.count() == 3  # one of the two layouts of each plot
    for box in (shown.nth(i).bounding_box() for i in range(3)):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    smallest = sheet.evaluate(
        "Math.min(...[...document.querySelectorAll('svg.plot')].filter(plot => plot.clientWidth)"
        ".map(plot => 12 * plot.clientWidth / plot.viewBox.baseVal.width))"
    )
    assert smallest >= 9  # pixels of the type in the plots
    sheet.close()


def test_turned_names_below_bars_stay_on_a_phone(browser: Any, tmp_path: Path) -> None:
    groups = [f"a corruption with a long name {i}" for i in range(15)]
    file = tmp_path / "bars.html"
    file.write_text(page("t", "l", [Section("s", bars(groups, {"a": [50.0] * 15, "b": [40.0] * 15}, "y", "t"))]))
    sheet = browser.new_page(viewport=PHONE)
    sheet.goto(file.as_uri())
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    lefts = sheet.evaluate("[...document.querySelectorAll('.narrow text')].map(text => text.getBoundingClientRect().left)")
    assert len(lefts) > 15
    assert min(lefts) >= 0
    sheet.close()


def test_names_in_a_plot_do_not_overlap(opened: Any) -> None:
    """With the type that this browser really uses."""
    boxes = opened.evaluate(
        "[...document.querySelectorAll('.wide .name')].map(name => name.getBoundingClientRect()).filter(box => box.width)"
        ".map(box => [box.left, box.top + 2, box.right, box.bottom - 2])"
    )
    assert len(boxes) == 5
    for i, a in enumerate(boxes):
        assert all(a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1] for b in boxes[i + 1 :])


def test_dark_mode_turns_paper_and_ink(browser: Any, address: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        sheet = browser.new_page(viewport=DESK, color_scheme=scheme)
        sheet.goto(address)
        style = "getComputedStyle(document.documentElement)"
        seen[scheme] = sheet.evaluate(f"[{style}.backgroundColor, {style}.color]")
        sheet.close()
    brightness = {key: [sum(map(int, c[4:-1].split(","))) for c in colours] for key, colours in seen.items()}
    assert brightness["light"][0] > 700 > 150 > brightness["light"][1]
    assert brightness["dark"][0] < 150 < 600 < brightness["dark"][1]


def test_page_is_complete_without_a_script(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=DESK)
    sheet = context.new_page()
    sheet.goto(address)
    assert sheet.locator("section table tbody tr").count() == len(RUNS)
    assert sheet.locator("section table").is_visible()
    assert sheet.locator("svg.plot:visible").count() == 3
    assert sheet.locator("svg .point:visible title").count() == len(RUNS)
    assert sheet.locator("thead button").first.is_disabled()
    sheet.locator("summary").click()
    assert sheet.get_by_text("before every shift").is_visible()
    context.close()


def test_facts_are_printed_though_closed(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    sheet = context.new_page()
    sheet.goto(address)
    answer = sheet.get_by_text("before every shift")
    assert not answer.is_visible()
    sheet.emulate_media(media="print", color_scheme="dark")
    assert answer.bounding_box()["height"] > 0
    assert sheet.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    context.close()


def test_pictures_are_loaded_and_sharp(opened: Any) -> None:
    facts = opened.evaluate(
        "[...document.images].map(image => [image.naturalWidth, image.clientWidth, getComputedStyle(image).imageRendering])"
    )
    assert len(facts) == 15
    assert all(natural == 28 and shown > 60 and rendering == "pixelated" for natural, shown, rendering in facts)
