"""The page of a benchmark's results in a real browser. Its numbers are made up."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
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


def chart(sheet: Any, title: str) -> Any:
    """The drawn canvas of a chart."""
    canvas = sheet.locator("figure.chart", has=sheet.locator("figcaption", has_text=title)).first.locator(".canvas")
    canvas.scroll_into_view_if_needed()
    canvas.locator("svg").wait_for()
    return canvas


def point_at(sheet: Any, canvas: Any, series: int, point: int) -> None:
    """Move the mouse to a point of a chart."""
    sheet.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    place = canvas.evaluate(
        """(canvas, [series, point]) => {
            const data = canvas.chart.getOption().series[series].data[point];
            const [x, y] = canvas.chart.convertToPixel({ seriesIndex: series }, data);
            const box = canvas.getBoundingClientRect();
            return [box.x + x, box.y + y];
        }""",
        [series, point],
    )
    sheet.mouse.move(*place)


def told(canvas: Any) -> dict[str, str]:
    """The rows of the tooltip."""
    return dict(zip(*[canvas.locator(f".tip td:nth-child({i})").all_inner_texts() for i in (1, 2)], strict=True))


def test_a_hovered_point_shows_accuracy_groups_cost_and_time(opened: Any, results: Results) -> None:
    table = table_of(results)
    canvas = chart(opened, "against multiply-accumulates")
    assert not canvas.locator(".tip").is_visible()
    methods = list(dict.fromkeys(line.setting.method for line in table.lines))
    for line in (line for line in table.lines if line.name in ("NAVIA_8", "Tent", "NoAdapt")):
        own = [other.name for other in table.lines if other.setting.method == line.setting.method]
        point_at(opened, canvas, methods.index(line.setting.method), own.index(line.name))
        assert canvas.locator(".tip b").inner_text() == line.name
        said = told(canvas)
        value = line.value(table.average)
        assert said["average, %"] == f"{value.mean:.1f} ({value.low:.1f}–{value.high:.1f})"
        assert set(said) >= {"noise, %", "blur, %", "weather, %", "digital, %", "ECE, %", "GMACs", "ms/image"}
        assert said["GMACs"] == ("13.1" if line.name == "NAVIA_8" else "17.6")
        assert ("guard events" in said) == (line.name == "Tent")


def test_arrow_keys_go_from_point_to_point_and_are_spoken(opened: Any) -> None:
    canvas = chart(opened, "against multiply-accumulates")
    canvas.focus()
    names = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        opened.keyboard.press(key)
        names.append(canvas.locator(".tip b").inner_text())
        assert opened.locator(".said[role=status]").inner_text().startswith(names[-1])
    assert names == ["NoAdapt", "Tent", "NoAdapt"]
    opened.keyboard.press("Escape")
    canvas.locator(".tip").wait_for(state="hidden")


def test_every_chart_has_error_bars_a_description_and_its_data_as_a_table(opened: Any, results: Results) -> None:
    table = table_of(results)
    canvas = chart(opened, "against multiply-accumulates")
    bars = canvas.evaluate("canvas => canvas.chart.getOption().series.find(one => one.type === 'custom').data")
    ends = [(round(low, 3), round(high, 3)) for _, low, high, _ in bars]
    values = [line.value(table.average) for line in table.lines]
    assert sorted(ends) == sorted((round(float(f"{v.low:.6g}"), 3), round(float(f"{v.high:.6g}"), 3)) for v in values)
    assert canvas.get_attribute("aria-label").startswith("Mean accuracy over 15 domains against multiply-accumulates")
    data = canvas.locator("xpath=..").locator("details.data")
    data.locator("summary").click()
    data.locator("tr").first.wait_for()
    rows = [row.split("\t") for row in data.locator("tr").all_inner_texts()]
    assert [row[0].strip() for row in rows[1:]] == [line.name for line in sorted_by_method(table)]


def sorted_by_method(table: Table) -> list[Any]:
    methods = list(dict.fromkeys(line.setting.method for line in table.lines))
    return sorted(table.lines, key=lambda line: methods.index(line.setting.method))


def test_every_corruption_has_its_curves(opened: Any) -> None:
    section = opened.locator("section", has=opened.get_by_role("heading", name="Accuracy along the stream"))
    assert section.locator("figure.chart").count() == 15
    assert section.locator(".legend li").all_inner_texts() == LINES
    canvas = chart(opened, "Gaussian noise")
    canvas.focus()
    opened.keyboard.press("ArrowLeft")
    assert canvas.locator(".tip b").inner_text() == "images seen: 1,000"
    assert list(told(canvas)) == LINES


def test_signs_differ_without_colour(opened: Any) -> None:
    """In shape, and for lines in dashes too, at least for as many as there are here."""
    canvas = chart(opened, "Gaussian noise")
    series = canvas.evaluate(
        "canvas => canvas.chart.getOption().series.map(one => [one.symbol, String(one.lineStyle.type)])"
    )
    assert len(series) == len({tuple(sign) for sign in series}) == len(LINES)


def test_the_broken_run_is_shown_with_the_class_that_it_predicts(opened: Any) -> None:
    section = opened.locator("section", has=opened.get_by_role("heading", name="Collapsed runs"))
    rows = section.locator("tbody tr").all_inner_texts()
    assert len(rows) == 3
    assert all(row.split()[0] == "Tent" and "fog" in row and "2.0" in row for row in rows)
    assert section.locator("figure.chart").count() == 1  # one of three seeds
    canvas = chart(opened, "Tent on fog")
    assert canvas.locator("svg text", has_text="cock").count() == 1
    canvas.focus()
    opened.keyboard.press("ArrowDown")
    assert canvas.locator(".tip b").inner_text() == "cock"
    assert told(canvas)["Tent"] == "98.5"


def test_every_row_is_listed_and_can_be_downloaded(opened: Any) -> None:
    section = opened.locator("section", has=opened.get_by_role("heading", name="Protocol"))
    rows = made_up_grid()
    section.locator("summary", has_text=f"{len(rows)} rows").click()
    assert section.locator("details[open] tbody tr").count() == len(rows)
    with opened.expect_download() as download:
        section.get_by_role("link", name="rows.jsonl.gz").click()
    saved = [json.loads(line) for line in gzip.decompress(Path(download.value.path()).read_bytes()).splitlines()]
    assert {row["key"]: row for row in saved} == {row["key"]: row for row in rows}


@pytest.mark.parametrize("width", [320, 390, 768, 1400])
def test_nothing_runs_off_the_side(browser: Any, address: str, width: int) -> None:
    sheet = browser.new_page(viewport={"width": width, "height": 844})
    sheet.goto(address)
    sheet.evaluate("for (const facts of document.querySelectorAll('details')) facts.open = true")
    assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    if width > 1000:  # the first table uses the margin before it has to be scrolled
        assert sheet.locator(".scroll").first.evaluate("box => box.scrollWidth <= box.clientWidth")
    for canvas in sheet.locator(".canvas").all():
        canvas.scroll_into_view_if_needed()
        box = canvas.locator("svg").bounding_box()
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
    assert sheet.locator("caption", has_text="In real time").count() == 1
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
        panels = sheet.locator(".maps .canvas")
        assert panels.count() == 3
        tops = {round(box["y"]) for box in (panel.bounding_box() for panel in panels.all())}
        assert len(tops) == (1 if size == DESK else 3)  # beside each other where there is room
        canvas = panels.nth(1)
        canvas.scroll_into_view_if_needed()
        canvas.locator("svg").wait_for()
        for number, name in enumerate(("goldfish", "hen", "junco")):
            for point in (0, 1):
                point_at(sheet, canvas, number, point)
                assert canvas.locator(".tip b").inner_text() == name
        assert sheet.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        sheet.close()


def luminance(colour: str) -> float:
    """Relative luminance of "rgb(…)" or "#…"."""
    parts = re.findall(r"\d+", colour)[:3] if colour.startswith("rgb") else [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    value = np.array(parts, dtype=float) / 255
    return float(np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_dark_mode_turns_page_and_charts(browser: Any, address: str) -> None:
    """Also when it is switched while the page is open: texts and marks have contrast in both."""
    sheet = browser.new_page(viewport=DESK, color_scheme="light")
    sheet.goto(address)
    seen = {}
    for scheme in ("light", "dark"):
        sheet.emulate_media(color_scheme=scheme)
        paper = sheet.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        seen[scheme] = luminance(paper)
        canvas = chart(sheet, "against multiply-accumulates")
        sheet.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        texts = canvas.locator("svg text").evaluate_all("texts => texts.map(text => text.getAttribute('fill'))")
        assert len(texts) > len(LINES)
        assert min(contrast(colour, paper) for colour in texts) >= 4.5
        series = canvas.evaluate("({ chart }) => chart.getOption().series")
        marks = [one["itemStyle"]["color"] for one in series if one["type"] == "scatter"]
        assert min(contrast(colour, paper) for colour in marks) >= 3
    sheet.close()
    assert seen["light"] > 0.9
    assert seen["dark"] < 0.02


def test_tables_are_complete_without_a_script(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=DESK)
    sheet = context.new_page()
    sheet.goto(address)
    assert sheet.locator("section table").nth(0).locator("tbody tr").count() == len(LINES)
    assert sheet.get_by_text("Charts and sorting need JavaScript").is_visible()
    context.close()
