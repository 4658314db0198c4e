"""An image beside a map of its tokens: the groups that its patches were merged into."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from navia.models.base import ViT
from navia.models.forward import forward
from navia.reduction import Reducer


def token_map(vit: ViT, image: Tensor, reducer: Reducer) -> np.ndarray:
    """The token that holds each patch of `image` [C, H, W] after the last block [rows, columns]; -1: dropped."""
    vit.check_images(image.unsqueeze(0))
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
