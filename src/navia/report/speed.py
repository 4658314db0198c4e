"""What `benchmarks/speed.py` measured, for terminal, page and files: ratios as bars beside their bound, and all columns."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from navia.errors import InputError
from navia.report import page
from navia.report.figures import COLOURS, draw, style
from navia.report.numbers import DASH, finite
from navia.report.page import Section, facts, paragraphs, spaced
from navia.report.side_bars import SideBar, side_bars
from navia.report.words import readable
from navia.report.written import Written

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FILE = "speed.json"
KINDS = ("library", "forward", "step")
Row = Mapping[str, Any]
Speed = Mapping[str, Any]


class Column(NamedTuple):
    """key: of the row; factor, decimals: how its number is shown."""

    title: str
    key: str
    factor: float
    decimals: int


COLUMNS = tuple(
    Column(*column)
    for column in (
        ("ms/image", "ms_per_image", 1, 2),
        ("ratio", "ratio", 1, 2),
        ("best/best", "best", 1, 2),
        ("MACs", "macs", 1, 2),
        ("products", "products", 1, 2),
        ("GFLOP/s", "gflops", 1, 0),
        ("bare GFLOP/s", "gflops_bare", 1, 0),
        ("share, %", "share", 100, 0),
        ("peak, MiB", "peak_mib", 1, 0),
        ("allocated, MiB", "allocated_mib", 1, 0),
    )
)
_TIMES = 5  # of the columns are about time
_MARK = "by multiply-accumulates alone"
_NOTE = (
    "Ratio: time of a call to that of timm's dense forward in the same rounds, medians; below it and as whiskers the "
    "quartiles of single rounds. MACs: forward passes by navia.cost, relative to dense. Products: all matrix products of "
    "the call, backward passes included, relative to the dense forward's; what the ratio would be if nothing else took "
    "time. Share: what the bare matrix products of the same shapes, timed in the same rounds, need of the time of the call. "
    "Peak: memory above the level before; allocated: sum of all allocations; both in a process of their own. Milliseconds "
    "hold for the computer of this run only."
)


def read_speed(path: Path) -> Speed:
    """What the benchmark wrote, or an InputError that names the file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {str(path)!r}: {error}") from error
    if not isinstance(found, dict) or not _whole(found):
        raise InputError(f"{str(path)!r} is not what benchmarks/speed.py --json writes")
    return found


def _whole(speed: dict[str, Any]) -> bool:
    try:
        stream_can_be_told = "stream" not in speed or stream_text(speed["stream"]) != ""
        return stream_can_be_told and all(map(foa_texts, speed.get("foa", ()))) and all(map(_whole_row, speed["rows"]))
    except (KeyError, TypeError, ValueError):
        return False


def _whole_row(row: Row) -> bool:
    drawn = (row[key] for key in ("ratio", "low", "high", "products"))
    return (
        {column.key for column in COLUMNS} <= {*row}
        and setting_text(row) != ""
        and kind_of(row) >= 0
        and all(finite(value) is not None for value in drawn)
    )


# ---- rows


def by_setting(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows that were timed in turn, under the name of what they share."""
    return [(title, list(own)) for title, own in groupby(rows, key=setting_text)]


def setting_text(row: Row) -> str:
    options = "".join(f", {readable(name)} {value}" for name, value in (row.get("options") or {}).items())
    return f"{row['model']}{options}, batch {row['batch']}"


def cell_text(row: Row, column: Column) -> str:
    value = finite(row[column.key])
    return DASH if value is None else f"{column.factor * value:,.{column.decimals}f}"


def quartiles_text(row: Row) -> str:
    low, high = finite(row["low"]), finite(row["high"])
    return "" if low is None or high is None else f"[{low:.2f}, {high:.2f}]"


def kind_of(row: Row) -> int:
    return 0 if row["method"] == "timm" else KINDS.index(row["call"])


# ---- page


def speed_section(speed: Speed) -> Section:
    groups = by_setting(speed["rows"])
    parts = [part for title, rows in groups for part in (_bars(title, rows), *map(spaced, _tables(rows)))]
    parts += [_stream(speed), _foa(speed), facts(_where(speed), "Where it was measured")]
    return Section("Speed", "\n".join(parts), _NOTE)


def speed_page(speed: Speed) -> str:
    """Where there is nothing else to report."""
    lead = "Time and memory of forwards and adaptation steps beside the library's own dense forward."
    return page.page("Speed", lead, [speed_section(speed)])


def _bars(title: str, rows: Sequence[Row]) -> str:
    bars = [SideBar(r["name"], r["ratio"], (r["low"], r["high"]), r["products"], kind_of(r)) for r in rows]
    return side_bars(bars, KINDS, _MARK, "time relative to timm's dense forward", title)


def _tables(rows: Sequence[Row]) -> list[str]:
    """Two, because one would be wider than the page."""
    return [_table(rows, COLUMNS[:_TIMES], "Time"), _table(rows, COLUMNS[_TIMES:], "Rate and memory")]


def _table(rows: Sequence[Row], shown: Sequence[Column], caption: str) -> str:
    columns = [page.Column("call"), *(page.Column(column.title, numeric=True) for column in shown)]
    return page.table(
        columns, [[page.Cell(row["name"]), *(_cell(row, column) for column in shown)] for row in rows], caption
    )


def _cell(row: Row, column: Column) -> page.Cell:
    value = finite(row[column.key])
    small = quartiles_text(row) if column.key == "ratio" else None
    return page.Cell(None) if value is None else page.Cell(column.factor * value, cell_text(row, column), small)


def _stream(speed: Speed) -> str:
    found = speed.get("stream")
    return paragraphs(stream_text(found)) if isinstance(found, dict) else ""


def stream_text(stream: Row) -> str:
    time, memory = stream["ms_per_step"], stream["resident_mib"]
    return (
        f"A stream of {stream['steps']:,} steps ({stream['name']}, batch {stream['batch']}): {time['first']:.1f} ms of "
        f"processor time a step in the first tenth, {time['last']:.1f} in the last ({time['slope']:+.3f} in 1,000 steps); "
        f"resident memory {memory['first']:.0f} MiB, then {memory['last']:.0f} ({memory['slope']:+.3f} in 1,000 steps)."
    )


def _foa(speed: Speed) -> str:
    rows = speed.get("foa")
    if not isinstance(rows, list) or not rows:
        return ""
    columns = [page.Column("FOA"), *(page.Column(name, numeric=True) for name in FOA_COLUMNS)]
    cells = [[page.Cell(text) for text in foa_texts(row)] for row in rows]
    return spaced(page.table(columns, cells, "FOA and its search"))


FOA_COLUMNS = ("ms/batch", "search, %", "accuracy, %", "no adaptation, %")


def foa_texts(row: Row) -> list[str]:
    """Name and columns of a row of the comparison of FOA's two searches."""
    name = f"{row['model']}, {row['reduce']}, {'variances only' if row['diagonal'] else 'full covariance'}"
    accuracies = (DASH if row[key] is None else f"{100 * row[key]:.1f}" for key in ("top1", "top1_none"))
    return [name, f"{row['ms_per_batch']:,.0f}", f"{100 * row['search_share']:.1f}", *accuracies]


def _where(speed: Speed) -> dict[str, str]:
    versions = speed.get("versions") or {}
    return {
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        **{name: str(speed.get(name, "not given")) for name in ("cpu", "cores", "threads", "command")},
    }


# ---- files


def save_speed(speed: Speed, folder: Path) -> list[Path]:
    """The bars as PNG and SVG: their paths; none where there are no rows."""
    with style():
        figure = _figure(speed)
        if figure is None:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"speed{suffix}" for suffix in (".png", ".svg")]
        figure.savefig(paths[0], dpi=160)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def draw_speed(speed: Speed, written: Written) -> list[Path]:
    """The same among the files of a report."""
    with style():
        figure = _figure(speed)
        return [] if figure is None else draw(figure, "speed", written)


def _figure(speed: Speed) -> "Figure | None":
    from matplotlib.figure import Figure

    groups = by_setting(speed["rows"])
    if not groups:
        return None
    sizes = [len(rows) for _, rows in groups]
    figure = Figure(figsize=(6.8, 0.9 + sum(0.55 + 0.2 * size for size in sizes)), layout="constrained")
    panels = figure.subplots(len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": [size + 2 for size in sizes]})
    for axes, (title, rows) in zip(panels.flat, groups, strict=True):
        _panel(axes, title, rows)
    panels.flat[-1].set_xlabel("time relative to timm's dense forward")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _panel(axes: "Axes", title: str, rows: Sequence[Row]) -> None:
    for kind, name in enumerate(KINDS):
        own = [(i, row) for i, row in enumerate(rows) if kind_of(row) == kind]
        colour = COLOURS[0 if kind == 0 else kind + 1]
        axes.barh([i for i, _ in own], [row["ratio"] for _, row in own], 0.66, color=colour, label=name)
    ratios = [row["ratio"] for row in rows]
    # the ratio of medians may lie outside the quartiles of single rounds
    ends = [[max(0.0, r["ratio"] - r["low"]) for r in rows], [max(0.0, r["high"] - r["ratio"]) for r in rows]]
    axes.errorbar(ratios, range(len(rows)), xerr=ends, linestyle="none", ecolor="#1d1e20", elinewidth=0.7, capsize=2)
    marks = [row["products"] for row in rows]
    axes.plot(marks, range(len(rows)), "D", color=COLOURS[1], markersize=4.5, markeredgecolor="white", label=_MARK)
    for i, row in enumerate(rows):
        axes.text(max(row["ratio"], row["high"], row["products"]), i, f"  {row['ratio']:.2f}", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    axes.set_title(title, fontsize=9, loc="left")
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="y")
    axes.invert_yaxis()
