"""Named data sets of one spec are columns of one table, with the mean over them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from navia.data.corruptions import names
from navia.report.compare import difference, paired
from navia.report.markup import csv_text, latex_table, markdown, page_markdown
from navia.report.page import report_page
from navia.report.published import has_paper, paper
from navia.report.tables import Table, tabulate
from navia.report.text import missing_text, setting_text
from tests.report.test_compare import drawn, with_images
from tests.report.test_results import fingerprinted, line, made_up, only, run_command

Row = dict[str, Any]
SHOWN = {"imagenet-r": 200, "imagenet-v2": 1000, "imagenet-sketch": 1000}


def of(dataset: str, method: str = "none", top1: float = 0.5, domain: str | None = None, **changes: Any) -> Row:
    """A row of a named data set: corruptions are generated, the others have one part."""
    generated = dataset == "imagenet-c"
    row = made_up(
        method, domain or dataset, top1, dataset=dataset, corrupted=generated, severity=5 if generated else 0,
        source_path="imagenet/val", **changes,
    )  # fmt: skip
    row |= {"data": f"sets/{dataset}", "key": f"{dataset} {row['key']}"}
    images = 10_000 if dataset == "imagenet-v2" else 1000
    row = fingerprinted(row, data="imagenet, made here" if generated else "imagenet", images=images)
    return fingerprinted(row, classes=SHOWN.get(dataset, 1000), pictures=f"{dataset} {row['fingerprint']['pictures']}")


def spec_of(rows: list[Row], name: str = "table2") -> dict[str, Any]:
    return {"name": name, "order": 0, "spec": {}, "cells": rows}


def four(**changes: Any) -> list[Row]:
    """ImageNet-C with its fifteen corruptions, and the three others."""
    shares = {"none": 0.5, "align": 0.6}
    labels = {"none": "NoAdapt", "align": "ToMe_8"}
    places = [*(("imagenet-c", domain) for domain in names()), *((name, None) for name in SHOWN)]
    return [
        of(dataset, method, share + 0.1 * (dataset == "imagenet-r"), domain, label=labels[method], **changes)
        for method, share in shares.items()
        for dataset, domain in places
    ]


def columns(table: Table) -> list[str]:
    return [column.title for column in table.main if column.is_accuracy]


def test_data_sets_of_a_spec_are_columns_and_count_equally() -> None:
    rows = four()
    table = only(tabulate(rows, specs=[spec_of(rows)]))
    assert columns(table) == ["ImageNet-C", "ImageNet-R", "ImageNet-V2", "ImageNet-Sketch", "average"]
    assert [c.name for c in table.parts] == [*names(), "noise", "blur", "weather", "digital"]
    assert line(table, "NoAdapt").value(table.average).mean == pytest.approx((50 + 60 + 50 + 50) / 4)
    assert table.title == "table2: timm:made_up on ImageNet-C, ImageNet-R, ImageNet-V2 and ImageNet-Sketch"
    assert only(tabulate(rows)).average == table.average  # also without the spec
    told = setting_text(table)
    assert "classes (ImageNet-C, ImageNet-V2 and ImageNet-Sketch: 1000; ImageNet-R: 200)" in told
    assert "images per domain (ImageNet-C, ImageNet-R and ImageNet-Sketch: 1,000; ImageNet-V2: 10,000)" in told
    assert "severity (ImageNet-C: 5; " in told


def test_the_average_over_data_sets_has_the_right_interval_and_difference() -> None:
    """Against a bootstrap of the images of each data set: fifteen corruptions of the same images count once."""
    rows = [row for row in four() if row["dataset"] in ("imagenet-c", "imagenet-r")]
    rows = [row for row in rows if row["domain"] in ("fog", "snow", "imagenet-r")]
    right = drawn(rows, 400)
    traces = with_images(rows, right)
    for row in rows:
        traces[row["key"]]["scored"][0]["collection"] = row["dataset"]
    table = only(tabulate(rows, traces=traces))

    def parts(method: str) -> tuple[np.ndarray, np.ndarray]:
        own = {row["domain"]: right[row["key"]] for row in rows if row["method"] == method}
        return (own["fog"].astype(float) + own["snow"]) / 2, own["imagenet-r"].astype(float)

    ours, theirs = parts("align"), parts("none")
    value = line(table, "ToMe_8").value(table.average)
    assert value.mean == pytest.approx(50 * (ours[0].mean() + ours[1].mean()))
    rng = np.random.default_rng(0)
    picked = [[rng.integers(0, 400, 400) for _ in range(2)] for _ in range(4000)]
    means = [50 * sum(part[at].mean() for part, at in zip(ours, own, strict=True)) for own in picked]
    assert (value.low, value.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.4)
    gaps = [50 * sum((a[at] - b[at]).mean() for a, b, at in zip(ours, theirs, own, strict=True)) for own in picked]
    gap = difference(line(table, "ToMe_8"), line(table, "NoAdapt"), table.average)
    assert gap.points == pytest.approx(50 * sum((a - b).mean() for a, b in zip(ours, theirs, strict=True)))
    assert (gap.low, gap.high) == pytest.approx(np.percentile(gaps, [2.5, 97.5]), abs=0.6)
    pair = paired(line(table, "ToMe_8"), line(table, "NoAdapt"), table.average)
    assert (pair.points, pair.pairs) == (pytest.approx(gap.points), 3)


def test_seeds_count_within_their_data_set() -> None:
    rows = [of("imagenet-r", "tent", 0.5 + 0.01 * seed, seed=seed) for seed in range(5)]
    rows += [of("imagenet-c", "tent", 0.3, domain, seed=seed) for domain in ("fog", "snow") for seed in range(5)]
    table = only(tabulate(rows))
    value = line(table, "tent").value(table.average)
    assert (value.mean, value.interval, value.seeds) == (pytest.approx((52 + 30) / 2), "t", 5)


def test_published_values_by_data_set_and_their_mean() -> None:
    rows = four()
    table = only(tabulate(rows, specs=[spec_of(rows)]))
    tome, by_title = line(table, "ToMe_8"), {c.title: c for c in table.main}
    printed = {name: paper(table, tome, by_title[name]) for name in columns(table)}
    assert printed == {
        "ImageNet-C": 68.9, "ImageNet-R": 66.8, "ImageNet-V2": 74.6, "ImageNet-Sketch": 52.0,
        "average": pytest.approx((68.9 + 66.8 + 74.6 + 52.0) / 4),
    }  # fmt: skip
    assert paper(table, line(table, "NoAdapt"), table.parts[0]) == 56.8
    other = [fingerprinted(row, classes=10) for row in rows]
    assert not has_paper(only(tabulate(other, specs=[spec_of(other)])))


def test_a_data_set_without_rows_is_a_gap() -> None:
    asked = [row for row in four() if row["dataset"] != "imagenet-c"]
    rows = [row for row in asked if row["dataset"] != "imagenet-v2"]
    results = tabulate(rows, specs=[spec_of(asked)])
    table = only(results)
    assert columns(table) == ["ImageNet-R", "ImageNet-V2", "ImageNet-Sketch", "average of 2 data sets"]
    gap = table.main[1]
    assert line(table, "NoAdapt").value(gap).mean is None
    assert paper(table, line(table, "NoAdapt"), gap) == 75.4
    assert paper(table, line(table, "NoAdapt"), table.average) == pytest.approx((59.5 + 44.9) / 2)
    assert "No rows yet: ImageNet-V2." in setting_text(table)
    assert len(results.missing()) == 2
    assert {cell.domain for cell in results.missing()} == {"imagenet-v2"}
    assert "NoAdapt and ToMe_8 on ImageNet-V2 (seed 0)" in missing_text(results)
    assert "| – / 75.4 |" in page_markdown(results)
    one = only(tabulate([row for row in rows if row["dataset"] == "imagenet-r"], specs=[spec_of(asked)]))
    assert (one.average.name, columns(one)) == ("imagenet-r", ["ImageNet-R", "ImageNet-V2", "ImageNet-Sketch"])


def test_a_data_set_that_is_not_whole_says_so() -> None:
    asked = four()
    rows = [row for row in asked if row["domain"] in ("fog", "imagenet-r")]
    table = only(tabulate(rows, specs=[spec_of(asked)]))
    assert columns(table)[0] == "ImageNet-C, 1 of 15"
    assert paper(table, line(table, "NoAdapt"), table.main[0]) is None


def test_domains_of_the_same_name_are_kept_apart() -> None:
    rows = [of("one", "tent", 0.2, domain) for domain in ("fog", "snow")]
    rows += [of("two", "tent", 0.4, domain) for domain in ("fog", "frost")]
    table = only(tabulate(rows))
    assert table.domains == ("snow", "one: fog", "frost", "two: fog")
    assert line(table, "tent").value(table.average).mean == pytest.approx(30)
    assert len(line(table, "tent").rows) == 4


def test_what_does_not_belong_to_the_data_still_makes_tables_apart() -> None:
    rows = four()
    for row in rows:
        row["batch"] = 1 if row["dataset"] == "imagenet-r" else 64
    results = tabulate(rows, specs=[spec_of(rows)])
    assert len(results.tables) == 2
    assert any("batch" in text for text in results.apart)
    unnamed = [{**row, "dataset": None} for row in four()]
    assert len(tabulate(unnamed, specs=[spec_of(unnamed)]).tables) == 4


def test_options_may_depend_on_the_data_set() -> None:
    rows = [of("imagenet-r", "foa", label="FOA", options={"weight": 0.2}), of("imagenet-v2", "foa", label="FOA")]
    table = only(tabulate(rows, specs=[spec_of(rows)]))
    assert line(table, "FOA").options_text == "weight=0.2 on ImageNet-R; defaults on ImageNet-V2"
    assert line(table, "FOA").value(table.average).mean == pytest.approx(50)


def test_every_output_has_one_table(tmp_path: Path) -> None:
    rows = four()
    results = tabulate(rows, specs=[spec_of(rows)])
    table = only(results)
    text = markdown(table)
    assert text.count("| method |") == 2
    assert "| method | ImageNet-C | ImageNet-R | ImageNet-V2 | ImageNet-Sketch | average |" in text
    assert "ImageNet-Sketch" in latex_table(table)
    assert latex_table(table).count(r"\begin{table}") == 2
    html = report_page(results, {})
    assert "ImageNet-Sketch" in html
    assert "The same, domain by domain" in html
    told = {(r["line"], r["quantity"]): r for r in csv.DictReader(io.StringIO(csv_text(table)))}
    assert float(told["NoAdapt", "imagenet-c"]["value"]) == pytest.approx(50)
    assert told["NoAdapt", "imagenet-r"]["data"] == "imagenet-r"
    assert float(told["ToMe_8", "average"]["paper"]) == pytest.approx(65.575)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "table2.json").write_text(json.dumps(spec_of(rows)))
    (shown,) = json.loads(run_command(str(tmp_path), "--json").stdout)["tables"]
    assert [dataset["name"] for dataset in shown["datasets"]] == ["imagenet-c", *SHOWN]
    assert shown["blocks"][0]["lines"][1]["paper"]["imagenet-v2"] == 74.6
    assert "ImageNet-Sketch" in run_command(str(tmp_path)).output
