"""DeYO: trust predictions that change when the object's shape is destroyed (Lee et al., 2024; arXiv 2403.07366)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from navia.methods.base import METHODS, Method, Prediction, UpdateResult
from navia.methods.features import masked_mean
from navia.methods.options import SGDOptions
from navia.methods.parameters import early_blocks, norm_parameters
from navia.models.base import ViT


def shuffle_patches(images: Tensor, order: Tensor, grid: int) -> Tensor:
    """Cut images [B, C, H, W] into grid x grid tiles and put tile order[b, k] [B, grid^2] at place k, row by row.
    Images that do not divide evenly are resized to the next smaller multiple and back."""
    batch, channels, height, width = images.shape
    h, w = height // grid, width // grid
    fits = (h * grid, w * grid) == (height, width)
    x = images if fits else F.interpolate(images, (h * grid, w * grid), mode="bilinear", antialias=True)
    tiles = x.unflatten(3, (grid, w)).unflatten(2, (grid, h)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    tiles = tiles[torch.arange(batch, device=x.device).unsqueeze(1), order.to(x.device, non_blocking=True)]
    x = tiles.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, h * grid, w * grid)
    return x if fits else F.interpolate(x, (height, width), mode="bilinear", antialias=True)


@dataclass(frozen=True)
class DeyoOptions(SGDOptions):
    """Options of deyo.

    Args:
        filter_margin: Keep images with entropy below filter_margin * ln C.
        margin: Margin of the entropy weight.
        plpd: Keep images whose predicted label loses more than this probability when the tiles are shuffled.
        grid: Tiles per side.
        layers: Tune all LayerNorms, or those of the first three quarters of the blocks.
    """

    renamed: ClassVar[Mapping[str, str]] = {"side": "grid"}

    filter_margin: float = 0.5
    margin: float = 0.4
    plpd: float = 0.2
    grid: int = 4
    layers: Literal["all", "early"] = "all"


@METHODS.register("deyo")
class Deyo(Method):
    """Entropy minimisation on images whose prediction depends on the shape of the object."""

    name = "deyo"
    Options = DeyoOptions
    relative_cost = 3
    timing_options: ClassVar[Mapping[str, Any]] = {"filter_margin": 1.1, "plpd": 0.0}

    @classmethod
    def tuned_names(cls, vit: ViT, options: DeyoOptions) -> list[str]:
        return norm_parameters(vit, early_blocks(vit) if options.layers == "early" else None)

    @classmethod
    def num_forwards(cls, vit: ViT, options: DeyoOptions) -> int:
        return 2  # the images, and the images with shuffled tiles

    def forward_step(self, images: Tensor) -> Prediction:
        return self.forward_with_grad(images)

    def update(self, prediction: Prediction) -> UpdateResult:
        logits, o = prediction.output.logits, self.options
        h, certain = self.reliable_entropy(logits, o.filter_margin)
        rows = certain.nonzero().squeeze(1)  # waits for a GPU: the second forward needs their number
        if len(rows) == 0:
            return UpdateResult(kept=0)
        logits, h = logits[rows], h[rows]
        drop = self._probability_drop(logits.detach(), prediction.images[rows])
        kept = drop > o.plpd
        if self.none_kept(kept):
            return UpdateResult(kept=0)
        weight = torch.exp(o.margin * self.log_classes - h.detach()) + torch.exp(drop)
        loss = masked_mean(weight * h, kept)
        self.optimize(loss, where=kept.any())
        return UpdateResult(kept.sum(), loss)

    @torch.no_grad()
    def _probability_drop(self, logits: Tensor, images: Tensor) -> Tensor:
        """PLPD: probability that the predicted label loses when the tiles are shuffled [B]."""
        shuffled = shuffle_patches(images, self.orders(len(images)), self.options.grid)
        after = self.forward(shuffled).logits.softmax(dim=1)
        p, label = logits.softmax(dim=1).max(dim=1)
        return p - after.gather(1, label.unsqueeze(1)).squeeze(1)

    def orders(self, count: int) -> Tensor:
        """An independent permutation of the tiles for each image [count, grid^2]."""
        drawn = torch.rand(count, self.options.grid**2, generator=self.generator, device=self.generator.device)
        return drawn.argsort(dim=1)
