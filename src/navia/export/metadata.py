"""What an exported file says about itself: where it comes from, what pictures it wants, what its answers are called."""

import dataclasses
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from navia import __version__
from navia.adaptation.adapter import Adapter
from navia.data.preprocessing import Preprocessing
from navia.export.frozen import ExportError
from navia.export.staging import MARK
from navia.methods.parameters import fingerprint
from navia.models.labels import class_names

_PREFIX = "navia."


@dataclass(frozen=True)
class Metadata:
    """weights: hash of the source model's. steps: of adaptation. preprocessing: picture -> input, `preprocessing(picture)`.
    classes: the model's classes that the answers are restricted to, in the order of the logits; None: all. labels: what
    they are called; None: unknown."""

    model: str
    library: str
    weights: str
    method: str
    options: dict[str, Any]
    reduce: str
    steps: int
    preprocessing: Preprocessing
    classes: tuple[int, ...] | None
    labels: tuple[str, ...] | None
    version: str = __version__

    @classmethod
    def of(cls, adapter: Adapter) -> "Metadata":
        vit, method = adapter.source_vit, adapter.method
        classes = None if method.classes is None else tuple(method.classes.tolist())
        names = class_names(vit)
        return cls(
            model=vit.name,
            library=vit.library,
            weights=fingerprint(vit),
            method=method.name,
            options=json.loads(json.dumps(vars(method.options), default=str)),
            reduce=str(method.reduce),
            steps=adapter.steps,
            preprocessing=vit.preprocessing,
            classes=classes,
            labels=names if names is None or classes is None else tuple(names[i] for i in classes),
        )

    def as_dict(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return fields | {"preprocessing": self.preprocessing.as_dict()}

    def as_strings(self) -> dict[str, str]:
        """For formats that keep pairs of strings: texts as they are, all else as JSON."""
        pairs = self.as_dict().items()
        return {_PREFIX + key: value if isinstance(value, str) else json.dumps(value) for key, value in pairs}

    def as_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Metadata":
        pre = dict(values["preprocessing"])
        pre |= {key: tuple(value) for key, value in pre.items() if isinstance(value, list)}
        listed = {key: None if values[key] is None else tuple(values[key]) for key in ("classes", "labels")}
        return cls(**{**values, **listed, "preprocessing": Preprocessing(**pre)})

    @classmethod
    def from_strings(cls, pairs: Mapping[str, str]) -> "Metadata":
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        own = {key.removeprefix(_PREFIX): value for key, value in pairs.items() if key.startswith(_PREFIX)}
        return cls.from_dict({key: value if kinds.get(key) is str else json.loads(value) for key, value in own.items()})


def read_metadata(path: str | Path) -> Metadata:
    """The metadata of an exported .onnx, .pt2 or .safetensors file, or of an exported folder."""
    path = Path(path)
    if not path.exists():
        raise ExportError(f"no exported file {str(path)!r}")
    try:
        if path.is_dir():
            return Metadata.from_dict(json.loads((path / MARK).read_text()))
        if path.suffix == ".pt2":
            return Metadata.from_dict(json.loads(_extra_file(path)))
        return Metadata.from_strings(_onnx_properties(path) if path.suffix == ".onnx" else _safetensors_header(path))
    except ExportError:
        raise
    except Exception as error:  # whatever a broken or foreign file makes the readers raise
        raise ExportError(f"{path.name} was not exported by navia, or is damaged") from error


def _extra_file(path: Path) -> str:
    """Straight from the archive: torch would load all weights first."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f"extra/{MARK}"))
        return archive.read(name).decode()


def _onnx_properties(path: Path) -> dict[str, str]:
    from navia.export.graph import needs

    onnx = needs("onnx")
    return {pair.key: pair.value for pair in onnx.load(path, load_external_data=False).metadata_props}


def _safetensors_header(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return dict(file.metadata() or {})
