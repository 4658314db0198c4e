"""Rows of a benchmark as tables, figures and a page. Rows of `made_up` are invented; those of `real` come from the grid."""

import copy
import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from navia.bench.grid import run_grid
from navia.bench.presets import TABLES, label_of, published, reference
from navia.bench.store import Store
from navia.cli.report import report
from navia.data.corruptions import CORRUPTIONS, names
from navia.errors import InputError, SpecError
from navia.evaluation.metrics import wilson
from navia.report.charts import (
    Chart,
    Figure,
    Point,
    Series,
    convergence,
    figures,
    rate_sweeps,
    reduction_sweeps,
    relative,
    running_accuracy,
    select_lines,
)
from navia.report.compare import best, collapses, effective_classes, interval_text
from navia.report.figures import draw_figure, draw_figures, style
from navia.report.files import LIST, read_rows, save_text, write_files
from navia.report.images import example_images, parse_preprocessing
from navia.report.lines import Column, Line, over_seeds, t95
from navia.report.markup import csv_text, latex_table, markdown, page_markdown
from navia.report.page import report_page
from navia.report.published import has_paper, paper
from navia.report.tables import Results, Table, domain_of, tabulate
from navia.report.text import how_to_read, missing_text, summary
from tests.report.test_page import body_of, charts_of, rows_of

SPEC = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [gaussian_noise, contrast], severity: 3, images: 12}]
source: {images: 8}
runs:
  - {method: none}
  - {method: tent}
  - {method: navia, reduce: [tome:8], options: {eta_delta: 0.001}, label: slow}
  - {method: navia, reduce: [tome:8], options: {eta_delta: 0.1}, label: fast}
  - {method: tent, realtime: true}
  - {method: align, reduce: [tome:8], adapt_for: [1, 2]}
seeds: [0, 1]
batch: 4
"""
NUMBER = re.compile(r"[-−]?\d+(?:\.\d+)?")


# ---- invented rows


def made_up(
    method: str = "none", domain: str = "fog", top1: float = 0.5, *, reduce: str = "none", seed: int = 0, **changes: Any
) -> dict[str, Any]:
    """A row as `navia bench` writes it, with an invented result of 1,000 images."""
    correct = round(1000 * top1) if math.isfinite(top1) else 0
    low, high = wilson(correct, 1000)
    prints = {
        "weights": "w" * 16,
        "preprocessing": "shorter side to 256 px (bicubic), centre crop 224x224, mean (0.5, 0.5, 0.5), std (1, 1, 1) [a]",
        "data": "imagenet, made here",
        "pictures": f"pictures of seed {seed}",
        "images": 1000,
        "classes": 1000,
        "reset": "reset",
        "source": {"images": 64, "reduce": reduce},
        "versions": {"navia": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "threads": 1,
    }
    row = {
        "model": "timm:made_up", "checkpoint": None, "crop_only": False, "data": "nowhere/val", "domain": domain,
        "domains": [domain], "corrupted": True, "severity": 5, "stream": "reset", "images": None, "label_shift": None,
        "source_images": 64,
        "source_path": None, "method": method, "reduce": reduce, "realtime": False, "adapt_for": None, "seed": seed,
        "batch": 64, "label": None, "options": {}, "realtime_ratio": None, "count": 1000, "correct": correct,
        "top1": top1, "top5": min(1.0, top1 + 0.2), "ece": 0.1 + 0.1 * top1, "nll": 2.0, "low": low, "high": high,
        "gmacs": 17.6 if reduce == "none" else 13.1, "gmacs_paper": 16.8, "trainable": 0, "ms_per_image": 9.5,
        "peak_mib": 300.0, "guard": [],
        "finished": "2026-01-01T00:00:00", "wall_seconds": 3.0, "fingerprint": prints,
    }  # fmt: skip
    for name, value in changes.items():
        (prints if name in prints and name not in ("data", "images") else row)[name] = value
    place = [method, domain, reduce, seed, changes.get("realtime"), changes.get("adapt_for"), row["options"], row["label"]]
    return {"key": json.dumps(place).replace("/", "-"), **row}


def fingerprinted(row: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The same row with another fingerprint."""
    changed = copy.deepcopy(row)
    changed["fingerprint"] |= changes
    return changed


def made_up_grid() -> list[dict[str, Any]]:
    """All 15 corruptions and three seeds, as of Table 1: with and without labels, reduced and dense, one that breaks."""
    rng = np.random.default_rng(0)
    lines = [
        ("none", "none", "NoAdapt", 0.40, 9.4),
        ("tent", "none", "Tent", 0.46, 25.0),
        ("align", "none", None, 0.58, 26.1),
        ("align", "tome:4", "ToMe_4", 0.57, 23.0),
        ("align", "tome:8", "ToMe_8", 0.56, 20.2),
        ("navia", "tome:4", "NAVIA_4", 0.59, 23.4),
        ("navia", "tome:8", "NAVIA_8", 0.58, 20.6),
    ]
    costs = {"none": 17.6, "tome:4": 15.4, "tome:8": 13.1}
    rows = []
    for method, reduce, label, level, ms in lines:
        for domain in names():
            for seed in range(1 if method == "none" else 3):
                broken = method == "tent" and domain == "fog"
                top1 = 0.02 if broken else level + 0.1 * math.sin(len(domain)) + 0.01 * rng.normal()
                price = {"gmacs": costs[reduce], "ms_per_image": ms + rng.normal(0, 0.2)}
                guard = ["batch 4: rolled back, one class for all"] if broken and seed == 1 else []
                rows.append(
                    made_up(method, domain, round(top1, 3), reduce=reduce, seed=seed, label=label, guard=guard, **price)
                )
    return rows


def made_up_traces(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Sixteen batches that scatter around the accuracy; a broken row answers with a single class."""
    rng = np.random.default_rng(1)
    sizes = [64] * 15 + [40]
    traces = {}
    for row in rows:
        share = row["top1"] if math.isfinite(row["top1"]) else 0.0
        predicted = rng.multinomial(1000, np.full(1000, 1e-3))
        if share < 0.05:
            predicted = np.bincount([7] * 985 + [8] * 15, minlength=1000)
        traces[row["key"]] = {
            "right": [int(rng.binomial(size, share)) for size in sizes],
            "images": sizes,
            "predicted": predicted.tolist(),
        }
    return traces


def only(results: Results) -> Table:
    assert len(results.tables) == 1, results.apart
    return results.tables[0]


def column(table: Table, name: str) -> Column:
    return next(c for c in table.columns if c.name == name)


def line(table: Table, name: str) -> Line:
    return next(x for x in table.lines if x.name == name)


# ---- values


@pytest.mark.parametrize("count", [2, 3, 5, 10, 31, 32, 40, 100, 1000])
def test_quantiles_are_those_of_students_t(count: int) -> None:
    assert t95(count) == pytest.approx(stats.t.ppf(0.975, count - 1), abs=2e-5)


def test_an_interval_over_seeds_is_students() -> None:
    values = np.random.default_rng(0).normal(50, 3, 5)
    found = over_seeds(list(values))
    low, high = stats.t.interval(0.95, 4, loc=values.mean(), scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((values.mean(), low, high), abs=1e-4)
    assert found.seeds == 5
    assert found.interval == "t"
    with pytest.raises(InputError):
        t95(1)


def test_one_seed_has_the_rows_wilson_interval_and_five_have_students() -> None:
    rows = [made_up("none", top1=0.4), *(made_up("tent", top1=0.5 + 0.01 * s, seed=s) for s in range(5))]
    table = only(tabulate(rows))
    fog = column(table, "fog")
    none, tent = line(table, "no adaptation").value(fog), line(table, "tent").value(fog)
    assert none.interval == "wilson"
    assert (none.low, none.high) == pytest.approx([100 * end for end in wilson(400, 1000)])
    assert tent.interval == "t"
    assert tent.mean == pytest.approx(52)
    assert tent.high == pytest.approx(52 + stats.t.ppf(0.975, 4) * math.sqrt(2.5 / 5), abs=1e-4)
    assert interval_text(tent).startswith("± ")
    assert "–" in interval_text(none)
    text = page_markdown(tabulate(rows))
    assert "means over 5 seeds" in text
    assert "by Student's t" in text
    assert "Wilson" in text


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ([("tent", {}), ("sar", {})], "before the update from its image."),
        ([("lame", {})], "before the update from its image; LAME fits it to the batch itself, without labels."),
        (
            [("lame", {}), ("sar", {"variant": "foa"}), ("foa", {})],
            "; FOA, LAME and SAR with variant=foa fit it to the batch",
        ),
    ],
)
def test_methods_that_look_at_the_batch_before_they_answer_are_named(settings: list[Any], told: str) -> None:
    table = only(tabulate([made_up(method, options=options) for method, options in settings]))
    assert told in how_to_read(table)[0]


def test_forwards_that_are_not_counted_are_named() -> None:
    left_out = ", without the views that CoTTA averages where the source model has low confidence."
    assert "GMACs are of the forward passes for one image." in how_to_read(only(tabulate([made_up("tent")])))
    said = " ".join(how_to_read(only(tabulate([made_up("tent"), made_up("cotta")]))))
    assert f"GMACs are of the forward passes for one image{left_out}" in said


def test_rows_that_the_guard_changed_are_named() -> None:
    rows = [made_up("none"), made_up("tent")]
    assert "The guard was on and never acted." in how_to_read(only(tabulate(rows)))
    rows += [
        made_up("sar", "fog", guard=["batch 2: restored"]),
        made_up("deyo", "snow", label="Y", guard=["batch 3: restored"]),
    ]
    rows += [made_up("deyo", "fog", label="Y")]
    said = " ".join(how_to_read(only(tabulate(rows))))
    assert "The guard was on and acted: sar on fog; Y on snow." in said
    alone = only(tabulate([made_up("none"), {**made_up("tent"), "guarded": False}]))
    assert "The guard was off, as in the published methods" in " ".join(how_to_read(alone))


# ---- columns


def test_averages_are_over_corruptions_as_numpy_says() -> None:
    rows = made_up_grid()
    table = only(tabulate(rows))
    assert [c.name for c in table.columns] == [
        *names(),
        "noise",
        "blur",
        "weather",
        "digital",
        "average",
        "ece",
        "gmacs",
        "ms",
        "memory",
    ]
    for label in ("NoAdapt", "NAVIA_8"):
        own = [row for row in rows if row["label"] == label]
        scores = {d: 100 * np.mean([row["top1"] for row in own if row["domain"] == d]) for d in names()}
        for group in ("noise", "blur", "weather", "digital"):
            mean = np.mean([scores[d] for d in CORRUPTIONS[group]])
            assert line(table, label).value(column(table, group)).mean == pytest.approx(mean)
        assert line(table, label).value(table.average).mean == pytest.approx(np.mean(list(scores.values())))
        errors = [np.mean([100 * row["ece"] for row in own if row["domain"] == d]) for d in names()]
        assert line(table, label).value(column(table, "ece")).mean == pytest.approx(np.mean(errors))
        assert line(table, label).value(column(table, "ms")).mean == pytest.approx(
            np.median([row["ms_per_image"] for row in own])
        )
    by_seed = [100 * np.mean([r["top1"] for r in rows if r["label"] == "NAVIA_8" and r["seed"] == s]) for s in range(3)]
    value = line(table, "NAVIA_8").value(table.average)
    assert (value.lowest_seed, value.highest_seed) == pytest.approx((min(by_seed), max(by_seed)))
    assert (value.low, value.high) == pytest.approx([100 * end for end in wilson(10 * value.mean, 1000)])


def test_an_average_with_a_missing_member_is_a_dash() -> None:
    rows = [r for r in made_up_grid() if not (r["label"] == "ToMe_4" and r["domain"] == "snow")]
    table = only(tabulate(rows))
    short = line(table, "ToMe_4")
    for name, known in (
        ("snow", False),
        ("weather", False),
        ("average", False),
        ("ece", False),
        ("noise", True),
        ("fog", True),
    ):
        assert (short.value(column(table, name)).mean is not None) == known, name
    assert line(table, "NAVIA_4").value(table.average).mean is not None
    row = next(text for text in markdown(table).splitlines() if text.startswith("| ToMe\\_4 |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert [cells[1 + i] for i, c in enumerate(table.columns) if c.name in ("snow", "weather", "average", "ece")] == [
        "–"
    ] * 4
    assert len(table.missing()) == 3
    assert missing_text(tabulate(rows)) == "3 cells have no row, or not yet: ToMe_4 on snow (seeds 0, 1, 2)."
    assert missing_text(tabulate(made_up_grid())) == "Every line has a row for every domain and seed."


def test_accuracy_in_real_time_is_a_column_beside_the_average() -> None:
    """Also where the clocked run has a label of its own; no adaptation is never late, and what was not run has a dash."""
    plain = [made_up("none", domain, 0.3) for domain in ("fog", "snow")]
    plain += [made_up("navia", domain, 0.6, reduce="tome:8") for domain in ("fog", "snow")]
    late = []
    for seed, domain in ((seed, domain) for seed in (0, 1) for domain in ("fog", "snow")):
        plain.append(made_up("tent", domain, 0.50, seed=seed))
        top1 = 0.40 + 0.02 * seed + 0.1 * (domain == "snow")
        late.append(made_up("tent", domain, top1, seed=seed, realtime=True, realtime_ratio=1.7, label="too late"))
    table = only(tabulate(plain + late))
    clock = column(table, "in real time")
    assert [c.kind for c in table.summed[:3]] == ["average", "clock", "ece"]
    value = line(table, "tent").value(clock)
    assert (value.mean, value.lowest_seed, value.highest_seed) == pytest.approx((46, 45, 47))
    assert line(table, "no adaptation").value(clock).mean == 30.0
    assert line(table, "navia + tome:8").value(clock).mean is None
    first, second = markdown(table).split("\n\n**In real time:")
    assert "| average | in real time | ECE" in first
    assert re.search(r"\| tent \|.*\| 50.0 \(46.9–53.1\) \| \*\*46.0\*\* \(42.9–49.1\) \|", first)
    assert "in real time" not in second
    assert "too late" in second
    assert any("at the rate of the source model without reduction" in said for said in how_to_read(table))
    found = [row for row in csv.DictReader(io.StringIO(csv_text(table))) if row["quantity"] == "in real time"]
    assert [(row["line"], row["kind"], float(row["value"])) for row in found] == [
        ("no adaptation", "top1", 30.0),
        ("tent", "top1", 46.0),
    ]
    assert "real" in latex_table(table)


def test_real_time_of_a_single_domain_has_the_interval_of_its_row() -> None:
    rows = [made_up("tent", "fog", 0.5), made_up("tent", "fog", 0.4, realtime=True, realtime_ratio=1.7)]
    table = only(tabulate(rows))
    value = line(table, "tent").value(column(table, "in real time"))
    assert (value.mean, value.interval) == (40.0, "wilson")


def test_without_a_pair_there_is_no_column_of_real_time() -> None:
    """The lines under a clock say it themselves."""
    for rows in ([made_up("tent")], [made_up("none"), made_up("tent", realtime=True, realtime_ratio=1.7)]):
        assert "in real time" not in [c.name for c in only(tabulate(rows)).columns]


def test_domains_come_in_the_papers_order_and_few_of_them_have_no_groups() -> None:
    rows = [made_up(domain=d) for d in ("contrast", "fog", "gaussian_noise", "speckle_noise")]
    table = only(tabulate(rows))
    accuracies = [c.name for c in table.columns if c.is_accuracy]
    assert accuracies == ["gaussian_noise", "fog", "contrast", "speckle_noise", "average"]
    whole = only(tabulate([made_up(domain=d) for d in names(extra=True)]))
    assert whole.average.name == "average of 15"
    assert whole.average.members == names()


def test_parts_of_a_downloaded_imagenet_c_are_domains_of_their_severity() -> None:
    found = {"corrupted": False, "severity": 0}
    rows = [made_up(domain=f"{d}/{s}", **found) for d in ("fog", "snow") for s in (3, 5)]
    assert domain_of(rows[0]) == ("fog", 3)
    tables = tabulate(rows).tables
    assert [t.domains for t in tables] == [("snow", "fog")] * 2
    assert [t.protocol["severity"] for t in tables] == [3, 5]


# ---- what may be compared


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"weights": "other"}, "other weights (wwwwwwwwwwwwwwww and other)"),
        ({"preprocessing": "centre crop 224x224"}, "other preprocessing"),
        ({"classes": 200}, "other classes (1000 and 200)"),
        ({"reset": "continual"}, "other reset policy"),
        ({"versions": {"navia": "0.2.0", "torch": "2.13.0"}}, "other version of navia (0.1.0 and 0.2.0)"),
        ({"pictures": "others"}, "other images or another order of them (seed 0)"),
        ({"images": 999}, "another number of images (1,000 and 999)"),
    ],
)
def test_another_fingerprint_makes_another_table_and_is_named(change: dict[str, Any], word: str) -> None:
    results = tabulate([made_up("none"), made_up("tent"), fingerprinted(made_up("align"), **change)])
    assert [len(t.lines) for t in results.tables] == [2, 1]
    assert len(results.apart) == 1
    assert word in results.apart[0]
    assert results.apart[0] in report_page(results, {}).replace("&#x27;", "'")
    assert results.apart[0] in page_markdown(results)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "timm:other"}, {"data": "elsewhere/val"}, {"severity": 3}, {"stream": "mixed"}, {"images": 500},
        {"batch": 32}, {"source_images": 32}, {"source_path": "clean"}, {"label_shift": 0.1},
    ],
)  # fmt: skip
def test_another_protocol_makes_another_table(change: dict[str, Any]) -> None:
    results = tabulate([made_up("none"), made_up("tent", **change)])
    assert len(results.tables) == 2
    assert "not comparable with table 1: other " in results.apart[0]


def test_what_belongs_to_a_line_or_to_the_clock_does_not_part_tables() -> None:
    threads = fingerprinted(made_up("tent"), threads=8)
    results = tabulate([made_up("none"), threads, made_up("navia", reduce="tome:8", options={"budget": 3}), made_up(seed=1)])
    assert len(results.tables) == 1
    assert "different numbers of threads: do not compare their times" in page_markdown(results)


def test_equal_pictures_are_asked_of_every_made_corruption_but_not_of_found_parts() -> None:
    made = [made_up(domain="fog"), fingerprinted(made_up(domain="snow"), pictures="others")]
    assert len(tabulate(made).tables) == 2
    found = [{**row, "corrupted": False, "severity": 0, "domain": f"{row['domain']}/5"} for row in made]
    assert len(tabulate(found).tables) == 1


def test_paths_are_short_unless_they_would_read_the_same() -> None:
    one, other = made_up(data="/a/b/val"), made_up(data="/a/c/train")
    assert "(val and train)" in tabulate([one, other]).apart[0]
    assert "(/a/b/val and /x/val)" in tabulate([one, made_up(data="/x/val")]).apart[0]
    assert "/a" not in page_markdown(tabulate([one]))


def test_tables_of_one_title_tell_what_differs() -> None:
    tables = tabulate([made_up(), made_up("tent", batch=1), made_up("tent", model="timm:other")]).tables
    assert [t.title for t in tables] == [
        "timm:made_up on val, severity 5, batch 64",
        "timm:made_up on val, severity 5, batch 1",
        "timm:other on val, severity 5",
    ]


def test_the_summary_names_the_best_lines_and_no_adaptation() -> None:
    rows = [made_up("none", top1=0.4), made_up("align", top1=0.6), made_up("tent", top1=0.60001), made_up("sar", top1=0.5)]
    told = summary(tabulate(rows))
    assert told.startswith("timm:made_up: 4 rows of 4 settings. Highest on fog: align and tent, 60.0 % (")
    assert "; no adaptation: 40.0 % (" in told
    assert "Table 2: highest" not in summary(tabulate([*rows, made_up("tent", batch=1)]))  # one line is no contest


def test_a_cell_that_was_run_twice_counts_once() -> None:
    rows = [made_up("tent", top1=0.5), {**made_up("tent", top1=0.6), "key": "later"}]
    table = only(tabulate(rows))
    assert line(table, "tent").value(column(table, "fog")).mean == pytest.approx(60)
    assert "Run more than once" in page_markdown(tabulate(rows))


# ---- the best


def test_the_best_is_bold_within_its_block() -> None:
    rows = [
        made_up("none", top1=0.4),
        made_up("align", top1=0.6),
        made_up("tent", top1=0.5),
        made_up("tent", top1=0.45, realtime=True, realtime_ratio=2.6),
        made_up("align", top1=0.44, realtime=True, realtime_ratio=2.8),
    ]
    table = only(tabulate(rows))
    assert [len(block.lines) for block in table.blocks] == [3, 2]
    fog = column(table, "fog")
    assert [best(block, fog) for block in table.blocks] == [[False, True, False], [True, False]]
    assert best(table.blocks[0], column(table, "ece")) == [True, False, False]  # the lowest error, not the highest
    assert best(table.blocks[0], column(table, "gmacs")) == [False] * 3  # all the same
    text = markdown(table)
    assert "| **60.0** (" in text
    assert "| **45.0** (" in text
    assert "| 50.0 (" in text
    assert "\\textbf{60.0}" in latex_table(table)
    assert "\\textbf{50.0}" not in latex_table(table)


def test_values_that_read_the_same_are_both_the_best() -> None:
    rows = [made_up("none", top1=0.3), made_up("tent", top1=0.60001), made_up("align", top1=0.60002)]
    table = only(tabulate(rows))
    assert best(table.blocks[0], column(table, "fog")) == [False, True, True]
    assert best(only(tabulate(rows[1:])).blocks[0], column(table, "fog")) == [False, False]


def test_nan_is_a_dash_and_never_the_best(tmp_path: Path) -> None:
    nan = math.nan
    rows = [
        made_up("none", top1=0.3),
        made_up("align", top1=0.4),
        made_up("tent", top1=nan, low=nan, high=nan, ece=nan, gmacs=nan, ms_per_image=nan),
    ]
    rows += [made_up("navia", top1=0.4), made_up("navia", top1=nan, seed=1)]
    results = tabulate(rows)
    table = only(results)
    assert best(table.blocks[0], column(table, "fog")) == [False, True, False, False]
    assert line(table, "navia").value(column(table, "fog")).mean is None
    html = body_of(report_page(results, made_up_traces(rows)))
    for text in (page_markdown(results), latex_table(table), csv_text(table), html):
        assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    assert "| tent | – | – | – | – |" in markdown(table)
    assert save_figures(results, made_up_traces(rows), tmp_path)


def test_one_label_for_several_settings_is_told_apart() -> None:
    rows = [made_up("align", label="x"), made_up("navia", label="x"), made_up("tent", label="y")]
    assert [x.name for x in only(tabulate(rows)).lines] == ["x: align", "x: navia", "y"]


# ---- Markdown, CSV


def test_csv_gives_the_same_numbers_back() -> None:
    table = only(tabulate(made_up_grid()))
    rows = list(csv.DictReader(io.StringIO(csv_text(table))))
    for x in table.lines:
        for c in table.columns:
            (found,) = [row for row in rows if row["line"] == x.name and row["quantity"] == c.name]
            value = x.value(c)
            assert float(found["value"]) == value.mean
            assert (found["low"], found["high"]) == (
                "" if value.low is None else repr(value.low),
                "" if value.high is None else repr(value.high),
            )
            assert found["interval"] == (value.interval or "")
    assert json.loads(rows[0]["options"]) == {}


def test_csv_has_the_same_median_as_the_page() -> None:
    rows = [made_up("tent", realtime=True, realtime_ratio=ratio, seed=seed) for seed, ratio in enumerate((1.0, 3.0))]
    table = only(tabulate(rows))
    told = csv.DictReader(io.StringIO(csv_text(table)))
    assert [float(row["value"]) for row in told if row["quantity"] == "realtime_ratio"] == [2.0]
    assert table.lines[0].median("realtime_ratio") == 2.0


def test_markdown_shows_the_tables_values_and_escapes_names() -> None:
    rows = [*made_up_grid(), made_up("lame", label="a|b*c")]
    table = only(tabulate(rows))
    text = markdown(table)
    lines = text.splitlines()
    assert len(lines) == 2 + len(table.lines)
    assert {len(re.split(r"(?<!\\)\|", row)) for row in lines} == {len(table.columns) + 3}
    assert "a\\|b\\*c" in text
    shown = [NUMBER.search(cell)[0] for cell in lines[2 + 6].split("|")[2:-1]]
    assert [float(number) for number in shown[:15]] == [
        pytest.approx(line(table, "NAVIA_8").value(column(table, d)).mean, abs=0.051) for d in names()
    ]


def test_page_of_results_names_everything_missing() -> None:
    text = page_markdown(tabulate(made_up_grid()[:-1]))
    assert "NAVIA_8 on jpeg compression (seed 2)" in text
    assert "## timm:made_up on val, severity 5" in text


# ---- the paper's numbers


def test_published_averages_are_those_of_the_published_values() -> None:
    checked = 0
    for entry in reference("table1").values():
        if all(name in entry.values for name in names()):
            assert np.mean([entry.values[name] for name in names()]) == pytest.approx(entry.values["imagenet-c"], abs=0.1)
            checked += 1
    assert checked == 9
    assert reference("table2")["EATA"].values["imagenet-v2"] == 0.6
    with pytest.raises(SpecError, match="no published values"):
        reference("table9")


def test_every_published_label_is_one_of_the_preset() -> None:
    from navia.bench.presets import load_spec

    for name in TABLES:
        spec = load_spec(f"paper-{name}")
        assert spec.reference == name
        assert set(reference(name)) <= {run.label for run in spec.runs}
    assert published("NAVIA_8").values["imagenet-c"] == 69.8
    assert published("NAVIA_8").values["imagenet-r"] == 68.4
    assert published("Tent").values["fog"] == 2.3
    assert published("unheard of") is None
    assert label_of("align", "tome:8", {}) == "ToMe_8"
    assert label_of("align", "tome:9", {}) is None


def test_paper_values_stand_beside_ours_where_the_protocol_is_the_papers() -> None:
    results = tabulate(made_up_grid())
    table = only(results)
    assert paper(table, line(table, "NoAdapt"), column(table, "fog")) == 65.7
    assert paper(table, line(table, "NAVIA_4"), table.average) == 70.7
    assert paper(table, line(table, "NAVIA_4"), column(table, "noise")) == pytest.approx((64.2 + 65.9 + 65.7) / 3)
    assert paper(table, line(table, "NAVIA_4"), column(table, "gmacs")) is None
    assert paper(table, line(table, "align"), table.average) is None
    assert "augreg2" in report_page(results, {})
    assert "paper of FOA" not in page_markdown(results)  # that note is on Table 2
    row = next(r for r in csv.DictReader(io.StringIO(csv_text(table))) if r["line"] == "Tent" and r["quantity"] == "fog")
    assert row["paper"] == "2.3"
    assert "| paper |" in markdown(table, with_paper=True)
    unlabelled = only(tabulate([{**row, "label": None} for row in made_up_grid()]))
    assert paper(unlabelled, line(unlabelled, "navia + tome:8"), unlabelled.average) == 69.8
    for change in ({"severity": 3}, {"stream": "continual"}, {"realtime": True}, {"label_shift": 0.5}):
        assert not has_paper(only(tabulate([{**row, **change} for row in made_up_grid()])))
    assert not has_paper(only(tabulate([fingerprinted(row, classes=10) for row in made_up_grid()])))
    few = only(tabulate([row for row in made_up_grid() if row["domain"] in ("fog", "snow")]))
    assert paper(few, line(few, "NAVIA_4"), few.average) is None
    assert paper(few, line(few, "NAVIA_4"), column(few, "fog")) == 76.9


@pytest.mark.parametrize(
    ("kind", "folder", "classes", "value"), [("imagenet-r", "r", 200, 68.4), ("imagenet", "imagenet-sketch", 1000, 53.4)]
)
def test_paper_values_of_whole_data_sets(kind: str, folder: str, classes: int, value: float) -> None:
    row = made_up("navia", folder, reduce="tome:8", label="NAVIA_8", corrupted=False, severity=0)
    table = only(tabulate([fingerprinted(row, data=f"{kind}, as found", classes=classes)]))
    assert paper(table, table.lines[0], table.average) == value
    tent = fingerprinted(row | {"method": "tent", "label": "Tent"}, data=f"{kind}, as found", classes=classes)
    assert ("paper of FOA" in page_markdown(tabulate([tent]))) == (kind == "imagenet")


# ---- collapse, sweeps, curves


@pytest.mark.parametrize(("counts", "expected"), [([5, 5, 5, 5], 4), ([9, 0, 0], 1), ([4, 3, 2, 1], None)])
def test_effective_classes(counts: list[int], expected: float | None) -> None:
    entropy = stats.entropy(np.array(counts) / sum(counts))
    assert effective_classes({"key": "a"}, {"a": {"predicted": counts}}) == pytest.approx(expected or np.exp(entropy))


def test_without_predictions_there_are_no_effective_classes() -> None:
    assert effective_classes({"key": "a"}, {"a": {"predicted": []}}) is None
    assert effective_classes({"key": "a"}, {}) is None
    assert effective_classes(None, {}) is None


def test_collapsed_rows_are_found_for_each_of_the_three_signs() -> None:
    rows = [made_up("none", top1=0.4), made_up("align", top1=0.36), made_up("tent", top1=0.34)]
    rows += [made_up("sar", top1=0.41, guard=["batch 2: rolled back"]), made_up("eata", top1=0.41)]
    traces = made_up_traces(rows)
    traces[rows[4]["key"]]["predicted"] = [500, 500] + [0] * 998
    assert [c.line.name for c in collapses(only(tabulate(rows)), traces)] == ["tent", "sar", "eata"]


def test_rates_are_swept_where_lines_differ_in_nothing_else() -> None:
    rows = [
        made_up("navia", top1=t, options={"eta_delta": e}, label=f"e={e}")
        for e, t in ((1e-3, 0.5), (1e-2, 0.6), (1e-1, 0.3))
    ]
    rows += [made_up("navia", top1=0.1, options={"eta_delta": 1.0, "budget": 2})]
    table = only(tabulate(rows))
    (sweep,) = rate_sweeps(table, "eta_delta")
    assert [x for x, _ in sweep.lines] == [1e-3, 1e-2, 1e-1]
    assert rate_sweeps(table, "eta_delta_l") == []
    fog = column(table, "fog")
    assert relative([x.value(fog).mean for _, x in sweep.lines]) == pytest.approx([2 / 3, 1, 0])
    assert all(map(math.isnan, relative([3.0, 3.0])))
    assert relative([1.0, None, 3.0])[::2] == [0, 1]
    assert "rates-eta_delta" in [figure.name for figure in figures(table, {})]


def test_reducers_are_swept_per_method() -> None:
    costs = {"none": 17.6, "tome:4": 15.4, "tome:8": 13.1}
    rows = [made_up(m, top1=0.5, reduce=r, gmacs=c) for m in ("align", "navia") for r, c in costs.items()]
    sweeps = reduction_sweeps(only(tabulate(rows)))
    assert [(s.name, [x for x, _ in s.lines]) for s in sweeps] == [(m, [13.1, 15.4, 17.6]) for m in ("align", "navia")]
    assert reduction_sweeps(only(tabulate([r for r in rows if r["reduce"] != "tome:4"]))) == []


def test_methods_of_interleaved_costs_are_each_one_line_on_the_page() -> None:
    """No two points of different methods share their place."""
    costs = {"none": 17.6, "tome:4": 15.4, "tome:8": 13.1}
    rows = [
        made_up(m, top1=0.5, reduce=r, gmacs=c + more)
        for m, more in (("align", 0), ("navia", 0.3))
        for r, c in costs.items()
    ]
    html = report_page(tabulate(rows), {})
    (swept,) = [chart for chart in charts_of(html) if chart["title"] == "Each method over its reducers, by cost"]
    assert [(series["name"], len(series["points"])) for series in swept["series"]] == [("align", 3), ("navia", 3)]


def test_of_too_many_lines_the_best_of_each_method_is_drawn() -> None:
    rows = [made_up(m, top1=0.3 + 0.01 * r, reduce=f"tome:{r}") for m in ("align", "navia") for r in range(1, 10)]
    table = only(tabulate(rows))
    assert [x.name for x in select_lines(table, table.blocks[0])] == ["align + tome:9", "navia + tome:9"]
    few = only(tabulate(rows[:9]))
    assert select_lines(few, few.blocks[0]) == few.lines


def test_curves_along_the_stream_count_images_and_average_seeds() -> None:
    rows = [made_up("tent", seed=s) for s in range(2)]
    traces = {
        row["key"]: {"right": right, "images": [10, 10, 5]} for row, right in zip(rows, ([1, 2, 5], [3, 2, 5]), strict=True)
    }
    (tent,) = only(tabulate(rows)).lines
    assert running_accuracy(tent, "fog", traces) == pytest.approx({10: 20, 20: 20, 25: 36})
    long = {rows[0]["key"]: {"right": [1] * 500, "images": [2] * 500}}
    curve = running_accuracy(tent, "fog", long)
    assert len(curve) <= 50
    assert list(curve)[-1] == 1000
    assert running_accuracy(tent, "snow", traces) == {}


def save_figures(results: Results, traces: Any, folder: Path) -> list[Path]:
    return write_files(folder, draw_figures(results, traces))


def test_a_line_has_one_colour_in_all_panels() -> None:
    curves = {"a": Series("a", [Point(1, 2), Point(2, 3)]), "b": Series("b", [Point(1, 3), Point(2, 4)])}
    charts = [Chart("line", "t", "x", "y", [curves[name] for name in names]) for names in ("b", "ab")]
    with style():
        first, second = draw_figure(Figure("f", "stream", charts, 2)).axes
    colours = {line.get_label(): line.get_color() for line in second.lines}
    assert first.lines[0].get_color() == colours["b"] != colours["a"]


@pytest.mark.slow
def test_figures_of_an_earlier_report_go_and_other_files_stay(tmp_path: Path) -> None:
    """Whatever their names are: only what the report has listed is its own."""
    kept = [tmp_path / name for name in ("table1-mine.png", "table1-running-notes.png", "table7-running.svg", "speed.png")]
    for path in kept:
        path.write_text("mine")
    rows = [row for row in made_up_grid() if row["domain"] in ("fog", "snow")]
    drawn = save_figures(tabulate(rows), made_up_traces(rows), tmp_path)
    kinds = {path.stem.removeprefix("table1-") for path in drawn}
    assert kinds == {"accuracy-cost", "accuracy-latency", "domains", "running", "tradeoff-cost", "tradeoff-latency"}
    before = [path.read_bytes() for path in drawn if path.suffix == ".svg"]
    again = save_figures(tabulate(rows), made_up_traces(rows), tmp_path)
    assert [path.read_bytes() for path in again if path.suffix == ".svg"] == before
    fewer = save_figures(tabulate(rows), {}, tmp_path)
    gone = set(drawn) - set(fewer)
    assert {path.name for path in gone} == {"table1-running.png", "table1-running.svg"}
    assert not any(path.exists() for path in gone)
    assert all(path.read_text() == "mine" for path in kept)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["results.md", "index.html", "table1-domains.png", "table1-running.svg"])
def test_a_file_of_the_user_is_not_overwritten(name: str, tmp_path: Path) -> None:
    rows = [made_up(domain="fog"), made_up("tent", domain="fog")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for key, trace in made_up_traces(rows).items():
        (tmp_path / "traces").mkdir(exist_ok=True)
        (tmp_path / "traces" / f"{key}.json").write_text(json.dumps(trace))
    out = tmp_path / "report"
    out.mkdir()
    (out / name).write_text("mine")
    refused = run_command(str(tmp_path))
    assert isinstance(refused.exception, InputError)
    assert f"{name}' is there already" in str(refused.exception)
    assert (out / name).read_text() == "mine"
    (out / name).unlink()
    for _ in range(2):  # after a report that was not finished, and after a finished one
        assert run_command(str(tmp_path)).exit_code == 0
    assert (out / name).read_bytes() != b"mine"


def test_a_list_of_files_that_leads_elsewhere_deletes_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LIST).write_text(json.dumps({"files": ["../mine", str(tmp_path / "mine")]}))
    save_figures(tabulate([made_up()]), {}, tmp_path / "out")
    assert (tmp_path / "mine").exists()
    (tmp_path / "out" / LIST).write_text("nonsense")
    with pytest.raises(InputError, match=r"navia-report\.json' is no list of files"):
        save_figures(tabulate([made_up()]), {}, tmp_path / "out")


@pytest.mark.slow
def test_groups_of_corruptions_are_drawn_with_their_numbers(tmp_path: Path) -> None:
    """15 bars have room for numbers, 45 do not."""
    rows = [
        made_up(method, name, 0.1 * i + 0.011 * j)
        for i, method in enumerate(("none", "tent", "align"), 1)
        for j, name in enumerate(names())
    ]
    drawn = save_figures(tabulate(rows), made_up_traces(rows), tmp_path)
    written = {
        path.name: re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()) for path in drawn if path.suffix == ".svg"
    }
    table = only(tabulate(rows))
    for title in ("noise", "blur", "weather", "digital", "average"):
        assert title in written["table1-groups.svg"]
        for one in table.lines:
            assert f"{one.value(column(table, title)).mean:.1f}" in written["table1-groups.svg"]
    assert "glass blur" in written["table1-domains.svg"]
    assert f"{line(table, 'tent').value(column(table, 'glass_blur')).mean:.1f}" not in written["table1-domains.svg"]


def test_domains_with_dots_and_capitals_keep_their_names(tmp_path: Path) -> None:
    rows = [
        made_up("tent", name, adapt_for=2, corrupted=False, severity=0) for name in ("ImageNet-R v1.0", "ImageNet-R v1.5")
    ]
    traces = made_up_traces(rows)
    points = {"block": 0, "neighbours": 0.5, "points": [[0, 0], [1, 1]]}
    for trace in traces.values():
        trace["tsne"] = {"names": ["cat", "dog"], "labels": [0, 1], "panels": [points]}
    drawn = {path.name for path in save_figures(tabulate(rows), traces, tmp_path) if "tsne" in path.name}
    assert drawn == {f"table1-tsne-ImageNet-R v1.{i}.{kind}" for i in (0, 5) for kind in ("png", "svg")}
    assert "ImageNet-R v1.5: 2 images" in report_page(tabulate(rows), traces)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write '.*file/page\.html'"):
        save_text(tmp_path / "file" / "page.html", "text")
    (tmp_path / "rows.jsonl").write_text(json.dumps(made_up()) + "\n")
    result = run_command(str(tmp_path), "--out", str(tmp_path / "file" / "report"))
    assert isinstance(result.exception, InputError)
    assert "cannot write " in str(result.exception)


# ---- rows of a real grid


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from navia.bench.spec import parse_spec

    folder = tmp_path_factory.mktemp("grid")
    list(run_grid(parse_spec(SPEC, "test.yaml"), Store(folder)))
    return folder


def run_command(*arguments: str) -> Any:
    import typer

    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.slow
def test_a_real_grid_becomes_a_whole_report(real: Path) -> None:
    result = run_command(str(real))
    assert result.exit_code == 0, result.output
    out = real / "report"
    assert {path.name for path in out.iterdir() if path.suffix not in (".png", ".svg")} == {
        "results.md", "results.tex", "results.csv", "index.html", LIST,
    }  # fmt: skip
    drawn = {path.stem.removeprefix("table1-") for path in out.glob("*.png")}
    assert drawn == {path.stem.removeprefix("table1-") for path in out.glob("*.svg")}
    assert {"accuracy-cost", "accuracy-latency", "domains", "running", "convergence", "rates-eta_delta"} <= drawn
    assert all(path.stat().st_size > 2000 for path in out.glob("table1-*"))
    html = (out / "index.html").read_text()
    rows = read_rows(real)[0]
    assert {row["key"]: row for row in rows_of(html)} == {row["key"]: row for row in rows}
    assert all(row["key"] in html for row in rows)
    table = only(tabulate(rows))
    assert [block.title.split(":")[0].split(",")[0] for block in table.blocks] == [
        "",
        "In real time",
        "Adapted to the first batches",
    ]
    tent = [row["top1"] for row in rows if row["method"] == "tent" and row["domain"] == "contrast" and not row["realtime"]]
    assert len(tent) == 2
    mean = 100 * sum(tent) / 2
    assert line(table, "tent").value(column(table, "contrast")).mean == pytest.approx(mean)
    assert f"{mean:.1f}" in (out / "results.md").read_text()
    assert len(convergence(table)) == 1
    assert "data:image/png;base64" in html  # examples of the embedded sample
    assert [path.name for path in out.iterdir() if path.name.endswith(".navia-part")] == []


@pytest.mark.slow
def test_json_holds_every_value(real: Path, tmp_path: Path) -> None:
    result = run_command(str(real), "--json", "--out", str(tmp_path / "elsewhere"))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    table = only(tabulate(read_rows(real)[0]))
    lines = [x for block in told["tables"][0]["blocks"] for x in block["lines"]]
    assert [x["name"] for x in lines] == [x.name for x in table.lines]
    assert lines[1]["values"]["contrast"]["mean"] == table.lines[1].value(column(table, "contrast")).mean
    assert all(Path(path).exists() for path in told["files"])
    assert (tmp_path / "elsewhere" / "index.html").exists()


@pytest.mark.slow
def test_examples_show_clean_and_corrupted_pictures(real: Path) -> None:
    shown, note = example_images(tabulate(read_rows(real)[0]), {})
    assert [row.title for row in shown] == ["clean", "gaussian noise", "contrast"]
    assert "Cropped as the model sees them" in note
    clean, noisy, flat = (np.stack(row.images).astype(float) for row in shown)
    assert clean.shape == noisy.shape == (5, 28, 28)
    assert np.abs(clean - noisy).mean() > 5
    assert flat.std(axis=(1, 2)).mean() < clean.std(axis=(1, 2)).mean()


def test_data_that_is_gone_is_noted() -> None:
    shown, note = example_images(tabulate([made_up()]), {})
    assert shown == []
    assert "No images of timm:made_up on val, severity 5: no folder 'nowhere/val'" in note
    assert "no folder" in report_page(tabulate([made_up()]), {}, (shown, note))


def test_the_crop_is_read_from_the_rows_description(golden_vit: Any) -> None:
    from navia.data.preprocessing import Preprocessing

    for given in (
        golden_vit.preprocessing,
        Preprocessing((224, 192), (0.5,) * 3, (0.5,) * 3, (256, 240), "bilinear"),
        Preprocessing((28, 28), (0.3,), (0.4,), None),
    ):
        read = parse_preprocessing(given.describe())
        assert (read.size, read.resize, len(read.mean)) == (given.size, given.resize, len(given.mean))
        assert given.resize is None or read.interpolation == given.interpolation


@pytest.mark.slow
def test_a_running_benchmark_is_read_without_its_last_half_line_or_missing_traces(real: Path, tmp_path: Path) -> None:
    lines = (real / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:50])
    (tmp_path / "traces").mkdir()
    key = json.loads(lines[0])["key"]
    (tmp_path / "traces" / f"{key}.json").write_bytes((real / "traces" / f"{key}.json").read_bytes())
    with Store(tmp_path / "other").writing():
        pass
    rows, traces, notes = read_rows(tmp_path)
    assert (len(rows), list(traces)) == (3, [key])
    assert notes == ["2 of 3 rows have no readable trace: their curves and histograms are not drawn."]
    with Store(tmp_path).writing():  # the writer's lock is held, and does not matter
        assert run_command(str(tmp_path)).exit_code == 0
    assert "2 of 3 rows have no readable trace" in (tmp_path / "report" / "index.html").read_text()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "no rows in"),
        (b"", "no rows in"),
        (b"nonsense\n", "line 1 of .* is no row"),
        (b"\xff\xfe\n", "rows.jsonl"),
        (b"[1, 2]\n", "line 1 of .* is no row"),
        (b"{}\n", "line 1 of .* it has no key, model, data"),
        (b'{"key": "a"}\n', "line 1 of .* it has no model, data, domain"),
    ],
)
def test_broken_rows_are_refused_in_words(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "rows.jsonl").write_bytes(content)
    result = run_command(str(tmp_path))
    assert isinstance(result.exception, InputError)
    assert re.search(words, str(result.exception))


def test_a_row_without_its_fingerprint_is_named(tmp_path: Path) -> None:
    broken = made_up("tent")
    del broken["fingerprint"]["weights"]
    with pytest.raises(InputError, match=r"line 2 of the rows .* no fingerprint\.weights"):
        tabulate([made_up(), broken])
    result = run_command(str(tmp_path / "nowhere"))
    assert "no folder" in str(result.exception)


def test_the_papers_gflops_stand_beside_ours_and_are_no_accuracy() -> None:
    rows = [
        made_up("navia", "fog", 0.7, reduce="tome:8", label="NAVIA_8", gmacs_paper=12.2211),
        made_up("foa", "fog", 0.7, label="FOA", gmacs_paper=446.485),
    ]
    page = page_markdown(tabulate(rows))
    assert "GFLOPs, paper's count" in page
    assert "| NAVIA\\_8 | 70.0 / 76.4 | 12.2 / 12.2 |" in page
    assert "| FOA | 70.0 / 73.4 | 446 / 446 |" in page
    table = only(tabulate(rows))
    assert all(paper(table, one, c) != 12.22 for one in table.lines for c in table.columns)
