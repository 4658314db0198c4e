"""Small models of every supported family, with weights away from their initial values so that nothing is a no-op."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import navia
from navia.data.preprocessing import Preprocessing
from navia.models.checkpoint import load_checkpoint

GOLDEN = Path(__file__).parent / "golden"


def shake(model: nn.Module, seed: int = 0) -> nn.Module:
    """Random, non-trivial weights: LayerScale, norms, registers and heads all away from identity and zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(noise * (0.3 if parameter.dim() < 2 else 0.08))
    return model.eval()


def golden_model() -> navia.ViT:
    """The small ViT that the golden outputs were recorded on, with the inputs' normalisation."""
    from timm.models.vision_transformer import VisionTransformer

    shape = {"img_size": 28, "patch_size": 4, "in_chans": 1, "num_classes": 10, "embed_dim": 64, "num_heads": 4}
    model = VisionTransformer(**shape)
    load_checkpoint(model, GOLDEN / "model.safetensors")
    return navia.load(model, preprocessing=Preprocessing((28, 28), (0.2860,), (0.3530,)))


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as data:
        return {key: data[key] for key in data.files}


def _timm(name: str, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import timm

        return timm.create_model(name, **{"img_size": 32, "num_classes": 11, "embed_dim": 48, "num_heads": 3, **options})

    return build


def _plain(**options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from timm.models.vision_transformer import VisionTransformer

        defaults = {"img_size": 32, "patch_size": 8, "num_classes": 11, "embed_dim": 48, "depth": 4, "num_heads": 3}
        return VisionTransformer(**{**defaults, **options})

    return build


def _hf(kind: str, **options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        base = kind.removesuffix("WithTeacher").removesuffix("ForImageClassification")
        config = getattr(transformers, f"{base}Config")(
            **{
                "hidden_size": 48,
                "num_hidden_layers": 4,
                "num_attention_heads": 3,
                "intermediate_size": 96,
                "image_size": 32,
                "patch_size": 8,
                "num_labels": 11,
                **options,
            }
        )
        return getattr(transformers, kind)(config)

    return build


def _torchvision(**options: object) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision.models.vision_transformer import VisionTransformer

        defaults = {"image_size": 32, "patch_size": 8, "num_layers": 4, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 96}
        return VisionTransformer(**{**defaults, "num_classes": 11, **options})

    return build


MODELS: dict[str, Callable[[], nn.Module]] = {
    "timm plain": _plain(),
    "timm deit": _timm("deit_tiny_patch16_224", patch_size=8, depth=4),
    "timm deit distilled": _timm("deit_tiny_distilled_patch16_224", patch_size=8, depth=4),
    "timm deit3 (LayerScale)": _timm("deit3_small_patch16_224", patch_size=8, depth=4),
    "timm dinov2": _timm("vit_small_patch14_dinov2", img_size=56, depth=3),
    "timm dinov2 registers": _timm("vit_small_patch14_reg4_dinov2", img_size=56, depth=3),
    "timm clip tower": _timm("vit_base_patch16_clip_224", patch_size=8, depth=3),
    "timm quickgelu clip": _timm("vit_base_patch16_clip_quickgelu_224", patch_size=8, depth=3),
    "timm q/k norms, inner norms": _plain(qk_norm=True, scale_attn_norm=True, scale_mlp_norm=True, init_values=0.1),
    "timm grey, oblong": _plain(in_chans=1, img_size=(24, 40), depth=5),
    "timm fc_norm, no class position": _plain(fc_norm=True, no_embed_class=True, reg_tokens=2),
    "timm dynamic size": _plain(dynamic_img_size=True),
    "transformers vit": _hf("ViTForImageClassification"),
    "transformers deit": _hf("DeiTForImageClassification"),
    "transformers deit with teacher": _hf("DeiTForImageClassificationWithTeacher"),
    "transformers dinov2": _hf("Dinov2ForImageClassification", layerscale_value=0.2),
    "transformers dinov2 swiglu": _hf("Dinov2ForImageClassification", use_swiglu_ffn=True),
    "transformers dinov2 registers": _hf("Dinov2WithRegistersForImageClassification", num_register_tokens=3),
    "torchvision": _torchvision(),
    "torchvision with representation": _torchvision(representation_size=24),
}

# One of each library, for suites that multiply with methods and reducers.
THREE = ("timm plain", "transformers vit", "torchvision")

# The same three in one or two blocks, for what is slow per block.
SHALLOW: dict[str, Callable[[], nn.Module]] = {
    "timm plain": _plain(depth=2),
    "transformers vit": _hf("ViTForImageClassification", num_hidden_layers=1),
    "torchvision": _torchvision(num_layers=1),
}


def tiny() -> Any:
    """As many blocks as the usual ViTs, but narrow and with few tokens; of transformers, which saves models in folders."""
    sizes = {"hidden_size": 24, "intermediate_size": 48, "num_hidden_layers": 12, "image_size": 28, "patch_size": 7}
    torch.manual_seed(0)
    return shake(_hf("ViTForImageClassification", **sizes, num_labels=10)())


def build(name: str, seed: int = 0) -> navia.ViT:
    torch.manual_seed(seed)
    return navia.load(shake(MODELS[name](), seed))


def images_for(vit: navia.ViT, batch: int = 3, seed: int = 1) -> torch.Tensor:
    height, width = vit.image_size or vit.preprocessing.size
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, vit.in_chans, height, width, generator=generator)


def own_forward(vit: navia.ViT, images: torch.Tensor) -> torch.Tensor:
    """The library's own logits."""
    out = vit.model(images)
    return out if isinstance(out, torch.Tensor) else out.logits


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest difference, in units of the largest value of `theirs`."""
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()
