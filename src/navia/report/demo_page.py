"""The demonstration as a page: what shift looks like, what adaptation gives back, what it costs, what that proves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from navia.report.lines import Series, lines
from navia.report.numbers import finite, shown
from navia.report.page import Cell, Column, PictureRow, Section, facts, page, pictures, steps, table
from navia.report.scatter import Point, scatter
from navia.report.svg import Interval, beside, interval_of
from navia.report.words import COST_NOTE, capital, cost_unit, listed


@dataclass(frozen=True)
class DemoRow:
    """One run. Accuracies are shares between 0 and 1, by domain; per_batch: those of the batches in their order.
    interval: 95 % intervals of top1; mean_interval: that of the mean over domains, where it is known."""

    method: str
    reduce: str
    top1: Mapping[str, float]
    interval: Mapping[str, Interval]
    gmacs: float
    ms_per_image: float
    per_batch: Mapping[str, Sequence[float]]
    mean_interval: Interval | None = None

    @property
    def name(self) -> str:
        method = "no adaptation" if self.method == "none" else self.method
        return method if self.reduce == "none" else f"{method} + {self.reduce}"

    def mean(self, domains: Sequence[str]) -> float | None:
        """Over all domains; none where a domain is missing, because a mean of fewer could not be compared."""
        known = [value for domain in domains if (value := finite(self.top1.get(domain))) is not None]
        return sum(known) / len(known) if known and len(known) == len(domains) else None


@dataclass(frozen=True)
class DemoStory:
    """images: per domain; batch: images that come at once; next_steps: sentences, each with a command."""

    model: str
    title: str
    lead: str
    images: int
    batch: int
    examples: Sequence[PictureRow]
    rows: Sequence[DemoRow]
    protocol: Mapping[str, str] = field(default_factory=dict)
    next_steps: Sequence[tuple[str, str]] = ()

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(domain for row in self.rows for domain in row.top1))


def answers(truth: str, plain: str, adapted: str) -> str:
    """The caption of an example: what it is, and what the model says before and after adaptation."""
    said = (("before", plain), ("after", adapted))
    return "\n".join([truth, *(f"{when} {'✓' if answer == truth else '✗'} {answer}" for when, answer in said)])


def demo_page(story: DemoStory) -> str:
    sections = [
        *_examples(story),
        Section("Accuracy, cost and time", _table(story), "\n\n".join(reading(story))),
        Section("Accuracy against cost", _against_cost(story), _cost_note(story)),
        Section("Accuracy as the stream goes on", _along_the_stream(story), _stream_note(story)),
        *([Section("What to try next", steps(story.next_steps))] if story.next_steps else []),
        Section("Protocol", facts({"Model": story.model, **story.protocol}, "All settings of this run")),
    ]
    return page(story.title, f"{story.lead}\n\n{limits(story)}", sections)


# ---- what can be said


def limits(story: DemoStory) -> str:
    """What the numbers of this page can show and what they cannot."""
    half = _widest(story)
    reach = f", and reach up to {100 * half:.0f} points to each side" if half is not None else ""
    return (
        f"Every number was computed in this run, on {story.images:,} images per shift in batches of {story.batch:,}. "
        f"The intervals are for 95 %{reach}: runs whose intervals lie apart differ; these images do not settle the rest. "
        f"One model and {_count(story.domains, 'shift')} show how the methods behave, not which of them is best in general."
    )


def reading(story: DemoStory) -> list[str]:
    """What the table says: per domain, which runs are surely better or worse than no adaptation."""
    bold = f"Bold: the best of a column. Small: 95 % intervals over the {story.images:,} images of a shift."
    base = next((row for row in story.rows if (row.method, row.reduce) == ("none", "none")), None)
    return [bold] if base is None else [bold, " ".join(_verdict(story, base, domain) for domain in story.domains)]


def _verdict(story: DemoStory, base: DemoRow, domain: str) -> str:
    others = [row for row in story.rows if row is not base]
    better = [row.name for row in others if _apart(row, base, domain)]
    worse = [row.name for row in others if _apart(base, row, domain)]
    unsettled = [row.name for row in others if row.name not in (*better, *worse)]
    kinds = (("better than no adaptation", better), ("worse", worse), ("not settled by these images", unsettled))
    return f"{capital(domain)}: " + "; ".join(f"{kind}: {listed(names)}" for kind, names in kinds if names) + "."


def _apart(upper: DemoRow, lower: DemoRow, domain: str) -> bool:
    """The whole interval of one run lies above that of the other."""
    above, below = _interval(upper, domain), _interval(lower, domain)
    return above is not None and below is not None and above[0] > below[1]


def _interval(row: DemoRow, domain: str) -> Interval | None:
    return interval_of(*row.interval.get(domain, (None, None)))


def _widest(story: DemoStory) -> float | None:
    """Half of the widest interval."""
    known = [ends for row in story.rows for domain in story.domains if (ends := _interval(row, domain))]
    return max(((high - low) / 2 for low, high in known), default=None)


def _count(things: Sequence[str], name: str) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six")
    count = words[len(things)] if len(things) < len(words) else str(len(things))
    return f"{count} {name}{'' if len(things) == 1 else 's'}"


# ---- sections


def _examples(story: DemoStory) -> list[Section]:
    note = (
        f"Some images out of {story.images:,} per shift, with the answers that the model gave before and after it adapted. "
        "They show the shift; how often the answers are right is counted in the table."
    )
    return [Section("What the shift looks like", pictures(story.examples), note)] if story.examples else []


def _table(story: DemoStory) -> str:
    unit, factor = _cost_unit(story)
    columns = [
        Column("method"),
        *(Column(f"{domain},\N{NO-BREAK SPACE}%", True, "high") for domain in story.domains),
        Column("mean,\N{NO-BREAK SPACE}%", True, "high"),
        Column(unit, True, "low"),
        Column("ms/image", True, "low"),
    ]
    return table(columns, [_table_row(row, story.domains, factor) for row in story.rows])


def _table_row(row: DemoRow, domains: Sequence[str], factor: float) -> list[Cell]:
    return [
        Cell(f"{row.method} {row.reduce}", row.method, "no reduction" if row.reduce == "none" else row.reduce),
        *(_share(row.top1.get(domain), _interval(row, domain)) for domain in domains),
        _share(row.mean(domains), row.mean_interval),
        Cell(_times(factor, row.gmacs)),
        Cell(row.ms_per_image, _milliseconds(row)),
    ]


def _share(value: float | None, interval: Interval | None) -> Cell:
    """A share in percent with one digit, beside it its interval."""
    known = _times(100, value)
    return Cell(known, None if known is None else f"{known:.1f}", _percents(interval))


def _percents(interval: Interval | None) -> str:
    return "" if interval is None or interval_of(*interval) is None else f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}"


def _milliseconds(row: DemoRow) -> str:
    return f"{row.ms_per_image:.2f}" if 0 <= row.ms_per_image < 10 else shown(row.ms_per_image)


def _times(factor: float, value: float | None) -> float | None:
    known = finite(value)
    return None if known is None else factor * known


def _cost_unit(story: DemoStory) -> tuple[str, float]:
    return cost_unit(max((cost for row in story.rows if (cost := finite(row.gmacs)) is not None), default=0.0))


def _against_cost(story: DemoStory) -> str:
    unit, factor = _cost_unit(story)
    points = [_point(row, story.domains, unit, factor) for row in story.rows]
    title = f"Mean accuracy over {_count(story.domains, 'shift')} against multiply-accumulates per image"
    return scatter(points, unit, "mean accuracy, %", title)


def _point(row: DemoRow, domains: Sequence[str], unit: str, factor: float) -> Point:
    x, y = _times(factor, row.gmacs), _times(100, row.mean(domains))
    low, high = (_times(100, end) for end in row.mean_interval or (None, None))
    cells = {"mean": _share(row.mean(domains), row.mean_interval)}
    cells |= {domain: _share(row.top1.get(domain), _interval(row, domain)) for domain in domains}
    detail = {f"{name}, %": f"{cell.text or '–'}{f' ({cell.small})' if cell.small else ''}" for name, cell in cells.items()}
    detail |= {unit: shown(x), "ms/image": _milliseconds(row)}
    missing = float("nan")
    return Point(missing if x is None else x, missing if y is None else y, row.name, row.name, low, high, detail)


def _cost_note(story: DemoStory) -> str:
    unknown = " The means have no interval of their own here; see the table."
    return COST_NOTE + ("" if any(row.mean_interval for row in story.rows) else unknown)


def _along_the_stream(story: DemoStory) -> str:
    return beside([_stream(story, domain) for domain in story.domains])


def _stream(story: DemoStory, domain: str) -> str:
    series = [Series(row.name, running(row.per_batch.get(domain, ()), story.images, story.batch)) for row in story.rows]
    longest = max((len(s.values) for s in series), default=0)
    seen = [float(min(story.batch * (i + 1), story.images)) for i in range(longest)]
    return lines(series, "images seen", "accuracy so far, %", capital(domain), seen)


def running(per_batch: Sequence[float], images: int, batch: int) -> list[float]:
    """Accuracy in percent over all images up to each batch; the last batch holds what is left of `images`."""
    right, seen, shares = 0.0, 0, []
    for share in per_batch:
        size = min(batch, images - seen)
        right, seen = right + share * size, seen + size
        shares.append(100 * right / seen)
    return shares


def _stream_note(story: DemoStory) -> str:
    half = 100 * 1.96 * (0.25 / story.batch) ** 0.5
    return (
        "Each point is the share of right answers up to there; every answer was given before the model had learned from its "
        f"image. The first points stand on {story.batch:,} images only: chance alone moves them by up to {half:.0f} points."
    )
