"""The demonstration's rows -> the story that its page tells."""

from collections.abc import Sequence

import numpy as np
import torch

from navia import __version__
from navia.bench.demo import Row
from navia.images.domain import Domain
from navia.images.streams import make_stream
from navia.report.demo_page import DemoRow, DemoStory, answers
from navia.report.page import PictureRow
from navia.vit.vit import ViT

SHOWN = 6


def demo_story(
    vit: ViT, rows: Sequence[Row], domains: Sequence[Domain], *,
    images: int, batch: int, seed: int, names: Sequence[str] | None, next_steps: Sequence[tuple[str, str]],
) -> DemoStory:  # fmt: skip
    """names: of the classes that the model answers with."""
    severity = domains[0].severity
    shifts = ", ".join(_readable(domain.name) for domain in domains)
    return DemoStory(
        model=vit.name,
        title="navia: what shift costs, and what adaptation gives back",
        lead=f"{vit.name} was trained on clean pictures. Here it meets shifted ones ({shifts}, severity {severity} of 5) "
        "and adapts to them without labels, with all of its tokens and with fewer.",
        images=images,
        batch=batch,
        examples=[_examples(vit, rows, domain, seed, images, names) for domain in domains],
        rows=[_row(row, domains, batch) for row in rows],
        protocol=_protocol(vit, domains, images, batch, seed),
        next_steps=next_steps,
    )


def _readable(name: str) -> str:
    return name.replace("_", " ")


def _row(row: Row, domains: Sequence[Domain], batch: int) -> DemoRow:
    return DemoRow(
        method=row.method,
        reduce=row.reduce,
        top1={_readable(d.name): row.top1(d.name) for d in domains},
        interval={_readable(d.name): row.interval(d.name) for d in domains},
        gmacs=row.gmacs,
        ms_per_image=row.ms_per_image,
        per_batch={_readable(d.name): _shares(row.right[d.name], batch) for d in domains},
        mean_interval=row.mean_interval,
    )


def _shares(right: torch.Tensor, batch: int) -> list[float]:
    return [part.double().mean().item() for part in right.split(batch)]


def _examples(
    vit: ViT, rows: Sequence[Row], domain: Domain, seed: int, images: int, names: Sequence[str] | None
) -> PictureRow:
    """The last pictures of the stream, when adaptation has had its time: as they were and as the model met them."""
    plain, adapted = rows[0].answers[domain.name], rows[-1].answers[domain.name]
    shots = make_stream([domain], seed=seed, limit=images).stretches[0].shots[:, 1]
    clean = Domain("clean", domain.collection)
    pictures: list[np.ndarray] = []
    captions: list[str] = []
    for i in range(len(shots) - SHOWN, len(shots)):
        position = int(shots[i])
        called = [str(k) if names is None else names[k] for k in (domain.label(position), int(plain[i]), int(adapted[i]))]
        pictures += [clean.picture(position, vit.preprocessing), domain.picture(position, vit.preprocessing)]
        captions += [f"{called[0]}, clean", answers(*called)]
    return PictureRow(_readable(domain.name), pictures, captions)


def _protocol(vit: ViT, domains: Sequence[Domain], images: int, batch: int, seed: int) -> dict[str, str]:
    return {
        "Preprocessing": vit.preprocessing.describe(),
        "Shifts": ", ".join(f"{_readable(d.name)} {d.severity}" for d in domains) + " (definitions of ImageNet-C)",
        "Stream": f"{images} images per shift in an order drawn with seed {seed}, batches of {batch}",
        "Reset": "every method starts from the source model before each shift",
        "Answers": "given before the model adapts to the batch; one pass",
        "Source": "64 clean images without labels, not in the stream",
        "Intervals": "95 %, Wilson score over images; of the mean: normal, over all images",
        "Cost": "multiply-accumulates of the forward passes, attention included",
        "Version": f"navia {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads",
    }
