"""What the examples have in common: which model, which clean pictures, which stream.

Without arguments that is the embedded ViT and noisy pictures of clothes, which need no network. With your own:

    --model timm:vit_base_patch16_224 --images FIELD --source CLEAN     pictures as they are, clean ones apart
    --model timm:vit_base_patch16_224 --images VAL --corruption fog     clean pictures: 64 are the source, fog is on the rest
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
class Setting:
    """source: clean pictures, as tensors or as their folder. opened: the pictures that come."""

    vit: navia.ViT
    source: Tensor | Path
    opened: OpenedData
    limit: int
    batch: int

    @property
    def names(self) -> list[str]:
        """Of the classes that are answered with."""
        every = self.opened.names or [str(i) for i in range(self.vit.num_classes)]
        return list(every) if self.opened.classes is None else [every[i] for i in self.opened.classes]

    def adapter(self, method: str = "navia", reduce: str = "tome:8") -> navia.Adapter:
        fisher = METHODS.get(method).needs_fisher
        source = navia.SourceStatistics.measure(self.vit, self.source, reduce, fisher=fisher)
        return navia.adapt(self.vit, method, reduce, source, classes=self.opened.classes)

    def picture(self, place: int, shifted: bool = True) -> Image.Image:
        """As a camera would give it: whole, with the shift on it, before the model's own preprocessing."""
        domain = self.opened.domains[0]
        raw = domain.images.read(place)
        if domain.corruption is None or not shifted:
            return raw
        pixels = np.asarray(raw if raw.mode == "L" else raw.convert("RGB"))
        seed = corruption_seed(domain.images.name(place), domain.corruption, domain.severity)
        return Image.fromarray(corrupt(pixels, domain.corruption, domain.severity, seed=seed))

    def stream(self) -> Iterator[Batch]:
        """Batches in an order that looks random and is always the same."""
        stream = make_stream(self.opened.domains, seed=0, limit=self.limit)
        return iter(Loader(stream, self.vit.preprocessing, self.batch))


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="timm:NAME, hf:ORG/NAME, torchvision:NAME or embedded")
    parser.add_argument("--checkpoint", help="local weights; nothing is downloaded")
    parser.add_argument("--images", default="embedded", help="folder of pictures, any layout that `navia doctor` knows")
    parser.add_argument("--source", type=Path, help="folder of clean pictures; without it 64 of --images")
    parser.add_argument("--corruption", help="goes over --images; gaussian_noise where there is no --source")
    parser.add_argument("--severity", type=int, default=2)
    parser.add_argument("--limit", type=int, default=256, help="at most so many pictures")
    parser.add_argument("--batch", type=int, default=16, help="pictures per step")
    return parser


def load(given: argparse.Namespace) -> Setting:
    vit = navia.load(given.model, checkpoint=given.checkpoint)
    shift = given.corruption or (None if given.source else "gaussian_noise")
    names = class_names(vit)
    corruptions = [shift] if shift else []
    opened = open_domains(given.images, vit.num_classes, names, corruptions=corruptions, severity=given.severity)
    if given.source:
        return Setting(vit, given.source, opened, given.limit, given.batch)
    opened, clean = leave_out_source(opened)
    source = clean.tensors(range(len(clean.images)), vit.preprocessing)
    return Setting(vit, source, opened, given.limit, given.batch)
