"""Lines are ranked on common seeds, and intervals are over images where there are few seeds."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from navia.evaluation.metrics import wilson
from navia.report.charts import select_lines
from navia.report.compare import best, compared, comparisons, difference, differences, paired
from navia.report.markup import latex_table, markdown, page_markdown
from navia.report.page import report_page
from navia.report.tables import Table, tabulate
from navia.report.text import differences_text, headline, paired_text, summary
from tests.report.test_results import column, line, made_up, only, run_command
from tests.report.test_specs import kept, run

Row = dict[str, Any]


# ---- common seeds


def stopped() -> list[Row]:
    """A grid that was stopped in its second seed: on the first one both are equal, the second is harder."""
    rows = [made_up("none", top1=0.3, images=64), made_up("none", top1=0.3, images=64, seed=1)]
    rows += [made_up("align", top1=0.594, images=64), made_up("align", top1=0.530, images=64, seed=1)]
    return [*rows, made_up("navia", top1=0.594, images=64)]


def test_lines_are_ranked_on_the_seeds_that_all_have() -> None:
    table = only(tabulate(stopped()))
    fog = column(table, "fog")
    block = table.blocks[0]
    assert [f"{x.value(fog).mean:.1f}" for x in block.lines] == ["30.0", "56.2", "59.4"]  # each over its own seeds
    assert [f"{value.mean:.1f}" for value in compared(block.lines, fog)] == ["30.0", "59.4", "59.4"]
    assert best(block, fog) == [False, True, True]
    assert headline(table).startswith("Highest on fog on the seeds that all lines have: align and navia, 59.4 % (")
    note = "compare lines on the seeds that all of them have (seed 0 on fog)."
    for text in (page_markdown(tabulate(stopped())), latex_table(table), report_page(tabulate(stopped()), {})):
        assert note in text
    html = report_page(tabulate(stopped()), {})
    keys = re.findall(r'<td class="number"(?: data-key="([\d.]+)")?><strong class="best">([\d.]+)</strong>', html)
    found = [key or text for key, text in keys if text in ("56.2", "59.4")]
    assert found == ["59.4", "59.4"]  # a click on the header sorts so


def test_json_names_the_best_on_common_seeds(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in stopped()))
    told = json.loads(run_command(str(tmp_path), "--json").stdout)
    assert told["tables"][0]["blocks"][0]["best"]["fog"] == ["align", "navia"]
    assert any("seed 0 on fog" in note for note in told["tables"][0]["notes"])
    assert "Not all lines have the same seeds yet" in run_command(str(tmp_path)).output.replace("\n", " ")


def test_with_equal_seeds_nothing_is_said_of_them() -> None:
    rows = [made_up(m, top1=t, seed=s) for m, t in (("tent", 0.4), ("align", 0.5)) for s in (0, 1)]
    text = page_markdown(tabulate([*rows, made_up("none")]))  # without adaptation one order stands for all
    assert "seeds that all" not in text
    assert "Highest on fog: " in text


def test_without_a_common_seed_nothing_is_the_best() -> None:
    table = only(tabulate([made_up("tent", top1=0.4), made_up("align", top1=0.5, seed=1), made_up("navia", seed=1)]))
    assert not any(best(table.blocks[0], column(table, "fog")))
    assert headline(table) == ""
    assert "(none, so nothing is compared on fog)" in page_markdown(tabulate(table.rows))


def test_averages_are_compared_on_the_common_seeds_of_each_domain() -> None:
    rows = [made_up(m, d, 0.5, seed=s) for m in ("tent", "align") for d in ("fog", "snow") for s in (0, 1)]
    rows = [row for row in rows if (row["method"], row["domain"], row["seed"]) != ("tent", "snow", 1)]
    rows[-1] |= {"top1": 0.9}  # align, snow, seed 1
    table = only(tabulate(rows))
    assert line(table, "align").value(table.average).mean == pytest.approx(60)
    assert [value.mean for value in compared(table.lines, table.average)] == pytest.approx([50, 50])
    assert not any(best(table.blocks[0], table.average))


def test_the_best_of_each_method_is_drawn_by_common_seeds() -> None:
    rows = [made_up("align", top1=0.5 - 0.01 * r, reduce=f"tome:{r}", seed=s) for r in range(1, 18) for s in (0, 1)]
    rows = [row for row in rows if (row["reduce"], row["seed"]) != ("tome:2", 1)]
    for row in rows:
        row["top1"] -= 0.3 * row["seed"]
    table = only(tabulate(rows))
    assert [x.name for x in select_lines(table, table.blocks[0])] == ["align + tome:1"]


def test_a_seed_that_has_not_begun_is_missing() -> None:
    """27 cells were asked for, 9 of each seed."""
    asked = [
        run(m, d, seed=s, images=64) for s in range(3) for d in ("fog", "snow") for m in ("none", "tent", "align", "navia")
    ]
    asked += [run("sar", seed=s, images=64) for s in range(3)]
    results = tabulate(asked[:12], specs=[kept("study", asked)])
    assert len(results.missing()) == len(asked) - 12 == 15
    assert {missing.seed for missing in results.missing()} == {0, 1, 2}


# ---- intervals


def with_images(rows: list[Row], right: dict[str, np.ndarray], seen: dict[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Traces that tell which images were right, and rows that agree with them. right: by key, a bit for each image."""
    traces = {}
    for row in rows:
        bits = right[row["key"]]
        mask = np.ones(len(bits), dtype=bool) if seen is None else seen[row["key"]]
        row |= {"count": int(mask.sum()), "top1": float(bits[mask].mean())}
        packed = {name: np.packbits(own).tobytes().hex() for name, own in (("seen", mask), ("right", bits & mask))}
        traces[row["key"]] = {"scored": [{"collection": "c", "images": len(bits), **packed}]}
    return traces


def drawn(rows: list[Row], images: int = 500, seed: int = 0) -> dict[str, np.ndarray]:
    """Images have a difficulty, which all runs share."""
    rng = np.random.default_rng(seed)
    easy = rng.random(images)
    return {row["key"]: rng.random(images) < 0.8 * easy + 0.2 * rng.random() for row in rows}


def test_below_five_seeds_intervals_are_over_images_and_from_five_on_over_seeds() -> None:
    for count, kind in ((1, "wilson"), (2, "wilson"), (4, "wilson"), (5, "t"), (6, "t")):
        rows = [made_up("tent", top1=0.5 + 0.01 * s, seed=s) for s in range(count)]
        table = only(tabulate(rows))
        assert table.lines[0].value(column(table, "fog")).interval == kind
        text = page_markdown(tabulate(rows))
        assert ("by Student's t" in text) == (kind == "t")
        assert ("Wilson" in text) == (kind == "wilson")


def test_two_seeds_that_agree_or_differ_have_like_intervals() -> None:
    """Student's t of two seeds says 28.1 ± 79.4 beside 45.3 ± 0.0."""
    rows = [made_up("tent", top1=t, seed=s) for s, t in enumerate((0.219, 0.344))]
    rows += [made_up("align", top1=0.453, seed=s) for s in (0, 1)]
    table = only(tabulate(rows))
    for x, mean in (("tent", 0.2815), ("align", 0.453)):
        value = line(table, x).value(column(table, "fog"))
        assert (value.low, value.high) == pytest.approx([100 * end for end in wilson(1000 * mean, 1000)])
        assert (value.mean, value.seeds) == (pytest.approx(100 * mean), 2)
    value = line(table, "tent").value(column(table, "fog"))
    assert (value.lowest_seed, value.highest_seed) == (pytest.approx(21.9), pytest.approx(34.4))
    assert "at most by 12.5 (tent on fog)" in page_markdown(tabulate(rows))


def test_the_interval_of_a_mean_over_orders_counts_each_image_once() -> None:
    """Against a bootstrap over the images."""
    rows = [made_up("tent", d, seed=s) for d in ("fog", "snow") for s in range(3)]
    right = drawn(rows)
    traces = with_images(rows, right)
    table = only(tabulate(rows, traces=traces))
    by_image = np.stack(list(right.values())).mean(axis=0)
    rng = np.random.default_rng(1)
    means = [100 * by_image[rng.integers(0, 500, 500)].mean() for _ in range(4000)]
    value = table.lines[0].value(table.average)
    assert value.mean == pytest.approx(100 * by_image.mean())
    assert (value.low, value.high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=0.3)
    bound = only(tabulate(rows)).lines[0].value(table.average)  # without traces
    assert bound.high - bound.low > value.high - value.low
    as_if_new = wilson(by_image.sum() * 6, 3000)
    assert value.high - value.low > 100 * (as_if_new[1] - as_if_new[0])
    assert "comes in several orders or domains counts once" in page_markdown(tabulate(rows, traces=traces))
    assert "do not say which images were right" in page_markdown(tabulate(rows))


def test_seeds_that_draw_other_images_are_pooled_by_image() -> None:
    rows = [made_up("tent", images=300, seed=s) for s in range(2)]
    right, rng = drawn(rows, 1000), np.random.default_rng(2)
    seen = {row["key"]: np.isin(np.arange(1000), rng.permutation(1000)[:300]) for row in rows}
    traces = with_images(rows, right, seen)
    table = only(tabulate(rows, traces=traces))
    value = table.lines[0].value(column(table, "fog"))
    independent, same = wilson(600 * value.mean / 100, 600), wilson(300 * value.mean / 100, 300)
    assert 100 * (independent[1] - independent[0]) < value.high - value.low < 100 * (same[1] - same[0])
    text = page_markdown(tabulate(rows, traces=traces))
    assert "seeds, which change the order of the stream and which 300 images of a domain are sampled" in text
    plain = page_markdown(tabulate([made_up("tent", seed=s) for s in range(2)]))
    assert "seeds, which change the order of the stream: between them" in plain


def test_an_interval_never_has_no_width() -> None:
    rows = [made_up("tent", seed=s) for s in range(2)]
    for bits in (np.zeros(12, dtype=bool), np.ones(12, dtype=bool)):
        traces = with_images(rows, {row["key"]: bits for row in rows})
        table = only(tabulate(rows, traces=traces))
        value = table.lines[0].value(column(table, "fog"))
        assert (value.low, value.high) == pytest.approx([100 * end for end in wilson(float(bits.sum()), 12)])


def test_a_trace_of_another_run_is_not_used() -> None:
    rows = [made_up("tent", seed=s) for s in range(2)]
    traces = with_images(rows, drawn(rows))
    for row in rows:
        row |= {"top1": 0.01, "count": 500}
    assert only(tabulate(rows, traces=traces)).lines[0].value(column(only(tabulate(rows)), "fog")).high == pytest.approx(
        100 * wilson(5, 500)[1]
    )


# ---- differences


def pair(seeds: int, gain: float = 0.05, images: int = 800) -> tuple[Table, dict[str, np.ndarray], dict[str, Any]]:
    rows = [made_up(m, d, seed=s) for m in ("align", "navia") for d in ("fog", "snow") for s in range(seeds)]
    right, rng = drawn(rows, images), np.random.default_rng(3)
    easy = rng.random(images)
    for row in rows:
        right[row["key"]] = rng.random(images) < np.where(easy > 0.5, 0.95, 0.05) + (row["method"] == "navia") * gain
    traces = with_images(rows, right)
    return only(tabulate(rows, traces=traces)), right, traces


def test_differences_are_paired_by_image_below_five_seeds() -> None:
    table, right, traces = pair(seeds=2)
    (gap,) = differences(table)
    ours, theirs = (
        np.stack([own for key, own in right.items() if json.loads(key)[0] == m]).mean(axis=0) for m in ("navia", "align")
    )
    gaps = 100 * (ours - theirs)
    added = 100 * math.sqrt(2) / (len(gaps) + 2)  # an image for each side
    low, high = stats.norm.interval(0.95, gaps.mean(), math.hypot(gaps.std() / math.sqrt(len(gaps)), added))
    assert (gap.line, gap.other, gap.interval, gap.seeds) == ("navia", "align", "images", 2)
    assert (gap.points, gap.low, gap.high) == pytest.approx((gaps.mean(), low, high), abs=1e-3)
    value = line(table, "navia").value(table.average)
    assert gap.high - gap.low < 0.5 * (value.high - value.low)  # most images are easy or hard for both
    text = differences_text(table)
    assert "each paired with itself: align " in text
    rows = table.rows
    assert text in page_markdown(tabulate(rows, traces=traces))
    assert text.replace(" %", "\N{NO-BREAK SPACE}%") in report_page(tabulate(rows, traces=traces), {})
    assert differences(only(tabulate(rows))) == []  # without traces nobody knows which images they were


def test_differences_are_students_t_of_paired_seeds_from_five_on() -> None:
    rows = [made_up(m, top1=t + 0.05 * s, seed=s) for m, t in (("align", 0.3), ("navia", 0.32)) for s in range(5)]
    rows[-1] |= {"top1": rows[-1]["top1"] + 0.01}
    table = only(tabulate(rows))
    (gap,) = differences(table)
    gaps = [2, 2, 2, 2, 3]
    low, high = stats.t.interval(0.95, 4, loc=np.mean(gaps), scale=stats.sem(gaps))
    assert (gap.points, gap.low, gap.high) == pytest.approx((2.2, low, high), abs=1e-4)
    assert gap.interval == "t"


def test_differences_are_on_common_seeds_and_one_order_stands_for_all_without_adaptation() -> None:
    rows = [made_up("none"), *(made_up("tent", seed=s) for s in range(3)), made_up("align")]
    right = drawn(rows)
    table = only(tabulate(rows, traces=with_images(rows, right)))
    fog = column(table, "fog")
    means = {key: 100 * own.mean() for key, own in right.items()}
    first, tents = means[rows[1]["key"]], [means[row["key"]] for row in rows[1:4]]
    to_align = difference(line(table, "tent"), line(table, "align"), fog)
    assert to_align.points == pytest.approx(first - means[rows[4]["key"]])
    assert to_align.seeds == 1
    to_none = difference(line(table, "tent"), line(table, "no adaptation"), fog)
    assert to_none.points == pytest.approx(np.mean(tents) - means[rows[0]["key"]])
    assert to_none.seeds == 3


def test_equal_answers_on_few_images_are_no_certain_difference() -> None:
    rows = [made_up("tent"), made_up("align")]
    bits = np.arange(12) % 2 == 0
    table = only(tabulate(rows, traces=with_images(rows, {row["key"]: bits for row in rows})))
    gap = difference(*table.lines, column(table, "fog"))
    assert gap.points == 0
    assert gap.low < -10
    assert gap.high > 10


def test_the_headline_tells_the_paired_difference_to_no_adaptation() -> None:
    rows = [made_up("none"), made_up("align")]
    rng = np.random.default_rng(0)
    bits = rng.random(400) < 0.5
    better = bits | (rng.random(400) < 0.2)
    results = tabulate(rows, traces=with_images(rows, {rows[0]["key"]: bits, rows[1]["key"]: better}))
    points = 100 * (better.mean() - bits.mean())
    assert f"% ({line(only(results), 'no adaptation').value(only(results).average).low:.1f}" in summary(results)
    assert f", {points:.1f} (" in summary(results)
    assert summary(results).endswith(" points below.")
    assert "**" in markdown(only(results))


# ---- pair by pair


def test_a_pair_is_one_domain_and_seed_and_counts_who_is_right_alone() -> None:
    table, right, traces = pair(seeds=2)
    found = paired(line(table, "navia"), line(table, "align"), table.average)
    gap = difference(line(table, "navia"), line(table, "align"), table.average)
    assert (found.points, found.low, found.high) == pytest.approx((gap.points, gap.low, gap.high))
    by_place = {tuple(json.loads(key)[i] for i in (0, 1, 3)): own for key, own in right.items()}
    both = [(own, by_place[("align", *place)]) for (method, *place), own in by_place.items() if method == "navia"]
    assert found.wins == sum(a.mean() > b.mean() for a, b in both)
    assert (found.wins + found.losses + found.ties, found.pairs) == (4, 4)
    assert found.only_line == sum((a & ~b).sum() for a, b in both)
    assert found.only_other == sum((b & ~a).sum() for a, b in both)
    assert found.predictions == 4 * 800
    back = paired(line(table, "align"), line(table, "navia"), table.average)
    assert (back.points, back.wins, back.only_line) == (pytest.approx(-found.points), found.losses, found.only_other)
    assert found.settled
    assert back.settled
    assert paired_text(back).startswith("align against navia: −")
    assert f"right alone in {found.only_line:,} and {found.only_other:,} of 3,200 predictions; settled" in paired_text(
        found, images=True
    )
    assert traces


def test_an_interval_with_zero_leaves_the_difference_open() -> None:
    table, _, _ = pair(seeds=1, gain=0.0)
    found = paired(*table.lines, table.average)
    assert not found.settled
    assert paired_text(found).endswith("; open")


def test_pairs_without_traces_have_wins_and_no_interval() -> None:
    rows = [made_up(m, d, t) for m, t in (("align", 0.3), ("navia", 0.31)) for d in ("fog", "snow", "frost")]
    rows[-1]["top1"], rows[-2]["top1"] = 0.2, 0.3
    table = only(tabulate(rows))
    found = paired(line(table, "navia"), line(table, "align"), table.average)
    assert (found.wins, found.losses, found.ties, found.low, found.predictions) == (1, 1, 1, None, None)
    assert found.points == pytest.approx(-3)
    assert paired_text(found) == (
        "navia against align: −3.0 points, higher in 1 of 3 pairs, equal in 1; "
        "open: the rows do not say which images were right"
    )
    assert paired_text(paired(line(table, "navia"), line(table, "align"), column(table, "gmacs"))) == ""
    apart = only(tabulate([made_up("align"), made_up("navia", seed=1)]))
    assert paired(*apart.lines, apart.average) is None


def test_lines_are_compared_with_what_is_worth_it() -> None:
    """NAVIA with fewer tokens with LayerNorm tuning on the same tokens, and with all tokens."""
    rows = [made_up("none", top1=0.3), made_up("tent", top1=0.4), made_up("align", top1=0.5)]
    rows += [made_up("align", top1=0.48, reduce="tome:8"), made_up("navia", top1=0.52, reduce="tome:8")]
    found = {title: {name: p.other for name, p in own.items()} for title, own in comparisons(only(tabulate(rows)))}
    assert set(found["no adaptation"].values()) == {"no adaptation"}
    assert len(found["no adaptation"]) == len(found["the highest"]) == 4
    assert found["align with the same tokens"] == {"navia + tome:8": "align + tome:8"}
    assert found["all tokens"] == {"navia + tome:8": "align"}
    rows = [made_up("navia", reduce="tome:8", options={"embedding": False, "biases": False}, label="none r=8")]
    rows += [made_up("navia", reduce="tome:8", options={"biases": False}, label="E r=8"), made_up("navia", reduce="tome:8")]
    ablation = dict(comparisons(only(tabulate(rows))))["align with the same tokens"]
    assert {name: p.other for name, p in ablation.items()} == {"E r=8": "none r=8", "navia + tome:8": "none r=8"}
    assert comparisons(only(tabulate([made_up("tent")]))) == []


def test_every_output_has_the_pairs(tmp_path: Path) -> None:
    rows = [made_up("none", top1=0.3), made_up("align", top1=0.48, reduce="tome:8")]
    rows += [made_up("navia", top1=0.52, reduce="tome:8")]
    traces = with_images(rows, drawn(rows))
    results = tabulate(rows, traces=traces)
    assert "### Pair by pair" in page_markdown(results)
    assert "Pair by pair" in report_page(results, {})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = json.loads(run_command(str(tmp_path), "--json").stdout)
    ours = [p for p in told["tables"][0]["paired"] if p["against"] == "align with the same tokens"]
    assert [(p["line"], p["other"], p["pairs"], p["settled"]) for p in ours] == [
        ("navia + tome:8", "align + tome:8", 1, False)
    ]
    assert "navia + tome:8 against align + tome:8: " in run_command(str(tmp_path)).output.replace("\n", " ")


def test_the_command_compares_any_two_lines(tmp_path: Path) -> None:
    rows = [made_up("none", top1=0.3), made_up("tent", top1=0.4), made_up("align", top1=0.5), made_up("navia", batch=1)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    two = ["--compare", "tent", "--compare", "align"]
    told = json.loads(run_command(str(tmp_path), *two, "--json").stdout)
    assert [(p["table"], p["line"], p["other"], p["points"]) for p in told["compared"]] == [
        (1, "tent", "align", pytest.approx(-10))
    ]
    assert "Table 1: tent against align: −10.0 points" in run_command(str(tmp_path), *two).output.replace("\n", " ")
    for wrong, why in (
        (
            ["--compare", "tnt", "--compare", "align"],
            "no line 'tnt' in these tables; known: no adaptation, tent, align, navia",
        ),
        (["--compare", "tent"], "--compare 'tent' needs a second --compare LINE"),
        (["--compare", "tent", "--compare", "navia"], "are in no table together"),
    ):
        assert why in str(run_command(str(tmp_path), *wrong).exception)
