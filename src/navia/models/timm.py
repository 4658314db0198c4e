"""timm: VisionTransformer (plain, DeiT, DeiT-III, CLIP towers, DINOv2 with and without registers) and distilled DeiT."""

import difflib
from typing import Any, cast

import torch
from timm.data import resolve_model_data_config
from timm.layers import Attention, PatchEmbed
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from navia.data import sample
from navia.data.preprocessing import Preprocessing
from navia.errors import ModelError
from navia.models.base import ViT, num_outputs
from navia.models.checkpoint import load_checkpoint
from navia.models.ops import split_heads
from navia.reduction import Tokens

# A subclass that overrides one of these does something that this file does not know of.
_WALKED = ("forward", "forward_features", "forward_head", "_pos_embed", "pool")


class TimmViT(ViT):
    library = "timm"

    def __init__(self, model: nn.Module, preprocessing: Preprocessing | None = None, name: str | None = None) -> None:
        _check(model)
        super().__init__(model, preprocessing or _preprocessing(model), name or _name(model))

    @property
    def _vit(self) -> Any:
        return self.model

    def _block(self, layer: int) -> Any:
        return self._vit.blocks[layer]

    @property
    def depth(self) -> int:
        return len(self._vit.blocks)

    @property
    def num_heads(self) -> int:
        return int(self._block(0).attn.num_heads)

    @property
    def num_prefix_tokens(self) -> int:
        return int(self._vit.num_prefix_tokens)

    @property
    def num_classes(self) -> int:
        return num_outputs(self._vit.head)

    @property
    def cls_token(self) -> nn.Parameter:
        return cast(nn.Parameter, self._vit.cls_token)

    @property
    def patch_projection(self) -> nn.Conv2d:
        return cast(nn.Conv2d, self._vit.patch_embed.proj)

    @property
    def image_size(self) -> tuple[int, int] | None:
        embed = self._vit.patch_embed
        return None if self._vit.dynamic_img_size or embed.img_size is None else tuple(embed.img_size)

    def embed(self, images: Tensor) -> Tensor:
        return cast(Tensor, self._vit._pos_embed(self._vit.patch_embed(images)))

    def norm_pre(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self._vit.norm_pre(self._vit.patch_drop(tokens)))

    def norm1(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, self._block(layer).norm1(x))

    def qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attn = self._block(layer).attn
        q, k, v = split_heads(attn.qkv(x), attn.num_heads)
        return attn.q_norm(q), attn.k_norm(k), v

    def attention_dropout(self, layer: int) -> float:
        attn = self._block(layer).attn
        return float(attn.attn_drop.p) if attn.training else 0.0

    def project(self, layer: int, attended: Tensor, normed: Tensor) -> Tensor:
        block = self._block(layer)
        attended = block.attn.norm(attended)
        if block.attn.gate is not None:
            attended = attended * block.attn.gate(normed).sigmoid()
        return cast(Tensor, block.drop_path1(block.ls1(block.attn.proj_drop(block.attn.proj(attended)))))

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.drop_path2(block.ls2(block.mlp(block.norm2(x)))))

    @property
    def num_pooled_tokens(self) -> int:
        return 2 if self._distilled else 1

    def pool(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self._vit.fc_norm(self._vit.norm(tokens.values[:, : self.num_pooled_tokens])))

    def classify(self, pooled: Tensor) -> Tensor:
        if self._distilled:
            return cast(Tensor, (self._vit.head(pooled[:, 0]) + self._vit.head_dist(pooled[:, 1])) / 2)
        return cast(Tensor, self._vit.head(self._vit.head_drop(pooled[:, 0])))

    def block_modules(self, layer: int) -> tuple[nn.Module, nn.Module]:
        return self._block(layer).attn, self._block(layer).mlp

    def layer_norms(self) -> dict[str, nn.LayerNorm]:
        found = {f"blocks.{i}.{n}": getattr(self._block(i), n) for i in range(self.depth) for n in ("norm1", "norm2")}
        found |= {name: getattr(self._vit, name) for name in ("norm", "fc_norm")}
        return {name: norm for name, norm in found.items() if isinstance(norm, nn.LayerNorm)}

    @property
    def _distilled(self) -> bool:
        return isinstance(self.model, VisionTransformerDistilled)


def _check(model: nn.Module) -> None:
    """Raise ModelError with the reason unless the forward of this file is the model's own."""
    kind = type(model)
    if not isinstance(model, VisionTransformer):
        raise ModelError(f"{kind.__name__} is not a timm VisionTransformer")
    known: type = VisionTransformerDistilled if isinstance(model, VisionTransformerDistilled) else VisionTransformer
    overridden = [name for name in _WALKED if getattr(kind, name) is not getattr(known, name)]
    if overridden:
        raise ModelError(f"{kind.__name__} overrides timm's {known.__name__}.{overridden[0]}")
    if model.cls_token is None:
        raise ModelError(f"this {kind.__name__} has no [CLS] token (global_pool={model.global_pool!r})")
    if model.global_pool != "token":
        raise ModelError(f"the head of this {kind.__name__} does not read [CLS] (global_pool={model.global_pool!r})")
    classes = num_outputs(model.head)
    if isinstance(model, VisionTransformerDistilled) and num_outputs(model.head_dist) != classes:
        raise ModelError(f"the two classifiers of this {kind.__name__} have different numbers of classes")
    for i, block in enumerate(model.blocks):
        if type(block) is not Block:
            raise ModelError(f"block {i} of this {kind.__name__} is a {type(block).__name__}, not timm's pre-norm Block")
        if type(block.attn) is not Attention:
            raise ModelError(f"the attention of block {i} is a {type(block.attn).__name__}, not timm's Attention")
        if not isinstance(block.norm1, nn.LayerNorm) or not isinstance(block.norm2, nn.LayerNorm):
            raise ModelError(f"block {i} normalises by {type(block.norm1).__name__}, not by LayerNorm")
    if not isinstance(model.patch_embed, PatchEmbed) or not isinstance(model.patch_embed.proj, nn.Conv2d):
        raise ModelError(f"patch embedding {type(model.patch_embed).__name__} is not a convolution over patches")


def _preprocessing(model: Any) -> Preprocessing:
    channels, size = model.patch_embed.proj.in_channels, model.patch_embed.img_size
    cfg = getattr(model, "pretrained_cfg", None)
    if not cfg and size is None:
        raise ModelError("the model carries neither an image size nor a configuration; pass preprocessing=")
    if not cfg:
        half = (0.5,) * channels
        return Preprocessing(tuple(size), half, half, max(size), origin="assumed: the model carries no configuration")
    data = resolve_model_data_config(model)
    height, width = size or data["input_size"][1:]
    mean, std, origin = tuple(data["mean"]), tuple(data["std"]), "timm's configuration of the model"
    if len(mean) != channels:
        mean, std = (sum(mean) / len(mean),) * channels, (sum(std) / len(std),) * channels
        origin += f", averaged over channels for {channels}"
    if data["crop_mode"] == "squash":
        resize: int | tuple[int, int] = (int(height / data["crop_pct"]), int(width / data["crop_pct"]))
    elif data["crop_mode"] == "center":
        resize = int(max(height, width) / data["crop_pct"])  # an oblong crop fits into every image
    else:
        raise ModelError(f"timm's crop mode {data['crop_mode']!r} is not known; pass preprocessing=")
    return Preprocessing((height, width), mean, std, resize, data["interpolation"], origin)


def _name(model: nn.Module) -> str:
    cfg = getattr(model, "pretrained_cfg", None) or {}
    tag = f"{cfg['architecture']}.{cfg['tag']}" if cfg.get("tag") else cfg.get("architecture")
    return f"timm:{tag or type(model).__name__}"


def create(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """timm.create_model, with errors that say what to do."""
    import timm

    if not timm.is_model(name):
        near = difflib.get_close_matches(name.split(".")[0], timm.list_models(), n=5)
        hint = f"; near: {', '.join(near)}" if near else ""
        raise ModelError(f"timm has no model {name!r}{hint}")
    try:
        return cast(nn.Module, timm.create_model(name, pretrained=pretrained, **options))
    except (TypeError, AssertionError) as error:
        raise ModelError(f"timm cannot create {name!r} with {options}: {error}") from error
    except (OSError, RuntimeError) as error:
        if not pretrained or isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).splitlines()[0]
        raise ModelError(f"no pretrained weights for {name!r} ({reason}); pass checkpoint=FILE") from error


def embedded_architecture() -> nn.Module:
    """The embedded sample's ViT without its weights: patches and blocks in the numbers of ViT-B/16, 64 channels."""
    return VisionTransformer(img_size=28, patch_size=2, in_chans=1, num_classes=10, embed_dim=64, depth=12, num_heads=2)


def create_embedded(pretrained: bool, **options: Any) -> tuple[nn.Module, Preprocessing]:
    """The small ViT of the embedded sample."""
    if options:
        raise ModelError(f"the embedded model takes no options, got {', '.join(options)}")
    model = embedded_architecture()
    if pretrained:
        load_checkpoint(model, sample.MODEL)
    return model, Preprocessing((28, 28), (sample.MEAN,), (sample.STD,), 28, "bilinear", "the embedded sample")
