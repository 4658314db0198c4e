"""What the export tests share: small models of three libraries, and adapters that moved."""

from functools import cache
from typing import Any

import torch
from torch import nn

import navia
from tests.families import images_for, shake

REDUCERS = ("none", "tome:8", "evit:8", "tofu:8")


def _timm() -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    # the embedded model's 197 tokens and 64 channels; three blocks, of which ToFu prunes in one and merges in the next
    return VisionTransformer(img_size=28, patch_size=2, in_chans=1, num_classes=10, embed_dim=64, depth=3, num_heads=2)


def _transformers() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    size = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    names = dict(enumerate(("ant", "bee", "cat", "dog", "eel", "fox", "gnu")))
    return ViTForImageClassification(ViTConfig(**size, image_size=48, patch_size=8, id2label=names))


def _torchvision() -> nn.Module:
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=96, num_classes=11
    )


MAKERS = {"timm": _timm, "transformers": _transformers, "torchvision": _torchvision}


@cache
def model(library: str) -> navia.ViT:
    torch.manual_seed(0)
    return navia.load(shake(MAKERS[library]()))


@cache
def source(library: str, reduce: str) -> navia.SourceStatistics:
    vit = model(library)
    return navia.SourceStatistics.measure(vit, images_for(vit, 32, seed=9), reduce, fisher=True)


def moved(library: str, method: str, reduce: str = "none", **options: Any) -> navia.Adapter:
    """An adapter after two steps."""
    adapter = navia.adapt(model(library), method, reduce, source(library, reduce), guard=False, **options)
    for seed in (1, 2):
        adapter(images_for(model(library), 12, seed=seed) * 1.5 + 0.3)
    return adapter
