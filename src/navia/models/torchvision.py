"""torchvision: VisionTransformer (vit_b_16, vit_b_32, vit_l_16, vit_l_32, vit_h_14)."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from navia.data import imagenet
from navia.data.preprocessing import Preprocessing
from navia.errors import ModelError
from navia.models.base import ViT, num_outputs
from navia.models.ops import split_heads
from navia.reduction import Tokens


class TorchvisionViT(ViT):
    library = "torchvision"

    def __init__(self, model: nn.Module, preprocessing: Preprocessing | None = None, name: str | None = None) -> None:
        _check(model)
        super().__init__(model, preprocessing or _preprocessing(model), name or "torchvision:VisionTransformer")

    @property
    def _vit(self) -> Any:
        return self.model

    def _block(self, layer: int) -> Any:
        return self._vit.encoder.layers[layer]

    @property
    def depth(self) -> int:
        return len(self._vit.encoder.layers)

    @property
    def num_heads(self) -> int:
        return int(self._block(0).num_heads)

    @property
    def num_prefix_tokens(self) -> int:
        return 1

    @property
    def num_classes(self) -> int:
        return num_outputs(self._vit.heads)

    @property
    def cls_token(self) -> nn.Parameter:
        return cast(nn.Parameter, self._vit.class_token)

    @property
    def patch_projection(self) -> nn.Conv2d:
        return cast(nn.Conv2d, self._vit.conv_proj)

    @property
    def image_size(self) -> tuple[int, int] | None:
        return self._vit.image_size, self._vit.image_size

    def embed(self, images: Tensor) -> Tensor:
        encoder = self._vit.encoder
        patches = self._vit._process_input(images)
        tokens = torch.cat([self.cls_token.expand(patches.shape[0], -1, -1), patches], dim=1)
        return cast(Tensor, encoder.dropout(tokens + encoder.pos_embedding))

    def norm1(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._block(layer).ln_1(x))

    def qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = self._block(layer).self_attention
        if self.frozen:
            return split_heads(attention.in_proj(x), attention.num_heads)
        return split_heads(F.linear(x, attention.in_proj_weight, attention.in_proj_bias), attention.num_heads)

    def attention_dropout(self, layer: int) -> float:
        attention = self._block(layer).self_attention
        return float(attention.dropout) if attention.training else 0.0

    def project(self, layer: int, attended: Tensor, normed: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.dropout(block.self_attention.out_proj(attended)))

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.mlp(block.ln_2(x)))

    @property
    def num_pooled_tokens(self) -> int:
        return 1

    def pool(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self._vit.encoder.ln(tokens.values[:, : self.num_pooled_tokens]))

    def classify(self, pooled: Tensor) -> Tensor:
        return cast(Tensor, self._vit.heads(pooled[:, 0]))

    def block_modules(self, layer: int) -> tuple[nn.Module, nn.Module]:
        return self._block(layer).self_attention, self._block(layer).mlp

    def layer_norms(self) -> dict[str, nn.LayerNorm]:
        found: dict[str, nn.LayerNorm] = {}
        for name, block in self._vit.encoder.layers.named_children():
            for norm in ("ln_1", "ln_2"):
                found[f"encoder.layers.{name}.{norm}"] = getattr(block, norm)
        return found | {"encoder.ln": self._vit.encoder.ln}


def _check(model: nn.Module) -> None:
    kind = type(model)
    if not isinstance(model, VisionTransformer):
        raise ModelError(f"{kind.__name__} is not a torchvision VisionTransformer")
    for name in ("forward", "_process_input"):
        if getattr(kind, name) is not getattr(VisionTransformer, name):
            raise ModelError(f"{kind.__name__} overrides torchvision's VisionTransformer.{name}")
    if not isinstance(model.conv_proj, nn.Conv2d):
        raise ModelError(f"this {kind.__name__} has a convolutional stem instead of one patch projection")
    num_outputs(model.heads)
    for i, block in enumerate(model.encoder.layers):
        if type(block) is not EncoderBlock:
            raise ModelError(f"block {i} of this {kind.__name__} is a {type(block).__name__}, not an EncoderBlock")
        if not isinstance(block.ln_1, nn.LayerNorm):
            raise ModelError(f"block {i} normalises by {type(block.ln_1).__name__}, not by LayerNorm")


def _preprocessing(model: nn.Module) -> Preprocessing:
    """The IMAGENET1K_V1 recipe at 224 px; the model itself carries none."""
    size = cast(int, model.image_size)
    resize = round(size * 256 / 224)
    origin = "torchvision's IMAGENET1K_V1 recipe, assumed"
    return Preprocessing((size, size), imagenet.MEAN, imagenet.STD, resize, "bilinear", origin)


def create(name: str, pretrained: bool, **options: Any) -> tuple[nn.Module, Preprocessing | None]:
    """The model and, with pretrained or named weights, the transforms that belong to them. 'vit_b_16.IMAGENET1K_SWAG_E2E_V1'
    names weights other than the default; without `pretrained` the model is made for them, to be filled from a checkpoint."""
    base, _, tag = name.partition(".")
    if base not in known():
        raise ModelError(f"torchvision has no ViT {base!r}; known: {', '.join(known())}")
    choices = models.get_model_weights(base)
    if tag and tag not in choices.__members__:
        raise ModelError(f"torchvision has no weights {tag!r} for {base}; known: {', '.join(choices.__members__)}")
    weights = choices[tag] if tag else choices.DEFAULT
    if tag and not pretrained:
        options = {"image_size": weights.meta["min_size"][0], **options}
    try:
        model = models.get_model(base, weights=weights if pretrained else None, **options)
    except OSError as error:
        raise ModelError(f"no pretrained weights for {name!r} ({error}); pass checkpoint=FILE") from error
    t = weights.transforms()
    size, resize = t.crop_size[0], t.resize_size[0]
    if not (tag or pretrained) or size != model.image_size:
        return model, None
    origin = f"torchvision's {weights.name}"
    given = Preprocessing((size, size), tuple(t.mean), tuple(t.std), resize, t.interpolation.value, origin)
    return model, given


def known() -> list[str]:
    return [name for name in models.list_models() if name.startswith("vit_")]
