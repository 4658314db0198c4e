"""The tokens of a batch on their way through the blocks: values and what must travel with them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Tokens(NamedTuple):
    """values [B, N, D]; the first `prefix` rows (CLS, distillation, registers, prompts) are never merged or dropped.
    sizes [B, N]: patches that each token stands for, None while all are 1.
    sources [B, N0]: for each token that entered the first block, the row that now holds it, -1 once it was dropped;
    None unless traced."""

    values: Tensor
    prefix: int
    sizes: Tensor | None = None
    sources: Tensor | None = None

    @property
    def length(self) -> int:
        return self.values.shape[1]

    @property
    def image_count(self) -> int:
        return self.length - self.prefix

    def traced(self) -> "Tokens":
        """The same tokens, from here on remembering where each one went."""
        batch, count = self.values.shape[:2]
        return self._replace(sources=torch.arange(count, device=self.values.device).expand(batch, count))

    def moved(self, destination: Tensor) -> Tensor | None:
        """`sources` after every row n went to `destination` [B, N] (-1: dropped)."""
        if self.sources is None:
            return None
        gone = self.sources < 0
        return destination.gather(1, self.sources.clamp(min=0)).masked_fill(gone, -1)

    def image_mean(self) -> Tensor:
        """Mean of the image tokens [B, D], each weighted by the patches that it stands for."""
        image = self.values[:, self.prefix :]
        if self.sizes is None:
            return image.mean(dim=1)
        weight = self.sizes[:, self.prefix :].to(image.dtype)
        return (weight.unsqueeze(1) @ image).squeeze(1) / weight.sum(dim=1, keepdim=True)
