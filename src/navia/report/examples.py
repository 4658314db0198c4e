"""Pictures of the data that a table was made with, as the model saw them, and the names of their classes."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from navia.data import imagenet, sample
from navia.data.preprocessing import Preprocessing
from navia.data.sources import Domain, ImageSource, open_domains
from navia.errors import NaviaError
from navia.report.page import PictureRow
from navia.report.results import Results, Table
from navia.report.words import readable

Examples = tuple[Sequence[PictureRow], str]

EXAMPLES = 4
THUMBNAIL = 128  # pixels: what a page of fifteen corruptions can carry


def example_pictures(results: Results) -> Examples:
    """A few pictures of each kind of data, as the model saw them; what cannot be opened is said."""
    rows: list[PictureRow] = []
    notes: list[str] = []
    widest: dict[tuple[str, ...], Table] = {}  # of the tables of one kind of data that with most domains
    for table in results.tables:
        what = tuple(str(table.protocol[key]) for key in ("data", "severity", "preprocessing"))
        widest[what] = max(widest.get(what, table), table, key=lambda one: len(one.domains))
    for table in widest.values():
        before = f"table {table.number}, " if len(results.tables) > 1 else ""
        try:
            rows += _examples_of(table, before)
        except (NaviaError, OSError) as error:
            notes.append(f"No pictures of {table.title}: {error}.")
    shown = "Cropped as the model sees them. They show the data, not how it was answered."
    return rows, " ".join([*([shown] if rows else []), *notes])


def _examples_of(table: Table, before: str) -> list[PictureRow]:
    protocol = table.protocol
    data, kind = str(protocol["data"]), str(protocol["kind of data"])
    if data.startswith("datasets:") and not Path(data.split(":")[1]).exists():
        raise NaviaError("the data set is not a local one")
    count = 1000 if kind.startswith("imagenet") else protocol["classes"]
    names = class_names(protocol)
    made = kind.endswith("made here")
    given = next((list(row["domains"]) for row in table.rows if row.get("domains")), [])
    wanted = list(table.domains) if protocol["stream"] == "reset" else given
    opened = open_domains(data, count, names, corruptions=wanted if made else (), severity=protocol["severity"] or 5)
    parts = {name if made else _part(name, protocol["severity"], opened.domains) for name in wanted}
    domains = [domain for domain in opened.domains if domain.name in parts] or list(opened.domains[:1])
    preprocessing = seen_as(str(protocol["preprocessing"]))
    clean = [Domain("clean", domains[0].images)] if made else []
    return [_picture_row(domain, preprocessing, names, before) for domain in (*clean, *domains)]


def _part(domain: str, severity: int, found: Sequence[Domain]) -> str:
    """The name of a found part: a downloaded ImageNet-C has its severity there."""
    long = f"{domain}/{severity}"
    return long if any(part.name == long for part in found) else domain


def _picture_row(domain: Domain, preprocessing: Preprocessing, names: Sequence[str] | None, before: str) -> PictureRow:
    positions = _some(domain.images)
    images = [_thumbnail(domain.pixels(i, preprocessing)) for i in positions]
    labels = [domain.label(i) for i in positions]
    captions = [names[label] if names and 0 <= label < len(names) else "" for label in labels]
    return PictureRow(f"{before}{readable(domain.name)}", images, captions)


def _some(collection: ImageSource) -> list[int]:
    return [int(i) for i in np.random.default_rng(0).permutation(len(collection))[:EXAMPLES]]


def _thumbnail(pixels: np.ndarray) -> np.ndarray:
    height, width = pixels.shape[:2]
    if max(height, width) <= THUMBNAIL:
        return pixels
    scale = THUMBNAIL / max(height, width)
    smaller = Image.fromarray(pixels).resize((round(scale * width), round(scale * height)), Image.Resampling.LANCZOS)
    return np.asarray(smaller)


def seen_as(description: str) -> Preprocessing:
    """The crop that a row's preprocessing describes. A page must not load a model to show a picture."""
    crop = re.search(r"centre crop (\d+)x(\d+)", description)
    short = re.search(r"shorter side to (\d+) px \((\w+)\)", description)
    exact = re.search(r"resize to (\d+)x(\d+) px \((\w+)\)", description)
    means = re.search(r"mean \(([^)]*)\)", description)
    if crop is None or means is None:
        raise NaviaError(f"unknown preprocessing {description!r}")
    channels = len(means[1].split(","))
    resize = int(short[1]) if short else (int(exact[2]), int(exact[1])) if exact else None
    interpolation = short[2] if short else exact[3] if exact else "bicubic"
    return Preprocessing((int(crop[2]), int(crop[1])), (0.0,) * channels, (1.0,) * channels, resize, interpolation)


def class_names(protocol: Mapping[str, Any]) -> tuple[str, ...] | None:
    """What the columns of the answers are called, where that is known without the model."""
    kind = str(protocol["kind of data"]).partition(",")[0]
    if kind == "embedded":
        return sample.CLASSES
    masks = {"imagenet-r": imagenet.r_classes, "imagenet-a": imagenet.a_classes}
    whole = imagenet.names()
    found = tuple(whole[i] for i in masks[kind]()) if kind in masks else whole if kind.startswith("imagenet") else ()
    return found if len(found) == protocol["classes"] else None
