"""DeYO: trust predictions that change when the object's shape is destroyed (Lee et al., 2024; arXiv 2403.07366)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.errors import SpecError
from navia.methods.base import METHODS, Learned, Look, Method, Sgd
from navia.methods.parameters import early_blocks, norm_parameters
from navia.models.base import ViT
from navia.models.forward import run


def shuffle_patches(images: Tensor, order: Tensor, side: int) -> Tensor:
    """Cut images [B, C, H, W] into side x side tiles and put tile order[b, k] [B, side^2] at place k (row by row).
    Sizes that side does not divide are resized to the next smaller multiple and back."""
    batch, channels, height, width = images.shape
    h, w = height // side, width // side
    fits = (h * side, w * side) == (height, width)
    x = images if fits else F.interpolate(images, (h * side, w * side), mode="bilinear", antialias=True)
    tiles = x.unflatten(3, (side, w)).unflatten(2, (side, h)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    tiles = tiles[torch.arange(batch, device=x.device).unsqueeze(1), order.to(x.device)]
    x = tiles.unflatten(1, (side, side)).permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, h * side, w * side)
    return x if fits else F.interpolate(x, (height, width), mode="bilinear", antialias=True)


@dataclass(frozen=True)
class DeyoOptions(Sgd):
    """filter_margin: keep samples with entropy below it * ln C; plpd: and whose label's probability falls by more than
    this under the shuffle. margin: of the entropy weight. side: tiles per side. layers: 'all' norms or the 'early'
    three quarters of the blocks."""

    filter_margin: float = 0.5
    margin: float = 0.4
    plpd: float = 0.2
    side: int = 4
    layers: str = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers not in ("all", "early"):
            raise SpecError(f"layers must be all or early, got {self.layers!r}")


@METHODS.register("deyo")
class Deyo(Method):
    name = "deyo"
    Options = DeyoOptions
    effort = 3

    @classmethod
    def tuned(cls, vit: ViT, options: DeyoOptions) -> list[str]:
        return norm_parameters(vit, early_blocks(vit) if options.layers == "early" else None)

    @classmethod
    def forwards(cls, vit: ViT, options: DeyoOptions) -> int:
        return 2  # the images, and those in shuffled patches

    def look(self, images: Tensor) -> Look:
        return self.look_with_gradient(images)

    def learn(self, look: Look) -> Learned:
        assert look.outcome is not None
        logits, o = look.outcome.logits, self.options
        h, certain = self.reliable(logits, o.filter_margin)
        if not bool(certain.any()):
            return Learned(kept=0)
        logits, h = logits[certain], h[certain]
        drop = self._probability_drop(logits.detach(), look.images[certain])
        kept = drop > o.plpd
        if not bool(kept.any()):
            return Learned(kept=0)
        h, drop = h[kept], drop[kept]
        weight = torch.exp(o.margin * self.log_classes - h.detach()) + torch.exp(drop)
        loss = (weight * h).mean()
        self.descend(loss)
        return Learned(int(kept.sum()), loss.item())

    @torch.no_grad()
    def _probability_drop(self, logits: Tensor, images: Tensor) -> Tensor:
        """PLPD: how much less probable the predicted label becomes once the tiles are shuffled [B]."""
        shuffled = shuffle_patches(images, self.orders(len(images)), self.options.side)
        after = run(
            self.vit, shuffled, self.reduce, touch=self.touch(), classes=self.classes, breathe=self.breathe
        ).logits.softmax(dim=1)
        p, label = logits.softmax(dim=1).max(dim=1)
        return p - after.gather(1, label.unsqueeze(1)).squeeze(1)

    def orders(self, count: int) -> Tensor:
        """An independent permutation of the tiles for each image [count, side^2]."""
        return torch.rand(count, self.options.side**2, generator=self.generator).argsort(dim=1)
