"""Results as sentences: how to read the numbers, a summary, lines against each other, what is missing."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from navia.bench.presets import published_model
from navia.report import compare, groups
from navia.report.compare import format_values, has_other_seeds, value_text
from navia.report.formatting import DASH, count, finite, format_number, join_names, readable
from navia.report.groups import OF_THE_DATA, short_path
from navia.report.lines import FEW_SEEDS, Line, Setting
from navia.report.published import paper_column, paper_columns, paper_values
from navia.report.tables import Dataset, Results, Table

_LISTED = 8  # lines whose missing cells are listed


# ---- how to read a table


def setting_text(table: Table) -> str:
    """What all rows of a table share, in a sentence; then what differs between its data sets."""
    images, protocol = sorted({row["fingerprint"]["images"] for row in table.rows}), table.protocol
    classes = f"{protocol['classes']} classes, " if "classes" in protocol else ""
    shift = "" if protocol["label shift"] is None else f" with label shift {protocol['label shift']}"
    return (
        f"{' to '.join(f'{n:,}' for n in dict.fromkeys([images[0], images[-1]]))} images per domain in batches of "
        f"{protocol['batch']}, stream: {protocol['stream']}{shift}, {classes}"
        f"{protocol['number of source images']} clean source images, {_seeds_text(table.seeds)}, "
        f"navia {protocol['version of navia']}.{datasets_text(table)}"
    )


def datasets_text(table: Table) -> str:
    """What differs between the data sets of a table, and which of them have no rows."""
    known = [dataset for dataset in table.datasets if dataset.domains]
    if len(table.datasets) == 1:
        return ""
    numbers: list[Mapping[str, Any]] = [{"images per domain": _images_of(table, dataset)} for dataset in known]
    differences = []
    for key in ("images per domain", *OF_THE_DATA):
        values: dict[str, list[str]] = {}
        for dataset, number in zip(known, numbers, strict=True):
            found = {**dataset.protocol, **number}.get(key)
            shown = "none" if key == "severity" and not found else short_path(groups.value_text(found))
            values.setdefault(shown, []).append(dataset.title)
        if len(values) > 1 and key not in ("data", "domains of the stream"):
            differences.append(f"{key} ({'; '.join(f'{join_names(own)}: {value}' for value, own in values.items())})")
    text = f" The data sets differ in {join_names(differences)}." if differences else ""
    lost = [dataset.title for dataset in table.datasets if not dataset.domains]
    return text + (f" No rows yet: {join_names(lost)}." if lost else "")


def _images_of(table: Table, dataset: Dataset) -> str:
    rows = [row for line in table.lines for (domain, _), row in line.rows.items() if domain in dataset.domains]
    counts = sorted({row["fingerprint"]["images"] for row in rows})
    return " to ".join(f"{n:,}" for n in dict.fromkeys([counts[0], counts[-1]]))


def how_to_read(table: Table) -> list[str]:
    """What the numbers of a table are, in sentences."""
    settings = [line.setting for line in table.lines]
    # how many views CoTTA averages depends on the stream
    uncounted = ", without the views that CoTTA averages where the source model has low confidence"
    text = [
        f"Top-1 accuracy in percent; every prediction was made before the update from its image{_uses_batch(settings)}.",
        *intervals_and_seeds(table),
        "Bold is the best of a column. ECE is over 15 bins.",
        f"GMACs are of the forward passes for one image{uncounted if any(s.method == 'cotta' for s in settings) else ''}.",
    ]
    if any(block.has_realtime for block in table.blocks):
        text.append(
            "In real time images arrive at the rate of the source model without reduction; those that arrive during an "
            "update are predicted with the last state and not adapted to."
        )
    if any(setting.adapt_for is not None for setting in settings):
        text.append("Times of lines that are scored on the last third are those of prediction alone.")
    text += _guard(table) + _precision(settings)
    prints = [row["fingerprint"] for row in table.rows]
    differing = ["numbers of threads"] if len({p.get("threads") for p in prints}) > 1 else []
    differing += ["versions of torch"] if len({p["versions"].get("torch") for p in prints}) > 1 else []
    if differing:
        text.append(f"Rows ran with different {' and '.join(differing)}: do not compare their times.")
    if table.repeated:
        text.append(f"Run more than once with another result, the last one is shown: {', '.join(table.repeated)}.")
    return text


def intervals_and_seeds(table: Table) -> list[str]:
    """What intervals cover, what seeds change, and where lines do not have the same seeds or options."""
    kinds = {line.value(column).interval for line in table.lines for column in table.columns if column.is_accuracy}
    counts = sorted({len(line.rows_of(domain)) for line in table.lines for domain in table.domains} - {0, 1})
    text = [_seeds(table, counts)] if counts else []
    text += ["± is the 95 % interval of the mean over seeds, by Student's t."] if "t" in kinds else []
    text += [_ranges(table, bool(counts))] if "wilson" in kinds else []
    differing = [line for line in table.lines if line.options_by_domain and not line.setting.choose]
    options = [f"Options of {line.name}: {line.options_text}." for line in differing]
    return [*text, *_other_seeds(table), *options, *_chosen(table)]


def _seeds(table: Table, counts: Sequence[int]) -> str:
    """What another seed changes."""
    limits = {dataset.protocol["limit of images"] for dataset in table.datasets if dataset.domains} - {None}
    sampled = " or ".join(f"{limit:,}" for limit in sorted(limits))
    changed = ["the order of the stream"]
    changed += [f"which {sampled} images of a domain are sampled"] if limits else []
    changed += ["which of them are scored"] if any(line.setting.adapt_for is not None for line in table.lines) else []
    text = f"Numbers are means over {' or '.join(map(str, counts))} seeds, which change {join_names(changed)}"
    cells = [(line.value(column), f"{line.name} on {column.title}") for line in table.lines for column in table.single]
    spread = [(v.highest_seed - (v.lowest_seed or 0.0), where) for v, where in cells if v.highest_seed is not None]
    if not spread:
        return f"{text}."
    middle, (most, where) = statistics.median(points for points, _ in spread), max(spread)
    return f"{text}: between them a cell differs by {middle:.1f} points in the median, at most by {most:.1f} ({where})."


def _ranges(table: Table, several: bool) -> str:
    """What an interval over images covers."""
    if not several and table.average.kind == "domain":
        return "A range is the 95 % Wilson interval of a run over its images."
    text = "A range is the 95 % Wilson interval over the images"
    if several:
        text += f", for fewer than {FEW_SEEDS} seeds: it does not cover what another seed changes"
    rows = [(line, row) for line in table.lines for row in line.rows.values() if finite(row["top1"]) is not None]
    if all(row["key"] in line.scores for line, row in rows):
        return f"{text}. An image that comes in several orders or domains counts once."
    wider = "A mean of several runs has that of one run with its accuracy, which is wider than its own"
    return f"{text}. {wider}: these rows do not say which images were right."


def _other_seeds(table: Table) -> list[str]:
    """Which seeds are compared where not all lines have the same."""
    domains: dict[str, dict[str, None]] = {}
    for block, column in itertools.product(table.blocks, table.single):
        if has_other_seeds(block.lines, column):
            seeds = sorted(compare.common_seeds(block.lines, column)[column.name])
            domains.setdefault(_seeds_text(seeds) if seeds else "none, so nothing is compared", {})[column.title] = None
    text = "; ".join(f"{seeds} on {join_names(list(own))}" for seeds, own in domains.items())
    note = (
        "Not all lines have the same seeds yet: cells are means over the seeds that each line has, but bold and order "
        f"compare lines on the seeds that all of them have ({text})."
    )
    return [note] if domains else []


def _seeds_text(seeds: Sequence[int]) -> str:
    """'seed 0', 'seeds 0, 1, 2'."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _uses_batch(settings: Sequence[Setting]) -> str:
    """Methods that use the whole batch before they predict: FOA takes the fittest of its candidates, LAME lets neighbours
    agree, and SAR as in FOA's paper predicts with weights that were moved along the batch's own gradient."""
    used = {(setting.method, setting.given.get("variant") if setting.method == "sar" else None) for setting in settings}
    titles = {("foa", None): "FOA", ("lame", None): "LAME", ("sar", "foa"): "SAR with variant=foa"}
    names = [title for method, title in titles.items() if method in used]
    return f"; {join_names(names)} fit{'s' * (len(names) == 1)} it to the batch itself, without labels" if names else ""


def _precision(settings: Sequence[Setting]) -> list[str]:
    """Where all lines share one that is not the default; otherwise each line names its own, unless a label hides it."""
    used = {setting.precision for setting in settings}
    return [f"Computed in {join_names(sorted(used))}."] if used != {"float32"} else []


def _guard(table: Table) -> list[str]:
    """The published methods have no guard: where it acted, a row is not the method's alone."""
    adapting = [line for line in table.lines if line.setting.method != "none"]
    guarded = [line for line in adapting if line.setting.guarded]
    if not guarded:
        return ["The guard was off, as in the published methods: collapses show."] if adapting else []
    acted: dict[str, dict[str, None]] = {}
    for line in guarded:
        for (domain, _), row in line.rows.items():
            if row["guard"]:
                acted.setdefault(line.name, {})[readable(domain) or "the stream"] = None
    caught = "; ".join(f"{name} on {join_names(list(domains))}" for name, domains in acted.items())
    did = f"acted: {caught}" if caught else "never acted"
    if len(guarded) == len(adapting):
        return [f"The guard was on and {did}."]
    saved = [paired_text(compare.paired(on, off, table.average)) for on, off in compare.guard_pairs(table)]
    gains = f" What it saved: {'. '.join(filter(None, saved))}." if any(saved) else ""
    which = join_names([line.name for line in guarded])
    return [f"The guard was on in {which} and {did}. It was off in all other lines, as in the published methods.{gains}"]


def _chosen(table: Table) -> list[str]:
    """How options were chosen, and what it cost."""
    return [_choice_text(line) for line in table.lines if line.setting.choose]


def _choice_text(line: Line) -> str:
    choices = [row["choice"] for row in line.rows.values() if row.get("choice")]
    text = f"Options of {line.name} were chosen on each stream without labels, by the lowest loss (Eq. 7)"
    if choices:
        images, steps, seconds, gmacs = (
            statistics.median(choice[key] for choice in choices) for key in ("images", "steps", "seconds", "gmacs")
        )
        text += (
            f" on its first {images:,.0f} images, in {steps:,.0f} steps that took {format_number(seconds)} s and "
            f"{format_number(gmacs)} GMACs per image of the stream, beside {format_number(line.median('gmacs'))} to adapt "
            "to it (medians)"
        )
    return f"{text}: {line.options_text}."


def times_rows(table: Table) -> list[tuple[str, str, str, str]]:
    """Line, dense line, change of the time of a step and the paper's, as text."""

    def change(percent: float | None) -> str:
        return DASH if percent is None else f"{percent:+z.0f} %".replace("-", "−")

    return [(x.line.name, x.dense.name, change(x.percent), change(x.paper)) for x in compare.step_times(table)]


TIMES_TITLE = "Time of a step against the dense step"
TIMES_NOTE = (
    "Medians of the milliseconds per image, prediction and update together. They hold for the computer of the run and need "
    "a quiet machine; lines that ran with other threads or on another device are not compared. The paper claims more than "
    "20 % less for NAVIA at r = 8, on a GPU."
)


GFLOPS_TITLE = "GFLOPs, paper's count"


def paper_note(table: Table) -> str:
    """What the published numbers are, and are not."""
    notes = dict.fromkeys(
        f"{line.name}: {note}."
        for line in table.lines
        if (entry := paper_values(table, line))
        for column in paper_columns(table)
        if (note := entry.notes.get(paper_column(table, column) or ""))
    )
    model = f"The paper's numbers are of {published_model()}, with all images of the data sets."
    computed = [column.title for column in paper_columns(table) if paper_column(table, column) is None]
    model += f" Its means in {join_names(computed)} are computed from its printed values." if computed else ""
    return " ".join([model, "Other models are not expected to reach them; compare the order of the lines.", *notes])


# ---- summary


def summary(results: Results) -> str:
    """What was run, and the highest averages."""
    lines = sum(len(table.lines) for table in results.tables)
    several = f", in {len(results.tables)} tables" if len(results.tables) > 1 else ""
    several += " that must not be compared" if several and len(results.apart) == len(results.tables) - 1 else ""
    models = dict.fromkeys(short_path(str(table.protocol["model"])) for table in results.tables)
    text = f"{', '.join(models)}: {count(results.rows, 'row')} of {count(lines, 'setting')}{several}."
    return " ".join([text, *filter(None, (headline(table, bool(several)) for table in results.tables))])


def headline(table: Table, numbered: bool = False) -> str:
    """The most accurate line on the seeds that all lines have, and no adaptation for comparison."""
    found, column = compare.highest(table), table.average
    if found is None:
        return ""
    block, top, values = found
    texts = dict(zip((line.name for line in block.lines), format_values([v.mean for v in values], column), strict=True))
    own = {line.name: value_text(value, " %") for line, value in zip(block.lines, values, strict=True)}
    tops = [name for name, text in texts.items() if text == texts[top.name]]
    base = next((x for x in block.lines if (x.setting.method, x.setting.reduce) == ("none", "none")), None)
    other = ""
    if base is not None and base.name not in tops and texts[base.name] != DASH:
        gap = compare.difference(top, base, column)
        other = f"; no adaptation: {own[base.name]}{f', {_gap_text(gap)} points below' if gap else ''}"
    where = f"Table {table.number}: highest" if numbered else "Highest"
    what = "average" if column.kind == "average" else f"on {column.title}"
    on = " on the seeds that all lines have" if has_other_seeds(block.lines, column) else ""
    return f"{where} {what}{on}: {_shorten(tops, 'lines')}, {own[top.name]}{other}."


def _gap_text(gap: compare.Difference) -> str:
    """'0.3 (−0.4 to 1.0)'."""
    return f"{gap.points:z.1f} ({gap.low:z.1f} to {gap.high:z.1f})".replace("-", "−")


def differences_text(table: Table) -> str:
    """How far the others lie below the highest average, on the same images."""
    gaps = compare.differences(table)
    if not gaps:
        return ""
    kinds = {"t": "over seeds, by Student's t", "images": "over the images, each paired with itself"}
    how = " or ".join(kinds[kind] for kind in dict.fromkeys(gap.interval for gap in gaps))
    text = ", ".join(f"{gap.other} {_gap_text(gap)}" for gap in gaps)
    return f"Points below {gaps[0].line} in the same cells, with 95 % intervals {how}: {text}."


def paired_text(pair: compare.Paired | None, images: bool = False) -> str:
    """Two lines against each other in one sentence.

    Args:
        pair: From `compare.paired`; the text of None is empty.
        images: Also say how many predictions only one of the two got right.

    Returns:
        'A against B: +1.5 points (0.9 to 2.1), higher in 12 of 15 pairs; settled'. Settled: the 95 % interval excludes 0;
        open: it does not, or it is not known.
    """
    if pair is None:
        return ""
    gap = f"{pair.points:+z.1f}".replace("-", "−")
    ends = "" if pair.low is None or pair.high is None else f" ({pair.low:z.1f} to {pair.high:z.1f})".replace("-", "−")
    equal = f", equal in {pair.ties}" if pair.ties else ""
    text = (
        f"{pair.line} against {pair.other}: {gap} points{ends}, higher in {pair.wins} of {count(pair.pairs, 'pair')}{equal}"
    )
    if images and pair.predictions:
        text += f", right alone in {pair.only_line:,} and {pair.only_other:,} of {count(pair.predictions, 'prediction')}"
    why = "" if ends else ": the rows do not say which images were right"
    return f"{text}; {'settled' if pair.settled else f'open{why}'}"


def pairs_short(table: Table) -> list[str]:
    """Sentences for a terminal: reduced NAVIA lines against align with the same tokens, then the highest line against no
    adaptation."""
    found = dict(compare.comparisons(table))
    best = compare.highest(table)
    pairs = list(found.get("align with the same tokens", {}).values())
    pairs += [found["no adaptation"][best[1].name]] if best and best[1].name in found.get("no adaptation", {}) else []
    return [f"{paired_text(pair)}." for pair in pairs[:_LISTED]]


PAIRS_NOTE = (
    "Points of a line above the one it is compared with, on the same images in the same orders, with the 95 % interval of "
    "the difference, and the pairs (one domain and seed each) in which the line is higher. An interval without 0 settles "
    "which of the two is higher on such images; otherwise that is open."
)


def pair_cells(pair: compare.Paired) -> tuple[str, str, str]:
    """'+1.5', '0.9 to 2.1' and '12 of 15 pairs'."""
    texts = f"{pair.points:+z.1f}", "" if pair.low is None or pair.high is None else f"{pair.low:z.1f} to {pair.high:z.1f}"
    return texts[0].replace("-", "−"), texts[1].replace("-", "−"), f"{pair.wins} of {count(pair.pairs, 'pair')}"


def against_title(title: str, own: Mapping[str, compare.Paired]) -> str:
    """'against the highest (NAVIA_4)'."""
    others = dict.fromkeys(pair.other for pair in own.values())
    name = next(iter(others))
    return f"against {title}{f' ({name})' if len(others) == 1 and name != title else ''}"


def why_several(results: Results) -> list[str]:
    """Sentences; none for one table."""
    specs = "Each spec has its own table; a row that several specs ask for stands in each."
    own = len(results.tables) > 1 and any(table.spec is not None for table in results.tables)
    return [*([specs] if own else []), *results.apart]


def missing_text(results: Results) -> str:
    """Line by line, the seeds of each domain together."""
    found = results.missing()
    if not found:
        return "Every line has a row for every domain and seed."
    by_line: dict[str, dict[str, list[int]]] = {}
    for cell in found:
        where = f" (table {cell.table})" if cell.table is not None else f" ({cell.spec}, not begun)"
        place = where if len(results.tables) > 1 or cell.table is None else ""
        by_line.setdefault(f"{cell.line}{place}", {}).setdefault(cell.domain, []).append(cell.seed)
    alike: dict[str, list[str]] = {}  # lines that miss the same
    for name, cells in by_line.items():
        by_seeds: dict[str, list[str]] = {}  # 'fog and snow (seeds 1, 2), contrast (seed 2)'
        for domain, seeds in cells.items():
            by_seeds.setdefault(_seeds_text(seeds), []).append(readable(domain))
        what = ", ".join(f"{_shorten(domains)} ({seeds})" for seeds, domains in by_seeds.items())
        alike.setdefault(what, []).append(name)
    text = [f"{_shorten(names, 'lines')} on {what}" for what, names in alike.items()]
    more = f"; and {len(text) - _LISTED} more lines" if len(text) > _LISTED else ""
    verb = "cell has" if len(found) == 1 else "cells have"
    return f"{len(found)} {verb} no row, or not yet: {'; '.join(text[:_LISTED])}{more}."


def _shorten(names: Sequence[str], kind: str = "domains") -> str:
    return f"{len(names)} {kind}" if len(names) > 4 else join_names(names)
