"""docs/results.md from the rows of `navia bench`: python tools/results.py DIR. Cells without a row are listed as such.

The specs in benchmarks/results share one DIR, so that a cell which several of them ask for is run once; `navia bench` keeps
each of them there. The rows are kept beside the page (docs/assets/results.jsonl) with their specs (docs/assets/specs), as
`navia report` reads them, and so is the picture of the README (docs/assets/results.png), drawn of the spec `orders` once all
its cells were run.
"""

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib

from navia.bench.spec import read_spec
from navia.bench.store import Store
from navia.report.charts import Figure, bar_chart
from navia.report.figures import STYLE, draw_figure
from navia.report.formatting import join_names, readable
from navia.report.tables import Results, Table, tabulate
from navia.report.text import headline, how_to_read, markdown, setting_text

ROOT = Path(__file__).parents[1]
Cell = dict[str, Any]  # of a kept spec
SPECS = ("table1", "orders", "ablation", "layers", "rates")
WIDTH = 150
LEAD = """# Results

DeiT-Ti on two validation images of each ImageNet class, ImageNet-C's corruptions made on the way at severity 5. Top-1 in percent; one order of the images
has its Wilson interval in brackets, and so has the mean of three orders: it covers the images, not how much the order changes, which
[choosing](choosing.md) tells. Averages are given only for rows that have all columns. Every row, with its fingerprint, is in
[assets/results.jsonl](assets/results.jsonl). Two CPU cores made them, one cell on each, beside other work: times are left out (benchmarks/speed.py
measures these), memory is of one process.

The model is a small one and the stream is short (30 batches of 64): do not expect the paper's numbers, which are of ViT-B/16 on 50,000 images of each
corruption. Its learning rates were made for that; [measurements](measurements.md#deit-ti-on-corrupted-imagenet-images) say what that does to `contrast` here.

The specs look for the weights at `{checkpoint}` and for the images, in class folders and already
cut to 224 px, at `{images}`, seen from where the command runs: put them there, or change both paths in the specs. Made by:"""  # noqa: E501


def main(folder: Path) -> None:
    store, assets = Store(folder), ROOT / "docs" / "assets"
    rows = {row.key: row.as_json() for row in store.rows()}
    kept = {spec["name"]: spec for spec in store.specs()}
    if lost := [name for name in SPECS if name not in kept]:
        sys.exit(f"{folder / 'specs'} has no {', '.join(lost)}: run the specs in benchmarks/results into {folder} first")
    files = {name: ROOT / "benchmarks" / "results" / f"{name}.yaml" for name in SPECS}
    first = read_spec(files[SPECS[0]])
    lead = LEAD.format(checkpoint=first.models[0].checkpoint, images=first.data[0].path)
    parts = [lead, "```sh\n" + "\n".join(_commands()) + "\n```"]
    for name, file in files.items():
        title = file.read_text().split("\n")[0].removeprefix("# ")
        parts += [f"## {title}", *section(kept[name], rows)]
    (ROOT / "docs" / "results.md").write_text("\n\n".join(parts) + "\n")
    if all(cell["key"] in rows for cell in kept["orders"]["cells"]):
        draw(kept["orders"], rows, assets / "results.png")
    wanted = {cell["key"] for name in SPECS for cell in kept[name]["cells"]}
    (assets / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for key, row in rows.items() if key in wanted))
    (assets / "specs").mkdir(exist_ok=True)
    for order, name in enumerate(SPECS):
        (assets / "specs" / f"{name}.json").write_text(json.dumps({**kept[name], "order": order}) + "\n")


def _commands() -> Iterator[str]:
    for name in SPECS:
        yield f"navia bench benchmarks/results/{name}.yaml --out results --on ray"
    yield "python tools/results.py results"


def section(kept: dict[str, Any], rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    """How much of a spec has been run, what came out, and what is missing."""
    asked = kept["cells"]
    lost = [cell for cell in asked if cell["key"] not in rows]
    yield f"{len(asked) - len(lost)} of {len(asked)} cells have been run."
    if len(lost) < len(asked):
        results = results_of(kept, rows)
        for table in results.tables:
            yield from _table(table, with_headline=not lost)
        yield from map(_wrapped, results.apart)
    if lost:
        yield "Not run yet:\n\n" + "\n".join(missing(asked, lost))


def results_of(kept: dict[str, Any], rows: dict[str, dict[str, Any]]) -> Results:
    """Of the rows that one spec asks for."""
    return tabulate([rows[cell["key"]] for cell in kept["cells"] if cell["key"] in rows], specs=[kept])


def draw(kept: dict[str, Any], rows: dict[str, dict[str, Any]], picture: Path) -> None:
    """Means of the groups of corruptions and of all, as `navia report` draws them."""
    (table,) = results_of(kept, rows).tables
    with matplotlib.rc_context(STYLE):
        chart = bar_chart(table.lines, [column for column in table.summed if column.is_accuracy])
        assert chart is not None, "a whole table has bars"
        drawing = draw_figure(Figure("results", None, [chart]))
        drawing.set_size_inches(8, 3.2)
        drawing.savefig(picture, dpi=160)


def _table(table: Table, with_headline: bool) -> Iterator[str]:
    """The highest average is told only of a whole table: of a part it might be another one's."""
    if with_headline and (told := headline(table)):
        yield _wrapped(told)
    yield _wrapped(setting_text(table))
    yield markdown(table, with_paper=True, without=("ms",))
    yield _wrapped(" ".join(how_to_read(table)))


def missing(asked: Sequence[Cell], lost: Sequence[Cell]) -> Iterator[str]:
    """A line for all labels that lack the same cells."""
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
    """By those that are missing or by those that are there, whichever are fewer."""
    there = [domain for domain in asked if domain not in lost]
    if not there:
        return f"all {len(asked)}"
    return join_names(lost) if len(lost) <= len(there) else f"all {len(asked)} but {join_names(there)}"


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
