"""docs/results.md from the rows of `navia bench`: python tools/results.py DIR. Cells without a row are listed as such.

The specs in benchmarks/results share one DIR, so that a cell which several of them ask for is run once; here each spec
takes its own rows out of it, under its own labels. The rows are kept beside the page (docs/assets/results.jsonl).
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from navia.bench.grid import cells
from navia.bench.store import Store
from navia.report.results import tabulate
from navia.report.tables import headline, how_to_read, markdown, setting_text
from navia.spec import Spec, read_spec

ROOT = Path(__file__).parents[1]
SPECS = ("table1", "orders", "ablation", "layers")
LEAD = """# Results

DeiT-Ti on two validation images of each ImageNet class, ImageNet-C's corruptions made on the way at severity 5. Top-1
in percent; one order of the images has its Wilson interval in brackets, several orders Student's t over them. Every
row, with its fingerprint, is in [assets/results.jsonl](assets/results.jsonl). Two CPU cores made them, one cell on
each, beside other work: times are left out (benchmarks/speed.py measures these), memory is of one process.

The model is a small one and the stream is short (30 batches of 64): do not expect the paper's numbers, which are of
ViT-B/16 on 50,000 images of each corruption. Its learning rates were made for that; [adaptation](adaptation.md) says
what that does to `contrast` here."""


def main(folder: Path) -> None:
    store = Store(folder)
    rows = {row["key"]: row for row in store.rows()}
    specs = {name: read_spec(ROOT / "benchmarks" / "results" / f"{name}.yaml") for name in SPECS}
    parts = [LEAD, "Made by:", "```sh\n" + "\n".join(_commands()) + "\n```"]
    for name, spec in specs.items():
        parts += _section(name, spec, rows)
    (ROOT / "docs" / "results.md").write_text("\n\n".join(parts) + "\n")
    wanted = {cell.key for spec in specs.values() for cell in cells(spec)}
    kept = "".join(json.dumps(row) + "\n" for key, row in rows.items() if key in wanted)
    (ROOT / "docs" / "assets" / "results.jsonl").write_text(kept)


def _commands() -> Iterator[str]:
    for name in SPECS:
        yield f"navia bench benchmarks/results/{name}.yaml --out results --on ray"
    yield "python tools/results.py results"


def _section(name: str, spec: Spec, rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    title = (ROOT / "benchmarks" / "results" / f"{name}.yaml").read_text().split("\n")[0].removeprefix("# ")
    asked = cells(spec)
    own = [{**rows[cell.key], "label": cell.label} for cell in asked if cell.key in rows]
    yield f"## {title}"
    if own:
        results = tabulate(own)
        for table in results.tables:
            yield from filter(
                None, (headline(table), setting_text(table), markdown(table, with_paper=True, without=("ms",)))
            )
            yield " ".join(how_to_read(table))
        yield from results.apart
    lost: dict[str, list[str]] = {}
    for cell in asked:
        if cell.key not in rows:
            lost.setdefault(str(cell.label), []).append(f"{cell.domain.replace('_', ' ')} in order {cell.seed}")
    if lost:
        count = sum(map(len, lost.values()))
        said = "\n".join(f"- {label}: {', '.join(where)}" for label, where in lost.items())
        yield f"Not run yet, {count} of {len(asked)} cells:\n\n{said}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
