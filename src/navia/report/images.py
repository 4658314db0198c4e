"""Images: examples of the data of a table with predictions before and after adaptation, and maps of merged tokens."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.data import imagenet, sample
from navia.data.preprocessing import Preprocessing
from navia.data.sources import Domain, open_domains
from navia.errors import NaviaError
from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import Reducer
from navia.report.formatting import readable
from navia.report.lines import Line, Traces
from navia.report.tables import Dataset, Results, Table

EXAMPLES = 5
THUMBNAIL = 128  # pixels: small enough for a page with fifteen corruptions


class ImageRow(NamedTuple):
    """images: uint8 [H, W] or [H, W, 3]; captions: one each, a line break starts a new line."""

    title: str
    images: Sequence[np.ndarray]
    captions: Sequence[str]


Examples = tuple[Sequence[ImageRow], str]


def example_images(results: Results, traces: Traces) -> Examples:
    """A few images of each kind of data, and a note on them; data that cannot be opened is named there."""
    rows: list[ImageRow] = []
    notes: list[str] = []
    widest: dict[tuple[str, ...], tuple[Table, Dataset]] = {}  # of the tables of one kind of data that with most domains
    for table, dataset in ((one, part) for one in results.tables for part in one.datasets if part.domains):
        what = tuple(str(dataset.protocol[key]) for key in ("data", "severity", "preprocessing"))
        earlier = widest.get(what)
        if earlier is None or len(dataset.domains) > len(earlier[1].domains):
            widest[what] = table, dataset
    for table, dataset in widest.values():
        prefix = f"table {table.number}, " if len(results.tables) > 1 else ""
        try:
            rows += _examples_of(table, dataset, traces, prefix)
        except (NaviaError, OSError) as error:
            notes.append(f"No images of {table.title if len(table.datasets) == 1 else dataset.title}: {error}.")
    shown = "Cropped as the model sees them. They show the data; the tables count how often predictions are right."
    return rows, " ".join([*([shown] if rows else []), *notes])


def _examples_of(table: Table, dataset: Dataset, traces: Traces, prefix: str) -> list[ImageRow]:
    protocol, keys = dataset.protocol, {own: key for key, own in dataset.domains.items()}
    data, kind = str(protocol["data"]), str(protocol["kind of data"])
    if data.startswith("datasets:") and not Path(data.split(":")[1]).exists():
        raise NaviaError("the data set is not a local one")
    total = 1000 if kind.startswith("imagenet") else protocol["classes"]
    names = class_names(protocol)
    generated = kind.endswith("made here")
    own = [row for line in table.lines for (domain, _), row in line.rows.items() if domain in dataset.domains]
    given = next((list(row["domains"]) for row in own if row.get("domains")), [])
    wanted = list(keys) if protocol["stream"] == "reset" else given
    severity = protocol["severity"] or 5
    opened = open_domains(data, total, names, corruptions=wanted if generated else (), severity=severity)
    found = {domain.name: domain for domain in opened.domains}
    # the parts of a downloaded ImageNet-C have their severity in the name
    parts = {name: long if (long := f"{name}/{severity}") in found else name for name in wanted}
    domains = {name: found[part] for name, part in parts.items() if part in found} or dict([next(iter(found.items()))])
    if names is None and opened.names is not None:
        names = tuple(opened.names[i] for i in opened.classes) if opened.classes is not None else tuple(opened.names)
    first = next(iter(domains))
    last = [_last_predictions(line, keys.get(first, first), traces) for line in table.blocks[0].lines]
    positions = _positions(next(iter(domains.values())), next((own for own in last if own), {}))
    preprocessing = parse_preprocessing(str(protocol["preprocessing"]))
    if generated:
        domains = {"clean": Domain("clean", next(iter(domains.values())).images)} | domains
    return [
        ImageRow(
            f"{prefix}{_domain_title(table, dataset, domain.name)}",
            [_thumbnail(domain.pixels(i, preprocessing)) for i in positions],
            [_caption(table, keys.get(name, name), domain, i, traces, names) for i in positions],
        )
        for name, domain in domains.items()
    ]


def _domain_title(table: Table, dataset: Dataset, name: str) -> str:
    """Of several data sets also which of them it is."""
    title = readable(name)
    return title if len(table.datasets) == 1 or title == dataset.title else f"{dataset.title}, {title}"


def _last_predictions(line: Line, domain: str, traces: Traces) -> dict[str, int]:
    """Predicted class of the last images of the stream, by the name of the image."""
    found = (traces.get(row["key"], {}).get("last") for row in line.rows_of(domain))
    return {str(name): int(label) for name, label in next(filter(None, found), ())}


def _positions(domain: Domain, last: Mapping[str, int]) -> list[int]:
    """Of the last images of the stream, when the model has adapted; of others where these are not known."""
    collection = domain.images
    by_name = {collection.name(i): i for i in range(len(collection))} if last else {}
    known = [by_name[name] for name in last if name in by_name][-EXAMPLES:]
    return known or [int(i) for i in np.random.default_rng(0).permutation(len(collection))[:EXAMPLES]]


def _caption(table: Table, name: str, domain: Domain, at: int, traces: Traces, names: Sequence[str] | None) -> str:
    """What the image is, and the predictions of the first and the last line of the table."""
    lines, truth, image = table.blocks[0].lines, domain.label(at), domain.images.name(at)
    text = [_class_name(truth, names)]
    before, after = (_last_predictions(line, name, traces).get(image) for line in (lines[0], lines[-1]))
    if lines[0].setting.method == "none" and before is not None and after is not None:
        said = (("before", before), ("after", after))
        text += [f"{when} {'✓' if label == truth else '✗'} {_class_name(label, names)}" for when, label in said]
    return "\n".join(text)


def _class_name(label: int, names: Sequence[str] | None) -> str:
    return names[label] if names and 0 <= label < len(names) else f"class {label}"


def _thumbnail(pixels: np.ndarray) -> np.ndarray:
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return np.asarray(image)


def parse_preprocessing(description: str) -> Preprocessing:
    """The crop that a row's preprocessing describes, so that a page needs no model to show an image."""
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
    """Names of the predicted classes, where they are known without the model."""
    kind = str(protocol["kind of data"]).partition(",")[0]
    if kind == "embedded":
        return sample.CLASSES
    masks = {"imagenet-r": imagenet.r_classes, "imagenet-a": imagenet.a_classes}
    whole = imagenet.names()
    found = tuple(whole[i] for i in masks[kind]()) if kind in masks else whole if kind.startswith("imagenet") else ()
    return found if len(found) == protocol["classes"] else None


# ---- merged tokens


def token_map(vit: ViT, image: Tensor, reducer: Reducer) -> np.ndarray:
    """The token that holds each patch of `image` [C, H, W] after the last block [rows, columns]; -1: dropped."""
    vit.check_images(image.unsqueeze(0), values=True)
    with torch.no_grad():
        outcome = forward(vit, image.unsqueeze(0), reducer, trace=True)
    assert outcome.tokens.sources is not None
    rows, columns = image.shape[1] // vit.patch_size[0], image.shape[2] // vit.patch_size[1]
    return outcome.tokens.sources[0, vit.num_prefix_tokens :].reshape(rows, columns).cpu().numpy()


def paint_token_map(pixels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """`pixels` [H, W, 3] uint8 with every group of patches in its mean colour, outlined in white; dropped patches greyed."""
    height, width = pixels.shape[:2]
    cell = (height // groups.shape[0], width // groups.shape[1])
    member = groups.repeat(cell[0], axis=0).repeat(cell[1], axis=1)
    flat = np.where(member < 0, groups.max() + 1, member).reshape(-1)
    counts = np.bincount(flat)
    colours = np.stack([np.bincount(flat, pixels[..., c].reshape(-1)) for c in range(3)], axis=1)
    painted = (colours / np.maximum(counts, 1)[:, None])[flat].reshape(pixels.shape)
    painted[member < 0] = 0.25 * pixels[member < 0] + 0.75 * 128
    inner = np.zeros(member.shape, dtype=bool)
    inner[:, 1:] |= member[:, 1:] != member[:, :-1]
    inner[1:] |= member[1:] != member[:-1]
    painted[inner] = 255
    return painted.round().clip(0, 255).astype(np.uint8)


def draw_token_maps(vit: ViT, image: Image.Image, reducers: list[Reducer], scale: int = 2) -> Image.Image:
    """The image as the model sees it, and beside it its merged tokens under each reducer."""
    seen = vit.preprocessing.crop(image).convert("RGB")
    tensor = vit.preprocessing(image).to(vit.device)
    big = np.asarray(seen.resize((seen.width * scale, seen.height * scale), Image.Resampling.NEAREST))
    panels = [big, *(paint_token_map(big, token_map(vit, tensor, reducer)) for reducer in reducers)]
    gap = np.full((big.shape[0], 8, 3), 255, dtype=np.uint8)
    strip = [part for panel in panels for part in (panel, gap)][:-1]
    return Image.fromarray(np.concatenate(strip, axis=1))
