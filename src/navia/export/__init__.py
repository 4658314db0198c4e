"""Export an adapted, reduced model for other programs: ONNX, torch.export, or a checkpoint of its own library.

adapter -> `module.py` (plain module) -> `formats.py` (file) -> `parity.py` (compare the file with the adapter).
"""

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from navia.adaptation.adapter import Adapter, adapt
from navia.adaptation.delta import BrokenDeltaError, DeltaError, classes_of, describe_classes, read_delta
from navia.adaptation.statistics import Provenance, SourceStatistics
from navia.errors import InputError, NaviaError, SourceError, SpecError, import_optional, known_names
from navia.export.formats import FORMATS, ONNX
from navia.export.module import METADATA_FILE, ExportError, FrozenModel, Metadata
from navia.export.parity import Parity, compare, comparison_images
from navia.io import sync_to_disk
from navia.methods.parameters import fingerprint
from navia.models.base import ViT
from navia.reduction import parse

__all__ = ["FORMATS", "ExportError", "Metadata", "Parity", "export", "find_format", "open_delta", "read_metadata"]


def export(
    adapter: Adapter,
    path: str | Path,
    format: str | None = None,
    *,
    tolerance: float = 1e-4,
    images: Tensor | None = None,
    force: bool = False,
    progress: Callable[[str], None] = lambda stage: None,
) -> Parity:
    """Write what `adapter.predict` computes now to a file, open the file again and compare the logits.

    Args:
        adapter: The adapter to export.
        path: The file, or the folder of a transformers checkpoint.
        format: "onnx", "torch" or "checkpoint"; by default from the suffix of `path`.
        tolerance: A file whose logits differ by more is not kept.
        images: Preprocessed images [B, C, H, W] for the comparison, instead of random ones.
        force: Replace an existing file or exported folder.
        progress: Called with the name of the next stage.

    Raises:
        ExportError: The adapter cannot be exported, or the logits of the file differ.
    """
    path = Path(path)
    kind = FORMATS[find_format(path, format, adapter.source_vit.library)]
    frozen = FrozenModel(adapter)
    shown = comparison_images(adapter.vit, images)

    def predict(batch: Tensor) -> Tensor:
        return adapter.predict(batch.to(adapter.device)).cpu()

    want, got = predict(shown[:7]), frozen(shown[:7]).detach()
    if not bool(torch.isfinite(want).all()):
        raise ExportError("the adapter predicts NaN or infinite logits: reset it, or load another delta")
    if want.shape != got.shape or (want - got).abs().amax(dim=1).median() > tolerance:  # not the maximum: ties may differ
        raise ExportError(f"method {adapter.method_name!r} changes logits after the forward, which cannot be exported")
    with _staged(path, force) as new:
        progress("writing")
        kind.write(frozen, Metadata.of(adapter), new)
        progress("comparing")
        parity = compare(kind.open(new, frozen), predict, frozen, shown, tolerance)
        if not parity.passed:
            raise ExportError(f"{path.name} does not predict what the adapter does, and was not kept: {parity.describe()}")
    return parity


def find_format(path: Path, format: str | None, library: str) -> str:
    """The name of the format, checked against the suffix of `path`."""
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


def check_target(path: Path, force: bool) -> None:
    """Refuse a path that exists, unless `force` may replace it."""
    if path.exists() and not force:
        what = f"{str(path)!r} exists already: take another path, or"
        raise InputError(f"{what} force=True to replace it", command_line=f"{what} --force to replace it")
    if path.is_dir() and not (path / METADATA_FILE).is_file() and any(path.iterdir()):
        raise InputError(f"{str(path)!r} is a folder that navia did not export: take another path")


@contextmanager
def _staged(path: Path, force: bool) -> Iterator[Path]:
    """Yield a temporary path. If the block succeeds, move it and the files beside it (large weights) to `path`."""
    check_target(path, force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True) as folder:
            new = Path(folder) / path.name
            yield new
            for file in filter(Path.is_file, Path(folder).rglob("*")):
                sync_to_disk(file)
            beside = [file for file in Path(folder).iterdir() if file != new]
            if path.exists() and (path.is_dir() or new.is_dir()):
                path.rename(Path(folder) / f"{path.name}.replaced")
            for file in (*beside, new):
                file.replace(path.parent / file.name)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error}") from error


def read_metadata(path: str | Path) -> Metadata:
    """Read the metadata of an exported .onnx, .pt2 or .safetensors file, or of an exported folder."""
    path = Path(path)
    if not path.exists():
        raise ExportError(f"no exported file {str(path)!r}")
    try:
        if path.is_dir():
            return Metadata.model_validate_json((path / METADATA_FILE).read_text())
        if path.suffix == ".pt2":  # straight from the archive: torch would load all weights first
            with zipfile.ZipFile(path) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith(f"extra/{METADATA_FILE}"))
                return Metadata.model_validate_json(archive.read(name))
        if path.suffix == ".onnx":
            properties = import_optional("onnx", *ONNX).load(path, load_external_data=False).metadata_props
            return Metadata.from_strings({pair.key: pair.value for pair in properties})
        with safe_open(path, "pt") as file:
            return Metadata.from_strings(file.metadata() or {})
    except NaviaError:
        raise
    except Exception as error:  # damaged and foreign files make the readers raise anything
        raise ExportError(f"{path.name} was not exported by navia, or is damaged") from error


def open_delta(
    vit: ViT,
    path: str | Path,
    source: SourceStatistics | None = None,
    *,
    reduce: str | None = None,
    classes: Sequence[int] | None = None,
) -> Adapter:
    """The adapter that a delta was saved from, in its saved state, for predictions.

    Args:
        vit: The model that was adapted.
        path: A file of `adapter.save`.
        source: Source statistics; needed only by methods with the activation shift.
        reduce: The reducer of the delta; any other is refused.
        classes: Class indices of the delta. A delta of all classes may be restricted to some; any others are refused.
    """
    _, metadata = read_delta(path)
    try:
        method, reducer, options = metadata["method"], parse(reduce or metadata["reduce"]), json.loads(metadata["options"])
    except (KeyError, json.JSONDecodeError) as error:
        raise BrokenDeltaError(f"delta {Path(path).name} does not say how it was made") from error
    if source is None:
        if options.get("shift"):
            raise SourceError(f"method {method!r} shifts by source statistics: give them too (--source, `navia stats`)")
        pre, nan = vit.preprocessing, torch.full((vit.depth, vit.embed_dim), torch.nan)  # never used by predictions
        origin = Provenance(vit.name, fingerprint(vit), str(reducer), 0, pre.size, tuple(pre.mean), tuple(pre.std))
        source = SourceStatistics(nan, nan, origin, fisher={"nothing": nan})
    given = None if classes is None else list(classes)
    saved = classes_of(metadata, unknown=given)
    if given is not None and saved not in (None, given):
        raise DeltaError(
            f"delta {Path(path).name} predicts classes {describe_classes(saved)}, not {describe_classes(given)}:"
            " give none, or these"
        )
    adapter = adapt(vit, method, reducer, source, classes=saved, guard=False, **options)
    adapter.load(path)
    if saved is None:
        adapter.set_classes(given)
    return adapter
