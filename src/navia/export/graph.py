"""The frozen forward as a graph: torch.export's (.pt2) and ONNX, both for batches of any size."""

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.export import Dim, ExportedProgram

from navia.errors import NaviaError
from navia.export.frozen import ExportError, Frozen
from navia.export.metadata import Metadata
from navia.export.parity import Answer, made_up_pictures
from navia.export.staging import MARK

OPSET = 18  # the one that torch's translations are written in; every onnxruntime since 1.14 runs it
INPUT, OUTPUT = "images", "logits"


def write_torch(frozen: Frozen, metadata: Metadata, path: Path) -> None:
    torch.export.save(trace(frozen), path, extra_files={MARK: metadata.as_json()})


def open_torch(path: Path, frozen: Frozen) -> Answer:
    module = torch.export.load(path).module()
    return torch.no_grad()(lambda images: module(images))


def write_onnx(frozen: Frozen, metadata: Metadata, path: Path) -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        needs(name)  # before the long work
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
        node.metadata_props.clear()  # how torch came to it: a quarter of a small file
    program.model.metadata_props.update(metadata.as_strings())
    program.save(path, external_data=False)  # above 2 GB, which a file cannot hold, the weights still go beside it


def open_onnx(path: Path, frozen: Frozen) -> Answer:
    runtime = needs("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])


def trace(frozen: Frozen) -> ExportedProgram:
    """The program for batches of 1 and more, without the file names of this machine."""
    with torch.no_grad():
        example = made_up_pictures(frozen.vit, 2)
        try:
            program = torch.export.export(frozen, (example,), dynamic_shapes=({0: Dim("batch", min=1)},), strict=False)
        except Exception as error:  # torch raises whatever its tracing meets
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExportError(f"torch.export cannot trace {frozen.vit.name} with {frozen.reduce}: {reason}") from error
    for part in program.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return program


def needs(name: str) -> Any:
    """A module of the `export` extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NaviaError(f"ONNX needs the {name} package: pip install 'navia[export]'") from error


def _stable_sort(x: Any, stable: bool = True, dim: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """aten.sort.stable, which torch has no translation for: TopK of all, whose equals come in their order by definition."""
    op = needs("onnxscript").opset18
    count = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
    sortable = x if x.dtype.is_floating_point() else op.Cast(x, to=7)  # int64: onnxruntime sorts no narrow integers
    values, indices = op.TopK(sortable, count, axis=dim, largest=int(descending), sorted=1)
    return op.CastLike(values, x), indices


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter tells its own developers a lot."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript", "torch.onnx")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
