"""What the examples share: arguments, the model, the source images and the stream.

Without arguments: the embedded ViT and noisy images of clothes, which need no network. With your own data:

    --model timm:vit_base_patch16_224 --images FIELD --source CLEAN     images as they are, clean images in CLEAN
    --model timm:vit_base_patch16_224 --images VAL --corruption fog     clean images: 64 are the source, the others get fog
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

import navia
from navia.data.corruptions import corrupt, corruption_seed
from navia.data.loader import Batch, Loader
from navia.data.sources import OpenedData, leave_out_source, open_domains
from navia.data.streams import make_stream
from navia.methods.base import METHODS
from navia.models.labels import class_names


@dataclass(frozen=True)
class Setup:
    """source: clean images, as a tensor or a folder. opened: the images of the stream."""

    vit: navia.ViT
    source: Tensor | Path
    opened: OpenedData
    limit: int
    batch_size: int

    @property
    def names(self) -> list[str]:
        """Class names in the order of the logits."""
        every = self.opened.names or [str(i) for i in range(self.vit.num_classes)]
        return list(every) if self.opened.classes is None else [every[i] for i in self.opened.classes]

    def adapter(self, method: str = "navia", reduce: str = "tome:8") -> navia.Adapter:
        fisher = METHODS.get(method).needs_fisher
        source = navia.SourceStatistics.measure(self.vit, self.source, reduce, fisher=fisher)
        return navia.adapt(self.vit, method, reduce, source, classes=self.opened.classes)

    def image(self, index: int, shifted: bool = True) -> Image.Image:
        """An image with the corruption, before the model's preprocessing."""
        domain = self.opened.domains[0]
        raw = domain.images.read(index)
        if domain.corruption is None or not shifted:
            return raw
        pixels = np.asarray(raw if raw.mode == "L" else raw.convert("RGB"))
        seed = corruption_seed(domain.images.name(index), domain.corruption, domain.severity)
        return Image.fromarray(corrupt(pixels, domain.corruption, domain.severity, seed=seed))

    def stream(self) -> Iterator[Batch]:
        """Batches in a shuffled order that is the same in every run."""
        stream = make_stream(self.opened.domains, seed=0, limit=self.limit)
        return iter(Loader(stream, self.vit.preprocessing, self.batch_size))


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="timm:NAME, hf:ORG/NAME, torchvision:NAME or embedded")
    parser.add_argument("--checkpoint", help="local weights; nothing is downloaded")
    parser.add_argument("--images", default="embedded", help="folder of images, any layout that `navia doctor` knows")
    parser.add_argument("--source", type=Path, help="folder of clean images; by default 64 of --images")
    parser.add_argument("--corruption", help="corrupts --images; by default gaussian_noise if there is no --source")
    parser.add_argument("--severity", type=int, default=2)
    parser.add_argument("--limit", type=int, default=256, help="number of images")
    parser.add_argument("--batch-size", type=int, default=16, help="images per adaptation step")
    return parser


def load(given: argparse.Namespace) -> Setup:
    vit = navia.load(given.model, checkpoint=given.checkpoint)
    shift = given.corruption or (None if given.source else "gaussian_noise")
    names = class_names(vit)
    corruptions = [shift] if shift else []
    opened = open_domains(given.images, vit.num_classes, names, corruptions=corruptions, severity=given.severity)
    if given.source:
        return Setup(vit, given.source, opened, given.limit, given.batch_size)
    opened, clean = leave_out_source(opened)
    source = clean.tensors(range(len(clean.images)), vit.preprocessing)
    return Setup(vit, source, opened, given.limit, given.batch_size)
