"""A demonstration with made-up numbers, for tests of the page only: nothing here was measured."""

import numpy as np

from navia.report.demo_page import DemoRow, DemoStory, answers
from navia.report.page import PictureRow

DOMAINS = ("gaussian noise", "low contrast")
IMAGES, BATCH = 176, 32  # the last batch is half full
# method, reducer, accuracy per domain, cost, time
RUNS = (
    ("none", "none", (0.52, 0.31), 0.0187, 0.41),
    ("tent", "none", (0.55, 0.36), 0.0187, 1.12),
    ("align", "none", (0.71, 0.64), 0.0187, 1.20),
    ("align", "tome:2", (0.69, 0.63), 0.0139, 0.95),
    ("navia", "tome:2", (0.74, 0.66), 0.0139, 1.03),
)


def row(method: str, reduce: str, top1: tuple[float, float], gmacs: float, ms: float, seed: int = 0) -> DemoRow:
    """Intervals as wide as chance makes them; batches that scatter around the accuracy."""
    rng = np.random.default_rng(seed)
    half = [1.96 * (share * (1 - share) / IMAGES) ** 0.5 for share in top1]
    return DemoRow(
        method=method,
        reduce=reduce,
        top1=dict(zip(DOMAINS, top1, strict=True)),
        interval={d: (share - h, share + h) for d, share, h in zip(DOMAINS, top1, half, strict=True)},
        gmacs=gmacs,
        ms_per_image=ms,
        per_batch={d: (rng.binomial(BATCH, share, 6) / BATCH).tolist() for d, share in zip(DOMAINS, top1, strict=True)},
        mean_interval=(np.mean(top1) - np.mean(half) / 2**0.5, np.mean(top1) + np.mean(half) / 2**0.5),
    )


def blobs(count: int, seed: int = 0) -> list[np.ndarray]:
    """Grey pictures of bright ovals, 28 x 28."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:28, :28]
    sizes = rng.uniform(4, 12, (count, 2))
    return [(235 * (((y - 14) / a) ** 2 + ((x - 14) / b) ** 2 < 1)).astype(np.uint8) for a, b in sizes]


def examples() -> list[PictureRow]:
    rng = np.random.default_rng(1)
    clean = blobs(5)
    noisy = [(p + rng.normal(0, 70, p.shape)).clip(0, 255).astype(np.uint8) for p in clean]
    flat = [(0.18 * p + 90).astype(np.uint8) for p in clean]
    names = ("shirt", "bag", "sneaker", "coat", "ankle boot")
    said = [answers(name, wrong, name) for name, wrong in zip(names, names[1:] + names[:1], strict=True)]
    return [PictureRow("clean", clean, names), PictureRow(DOMAINS[0], noisy, said), PictureRow(DOMAINS[1], flat, said)]


def story() -> DemoStory:
    return DemoStory(
        model="embedded ViT, 12 blocks, 50 tokens",
        title="A small Vision Transformer meets noise and fog",
        lead="A model that is right on most clean pictures of clothing is shown shifted ones. Each method adapts to the "
        "stream as it comes, without labels; some of them also merge tokens, and pay less for it.",
        images=IMAGES,
        batch=BATCH,
        examples=examples(),
        rows=[row(*run, seed=i) for i, run in enumerate(RUNS)],
        protocol={"Images": f"{IMAGES} per shift", "Batch": str(BATCH), "Seed": "0", "Reset": "before every shift"},
        next_steps=[
            ("Measure what your own model expects, once, on clean images.", "navia stats clean_images/ source.safetensors"),
            (
                "Let the stream choose the method.",
                "navia choose target_images/ --source source.safetensors -m timm:deit_tiny_patch16_224 -r tome:8",
            ),
        ],
    )
