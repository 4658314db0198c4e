"""What a benchmark consists of: a short YAML file, checked line by line.

models:  [{name: timm:deit_tiny_patch16_224, checkpoint: model.safetensors}]
data:    [{path: imagenet/val, corruptions: [fog, contrast], severity: 5, images: 512}]
source:  {images: 64}
runs:
  - {method: none}
  - {method: [align, navia], reduce: [tome:4, tome:8]}
seeds:   [0, 1, 2]
batch:   64
plugins: [infomax.py]

plugins: with own methods or reducers. A file (looked for beside the spec and then in the working directory) or a module.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt

from navia.errors import SpecError
from navia.images import SOURCE_IMAGES
from navia.images.corruptions import names as corruption_names
from navia.plugins import find

_MOST_CLASSES = 20  # that a picture can tell apart


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _corruptions(value: Any) -> Any:
    """all: the 15 of ImageNet-C; extra: its 4 others too."""
    if value in ("all", "extra"):
        return list(corruption_names(extra=value == "extra"))
    return [] if value is None else _listed(value)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSpec(_Strict):
    """name: as for navia.load. crop_only: the images are already resized."""

    name: str
    checkpoint: Path | None = None
    crop_only: bool = False


class DataSpec(_Strict):
    """path: as for `navia run`. corruptions: made on the way, a list or all. images: at most so many of each domain."""

    path: str
    corruptions: Annotated[tuple[str, ...], BeforeValidator(_corruptions)] = ()
    severity: int = Field(default=5, ge=1, le=5)
    stream: Literal["reset", "continual", "mixed"] = "reset"
    images: int | None = Field(default=None, ge=1)
    label_shift: float | None = Field(default=None, gt=0)
    parts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()

    @pydantic.field_validator("corruptions")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(value) - set(corruption_names(extra=True)))
        if unknown:
            raise ValueError(f"unknown corruption {', '.join(unknown)}; known: {', '.join(corruption_names(extra=True))}")
        return value


class SourceSpec(_Strict):
    """Clean images for the statistics: `images` of `path`, or without a path of the data itself (they leave the stream)."""

    images: int = Field(default=SOURCE_IMAGES, ge=2)
    path: str | None = None


class TsneSpec(_Strict):
    """blocks: whose CLS features are laid out, counted from 0. classes: of the model, by number; by default the 8 most
    frequent. or_frequent: these too where the model or the pictures lack one of `classes`, which is an error otherwise."""

    blocks: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_listed)] = Field(min_length=1)
    classes: tuple[NonNegativeInt, ...] | None = Field(default=None, min_length=2, max_length=_MOST_CLASSES)
    or_frequent: bool = False

    @pydantic.field_validator("blocks", "classes")
    @classmethod
    def _once(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        twice = sorted({number for number in value or () if (value or ()).count(number) > 1})
        if twice:
            raise ValueError(f"{', '.join(map(str, twice))} is there twice")
        return value


class RunSpec(_Strict):
    """Every method with every reducer. realtime: images arrive at the pace of the un-adapted dense model. adapt_for: adapt
    to so many batches, then score the last third of the stream without adapting (the paper's convergence figure). shorten:
    where the stream is too short for the largest of these numbers, all of them are made smaller in proportion; that is an
    error otherwise. tsne: also lay out the CLS features of that last third. guard: false lets collapses happen, as in
    published figures."""

    method: Annotated[tuple[str, ...], BeforeValidator(_listed)]
    reduce: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ("none",)
    options: dict[str, Any] = {}
    label: str | None = None
    realtime: bool = False
    adapt_for: Annotated[tuple[int | None, ...], BeforeValidator(_listed)] = (None,)
    shorten: bool = False
    tsne: TsneSpec | None = None
    guard: bool = True

    @pydantic.model_validator(mode="after")
    def _held_out(self) -> "RunSpec":
        if self.tsne is not None and (self.realtime or None in self.adapt_for):
            raise ValueError("tsne shows the last third of the stream once nothing adapts: give adapt_for, and no realtime")
        return self


class Spec(_Strict):
    models: Annotated[tuple[ModelSpec, ...], BeforeValidator(_listed)] = Field(min_length=1)
    data: Annotated[tuple[DataSpec, ...], BeforeValidator(_listed)] = Field(min_length=1)
    runs: Annotated[tuple[RunSpec, ...], BeforeValidator(_listed)] = Field(min_length=1)
    source: SourceSpec = SourceSpec()
    seeds: Annotated[tuple[int, ...], BeforeValidator(_listed)] = (0,)
    batch: int = Field(default=64, ge=1)
    reference: str | None = None  # name of the published values to show beside
    plugins: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()  # files or modules with own methods or reducers

    def scaled(
        self,
        *,
        model: str | None = None,
        checkpoint: Path | None = None,
        crop_only: bool = False,
        data: str | None = None,
        corruptions: list[str] | None = None,
        severity: int | None = None,
        images: int | None = None,
        source: str | None = None,
        seeds: list[int] | None = None,
        batch: int | None = None,
    ) -> "Spec":
        """The same with other models, data or sizes: what is None stays. The classes of a t-SNE were chosen for one model
        and its data: where others lack one of them, the most frequent are shown instead. The numbers of adapt_for were
        chosen for one length of the stream: where it is too short for them, they are shortened."""
        if (checkpoint or crop_only) and model is None:
            raise SpecError("checkpoint and crop_only belong to a model: give its name too")
        values = self.model_dump()
        if model is not None:
            values["models"] = [{"name": model, "checkpoint": checkpoint, "crop_only": crop_only}]
        given = {"path": data, "corruptions": corruptions, "severity": severity, "images": images}
        changes = {key: value for key, value in given.items() if value is not None}
        values["data"] = [{**part, **changes} for part in values["data"]]
        if model is not None or data is not None or images is not None:
            for run in values["runs"]:
                if run["tsne"] is not None and run["tsne"]["classes"] is not None:
                    run["tsne"]["or_frequent"] = True
        if data is not None or images is not None or batch is not None:
            for run in values["runs"]:
                run["shorten"] = True
        if source is not None or data == "embedded":  # the embedded sample has source images of its own
            values["source"]["path"] = source
        if seeds:
            values["seeds"] = seeds
        if batch is not None:
            values["batch"] = batch
        try:
            scaled = Spec.model_validate(values)
        except pydantic.ValidationError as error:
            raise SpecError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from error
        return scaled.model_copy(update={"data": tuple(dict.fromkeys(scaled.data))})


def read_spec(path: Path) -> Spec:
    """The spec in a YAML file, or a SpecError that names the line."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SpecError(f"cannot read {str(path)!r}: {error.strerror}") from error
    spec = parse_spec(text, str(path))
    return spec.model_copy(update={"plugins": tuple(find(name, path.parent).name for name in spec.plugins)})


def parse_spec(text: str, where: str) -> Spec:
    """The spec in a YAML text; errors name `where` and the line."""
    try:
        import yaml
    except ImportError as missing:
        raise SpecError("benchmarks need PyYAML: pip install 'navia[bench]'") from missing
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{where}: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise SpecError(f"{where}: a mapping with models, data and runs is needed")
    try:
        return Spec.model_validate(values)
    except pydantic.ValidationError as error:
        lines = [f"{where}:{_line(tree, e['loc'])}: {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise SpecError("\n".join(dict.fromkeys(lines))) from error


def _line(node: Any, path: tuple[int | str, ...]) -> int:
    """The line of the deepest part of the YAML tree that `path` leads to, counted from 1."""
    for depth, step in enumerate(path, 1):
        if node.id == "sequence" and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
        elif node.id == "mapping" and isinstance(step, str):
            found = [(key, value) for key, value in node.value if key.value == step]
            if not found:
                break
            node = found[0][0] if depth == len(path) else found[0][1]
        elif step != 0 or node.id == "sequence":  # entry 0 of what was given without its list is the thing itself
            break
    return int(node.start_mark.line) + 1
