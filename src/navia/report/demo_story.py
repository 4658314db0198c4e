"""The demonstration's rows -> the story that its page tells."""

from collections.abc import Sequence

import torch

from navia import __version__
from navia.bench.demo import Row
from navia.data.sources import Domain
from navia.data.streams import make_stream
from navia.models.base import ViT
from navia.report.demo_page import DemoRow, DemoStory, answers
from navia.report.page import PictureRow
from navia.report.words import readable

SHOWN = 5


def demo_story(
    vit: ViT, rows: Sequence[Row], domains: Sequence[Domain], *,
    images: int, batch: int, seed: int, names: Sequence[str] | None, next_steps: Sequence[tuple[str, str]],
) -> DemoStory:  # fmt: skip
    """names: of the classes that the model answers with."""
    severity, shots = domains[0].severity, _last_shots(domains[0], seed, images)
    shifts = ", ".join(readable(domain.name) for domain in domains)
    return DemoStory(
        model=vit.name,
        title="navia: what shift costs, and what adaptation gives back",
        lead=f"A Vision Transformer ({vit.name}) was trained on clean pictures. Here it meets shifted ones ({shifts}, "
        f"severity {severity} of 5) and adapts to them without labels, with all of its tokens and with fewer.",
        images=images,
        batch=batch,
        examples=[
            _clean_examples(vit, domains[0], shots, names),
            *(_examples(vit, rows, domain, shots, names) for domain in domains),
        ],
        rows=[_row(row, domains, batch) for row in rows],
        protocol=_protocol(vit, domains, images, batch, seed),
        next_steps=next_steps,
    )


def _row(row: Row, domains: Sequence[Domain], batch: int) -> DemoRow:
    return DemoRow(
        method=row.method,
        reduce=row.reduce,
        top1={readable(d.name): row.top1(d.name) for d in domains},
        interval={readable(d.name): row.interval(d.name) for d in domains},
        gmacs=row.gmacs,
        ms_per_image=row.ms_per_image,
        per_batch={readable(d.name): _shares(row.right[d.name], batch) for d in domains},
        mean_interval=row.mean_interval,
    )


def _shares(right: torch.Tensor, batch: int) -> list[float]:
    return [part.double().mean().item() for part in right.split(batch)]


def _clean_examples(vit: ViT, domain: Domain, shots: Sequence[int], names: Sequence[str] | None) -> PictureRow:
    clean = Domain("clean", domain.images)
    called = [_name(domain.label(position), names) for position in shots]
    return PictureRow("clean", [clean.pixels(position, vit.preprocessing) for position in shots], called)


def _examples(
    vit: ViT, rows: Sequence[Row], domain: Domain, shots: Sequence[int], names: Sequence[str] | None
) -> PictureRow:
    """The pictures as the model met them, with its answers before and after."""
    plain, adapted = (row.answers[domain.name][-len(shots) :].tolist() for row in (rows[0], rows[-1]))
    told = zip((domain.label(position) for position in shots), plain, adapted, strict=True)
    captions = [answers(*(_name(label, names) for label in labels)) for labels in told]
    return PictureRow(readable(domain.name), [domain.pixels(position, vit.preprocessing) for position in shots], captions)


def _last_shots(domain: Domain, seed: int, images: int) -> list[int]:
    """The last pictures of the stream, when adaptation has had its time; the same ones in every domain."""
    shots = make_stream([domain], seed=seed, limit=images).segments[0].indices[-SHOWN:, 1]
    return [int(position) for position in shots]


def _name(label: int, names: Sequence[str] | None) -> str:
    return str(label) if names is None else names[label]


def _protocol(vit: ViT, domains: Sequence[Domain], images: int, batch: int, seed: int) -> dict[str, str]:
    return {
        "Preprocessing": vit.preprocessing.describe(),
        "Shifts": ", ".join(f"{readable(d.name)} {d.severity}" for d in domains) + " (definitions of ImageNet-C)",
        "Stream": f"{images} images per shift in an order drawn with seed {seed}, batches of {batch}",
        "Reset": "every method starts from the source model before each shift",
        "Answers": "given before the model adapts to the batch; one pass",
        "Source": "64 clean images without labels, not in the stream",
        "Intervals": "95 %, Wilson score over images; of the mean over shifts: normal, over the images' own means",
        "Cost": "multiply-accumulates of the forward passes, attention included",
        "Version": f"navia {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads",
    }
