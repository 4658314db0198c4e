"""A table as it is read: its values as text, which of them is the best, and what they mean."""

import statistics
from collections.abc import Sequence

from navia.report.numbers import shown_alike
from navia.report.results.compare import common_seeds, compared, is_cut
from navia.report.results.images import tells
from navia.report.results.lines import Line
from navia.report.results.tables import Block, Table
from navia.report.results.values import FEW_SEEDS, Column, Value
from navia.report.words import listed, readable


def texts(block: Block, column: Column) -> list[str]:
    """The column's values as they are written, line by line."""
    return written([line.value(column).mean for line in block.lines], column)


def written(values: Sequence[float | None], column: Column) -> list[str]:
    """Numbers of one column as they are written below each other."""
    if column.is_accuracy or column.kind == "ece":
        return ["–" if value is None else f"{value:.1f}".replace("-", "−") for value in values]
    known = {i: value for i, value in enumerate(values) if value is not None}
    alike = dict(zip(known, shown_alike(list(known.values())), strict=True))
    return [alike.get(i, "–") for i in range(len(values))]


def best(block: Block, column: Column) -> list[bool]:
    """Which lines read the same as the best one, on the seeds that all of them have; none where all do, because a difference
    that is not shown is none."""
    values = [value.mean for value in compared(block.lines, column)]
    known = [(value, i) for i, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return [False] * len(values)
    read = written(values, column)
    top = (max if column.better == "high" else min)(known)[1]
    marks = [text == read[top] for text in read]
    return marks if any(not marks[i] for _, i in known) else [False] * len(values)


def interval_text(value: Value) -> str:
    """'± 0.4' over seeds, '58.1–64.3' over images."""
    if value.mean is None or value.low is None or value.high is None:
        return ""
    return f"± {value.high - value.mean:.1f}" if value.interval == "t" else f"{value.low:.1f}–{value.high:.1f}"


def how_to_read(table: Table) -> list[str]:
    """What the numbers of a table are, in sentences."""
    said = [
        f"Top-1 accuracy in percent; every answer was given before the step from its image{_seen_first(table)}.",
        *intervals_and_seeds(table),
        "Bold is the best of a column. ECE is over 15 bins.",
    ]
    said.append(f"GMACs are of the forward passes for one image{_uncounted(table)}.")
    if any(block.has_clock for block in table.blocks):
        said.append(
            "In real time images come at the pace of the un-adapted dense model; those that come while a method is busy are "
            "answered by its last state and not adapted to."
        )
    if any(block.lines[0].setting.adapt_for is not None for block in table.blocks):
        said.append("Times of lines that are scored on the last third are those of answering alone.")
    return [*said, *_guard(table), *_mixed_clocks(table), *_repeats(table)]


def intervals_and_seeds(table: Table) -> list[str]:
    """What intervals cover, what seeds change, and where lines do not have the same seeds or options."""
    kinds = {line.value(column).interval for line in table.lines for column in table.columns if column.is_accuracy}
    several = any(len(line.of(domain)) > 1 for line in table.lines for domain in table.domains)
    said = [_seeds(table)] if several else []
    said += ["± is the 95 % interval of the mean over seeds, by Student's t."] if "t" in kinds else []
    said += [_ranges(table, several)] if "wilson" in kinds else []
    return [*said, *_cut(table), *_other_options(table)]


def _seeds(table: Table) -> str:
    """What another seed changes."""
    counts = sorted({len(line.of(domain)) for line in table.lines for domain in table.domains} - {0, 1})
    drawn = table.protocol["limit of images"]
    scored = any(line.setting.adapt_for is not None for line in table.lines)
    changed = ["the order of the stream"]
    changed += [] if drawn is None else [f"which {drawn:,} images of a domain are drawn"]
    changed += ["which of them are scored"] if scored else []
    cells = [(line.value(column), line, column) for line in table.lines for column in table.single]
    spread = [(v.highest_seed - v.lowest_seed, f"{line.name} on {column.title}") for v, line, column in cells
              if v.highest_seed is not None and v.lowest_seed is not None]  # fmt: skip
    said = f"Numbers are means over {' or '.join(map(str, counts))} seeds, which change {listed(changed)}"
    if not spread:
        return f"{said}."
    middle, (most, where) = statistics.median(points for points, _ in spread), max(spread)
    return f"{said}: between them a cell differs by {middle:.1f} points in the median, at most by {most:.1f} ({where})."


def _ranges(table: Table, several: bool) -> str:
    """What an interval over images covers."""
    if not several and table.average.kind == "domain":
        return "A range is the 95 % Wilson interval of a run over its images."
    said = "A range is the 95 % Wilson interval over the images"
    if several:
        said += f", for fewer than {FEW_SEEDS} seeds: it does not cover what another seed changes"
    if all(tells(list(line.rows.values()), line.scores) for line in table.lines):
        return f"{said}. An image that comes in several orders or domains counts once."
    return (
        f"{said}. A mean of several runs has that of one run with its accuracy, which is wider than its own: these rows do "
        "not tell which images were right."
    )


def _cut(table: Table) -> list[str]:
    """Which seeds are compared where not all lines have the same."""
    columns = [column for column in table.columns if column.kind == "domain"]
    found = [(b, c) for b in table.blocks for c in columns if is_cut(b.lines, c)]
    if not found:
        return []
    domains: dict[str, list[str]] = {}
    for block, column in found:
        seeds = sorted(common_seeds(block.lines, column)[column.name])
        what = f"seed{'s' * (len(seeds) > 1)} {listed(list(map(str, seeds)))}" if seeds else "none, so nothing is compared"
        domains.setdefault(what, []).append(column.title)
    told = "; ".join(f"{what} on {listed(list(dict.fromkeys(own)))}" for what, own in domains.items())
    return [
        "Not all lines have the same seeds yet: cells are means over the seeds that each line has, but bold and order "
        f"compare lines on the seeds that all of them have ({told})."
    ]


def _other_options(table: Table) -> list[str]:
    return [f"Options of {line.name}: {line.options_text}." for line in table.lines if line.options_by_domain]


def _seen_first(table: Table) -> str:
    """Some methods look at the whole batch before they answer: FOA answers with the fittest of its candidates, LAME lets
    neighbours agree, and SAR as in FOA's paper answers from weights that were moved along the batch's own gradient."""
    settings = [line.setting for line in table.lines]
    present = {
        "FOA": any(setting.method == "foa" for setting in settings),
        "LAME": any(setting.method == "lame" for setting in settings),
        "SAR with variant=foa": any((s.method, s.given.get("variant")) == ("sar", "foa") for s in settings),
    }
    named = [name for name, found in present.items() if found]
    return f"; {listed(named)} fit{'s' * (len(named) == 1)} it to the batch itself, without labels" if named else ""


def _uncounted(table: Table) -> str:
    """Of how many batches CoTTA averages views depends on the stream, so no count made beforehand has them."""
    if not any(line.setting.method == "cotta" for line in table.lines):
        return ""
    return ", without the views that CoTTA averages where the source is unsure"


def _guard(table: Table) -> list[str]:
    """The guard is none of the published methods': where it stepped in, a row is not the method's alone."""
    watched = [line for line in table.lines if line.setting.guarded and line.setting.method != "none"]
    caught = [f"{line.name} on {listed(where)}" for line in watched if (where := _guarded_domains(line))]
    if not caught:
        return ["The guard was on and never stepped in."] if watched else []
    return [f"The guard was on and stepped in: {'; '.join(caught)}."]


def _guarded_domains(line: Line) -> list[str]:
    domains = [domain for (domain, _), row in line.rows.items() if row["guard"]]
    return [readable(domain) or "the stream" for domain in dict.fromkeys(domains)]


def _mixed_clocks(table: Table) -> list[str]:
    """Times depend on what accuracies hardly do."""
    prints = [row["fingerprint"] for row in table.rows]
    threads = {str(p.get("threads")) for p in prints}
    versions = {str(p["versions"].get("torch")) for p in prints}
    differing = [
        name for name, found in (("numbers of threads", threads), ("versions of torch", versions)) if len(found) > 1
    ]
    return [f"Rows ran with different {' and '.join(differing)}: do not compare their times."] if differing else []


def _repeats(table: Table) -> list[str]:
    if not table.repeated:
        return []
    return [f"Run more than once with another result, the last one is shown: {', '.join(table.repeated)}."]
