"""An adapted, reduced model as a file for others: ONNX, torch.export, or a checkpoint of its own library.

`frozen.py` (adapter -> plain module) -> `graph.py` (ONNX, .pt2) or `weights.py` (checkpoint) -> `parity.py` (does the file
answer as the adapter?) inside `staging.py` (it appears only if so); `metadata.py` is what the file says about itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from navia.adaptation.adapter import Adapter
from navia.errors import SpecError, known_names
from navia.export.from_delta import open_delta
from navia.export.frozen import ExportError, Frozen, freeze
from navia.export.graph import open_onnx, open_torch, write_onnx, write_torch
from navia.export.metadata import Metadata, read_metadata
from navia.export.parity import Answer, Parity, check, pictures
from navia.export.staging import staged
from navia.export.weights import open_checkpoint, write_checkpoint

__all__ = ["FORMATS", "TOLERANCE", "ExportError", "Metadata", "Parity", "export", "open_delta", "read_metadata"]

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Format:
    suffix: str
    write: Callable[[Frozen, Metadata, Path], None]
    open: Callable[[Path, Frozen], Answer]


FORMATS = {
    "onnx": Format(".onnx", write_onnx, open_onnx),
    "torch": Format(".pt2", write_torch, open_torch),
    "checkpoint": Format(".safetensors", write_checkpoint, open_checkpoint),
}


def export(
    adapter: Adapter,
    path: str | Path,
    format: str | None = None,
    *,
    tolerance: float = TOLERANCE,
    images: Tensor | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Parity:
    """Write what `adapter.predict` answers now to `path`, open the file again and compare. A file whose logits differ by
    more than `tolerance` is not left behind.

    format: onnx, torch or checkpoint; by the path's suffix if not given. images: preprocessed pictures for the comparison
    instead of made-up ones. force: replace what is there. progress: called with what comes next.
    """
    path = Path(path)
    kind = FORMATS[find_format(path, format, adapter.source_vit.library)]
    frozen = freeze(adapter)
    shown = pictures(adapter.method.vit, images)
    _check_frozen(adapter, frozen, shown[:7], tolerance)
    with staged(path, force) as place:
        progress("writing")
        kind.write(frozen, Metadata.of(adapter), place)
        progress("comparing")
        parity = check(kind.open(place, frozen), _eager(adapter), frozen, shown, tolerance)
        if not parity.fine:
            raise ExportError(f"{path.name} does not answer as the adapter does, and was not kept: {parity.describe()}")
    return parity


def find_format(path: Path, format: str | None, library: str) -> str:
    """The format's name, if the path suits it."""
    suffixes = {name: known.suffix for name, known in FORMATS.items()}
    if library == "transformers":
        suffixes["checkpoint"] = ""  # a folder
    if format is None:
        format = next((name for name, suffix in suffixes.items() if suffix == path.suffix), None)
        if format is None:
            endings = ", ".join(f"{suffix or 'a folder'} ({name})" for name, suffix in suffixes.items())
            raise SpecError(f"which format is {path.name!r}? Known: {endings}; or name it (--format)")
    if format not in FORMATS:
        raise SpecError(f"unknown format {format!r}{known_names(format, FORMATS)}")
    if path.suffix != suffixes[format]:
        want = f"end with {suffixes[format]}" if suffixes[format] else "be a folder, without a suffix"
        raise SpecError(f"the path of a {library} model as {format} must {want}, got {path.name!r}")
    return format


def _eager(adapter: Adapter) -> Answer:
    device = adapter.method.vit.device
    return lambda images: adapter.predict(images.to(device)).cpu()


@torch.no_grad()
def _check_frozen(adapter: Adapter, frozen: Frozen, images: Tensor, tolerance: float) -> None:
    """A method of somebody else's may answer in a way of its own, which no format would then hold."""
    want, got = _eager(adapter)(images), frozen(images)
    if not bool(torch.isfinite(want).all()):
        raise ExportError("the adapter answers with NaN or infinite numbers: reset it, or load a sound delta")
    apart = (want - got).abs().amax(dim=1) if want.shape == got.shape else want.new_tensor([torch.inf])
    if apart.median() > tolerance:  # a tie may fall otherwise on another device
        raise ExportError(f"method {adapter.method.name!r} predicts in a way of its own, which cannot be exported")
