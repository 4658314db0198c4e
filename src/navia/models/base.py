"""A Vision Transformer as navia sees it: the parts that the one forward walks through, whichever library made them."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from navia.data.preprocessing import Preprocessing
from navia.errors import InputError
from navia.reduction import ReducerLike, Tokens, parse

_MARGIN = 5.0  # that values may lie outside of [0, 1] before normalisation: noise does, pixels from 0 to 255 far more


class ViT(nn.Module, ABC):
    """Wraps a library's model without changing it. A subclass names its parts; parts are looked up in the model at
    every call, so that `to`, deep copies and replaced sub-modules are honoured. Calling it gives logits [B, classes].

    How the forward walks through it may be changed at any time:
    lean: keep only the tokens between blocks for the backward pass, which walks each block again: the same gradients,
    less memory, more time.
    precision: matrix products in another type than the weights' (bfloat16, where the hardware has it); None: theirs.
    compiler: a backend of torch.compile for the forward and backward pass of the methods ("inductor"); None: eager. It
    takes minutes before the first answer, and again for every other batch size.
    whole_last_block: also compute those rows of the last block that nobody reads, in the library's own order of sums.
    """

    library: ClassVar[str]

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, name: str) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing
        self.name = name
        self.lean = False
        self.precision: torch.dtype | None = None
        self.compiler: str | None = None
        self.whole_last_block = False
        self.labels: tuple[str, ...] | None = None  # names of the classes, see `navia.models.labels`
        self._warned_of_range = False

    def view(self) -> Self:
        """A second ViT over the same `model`, with the same settings; what is set on one does not show in the other."""
        other = copy.copy(self)
        for name, value in vars(self).items():  # a shallow copy alone would share the tables of modules and hooks
            if isinstance(value, dict | set):
                object.__setattr__(other, name, value.copy())
        return other

    # ---- what it is

    @property
    @abstractmethod
    def depth(self) -> int: ...

    @property
    @abstractmethod
    def heads(self) -> int: ...

    @property
    @abstractmethod
    def prefix(self) -> int:
        """CLS and whatever else stands before the image tokens: distillation token, registers."""

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
    def reads(self) -> int | None:
        """How many of the first rows `pool` looks at; None: all."""
        return None

    @property
    def dim(self) -> int:
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

    # ---- what the forward calls, in this order

    @abstractmethod
    def embed(self, images: Tensor) -> Tensor:
        """Images -> tokens [B, prefix + image tokens, D], positions added."""

    def enter(self, tokens: Tensor) -> Tensor:
        """What some families do between the embedding and the first block (CLIP's pre-norm, patch dropout)."""
        return tokens

    @abstractmethod
    def norm1(self, layer: int, x: Tensor) -> Tensor: ...

    @abstractmethod
    def qkv(self, layer: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed tokens -> queries, keys, values [B, H, N, d], normalised where the model does so."""

    def attention_dropout(self, layer: int) -> float:
        return 0.0

    @abstractmethod
    def project(self, layer: int, attended: Tensor, normed: Tensor) -> Tensor:
        """The heads' outputs [B, N, H*d] -> what is added to the residual stream."""

    @abstractmethod
    def mlp(self, layer: int, x: Tensor) -> Tensor:
        """norm2 and MLP of the residual stream -> what is added to it."""

    @abstractmethod
    def pool(self, tokens: Tokens) -> Tensor:
        """The rows that the classifier reads, after the final norm [B, K, D]; row 0 is the CLS feature."""

    @abstractmethod
    def classify(self, pooled: Tensor) -> Tensor:
        """[B, K, D] -> logits [B, classes]."""

    # ---- what adaptation tunes

    @abstractmethod
    def layer_norms(self) -> dict[str, nn.LayerNorm]:
        """The pre-norms of all blocks and the final norm, by their names in `model`, in the order of the forward."""

    # ---- what its cost is counted from

    @abstractmethod
    def block_parts(self, layer: int) -> tuple[nn.Module, nn.Module]:
        """The attention and the MLP module of a block."""

    # ---- the boundary

    def forward(self, images: Tensor, reduce: ReducerLike = None, classes: Sequence[int] | Tensor | None = None) -> Tensor:
        from navia.models.forward import run

        self.check_images(images)
        return run(self, images, parse(reduce), classes=self.class_mask(classes)).logits

    def check_images(self, images: Tensor) -> None:
        """Raise InputError unless `images` is a finite, normalised float batch of the model's shape, on its device.

        Values far outside of what `preprocessing` can give, such as pixels from 0 to 255, are refused. Pixels from 0 to 1
        lie within, so that a batch which looks like them is only warned of, once."""
        if not isinstance(images, Tensor):
            raise InputError(f"images must be a tensor [B, C, H, W], got {type(images).__name__}")
        if images.dim() != 4:
            raise InputError(f"images must have 4 dimensions [B, C, H, W], got shape {tuple(images.shape)}")
        if not images.is_floating_point():
            raise InputError(f"images must be normalised floats (see vit.preprocessing), got {images.dtype}")
        if images.shape[0] == 0:
            raise InputError("empty batch: there is no image to look at")
        if images.shape[1] != self.in_chans:
            raise InputError(f"{self.name} takes {self.in_chans} channel(s), got images with {images.shape[1]}")
        self._check_size((images.shape[2], images.shape[3]))
        device = self.cls_token.device
        if images.device != device:
            raise InputError(f"images are on {images.device}, {self.name} is on {device}")
        if not torch.compiler.is_compiling():
            self._check_values(images)

    def class_mask(self, classes: Sequence[int] | Tensor | None) -> Tensor | None:
        """Class indices as a checked tensor on the model's device; None: all classes."""
        if classes is None:
            return None
        try:
            mask = torch.as_tensor(classes, device=self.cls_token.device)
        except (TypeError, ValueError):
            raise InputError(f"a class mask is a non-empty list of class indices, got {classes!r}") from None
        if mask.dim() != 1 or mask.numel() == 0 or mask.is_floating_point() or mask.dtype == torch.bool:
            raise InputError("a class mask is a non-empty list of class indices")
        low, high = int(mask.min()), int(mask.max())
        if low < 0 or high >= self.num_classes:
            raise InputError(f"class mask reaches from {low} to {high}, but {self.name} has {self.num_classes} classes")
        if mask.unique().numel() != mask.numel():
            raise InputError("class mask names a class twice")
        return mask.long()

    def _check_size(self, size: tuple[int, int]) -> None:
        if self.image_size is not None:
            if size != self.image_size:
                want = f"{self.image_size[1]}x{self.image_size[0]}"
                raise InputError(f"{self.name} takes images of {want} px, got {size[1]}x{size[0]}")
        elif size[0] % self.patch_size[0] or size[1] % self.patch_size[1] or min(size) < 1:
            patch = f"{self.patch_size[1]}x{self.patch_size[0]}"
            raise InputError(f"image size {size[1]}x{size[0]} px is not a multiple of the patch size {patch}")

    def _check_values(self, images: Tensor) -> None:
        low, high = torch.stack(torch.aminmax(images.detach())).tolist()  # one pass, and one wait for a GPU
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
