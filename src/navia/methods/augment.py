"""CoTTA's random views of a batch: colour jitter, small affine motion, blur, flip, noise; one draw for the whole batch."""

from collections.abc import Callable

import torch
from torch import Tensor

from navia.data.preprocessing import Preprocessing


def augment(
    images: Tensor, preprocessing: Preprocessing, generator: torch.Generator, noise: torch.Generator | None = None
) -> Tensor:
    """Normalised images [B, C, H, W] -> another view of them, normalised. Works on pixels in [0, 1]: normalised values
    must not be clipped there. noise: a generator on the images' device, which draws the noise; None: `generator` does."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    def draw(low: float, high: float) -> float:
        return low + (high - low) * torch.rand((), generator=generator).item()

    x = preprocessing.denormalise(images).clamp(0, 1)
    jitters: list[Callable[[Tensor], Tensor]] = [
        lambda x: F.adjust_brightness(x, draw(0.6, 1.4)),
        lambda x: F.adjust_contrast(x, draw(0.7, 1.3)),
        lambda x: F.adjust_saturation(x, draw(0.5, 1.5)),
        lambda x: F.adjust_hue(x, draw(-0.06, 0.06)),
        lambda x: F.adjust_gamma(x, draw(0.7, 1.3)),
    ]
    for choice in torch.randperm(len(jitters), generator=generator).tolist():
        x = jitters[choice](x)
    height, width = x.shape[-2:]
    x = F.pad(x, [width // 2, height // 2], padding_mode="edge")
    across, down = x.shape[-1] / 16, x.shape[-2] / 16
    x = F.affine(
        x,
        angle=draw(-15, 15),
        translate=[round(draw(-across, across)), round(draw(-down, down))],
        scale=draw(0.9, 1.1),
        shear=[0.0],
        interpolation=InterpolationMode.BILINEAR,
    )
    x = F.center_crop(F.gaussian_blur(x, [5, 5], [draw(0.001, 0.5)] * 2), [height, width])
    if draw(0, 1) < 0.5:
        x = F.hflip(x)
    drawer = noise or generator
    drawn = torch.randn(x.shape, generator=drawer, device=drawer.device).to(x) * 0.005
    return _normalise((x + drawn).clamp(0, 1), preprocessing)


def _normalise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    mean = torch.tensor(preprocessing.mean).to(images)[:, None, None]
    return (images - mean) / torch.tensor(preprocessing.std).to(images)[:, None, None]
