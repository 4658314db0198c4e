"""The formats of exported files: ONNX and torch.export graphs for batches of any size, and checkpoints of the libraries."""

import contextlib
import copy
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from navia.data.preprocessing import Preprocessing
from navia.errors import import_optional
from navia.export.module import METADATA_FILE, ExportError, FrozenModel, Metadata
from navia.export.parity import Predict, random_images
from navia.io import write_tensors
from navia.models.base import ViT
from navia.models.checkpoint import load_checkpoint
from navia.models.forward import forward
from navia.models.load import load, wrap
from navia.reduction import NoReduction

OPSET = 18  # torch's translations are written in it, and every onnxruntime since 1.14 runs it
INPUT, OUTPUT = "images", "logits"
ONNX = ("ONNX", "pip install 'navia[export]'")  # for import_optional


def write_torch(frozen: FrozenModel, metadata: Metadata, path: Path) -> None:
    torch.export.save(trace(frozen), path, extra_files={METADATA_FILE: metadata.model_dump_json(indent=2)})


def open_torch(path: Path, frozen: FrozenModel) -> Predict:
    return torch.no_grad()(torch.export.load(path).module().forward)


def write_onnx(frozen: FrozenModel, metadata: Metadata, path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        import_optional(name, *ONNX)  # before the long work
    with _quiet():
        program = torch.onnx.export(
            trace(frozen),
            dynamo=True,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: "batch"},),
            custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph:
        node.metadata_props.clear()  # torch's notes on each node: a quarter of a small file
    program.model.metadata_props.update(metadata.as_strings())
    program.save(path, external_data=False)  # weights above 2 GB, the limit of a file, are still written beside it


def open_onnx(path: Path, frozen: FrozenModel) -> Predict:
    runtime = import_optional("onnxruntime", *ONNX)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def trace(frozen: FrozenModel) -> ExportedProgram:
    """The program for batches of 1 and more, without file names of this machine."""
    with torch.no_grad():
        example = random_images(frozen.vit, 2)
        try:
            program = torch.export.export(frozen, (example,), dynamic_shapes=({0: Dim("batch", min=1)},), strict=False)
        except Exception as error:  # tracing may raise anything
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExportError(f"torch.export cannot trace {frozen.vit.name} with {frozen.reduce}: {reason}") from error
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return program


def _stable_sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """Translate aten.sort.stable, which torch does not: TopK of all values, which keeps the order of equal ones."""
    op = import_optional("onnxscript", *ONNX).opset18
    count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    sortable = x if x.dtype.is_floating_point() else op.Cast(x, to=7)  # int64: onnxruntime sorts no narrow integers
    values, indices = op.TopK(sortable, count, axis=dim, largest=int(descending), sorted=1)
    return op.CastLike(values, x), indices


def write_checkpoint(frozen: FrozenModel, metadata: Metadata, path: Path) -> None:
    """timm, torchvision: a .safetensors file of the state dict. transformers: a folder for `from_pretrained`."""
    vit = fold(frozen)
    if vit.library != "transformers":
        write_tensors(path, "checkpoint", dict(vit.model.state_dict()), metadata.as_strings())
        return
    with _quiet():
        vit.model.save_pretrained(path)  # type: ignore[operator]
    _write_processor(vit.preprocessing, path)
    (path / METADATA_FILE).write_text(metadata.model_dump_json(indent=2))
    for file in path.glob("*.safetensors"):
        save_file(load_file(file), file, {"format": "pt", **metadata.as_strings()})  # transformers requires the format


def open_checkpoint(path: Path, frozen: FrozenModel) -> Predict:
    """The library's own forward of the file; with a reducer, which a checkpoint does not contain, navia's forward."""
    preprocessing = frozen.vit.preprocessing
    if frozen.vit.library == "transformers":
        with _quiet():
            vit = load(f"hf:{path}")
        same = ("size", "resize", "interpolation", "mean", "std")
        if any(getattr(vit.preprocessing, name) != getattr(preprocessing, name) for name in same):
            found = vit.preprocessing.describe()
            raise ExportError(f"transformers has no image processor for {preprocessing.describe()}; it would use {found}")
    else:
        model = copy.deepcopy(frozen.vit.model)
        load_checkpoint(model, path)
        vit = wrap(model, preprocessing, frozen.vit.name).eval()

    @torch.no_grad()
    def predict(images: Tensor) -> Tensor:
        classes = frozen.classes
        if not isinstance(frozen.reduce, NoReduction):
            return forward(vit, images, frozen.reduce, classes=classes).logits
        out = vit.model(images)
        logits: Tensor = getattr(out, "logits", out)
        return logits if classes is None else logits[:, classes]

    return predict


@torch.no_grad()
def fold(frozen: FrozenModel) -> ViT:
    """A copy of the model with the CLS shift added to the CLS token and the activation shift added to the last norm."""
    edits, library = frozen.edits, frozen.vit.library
    biased = [str(block) for block, bias in edits.cls_bias.items() if bool(bias.any())]
    left = [f"the CLS biases of block{'s' if len(biased) > 1 else ''} {', '.join(biased)}"] if biased else []
    if edits.prompts is not None:
        left.append(f"the {len(edits.prompts)} extra token{'s' if len(edits.prompts) > 1 else ''}")
    if edits.head_shift is not None and frozen.vit.num_pooled_tokens != 1:
        left.append("the activation shift of the CLS feature, because its classifier reads other features too")
    if library == "transformers":
        heads = (child for name, child in frozen.vit.model.named_children() if name.endswith("classifier"))
        left += [f"a classifier that is a {type(head).__name__}" for head in heads if not isinstance(head, nn.Linear)]
    if left:
        raise ExportError(
            f"a {library} checkpoint has no place for {' and '.join(left)}: export as onnx or torch, which have "
            "(method align, or navia with biases=False, tunes only what folds into a checkpoint)"
        )
    vit = copy.deepcopy(frozen.vit)
    if edits.cls_shift is not None:
        vit.cls_token.add_(edits.cls_shift)
    if edits.head_shift is not None:
        list(vit.layer_norms().values())[-1].bias.add_(edits.head_shift)
    return vit


def _write_processor(pre: Preprocessing, path: Path) -> None:
    """Resize to the input size: ViT's processor; to another size, then crop: DeiT's; the short side: BiT's."""
    import transformers
    from PIL import Image

    resize, crop, sides = pre.resize, pre.resize != pre.size, ("height", "width")
    kind = "BitImageProcessor" if isinstance(resize, int) else "DeiTImageProcessor" if crop else "ViTImageProcessor"
    getattr(transformers, kind)(
        do_resize=resize is not None,
        size={"shortest_edge": resize} if isinstance(resize, int) else dict(zip(sides, resize or pre.size, strict=True)),
        resample=int(Image.Resampling[pre.interpolation.upper()]),
        do_center_crop=crop,
        crop_size=dict(zip(sides, pre.size, strict=True)),
        image_mean=list(pre.mean),
        image_std=list(pre.std),
    ).save_pretrained(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what the ONNX exporter tells its own developers, and the progress bars of transformers."""
    bars: Any = sys.modules.get("transformers.utils.logging")  # imported together with a model of transformers
    with contextlib.ExitStack() as stack:
        for logger in map(logging.getLogger, ("onnx_ir", "onnxscript", "torch.onnx")):
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        if bars is not None and bars.is_progress_bar_enabled():
            stack.callback(bars.enable_progress_bar)
            bars.disable_progress_bar()
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


class Format(NamedTuple):
    suffix: str
    write: Callable[[FrozenModel, Metadata, Path], None]
    open: Callable[[Path, FrozenModel], Predict]


FORMATS = {
    "onnx": Format(".onnx", write_onnx, open_onnx),
    "torch": Format(".pt2", write_torch, open_torch),
    "checkpoint": Format(".safetensors", write_checkpoint, open_checkpoint),
}
