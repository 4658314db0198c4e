"""What was measured of speed as a figure and as a section of the page. All numbers are made up."""

import json
from pathlib import Path
from typing import Any

import pytest

from navia.errors import InputError
from navia.report.index_page import index_page
from navia.report.results import tabulate
from navia.report.speed import by_setting, read_speed, save_speed, speed_page, speed_section, stream_text
from tests.report.test_page import EVIL, Parsed, body_of
from tests.report.test_results import made_up, run_command


def row(name: str, ratio: float, batch: int = 8, **changes: Any) -> dict[str, Any]:
    method, _, reduce = name.partition(", ")
    library = name.startswith("timm")
    return {
        "model": "vit_made_up", "options": {}, "batch": batch, "name": name, "rounds": 3, "reduce": reduce or "none",
        "call": "forward" if "forward" in name else "step", "method": "timm" if library else method,
        "ms_per_image": 40 * ratio, "ratio": ratio, "low": 0.95 * ratio, "high": 1.1 * ratio, "best": 0.98 * ratio,
        "macs": 0.75, "products": 0.9 * ratio, "gflops": 50.0, "gflops_bare": 80.0, "share": 0.625, "kept": None,
        "guard": None, "peak_mib": 123.4, "allocated_mib": None, **changes,
    }  # fmt: skip


def speed(*more: dict[str, Any]) -> dict[str, Any]:
    rows = [row("timm forward", 1.0), row("forward, tome:8", 0.7), row("timm step", 2.4), row("navia, tome:8", 1.6), *more]
    return {
        "versions": {"navia": "0.1.0", "torch": "2.13"}, "cpu": "a made-up one", "cores": 2, "threads": 2, "rows": rows,
        "command": "--preset quick",
        "stream": {
            "name": "embedded, navia, tome:16", "batch": 8, "steps": 10000,
            "ms_per_step": {"first": 50.0, "last": 50.5, "slope": 0.01},
            "resident_mib": {"first": 500.0, "last": 501.0, "slope": 0.02},
        },
        "foa": [
            {"model": "embedded", "reduce": "tome:8", "diagonal": diagonal, "ms_per_batch": 900.0, "search_share": 0.2,
             "top1": 0.6, "top1_none": None}
            for diagonal in (False, True)
        ],
    }  # fmt: skip


def test_the_section_shows_every_row_as_bar_and_as_line() -> None:
    section = speed_section(speed(row("timm forward", 1.0, batch=64), row("align, none", 2.2, batch=64)))
    parsed = Parsed(section.body_html)
    assert section.title == "Speed"
    assert len(parsed.all("rect", "bar")) == 2 * 6  # for wide and narrow places
    assert len(parsed.all("table")) == 2 * 2 + 1
    said = parsed.said()
    for words in ("vit_made_up, batch 8", "vit_made_up, batch 64", "navia, tome:8", "a made-up one", "variances only"):
        assert words in said
    assert "10,000 steps" in said
    assert "[1.52, 1.76]" in said
    assert "–" in said  # of the allocations that were not measured


def test_rows_of_one_setting_stand_together() -> None:
    rows = [row("timm forward", 1.0), row("navia, tome:8", 1.5), row("timm forward", 1.0, options={"img_size": 384})]
    assert [(title, len(own)) for title, own in by_setting(rows)] == [
        ("vit_made_up, batch 8", 2),
        ("vit_made_up, img size 384, batch 8", 1),
    ]


def test_texts_are_escaped() -> None:
    html = speed_page(speed(row(EVIL, 1.0, model=EVIL)) | {"cpu": EVIL})
    Parsed(html)
    assert "<script>alert" not in body_of(html)


def test_the_figure_is_written_and_the_same_each_time(tmp_path: Path) -> None:
    paths = save_speed(speed(row("align, none", 2.2, batch=64)), tmp_path / "new")
    assert [path.name for path in paths] == ["speed.png", "speed.svg"]
    assert all(path.stat().st_size > 2000 for path in paths)
    drawn = paths[1].read_bytes()
    assert b"navia, tome:8" in drawn
    save_speed(speed(row("align, none", 2.2, batch=64)), tmp_path / "new")
    assert paths[1].read_bytes() == drawn
    assert save_speed(speed() | {"rows": []}, tmp_path) == []


def test_the_page_of_results_has_the_section_where_there_is_something_to_show() -> None:
    results = tabulate([made_up()])
    assert "Speed" in Parsed(index_page(results, {}, speed=speed())).said("h2")
    assert "Speed" not in Parsed(index_page(results, {})).said("h2")


@pytest.mark.parametrize("with_rows", [True, False])
def test_navia_report_finds_it(tmp_path: Path, with_rows: bool) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(speed()))
    if with_rows:
        (tmp_path / "rows.jsonl").write_text(json.dumps(made_up()) + "\n")
    result = run_command(str(tmp_path))
    assert result.exit_code == 0, result.output
    html = (tmp_path / "report" / "index.html").read_text()
    assert "Speed" in Parsed(html).said("h2")
    assert {"speed.png", "speed.svg"} <= {path.name for path in (tmp_path / "report").iterdir()}
    assert ("Protocol" in Parsed(html).said("h2")) == with_rows


def test_navia_report_tells_of_it_as_json(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(speed()))
    told = json.loads(run_command(str(tmp_path), "--json").stdout)
    assert told["speed"] == speed()
    assert all(Path(path).exists() for path in told["files"])


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        "[]",
        "{}",
        '{"rows": 3}',
        '{"rows": [{}]}',
        json.dumps(speed(row("align, none", 2.0, call="nothing"))),
        json.dumps(speed(row("align, none", 2.0, high=None))),
        json.dumps(speed() | {"stream": {}}),
        json.dumps(speed() | {"foa": [{}]}),
    ],
)
def test_files_that_are_something_else_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "speed.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"speed\.json"):
        read_speed(path)
    assert run_command(str(tmp_path)).exit_code != 0


def test_the_stream_is_told_in_one_sentence() -> None:
    assert "500 MiB, then 501 (+0.020 in 1,000 steps)" in stream_text(speed()["stream"])
