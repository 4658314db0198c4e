"""Write docs/results.md from the rows of `navia bench`: python tools/results.py DIR. Cells without a row are listed.

The specs in benchmarks/results share one DIR, so that a cell of several specs is run once. Those of `SPECS` are published as
docs/assets (results.jsonl, specs/), those of `MORE` as docs/assets/more (rows.jsonl, specs/, figures, scores.jsonl: which
images were right). What DIR does not have stays as it was published. The figure of the README (docs/assets/results.png) is
drawn from the spec `orders` once all its cells were run.
"""

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from navia.bench.spec import read_spec
from navia.bench.store import Store
from navia.report.charts import Figure, bar_chart, figures
from navia.report.figures import STYLE, draw_figure
from navia.report.formatting import join_names, readable
from navia.report.lines import Traces
from navia.report.markup import markdown
from navia.report.tables import Results, Table, tabulate
from navia.report.text import headline, how_to_read, pairs_short, setting_text

ROOT = Path(__file__).parents[1]
Cell = dict[str, Any]  # of a kept spec
SPECS = ("table1", "orders", "ablation", "layers", "rates")
MORE = (
    "guard",
    "table1-vit-tiny",
    "vit-tiny",
    "imagenet-v2",
    "tokens",
    "sensitivity",
    "convergence",
    "layer-count",
    "tradeoff",
    "latency",
    "tsne",
)
FIGURES = ("convergence", "layers", "rates-eta_delta", "rates-eta_delta_l", "tradeoff-cost", "tsne")  # shown on the page
WIDTH = 150
LEAD = """# Results

DeiT-Ti and, further below, ViT-Ti AugReg on two validation images of each ImageNet class, with ImageNet-C's corruptions generated on the fly at severity 5. Numbers are top-1 in percent with the 95 % Wilson
interval in brackets, also for means of three orders. The interval covers the images, not the order; [choosing](choosing.md) says how much the order changes. Averages are
given only for rows with all columns. Every row with its fingerprint is in [assets/results.jsonl](assets/results.jsonl) and [assets/more/rows.jsonl](assets/more/rows.jsonl). Rows in
bfloat16 say so; in five corruptions and three orders bfloat16 changed NAVIA's accuracy by −0.07 points (standard error 0.19, [precision](performance.md#precision)).

The models are small and the streams are short (4 to 30 batches of 64): do not expect the paper's numbers, which are of ViT-B/16 on 50,000 images per corruption. The learning rates
were chosen for that setting; [measurements](measurements.md#deit-ti-on-corrupted-imagenet-images) explain the effect on `contrast`. Memory is that of one process. Times are
left out, because other programs ran on the two CPU cores; `benchmarks/speed.py` measures them.

Commands, with the weights at `{checkpoint}` and the images in class folders, already cropped to 224 px, at
`{images}` (relative to the working directory; change both paths in the specs if yours are elsewhere):"""  # noqa: E501


def main(folder: Path) -> None:
    assets = ROOT / "docs" / "assets"
    first = read_spec(ROOT / "benchmarks" / "results" / "table1.yaml")
    lead = LEAD.format(checkpoint=first.models[0].checkpoint, images=first.data[0].path)
    parts = [lead, "```sh\n" + "\n".join(_commands()) + "\n```"]
    published = {"results.jsonl": (assets, SPECS), "rows.jsonl": (assets / "more", MORE)}
    for file, (place, specs) in published.items():
        (place / "specs").mkdir(parents=True, exist_ok=True)
        kept = {spec["name"]: spec for spec in [*Store(place).specs(), *Store(folder).specs()] if spec["name"] in specs}
        rows = read_rows(place / file) | {row.key: row.as_json() for row in Store(folder).rows()}
        whole = read_traces(folder, rows)
        traces = read_scores_file(place / "scores.jsonl") | whole
        for name in (name for name in specs if name in kept):
            title = (ROOT / "benchmarks" / "results" / f"{name}.yaml").read_text().split("\n")[0].removeprefix("# ")
            parts += [f"## {title}", *section(kept[name], rows, traces)]
            if place != assets:
                parts += draw_all(kept[name], rows, whole, place)
        wanted = {cell["key"] for spec in kept.values() for cell in spec["cells"]} & rows.keys()
        (place / file).write_text("".join(json.dumps(rows[key]) + "\n" for key in rows if key in wanted))
        for order, name in enumerate(name for name in specs if name in kept):
            (place / "specs" / f"{name}.json").write_text(json.dumps({**kept[name], "order": order}) + "\n")
        if place != assets:
            scores = ({"key": key, "scored": traces[key]["scored"]} for key in sorted(wanted & traces.keys()))
            (place / "scores.jsonl").write_text("".join(json.dumps(line) + "\n" for line in scores))
        elif all(cell["key"] in rows for cell in kept["orders"]["cells"]):
            draw(kept["orders"], rows, assets / "results.png")
    (ROOT / "docs" / "results.md").write_text("\n\n".join(parts) + "\n")


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Published rows by key."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def read_scores_file(path: Path) -> dict[str, Any]:
    """Traces with nothing but which images were right."""
    return {key: {"scored": line["scored"]} for key, line in read_rows(path).items()}


def read_traces(folder: Path, rows: Iterable[str]) -> dict[str, Any]:
    """Traces of the rows that DIR has."""
    return {key: Store(folder).trace(key) for key in rows if (folder / "traces" / f"{key}.json").exists()}


def draw_all(kept: dict[str, Any], rows: dict[str, Any], traces: dict[str, Any], place: Path) -> Iterator[str]:
    """The figures of a spec that the page shows; where DIR has no traces those that were published."""
    for table in results_of(kept, rows, traces).tables:
        for figure in (one for one in figures(table, traces) if one.name in FIGURES):
            path = place / f"{kept['name']}-{figure.name}.png"
            with matplotlib.rc_context(STYLE):
                draw_figure(figure).savefig(path, dpi=110)
            yield f"![{figure.charts[0].title or figure.name}](assets/more/{path.name})"


def _commands() -> Iterator[str]:
    for name in (*SPECS, *MORE):
        yield f"navia bench benchmarks/results/{name}.yaml --out results --on ray --cache pixels"
    yield "python tools/results.py results"


def section(kept: dict[str, Any], rows: dict[str, dict[str, Any]], traces: Traces | None = None) -> Iterator[str]:
    """How much of a spec was run, its tables, and what is missing."""
    asked = kept["cells"]
    lost = [cell for cell in asked if cell["key"] not in rows]
    yield f"{len(asked) - len(lost)} of {len(asked)} cells have been run."
    if len(lost) < len(asked):
        results = results_of(kept, rows, traces)
        for table in results.tables:
            yield from [f"### {table.title}"] if len(results.tables) > 1 else []
            yield from _table(table, with_headline=not lost)
            yield from [_wrapped(" ".join(pairs_short(table)))] if traces and pairs_short(table) else []
        yield from map(_wrapped, results.apart)
    if lost:
        yield "Not run yet:\n\n" + "\n".join(missing(asked, lost))


def results_of(kept: dict[str, Any], rows: dict[str, dict[str, Any]], traces: Traces | None = None) -> Results:
    """Tables of the rows of one spec."""
    return tabulate([rows[cell["key"]] for cell in kept["cells"] if cell["key"] in rows], specs=[kept], traces=traces)


def draw(kept: dict[str, Any], rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Means of the groups of corruptions and of all, as `navia report` draws them."""
    (table,) = results_of(kept, rows).tables
    with matplotlib.rc_context(STYLE):
        chart = bar_chart(table.lines, [column for column in table.summed if column.is_accuracy])
        assert chart is not None, "a whole table has bars"
        drawing = draw_figure(Figure("results", None, [chart]))
        drawing.set_size_inches(8, 3.2)
        drawing.savefig(path, dpi=160)


def _table(table: Table, with_headline: bool) -> Iterator[str]:
    """The highest average is printed only for a complete table."""
    if with_headline and (told := headline(table)):
        yield _wrapped(told)
    yield _wrapped(setting_text(table))
    yield markdown(table, with_paper=True, without=("ms",))
    yield _wrapped(" ".join(how_to_read(table)))


def missing(asked: Sequence[Cell], lost: Sequence[Cell]) -> Iterator[str]:
    """One line for all labels with the same missing cells."""
    labels: dict[str, list[str]] = {}
    for label in dict.fromkeys(cell["label"] for cell in lost):
        own = [[cell for cell in part if cell["label"] == label] for part in (asked, lost)]
        labels.setdefault(_what_is_lost(*own), []).append(f"`{label}`")
    for what, names in labels.items():
        yield _wrapped(f"- {', '.join(names)}: {what}", indent="  ")


def _what_is_lost(asked: Sequence[Cell], lost: Sequence[Cell]) -> str:
    """'all 45', or 'fog and snow in order 0; all 15 in orders 1 and 2'."""
    if len(lost) == len(asked):
        return f"all {len(asked)}"
    orders = list(dict.fromkeys(cell["seed"] for cell in asked))
    alike: dict[str, list[str]] = {}
    for order in orders:
        there, gone = ([readable(cell["domain"]) for cell in part if cell["seed"] == order] for part in (asked, lost))
        if gone:
            alike.setdefault(_domains(there, gone), []).append(str(order))
    if len(orders) == 1:
        return next(iter(alike))
    return "; ".join(f"{what} in order{'s' * (len(own) > 1)} {join_names(own)}" for what, own in alike.items())


def _domains(asked: Sequence[str], lost: Sequence[str]) -> str:
    """List the missing domains or the present ones, whichever are fewer."""
    there = [domain for domain in asked if domain not in lost]
    if not there:
        return f"all {len(asked)}"
    return join_names(lost) if len(lost) <= len(there) else f"all {len(asked)} but {join_names(there)}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
