"""The interface of a Vision Transformer: the parts that the one forward calls, whichever library made the model."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from navia.data.preprocessing import Preprocessing
from navia.errors import InputError, ModelError
from navia.reduction import ReducerLike, Tokens, parse

_MARGIN = 5.0  # that values may lie outside of [0, 1] before normalisation: noise does, pixels from 0 to 255 far more


class ViT(nn.Module, ABC):
    """A library's Vision Transformer behind one interface. The wrapped model is never changed.

    A subclass names the parts of its library's model (`embed`, `norm1`, `qkv`, ...). Parts are looked up in the model at
    every call, so `to`, deep copies and replaced modules are honoured. Calling it returns logits [B, classes].

    Args:
        model: The library's module.
        preprocessing: How images become inputs.
        name: Name for messages and provenance.

    Attributes:
        grad_checkpointing: Keep only the tokens between blocks for the backward pass and recompute each block there: the
            same gradients, less memory, more time.
        precision: "float32" (the weights' own type), "bfloat16", "float16" or "int8": what the blocks compute in.
        frozen: Whether the linear layers in the blocks were replaced by ones in this precision; None: not decided yet. Only
            copies are replaced, such as those of adapters.
        compile_backend: Backend of torch.compile for the methods' forward ("inductor"); None: eager. Compiling takes
            minutes before the first prediction, and again for every other batch size.
        whole_last_block: Also compute the rows of the last block that nothing reads, in the library's order of sums.
        asynchronous: Whether the device computes while Python goes on, so that reading a value waits for it; None: all
            devices but the CPU do. Values are then read once per step, see `check_images`.
        labels: Names of the classes, if known.

    Example:
        >>> vit = navia.load("embedded")
        >>> vit.embed_dim, vit.depth, vit.num_prefix_tokens
        (64, 12, 1)
    """

    library: ClassVar[str]

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, name: str) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing
        self.name = name
        self.grad_checkpointing = False
        self.precision = "float32"
        self.frozen: bool | None = None
        self.compile_backend: str | None = None
        self.whole_last_block = False
        self.asynchronous: bool | None = None
        self.labels: tuple[str, ...] | None = None
        self._warned_of_range = False

    def view(self) -> Self:
        """A second ViT over the same `model`, with settings of its own."""
        other = copy.copy(self)
        for name, value in vars(self).items():  # a shallow copy would share the module and hook tables
            if isinstance(value, dict | set):
                object.__setattr__(other, name, value.copy())
        return other

    def __repr__(self) -> str:
        height, width = self.image_size or self.preprocessing.size
        return (
            f"{type(self).__name__}({self.name!r}, depth={self.depth}, embed_dim={self.embed_dim},"
            f" num_heads={self.num_heads}, image_size={height}x{width}, num_classes={self.num_classes},"
            f" dtype={self.dtype}, device={self.device})"
        )

    # ---- properties

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.cls_token.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.cls_token.dtype

    @property
    def reads_synchronize(self) -> bool:
        """Whether reading a value waits for the device."""
        return self.device.type != "cpu" if self.asynchronous is None else self.asynchronous

    @property
    @abstractmethod
    def depth(self) -> int:
        """Number of blocks."""

    @property
    @abstractmethod
    def num_heads(self) -> int:
        """Number of attention heads."""

    @property
    @abstractmethod
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the image tokens: CLS, distillation token, registers."""

    @property
    @abstractmethod
    def num_classes(self) -> int: ...

    @property
    @abstractmethod
    def cls_token(self) -> nn.Parameter:
        """The CLS embedding, [1, 1, D]."""

    @property
    @abstractmethod
    def patch_projection(self) -> nn.Conv2d: ...

    @property
    @abstractmethod
    def image_size(self) -> tuple[int, int] | None:
        """(height, width) that the position embedding is made for; None: any multiple of the patch size."""

    @property
    def num_pooled_tokens(self) -> int | None:
        """Number of leading tokens that `pool` reads; None: all."""
        return None

    @property
    def embed_dim(self) -> int:
        return self.cls_token.shape[-1]

    @property
    def in_chans(self) -> int:
        return self.patch_projection.in_channels

    @property
    def patch_size(self) -> tuple[int, int]:
        return cast("tuple[int, int]", tuple(self.patch_projection.stride))

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of image tokens at the model's own input size."""
        height, width = self.image_size or self.preprocessing.size
        return height // self.patch_size[0], width // self.patch_size[1]

    # ---- called by the forward, in this order

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W] -> tokens with positions [B, N, D], prefix tokens first."""

    def norm_pre(self, tokens: Tensor) -> Tensor:
        """Applied between the embedding and the first block (CLIP's pre-norm, patch dropout)."""
        return tokens

    @abstractmethod
    def norm1(self, layer: int, x: Tensor) -> Tensor:
        """The norm before the attention of block `layer` [B, N, D]."""

    @abstractmethod
    def qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed tokens -> queries, keys, values [B, H, N, d], normalised where the model does so."""

    def attention_dropout(self, layer: int) -> float:
        return 0.0

    @abstractmethod
    def project(self, layer: int, attended: Tensor, normed: Tensor) -> Tensor:
        """Attention output [B, N, H*d] -> update of the residual stream [B, N, D]. normed: input of the attention."""

    @abstractmethod
    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """norm2 and MLP of the residual stream [B, N, D] -> its update."""

    @abstractmethod
    def pool(self, tokens: Tokens) -> Tensor:
        """Features that the classifier reads, after the final norm [B, K, D]; row 0 is the CLS feature."""

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """[B, K, D] -> logits [B, classes]."""

    # ---- tuned by the methods

    @abstractmethod
    def layer_norms(self) -> dict[str, nn.LayerNorm]:
        """The pre-norms of all blocks and the final norm, by their names in `model`, in the order of the forward."""

    # ---- counted by `navia.cost`

    @abstractmethod
    def block_modules(self, layer: int) -> tuple[nn.Module, nn.Module]:
        """The attention and the MLP module of a block."""

    # ---- inputs

    def forward(self, images: Tensor, reduce: ReducerLike = None, classes: Sequence[int] | Tensor | None = None) -> Tensor:
        """Logits of a batch.

        Args:
            images: Normalised images [B, C, H, W], see `preprocessing`.
            reduce: Token reducer, such as "tome:8".
            classes: Class indices; only their columns are returned.

        Returns:
            Logits [B, classes].
        """
        from navia.models.forward import forward

        self.check_images(images, values=True)
        return forward(self, images, parse(reduce), classes=self.class_indices(classes)).logits

    def check_images(self, images: Tensor, values: bool | None = None) -> None:
        """Check that `images` is a finite, normalised float batch of the model's shape, on its device.

        Values far outside of the range of `preprocessing`, such as pixels from 0 to 255, are refused. Pixels from 0 to 1 are
        inside this range, so a batch that looks like them only causes a warning, once.

        Args:
            images: The batch.
            values: Check the values as well; None: only where reading them does not wait for the device. The adapter checks
                them at the end of an update there.

        Raises:
            InputError: The batch cannot be used; the message says why.
        """
        if not isinstance(images, Tensor):
            raise InputError(f"images must be a tensor [B, C, H, W], got {type(images).__name__}")
        if images.dim() != 4:
            raise InputError(f"images must have 4 dimensions [B, C, H, W], got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise InputError(f"images must be normalised floats (see vit.preprocessing), got {images.dtype}")
        if images.shape[0] == 0:
            raise InputError("empty batch: it has no images")
        if images.shape[1] != self.in_chans:
            raise InputError(f"{self.name} takes {self.in_chans} channel(s), got images with {images.shape[1]}")
        self._check_size((images.shape[2], images.shape[3]))
        if images.device != self.device:
            raise InputError(f"images are on {images.device}, {self.name} is on {self.device}")
        if (not self.reads_synchronize if values is None else values) and not torch.compiler.is_compiling():
            self.check_range(images, *torch.stack(torch.aminmax(images.detach())).tolist())

    def class_indices(self, classes: Sequence[int] | Tensor | None) -> Tensor | None:
        """Check class indices and return them as a tensor on the model's device; None: all classes."""
        if classes is None:
            return None
        try:
            indices = torch.as_tensor(classes, device=self.device)
        except (TypeError, ValueError):
            raise InputError(f"classes must be a non-empty list of class indices, got {classes!r}") from None
        if indices.dim() != 1 or indices.numel() == 0 or indices.is_floating_point() or indices.dtype == torch.bool:
            raise InputError("classes must be a non-empty list of class indices")
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= self.num_classes:
            raise InputError(f"classes reach from {low} to {high}, but {self.name} has {self.num_classes} classes")
        if indices.unique().numel() != indices.numel():
            raise InputError("classes name a class twice")
        return indices.long()

    def _check_size(self, size: tuple[int, int]) -> None:
        if self.image_size is not None:
            if size != self.image_size:
                want = f"{self.image_size[1]}x{self.image_size[0]}"
                raise InputError(f"{self.name} takes images of {want} px, got {size[1]}x{size[0]}")
        elif size[0] % self.patch_size[0] or size[1] % self.patch_size[1] or min(size) < 1:
            patch = f"{self.patch_size[1]}x{self.patch_size[0]}"
            raise InputError(f"image size {size[1]}x{size[0]} px is not a multiple of the patch size {patch}")

    def check_range(self, images: Tensor, low: float, high: float) -> None:
        """The part of `check_images` that looks at the lowest and highest value."""
        if not (math.isfinite(low) and math.isfinite(high)):
            bad = (~torch.isfinite(images).flatten(1).all(dim=1)).nonzero().flatten().tolist()
            raise InputError(f"images hold NaN or infinite pixels (rows {', '.join(map(str, bad[:8]))} of the batch)")
        least, most = self.preprocessing.value_range(_MARGIN)
        black, white = self.preprocessing.value_range()
        if low < least or high > most:
            raise InputError(
                f"images are not normalised for {self.name}: their values reach from {low:.3g} to {high:.3g}, where"
                f" normalised pixels lie between {black:.3g} and {white:.3g}; prepare them with vit.preprocessing"
            )
        if black < 0 <= low and 0.5 < high <= 1 and len(images) >= 8 and not self._warned_of_range:
            self._warned_of_range = True
            warnings.warn(
                f"all values of a batch of {len(images)} images lie between 0 and 1: these look like pixels that were not"
                f" normalised for {self.name} (see vit.preprocessing)",
                stacklevel=3,
            )


def num_outputs(classifier: nn.Module) -> int:
    """Number of classes of a classifier; ModelError if it is not an nn.Linear or a sequence that ends in one."""
    last = _last(classifier)
    if isinstance(last, nn.Linear):
        return last.out_features
    if last is None:
        raise ModelError("the model has no classifier (num_classes=0, num_labels=0); create it with a number of classes")
    known = "an nn.Linear, or an nn.Sequential that ends in one and so gives logits, is known"
    if last is classifier:
        raise ModelError(f"its classifier is a {type(last).__name__}; {known}")
    raise ModelError(f"its classifier ends in {type(last).__name__}; {known}")


def _last(module: nn.Module) -> nn.Module | None:
    """The last module of a (nested) sequence that is neither dropout nor identity; None: there is none."""
    if isinstance(module, nn.Dropout | nn.Identity):
        return None
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return next((last for part in reversed(module) if (last := _last(part)) is not None), None)
    return module
