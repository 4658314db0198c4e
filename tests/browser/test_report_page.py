"""The page of a benchmark's results in a real browser. Its numbers are made up."""

from pathlib import Path
from typing import Any

import pytest

from navia.report.page import report_page
from navia.report.tables import Results, Table, tabulate
from tests.browser.conftest import DESK, PHONE
from tests.report.test_results import made_up, made_up_grid, made_up_traces
from tests.report.test_tsne import view

LINES = ["NoAdapt", "Tent", "align", "ToMe_4", "ToMe_8", "NAVIA_4", "NAVIA_8"]


@pytest.fixture(scope="module")
def results() -> Results:
    return tabulate(made_up_grid())


@pytest.fixture(scope="module")
def address(results: Results, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("page") / "index.html", results, made_up_traces(made_up_grid()))


def written(file: Path, results: Results, traces: dict[str, Any]) -> str:
    file.write_text(report_page(results, traces), encoding="utf-8")
    return file.as_uri()


def column_texts(table: Any, heading: str) -> dict[str, str]:
    """First line of each cell below a heading, by the row's name."""
    heads = table.locator("thead th").all_inner_texts()
    at = [" ".join(head.split()) for head in heads].index(heading)
    rows = table.locator("tbody tr").evaluate_all("rows => rows.map(row => Array.from(row.cells, cell => cell.innerText))")
    return {row[0].split("\n")[0]: row[at].split("\n")[0].strip() for row in rows}


def table_of(results: Results) -> Table:
    return results.tables[0]


def test_tables_hold_the_values_that_were_computed(opened: Any, results: Results) -> None:
    table, shown = table_of(results), opened.locator("section table")
    average = column_texts(shown.nth(0), "average")
    assert list(average) == LINES
    for line in table.lines:
        assert average[line.name] == f"{line.value(table.average).mean:.1f}"
        for column in table.columns[:15]:
            assert column_texts(shown.nth(1), column.title)[line.name] == f"{line.value(column).mean:.1f}"
    assert column_texts(shown.nth(0), "paper") == dict(
        zip(LINES, ["55.5", "59.6", "–", "69.9", "68.9", "70.7", "69.8"], strict=True)
    )


def test_bold_is_the_best_and_never_the_papers(opened: Any, results: Results) -> None:
    table = table_of(results)
    top = max(table.lines, key=lambda line: line.value(table.average).mean)
    bold = opened.locator("section table").nth(0).locator("tbody tr").filter(has=opened.locator("strong")).all_inner_texts()
    assert any(text.startswith(top.name) for text in bold)
    place = [
        " ".join(t.split()) for t in opened.locator("section table").nth(0).locator("thead th").all_inner_texts()
    ].index("paper")
    assert opened.locator("section table").nth(0).locator(f"tbody td:nth-child({place + 1}) strong").count() == 0


def test_a_click_on_a_header_sorts_by_the_numbers(opened: Any, results: Results) -> None:
    table, shown = table_of(results), opened.locator("section table").nth(0)
    shown.locator("thead button", has_text="average").click()
    order = sorted(table.lines, key=lambda line: -line.value(table.average).mean)
    assert list(column_texts(shown, "average")) == [line.name for line in order]
    shown.locator("thead button", has_text="ms/image").click()
    fastest = next(iter(column_texts(shown, "ms/image")))
    assert fastest == "NoAdapt"
    shown.locator("thead button", has_text="paper").click()
    assert list(column_texts(shown, "paper"))[-1] == "align"  # what is missing stays below


def test_a_hovered_point_shows_accuracy_groups_cost_and_time(opened: Any, results: Results) -> None:
    table = table_of(results)
    tip = opened.locator(".tip")
    assert not tip.is_visible()
    for line in (line for line in table.lines if line.name in ("NAVIA_8", "Tent", "NoAdapt")):
        point = opened.locator(f".point[aria-label^='{line.name}. ']:visible .hit").first
        point.scroll_into_view_if_needed()
        opened.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = point.bounding_box()
        opened.mouse.move(box["x"] + box["width"] / 2 + 1, box["y"] + box["height"] / 2)
        assert tip.locator("b").inner_text() == line.name
        told = dict(zip(*[tip.locator(f"td:nth-child({i})").all_inner_texts() for i in (1, 2)], strict=True))
        value = line.value(table.average)
        assert told["average, %"].startswith(f"{value.mean:.1f}")
        assert f"({value.low:.1f}–{value.high:.1f})" in told["average, %"]
        assert set(told) >= {"noise, %", "blur, %", "weather, %", "digital, %", "ECE, %", "GMACs", "ms/image"}
        assert told["GMACs"] == ("13.1" if line.name == "NAVIA_8" else "17.6")
        assert ("guard events" in told) == (line.name == "Tent")


def test_every_corruption_has_its_curves(opened: Any) -> None:
    section = opened.locator("section", has=opened.get_by_role("heading", name="Accuracy as the stream goes on"))
    assert section.locator("figure.plot").count() == 15
    plot = section.locator("svg[data-readout]:visible").first
    plot.scroll_into_view_if_needed()
    plot.focus()
    opened.keyboard.press("ArrowRight")
    assert opened.locator(".tip b").inner_text() == "images seen: 1,000"
    assert opened.locator(".tip td:first-child").all_inner_texts() == LINES


def test_the_broken_run_is_shown_with_the_class_that_it_answers(opened: Any) -> None:
    section = opened.locator("section", has=opened.get_by_role("heading", name="Collapsed runs"))
    rows = section.locator("tbody tr").all_inner_texts()
    assert len(rows) == 3
    assert all(row.split()[0] == "Tent" and "fog" in row and "2.0" in row for row in rows)
    assert section.locator("figure.plot").count() == 1  # one of three seeds
    assert section.locator("svg.plot:visible text", has_text="cock").count() == 1
    section.locator("svg.plot:visible").focus()
    for _ in range(8):
        opened.keyboard.press("ArrowLeft")
    assert opened.locator(".tip b").inner_text() == "cock"
    assert opened.locator(".tip td:nth-child(2)").first.inner_text() == "98.5"


def test_the_protocol_of_every_row_opens(opened: Any) -> None:
    section = opened.locator("section", has=opened.get_by_role("heading", name="Protocol"))
    assert section.locator("details details").count() == len(made_up_grid())
    section.locator("summary", has_text="NAVIA_8").click()
    row = section.locator("details[open] details").first
    assert not row.get_by_text("pictures of seed 0").is_visible()
    row.locator("summary").click()
    assert row.get_by_text("pictures of seed 0").is_visible()


@pytest.mark.parametrize("width", [320, 390, 768, 1400])
def test_nothing_runs_off_the_side(browser: Any, address: str, width: int) -> None:
    sheet = browser.new_page(viewport={"width": width, "height": 844})
    sheet.goto(address)
    sheet.evaluate("for (const facts of document.querySelectorAll('details')) facts.open = true")
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if width > 1000:  # the first table uses the margin before it has to be scrolled
        assert sheet.locator(".scroll").first.evaluate("box => box.scrollWidth <= box.clientWidth")
    for box in (plot.bounding_box() for plot in sheet.locator("svg.plot:visible").all()):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    sheet.close()


def test_rows_that_must_not_be_compared_stand_apart_with_the_reason(browser: Any, tmp_path: Path) -> None:
    rows = [
        made_up("none", top1=0.4),
        made_up("tent", top1=0.5),
        made_up("tent", top1=0.3, batch=1),
        made_up("none", batch=1),
    ]
    rows += [
        made_up("tent", top1=0.45, realtime=True, realtime_ratio=2.5),
        made_up("align", top1=0.2, realtime=True, realtime_ratio=3.0),
    ]
    sheet = browser.new_page(viewport=PHONE)
    sheet.goto(written(tmp_path / "index.html", tabulate(rows), made_up_traces(rows)))
    assert sheet.get_by_text("Table 2 is not comparable with table 1: other batch (64 and 1).").is_visible()
    assert sheet.locator("section h2").all_inner_texts()[:2] == [
        "Table 1: timm:made_up on val, severity 5, batch 64",
        "Table 2: timm:made_up on val, severity 5, batch 1",
    ]
    assert sheet.locator("caption", has_text="Under a clock").count() == 1
    first = sheet.locator("table").first
    at = first.locator("th").all_inner_texts().index("in real time")
    cells = [row.locator("td, th").all_inner_texts()[at].split() for row in first.locator("tbody tr").all()]
    assert [own[0] for own in cells] == ["40.0", "45.0"]  # without adaptation no image is missed
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    sheet.close()


def test_a_hovered_point_of_a_tsne_tells_its_class(browser: Any, tmp_path: Path) -> None:
    rows = [made_up("navia", adapt_for=2)]
    traces = made_up_traces(rows)
    traces[rows[0]["key"]]["tsne"] = view(("goldfish", "hen", "junco"), (3, 6, 11))
    for size in (DESK, PHONE):
        sheet = browser.new_page(viewport=size)
        sheet.goto(written(tmp_path / "index.html", tabulate(rows), traces))
        panels = sheet.locator(".panels svg.plot")
        assert panels.count() == 3
        tops = {round(box["y"]) for box in (panel.bounding_box() for panel in panels.all())}
        assert len(tops) == (1 if size == DESK else 3)  # beside each other where there is room
        for number, name in enumerate(("goldfish", "hen", "junco", "goldfish")):
            point = panels.nth(1).locator(".point .hit").nth(number)
            point.scroll_into_view_if_needed()
            sheet.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
            box = point.bounding_box()
            sheet.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            assert sheet.locator(".tip b").inner_text() == name
        assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        sheet.close()


def test_dark_mode_turns_paper_and_ink(browser: Any, address: str) -> None:
    seen = {}
    for scheme in ("light", "dark"):
        sheet = browser.new_page(viewport=DESK, color_scheme=scheme)
        sheet.goto(address)
        colour = sheet.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        seen[scheme] = sum(map(int, colour[4:-1].split(",")))
        sheet.close()
    assert seen["light"] > 700 > 150 > seen["dark"]


def test_page_is_complete_without_a_script(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=DESK)
    sheet = context.new_page()
    sheet.goto(address)
    assert sheet.locator("section table").nth(0).locator("tbody tr").count() == len(LINES)
    assert sheet.locator("svg .point:visible title").count() == 2 * len(LINES)
    context.close()
