"""An ordinary checkpoint of the model's own library, where everything that the method tuned folds into plain weights."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from navia.data.preprocessing import Preprocessing
from navia.export.frozen import ExportError, Frozen
from navia.export.metadata import Metadata
from navia.export.parity import Answer
from navia.export.staging import MARK
from navia.io import write_tensors
from navia.models.base import ViT
from navia.models.checkpoint import load_checkpoint
from navia.models.forward import run
from navia.models.load import load, wrap
from navia.reduction import NoReduction


def write_checkpoint(frozen: Frozen, metadata: Metadata, path: Path) -> None:
    """timm, torchvision: a .safetensors file of the state dict. transformers: the folder that `from_pretrained` reads."""
    vit = fold(frozen)
    if vit.library == "transformers":
        _write_folder(vit, metadata, path)
    else:
        write_tensors(path, "checkpoint", dict(vit.model.state_dict()), metadata.as_strings())


def open_checkpoint(path: Path, frozen: Frozen) -> Answer:
    """The library's own forward of what is in the file; with a reducer, which no checkpoint holds, the one of navia."""
    if frozen.vit.library == "transformers":
        vit = _open_folder(path, frozen.vit.preprocessing)
    else:
        fresh = copy.deepcopy(frozen.vit.model)
        load_checkpoint(fresh, path)
        vit = wrap(fresh, frozen.vit.preprocessing, frozen.vit.name).eval()

    @torch.no_grad()
    def answer(images: Tensor) -> Tensor:
        if not isinstance(frozen.reduce, NoReduction):
            return run(vit, images, frozen.reduce, classes=frozen.classes).logits
        out = vit.model(images)
        logits: Tensor = out if isinstance(out, Tensor) else out.logits
        return logits if frozen.classes is None else logits[:, frozen.classes]

    return answer


@torch.no_grad()
def fold(frozen: Frozen) -> ViT:
    """A copy of the model with the CLS embedding's shift in the CLS token and the activation shift in the last norm."""
    _check(frozen)
    vit = copy.deepcopy(frozen.vit)
    if frozen.cls_shift is not None:
        vit.cls_token.add_(frozen.cls_shift)
    if frozen.head_shift is not None:
        list(vit.layer_norms().values())[-1].bias.add_(frozen.head_shift)
    return vit


def _check(frozen: Frozen) -> None:
    """Raise ExportError that names everything which is no weight of the library's model."""
    biased = [str(layer) for layer, bias in frozen.cls_bias.items() if bool(bias.any())]
    left = [f"the CLS biases of block{'s' if len(biased) > 1 else ''} {', '.join(biased)}"] if biased else []
    if frozen.prompts is not None:
        left.append(f"the {len(frozen.prompts)} extra token{'s' if len(frozen.prompts) > 1 else ''}")
    if frozen.head_shift is not None and frozen.vit.reads != 1:
        left.append("the activation shift of the CLS feature, which is not all that its classifier reads")
    if frozen.vit.library == "transformers":
        heads = (child for name, child in frozen.vit.model.named_children() if name.endswith("classifier"))
        left += [f"a classifier that is a {type(head).__name__}" for head in heads if not isinstance(head, nn.Linear)]
    if left:
        raise ExportError(
            f"a {frozen.vit.library} checkpoint has no place for {' and '.join(left)}: export as onnx or torch, which have "
            "(method align, or navia with biases=False, tunes only what folds into a checkpoint)"
        )


def _write_folder(vit: ViT, metadata: Metadata, path: Path) -> None:
    with _no_bars():
        vit.model.save_pretrained(path)  # type: ignore[operator]
    _write_processor(vit.preprocessing, path)
    (path / MARK).write_text(metadata.as_json())
    for file in path.glob("*.safetensors"):
        save_file(load_file(file), file, {"format": "pt", **metadata.as_strings()})  # transformers insists on the format


def _open_folder(path: Path, preprocessing: Preprocessing) -> ViT:
    with _no_bars():
        vit = load(f"hf:{path}")
    same = ("size", "resize", "interpolation", "mean", "std")
    if any(getattr(vit.preprocessing, name) != getattr(preprocessing, name) for name in same):
        found = vit.preprocessing.describe()
        raise ExportError(f"transformers has no image processor for {preprocessing.describe()}; it would take {found}")
    return vit


@contextmanager
def _no_bars() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _write_processor(preprocessing: Preprocessing, path: Path) -> None:
    """Resize to the size that the model sees: ViT's processor; to any other, then a crop: DeiT's; a short side: BiT's."""
    import transformers
    from PIL import Image

    pre = preprocessing
    (height, width), resize = pre.size, pre.resize
    crop = resize != pre.size
    short_side = isinstance(resize, int)
    kind = "BitImageProcessor" if short_side else "DeiTImageProcessor" if crop else "ViTImageProcessor"
    full = resize if isinstance(resize, tuple) else pre.size
    processor = getattr(transformers, kind)(
        do_resize=resize is not None,
        size={"shortest_edge": resize} if short_side else {"height": full[0], "width": full[1]},
        resample=int(Image.Resampling[pre.interpolation.upper()]),
        do_center_crop=crop,
        crop_size={"height": height, "width": width},
        image_mean=list(pre.mean),
        image_std=list(pre.std),
    )
    processor.save_pretrained(path)
