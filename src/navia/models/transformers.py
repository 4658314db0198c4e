"""transformers: ViT, DeiT (with and without teacher), DINOv2 and DINOv2 with registers, `...ForImageClassification`."""

from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from PIL import Image
from torch import Tensor, nn

from navia.data import imagenet
from navia.data.preprocessing import Preprocessing
from navia.errors import ModelError
from navia.models.base import ViT, num_outputs
from navia.reduction import Tokens

_HALF = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


class HuggingFaceViT(ViT):
    """ViTForImageClassification, and what the other families share with it."""

    library = "transformers"
    backbone: ClassVar[str] = "vit"  # the classification model's attribute that holds the transformer
    blocks: ClassVar[str] = "layers"  # the transformer's attribute that holds the blocks
    norms: ClassVar[tuple[str, str]] = ("layernorm_before", "layernorm_after")
    classifiers: ClassVar[tuple[str, ...]] = ("classifier",)
    usual: ClassVar[Preprocessing] = Preprocessing((224, 224), *_HALF, (224, 224), "bilinear")

    def __init__(self, model: nn.Module, preprocessing: Preprocessing | None = None, name: str | None = None) -> None:
        super().__init__(model, preprocessing or self._assumed(model), name or _name(model))
        self._check()

    @property
    def _vit(self) -> Any:
        return getattr(self.model, self.backbone)

    def _block(self, layer: int) -> Any:
        return self._vit.get_submodule(self.blocks)[layer]

    @property
    def depth(self) -> int:
        return len(self._vit.get_submodule(self.blocks))

    @property
    def num_heads(self) -> int:
        return int(self._block(0).attention.num_attention_heads)

    @property
    def num_prefix_tokens(self) -> int:
        return 1

    @property
    def num_classes(self) -> int:
        return num_outputs(getattr(self.model, self.classifiers[0]))

    @property
    def cls_token(self) -> nn.Parameter:
        return cast(nn.Parameter, self._vit.embeddings.cls_token)

    @property
    def patch_projection(self) -> nn.Conv2d:
        return cast(nn.Conv2d, self._vit.embeddings.patch_embeddings.projection)

    @property
    def image_size(self) -> tuple[int, int] | None:
        return _pair(self._vit.embeddings.patch_embeddings.image_size)

    def embed(self, images: Tensor) -> Tensor:
        return cast(Tensor, self._vit.embeddings(images))

    def norm1(self, layer: int, x: Tensor) -> Tensor:
        return cast(Tensor, getattr(self._block(layer), self.norms[0])(x))

    def qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        attention = self._block(layer).attention
        heads = (attention.num_attention_heads, attention.head_dim)
        q, k, v = (
            projection(x).unflatten(2, heads).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        return q, k, v

    def attention_dropout(self, layer: int) -> float:
        attention = self._block(layer).attention
        return float(attention.attention_dropout) if attention.training else 0.0

    def project(self, layer: int, attended: Tensor, normed: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.dropout(block.attention.o_proj(attended)))

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.dropout(block.mlp(getattr(block, self.norms[1])(x))))

    @property
    def num_pooled_tokens(self) -> int | None:
        return len(self.classifiers)

    def pool(self, tokens: Tokens) -> Tensor:
        return cast(Tensor, self._vit.layernorm(tokens.values[:, : self.num_pooled_tokens]))

    def classify(self, pooled: Tensor) -> Tensor:
        return cast(Tensor, getattr(self.model, self.classifiers[0])(pooled[:, 0]))

    def block_modules(self, layer: int) -> tuple[nn.Module, nn.Module]:
        return self._block(layer).attention, self._block(layer).mlp

    def layer_norms(self) -> dict[str, nn.LayerNorm]:
        path = f"{self.backbone}.{self.blocks}"
        found = {f"{path}.{i}.{n}": getattr(self._block(i), n) for i in range(self.depth) for n in self.norms}
        return found | {f"{self.backbone}.layernorm": self._vit.layernorm}

    def _assumed(self, model: Any) -> Preprocessing:
        """The family's usual preprocessing at the model's size, for a model that comes without its image processor."""
        config, usual = model.config, self.usual
        height, width = _pair(config.image_size)
        scale = height / usual.size[0]
        if isinstance(usual.resize, tuple):
            resize: int | tuple[int, int] = (
                round(usual.resize[0] * scale),
                round(usual.resize[1] * width / usual.size[1]),
            )
        else:
            resize = round(cast(int, usual.resize) * max(height, width) / usual.size[0])
        channels = config.num_channels
        mean, std = (usual.mean, usual.std) if channels == 3 else ((0.5,) * channels,) * 2
        origin = f"usual for {type(model).__name__}, assumed: the module carries no image processor"
        return Preprocessing((height, width), mean, std, resize, usual.interpolation, origin, floor_crop=True)

    def _check(self) -> None:
        kind = type(self.model).__name__
        if len({num_outputs(getattr(self.model, name)) for name in self.classifiers}) > 1:
            raise ModelError(f"the two classifiers of this {kind} have different numbers of classes")
        for i in range(self.depth):
            for part in (
                "attention.q_proj",
                "attention.k_proj",
                "attention.v_proj",
                "attention.o_proj",
                "mlp",
                *self.norms,
            ):
                try:
                    self._block(i).get_submodule(part)
                except AttributeError:
                    raise ModelError(f"block {i} of this {kind} has no {part}; transformers >= 5.22 is known") from None


class HuggingFaceDeiT(HuggingFaceViT):
    backbone = "deit"
    usual = Preprocessing((224, 224), *_HALF, (256, 256), "bicubic")

    @property
    def num_prefix_tokens(self) -> int:
        return 2


class HuggingFaceDeiTWithTeacher(HuggingFaceDeiT):
    classifiers = ("cls_classifier", "distillation_classifier")

    def classify(self, pooled: Tensor) -> Tensor:
        cls, distillation = (getattr(self.model, name) for name in self.classifiers)
        return cast(Tensor, (cls(pooled[:, 0]) + distillation(pooled[:, 1])) / 2)


class HuggingFaceDinov2(HuggingFaceViT):
    backbone = "dinov2"
    blocks = "encoder.layer"
    norms = ("norm1", "norm2")
    usual = Preprocessing((224, 224), imagenet.MEAN, imagenet.STD, 256, "bicubic")

    @property
    def image_size(self) -> tuple[int, int] | None:
        return None  # positions are interpolated to whatever comes

    def project(self, layer: int, attended: Tensor, normed: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.drop_path(block.layer_scale1(block.attention.o_proj(attended))))

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        block = self._block(layer)
        return cast(Tensor, block.drop_path(block.layer_scale2(block.mlp(block.norm2(x)))))

    @property
    def num_pooled_tokens(self) -> None:
        return None

    def pool(self, tokens: Tokens) -> Tensor:
        normed = tokens._replace(values=self._vit.layernorm(tokens.values))
        return torch.stack([normed.values[:, 0], normed.image_mean()], dim=1)

    def classify(self, pooled: Tensor) -> Tensor:
        return cast(Tensor, cast(Any, self.model).classifier(pooled.flatten(1)))


class HuggingFaceDinov2WithRegisters(HuggingFaceDinov2):
    backbone = "dinov2_with_registers"

    @property
    def num_prefix_tokens(self) -> int:
        return 1 + int(cast(Any, self.model).config.num_register_tokens)


FAMILIES: dict[str, type[HuggingFaceViT]] = {
    "ViTForImageClassification": HuggingFaceViT,
    "DeiTForImageClassification": HuggingFaceDeiT,
    "DeiTForImageClassificationWithTeacher": HuggingFaceDeiTWithTeacher,
    "Dinov2ForImageClassification": HuggingFaceDinov2,
    "Dinov2WithRegistersForImageClassification": HuggingFaceDinov2WithRegisters,
}


def wrap(model: nn.Module, preprocessing: Preprocessing | None = None, name: str | None = None) -> HuggingFaceViT:
    for kind in type(model).__mro__:
        if kind.__name__ in FAMILIES and kind.__module__.startswith("transformers."):
            return FAMILIES[kind.__name__](model, preprocessing, name)
    raise ModelError(f"{type(model).__name__} is not one of {', '.join(FAMILIES)}")


def create(name: str, pretrained: bool, **options: Any) -> nn.Module:
    """The model of a hub name or local folder."""
    try:
        from transformers import AutoConfig, AutoModelForImageClassification
    except ImportError as error:
        raise ModelError("transformers is not installed; pip install 'navia[hf]'") from error
    try:
        config = AutoConfig.from_pretrained(name, **options)
        if not pretrained:
            return cast(nn.Module, AutoModelForImageClassification.from_config(config))
        model, info = AutoModelForImageClassification.from_pretrained(name, config=config, output_loading_info=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"transformers cannot load {name!r} as an image classifier ({reason})") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelError(f"{name!r} has no weights for {', '.join(missing[:3])}: it would predict at random")
    return cast(nn.Module, model)


def processing(name: str) -> Preprocessing | None:
    """The preprocessing of the image processor that lies beside a model, where there is one."""
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        return None
    size, crop = processor.size, getattr(processor, "crop_size", None)
    resize = size.get("shortest_edge") or (size["height"], size["width"])
    if not processor.do_resize:
        resize = None
    if getattr(processor, "do_center_crop", False) and crop:
        final = (crop["height"], crop["width"])
    elif isinstance(resize, tuple):
        final = resize
    else:
        raise ModelError(f"the image processor of {name!r} neither crops nor resizes to a fixed size; pass preprocessing=")
    channels = len(processor.image_mean)
    mean, std = processor.image_mean, processor.image_std
    if not processor.do_normalize:
        mean, std = [0.0] * channels, [1.0] * channels
    interpolation = Image.Resampling(processor.resample).name.lower()
    origin = f"image processor of {Path(name).name}"
    return Preprocessing(final, tuple(mean), tuple(std), resize, interpolation, origin, floor_crop=True)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _name(model: Any) -> str:
    return f"hf:{getattr(model.config, '_name_or_path', '') or type(model).__name__}"
