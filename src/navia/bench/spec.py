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

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt

from navia.adaptation.selection import GRID
from navia.data import SOURCE_IMAGES
from navia.data.corruptions import names as corruption_names
from navia.errors import SpecError, closest_name, known_names
from navia.registry import find_plugin

_MAX_CLASSES = 20  # more cannot be distinguished in a figure


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


class PreprocessingSpec(_Strict):
    """Instead of the model's: resize of the shorter side (null: none), interpolation, and side of the centre crop (null: the
    model's input). Mean and std stay the model's."""

    resize: PositiveInt | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    crop: PositiveInt | None = None


class DataSpec(_Strict):
    """path: as for `navia run`. corruptions: generated on the fly, a list or all. images: at most so many of each domain.
    name: of the data set. Data sets with names are columns of one table, and one that is missing leaves a gap. files: folder
    of ImageNet-C; where it exists, its files are taken instead of generated corruptions, and only cropped."""

    path: str
    corruptions: Annotated[tuple[str, ...], BeforeValidator(_corruptions)] = ()
    severity: int = Field(default=5, ge=1, le=5)
    stream: Literal["reset", "continual", "mixed"] = "reset"
    images: int | None = Field(default=None, ge=1)
    label_shift: float | None = Field(default=None, gt=0)
    parts: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    name: str | None = None
    files: str | None = None
    preprocessing: PreprocessingSpec | None = None

    @pydantic.field_validator("corruptions")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = corruption_names(extra=True)
        if unknown := [f"unknown corruption {name!r}{known_names(name, known)}" for name in value if name not in known]:
            raise ValueError("; ".join(unknown))
        return value


class SourceSpec(_Strict):
    """Clean images for the source statistics: of `path`, or of the data itself, which are then left out of the stream.
    fisher_images: for EATA's Fisher information, if more; clean versions of images of the stream may be among them."""

    images: int = Field(default=SOURCE_IMAGES, ge=2)
    path: str | None = None
    preprocessing: PreprocessingSpec | None = None
    fisher_images: int | None = Field(default=None, ge=2)


class ChooseSpec(_Strict):
    """Options chosen by the lowest loss (Eq. 7) on the first batches of each stream, as `navia.choose`. grid: values to try
    for each option; the paper's by default."""

    batches: int = Field(default=8, ge=2)
    grid: dict[str, tuple[Any, ...]] | None = Field(default=None, min_length=1)

    @property
    def settings(self) -> int:
        """Number of combinations that are tried."""
        return math.prod(map(len, (self.grid or GRID).values()))


def _choose(value: Any) -> Any:
    """true: with the defaults; false: not at all."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


class TsneSpec(_Strict):
    """blocks: whose CLS features are shown, from 0 on. classes: of the model, by number; by default the 8 most frequent.
    or_frequent: these also where the model or the images lack one of `classes`, which is an error otherwise. groups: names
    of super-classes and their classes, which get one colour each."""

    blocks: Annotated[tuple[NonNegativeInt, ...], BeforeValidator(_listed)] = Field(min_length=1)
    classes: tuple[NonNegativeInt, ...] | None = Field(default=None, min_length=2, max_length=_MAX_CLASSES)
    or_frequent: bool = False
    groups: dict[str, tuple[NonNegativeInt, ...]] | None = Field(default=None, min_length=1)

    @pydantic.field_validator("blocks", "classes")
    @classmethod
    def _once(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if twice := sorted(number for number, count in Counter(value or ()).items() if count > 1):
            raise ValueError(f"{', '.join(map(str, twice))} is there twice")
        return value

    @pydantic.model_validator(mode="after")
    def _grouped(self) -> "TsneSpec":
        grouped = [label for own in (self.groups or {}).values() for label in own]
        if self.groups is not None and sorted(grouped) != sorted(self.classes or ()):
            raise ValueError("groups must name every one of `classes` once")
        return self


class RunSpec(_Strict):
    """Every method with every reducer. realtime: batches arrive at the speed of the dense model without adaptation.
    adapt_for: adapt to so many batches, then score the last third of the stream without adapting (the paper's convergence
    figure). shorten: if the stream is too short for the largest of these numbers, reduce all in proportion; otherwise that
    is an error. tsne: also show the CLS features of that last third. guard: false lets collapses happen, as in published
    figures. adapt_every: 1, N or auto, as for `navia.adapt`. precision: as for `navia.load`. options_for: further options
    by the name of a data set. choose: true chooses options on the first batches of each stream, without labels."""

    method: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(min_length=1)
    reduce: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(default=("none",), min_length=1)
    options: dict[str, Any] = {}
    options_for: dict[str, dict[str, Any]] = {}
    choose: Annotated[ChooseSpec | None, BeforeValidator(_choose)] = None
    label: str | None = None
    realtime: bool = False
    adapt_for: Annotated[tuple[int | None, ...], BeforeValidator(_listed)] = Field(default=(None,), min_length=1)
    shorten: bool = False
    tsne: TsneSpec | None = None
    guard: bool = True
    adapt_every: PositiveInt | Literal["auto"] = 1
    precision: Literal["float32", "bfloat16", "float16", "int8"] = "float32"

    @pydantic.model_validator(mode="after")
    def _can_choose(self) -> "RunSpec":
        if self.choose is not None and self.choose.grid and (twice := sorted(self.choose.grid.keys() & self.options.keys())):
            raise ValueError(f"{', '.join(twice)} is both in options and in the grid to choose from")
        return self

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
    seeds: Annotated[tuple[int, ...], BeforeValidator(_listed)] = Field(default=(0,), min_length=1)
    batch: int = Field(default=64, ge=1)
    reference: str | None = None  # name of the published values to show beside
    plugins: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()  # files or modules with own methods or reducers

    @pydantic.model_validator(mode="after")
    def _named_once(self) -> "Spec":
        names = [part.name for part in self.data if part.name is not None]
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(f"data sets need different names, {', '.join(twice)} is there twice")
        for number, run in enumerate(self.runs):
            if unknown := [name for name in run.options_for if name not in names]:
                raise ValueError(f"runs[{number}].options_for names {', '.join(unknown)}, no data set has that name")
        return self

    def scaled(
        self, *, model: str | None = None, checkpoint: Path | None = None, crop_only: bool = False,
        data: str | Mapping[str, str] | None = None, corruptions: list[str] | None = None, severity: int | None = None,
        images: int | None = None, source: str | None = None, seeds: list[int] | None = None, batch: int | None = None,
    ) -> "Spec":  # fmt: skip
        """The same spec with other models, data or sizes; None changes nothing. data: a path instead of all data sets, or
        the paths of some by their names. Where the new ones lack a class of a t-SNE, the most frequent are shown instead.
        Where the stream is too short for adapt_for, its numbers are reduced."""
        if (checkpoint or crop_only) and model is None:
            raise SpecError("checkpoint and crop_only belong to a model: give its name too")
        values = self.model_dump() | {"data": [part.model_dump() for part in self.data]}
        if model is not None:
            values["models"] = [{"name": model, "checkpoint": checkpoint, "crop_only": crop_only}]
        if data is not None:
            self._replace_data(values, data)
        if source is not None:
            values["source"]["path"] = source
        generated = [part for part in values["data"] if part["corruptions"]] or values["data"]
        for part in generated:
            part |= {
                key: value for key, value in (("corruptions", corruptions), ("severity", severity)) if value is not None
            }
        for part in values["data"]:
            part |= {} if images is None else {"images": images}
        if crop_only:
            for part in (*values["data"], values["source"]):
                part["preprocessing"] = None
        other_images = data is not None or images is not None
        for run in values["runs"]:
            run["shorten"] |= other_images or batch is not None
            if run["tsne"] is not None and run["tsne"]["classes"] is not None:
                run["tsne"]["or_frequent"] |= other_images or model is not None
        values |= {key: value for key, value in (("seeds", seeds or None), ("batch", batch)) if value is not None}
        try:
            return Spec.model_validate(values)
        except pydantic.ValidationError as error:
            raise SpecError("; ".join(text for _, text in _problems(error, None))) from error

    def _replace_data(self, values: dict[str, Any], data: str | Mapping[str, str]) -> None:
        """Other paths for the data sets. A source that was one of the replaced folders is replaced too."""
        known = {part.name: number for number, part in enumerate(self.data) if part.name is not None}
        if isinstance(data, str):  # one data set instead of all, without the name that stands for another one
            whole = {**values["data"][0], "path": data, "files": None, "name": None}
            for part in values["data"][1:] if len(self.data) > 1 else ():
                whole["corruptions"] = whole["corruptions"] or part["corruptions"]
            changed, values["data"] = {self.data[0].path: data}, [whole]
            values["runs"] = [{**run, "options_for": {}} for run in values["runs"]]
            if data == "embedded":  # it has source images of its own, and no image that can be resized
                whole["preprocessing"] = values["source"]["preprocessing"] = values["source"]["path"] = None
                return
        else:
            if unknown := [name for name in data if name not in known]:
                names = f"; its data sets are {', '.join(known)}" if known else ", its data sets have no names"
                raise SpecError(f"the spec has no data set {', '.join(map(repr, unknown))}{names}")
            for name, path in data.items():
                values["data"][known[name]] |= {"path": path, "files": None}
            changed = {self.data[known[name]].path: path for name, path in data.items()}
        values["source"]["path"] = changed.get(str(self.source.path), self.source.path)


def read_spec(path: Path) -> Spec:
    """The spec in a YAML file, or a SpecError that names the line."""
    try:
        text = path.read_text()
    except OSError as error:
        raise SpecError(f"cannot read {str(path)!r}: {error.strerror}") from error
    spec = parse_spec(text, str(path))
    return spec.model_copy(update={"plugins": tuple(find_plugin(name, path.parent).name for name in spec.plugins)})


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
    problems = [] if "plugins" in values else _unknown_names(values, tree)
    try:
        spec = Spec.model_validate(values)
    except pydantic.ValidationError as error:
        problems += _problems(error, tree)
    if problems:
        found = sorted({(_locate(path, tree)[1], text) for path, text in problems})
        raise SpecError("\n".join(f"{where}:{line}: {text}" for line, text in found))
    return spec


Place = tuple[int | str, ...]

_WORDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "path": "must be a path",
    "dict": "must be a mapping, {{key: value}}",
    "model": "must be a mapping, {{key: value}}",
    "tuple": "must be a list",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be {expected}",
    "too_short": "must have a length of at least {min_length}",
    "too_long": "must have a length of at most {max_length}",
}  # by the kind of pydantic's error, or how that begins


def _problems(error: pydantic.ValidationError, tree: Any) -> list[tuple[Place, str]]:
    """Where, and in plain words what is wrong there. tree: the YAML text, where there is one."""
    found = error.errors()
    unknown = [e["loc"] for e in found if e["type"] == "extra_forbidden"]
    meant = {(*path[:-1], closest_name(str(path[-1]), _keys(path))) for path in unknown}
    inside = {e["loc"][:depth] for e in found for depth in range(len(e["loc"]))}
    # a key that is only misspelled is not missing, and a list is not too short because its entries have mistakes
    consequences: dict[str, set[Any]] = {"missing": meant, "too_short": inside}
    return [(e["loc"], _problem(e, tree)) for e in found if e["loc"] not in consequences.get(e["type"], ())]


def _problem(error: Any, tree: Any) -> str:
    kind, path, context, value = error["type"], error["loc"], error.get("ctx", {}), error["input"]
    place = _locate(path, tree)[0]
    if kind == "extra_forbidden":
        inside = f" in {_locate(path[:-1], tree)[0]}" if path[:-1] else ""
        return f"unknown key {path[-1]!r}{inside}{known_names(str(path[-1]), _keys(path))}"
    if kind == "missing":
        return f"{_locate(path[:-1], tree)[0] or 'the spec'} needs the key {path[-1]!r}"
    if kind == "value_error":
        return f"{place}: {context['error']}"
    words = _WORDS.get(kind) or _WORDS.get(kind.partition("_")[0], "cannot be used here")
    meant = closest_name(str(value), context["expected"].split("'")) if kind == "literal_error" else None
    closest = f"; did you mean {meant!r}?" if meant else ""
    return f"{place} {words.format(**context)}, not {'nothing' if value is None else repr(value)}{closest}"


_PARTS: dict[int | str, type[BaseModel]] = {
    "models": ModelSpec, "data": DataSpec, "runs": RunSpec, "source": SourceSpec, "tsne": TsneSpec,
    "choose": ChooseSpec, "preprocessing": PreprocessingSpec,
}  # fmt: skip


def _keys(path: Place) -> list[str]:
    """The keys of the mapping that the last step of `path` is in."""
    inside = [step for step in path[:-1] if step in _PARTS]
    return list((_PARTS[inside[-1]] if inside else Spec).model_fields)


def _locate(path: Place, tree: Any) -> tuple[str, int]:
    """Name ('runs[0].method') and line of a place in the YAML tree, if there is one. Entry 0 of what was given without its
    list is the thing itself, and has no number. A place that is missing has the line of what should hold it."""
    name, line, node = "", tree.start_mark.line if tree else 0, tree
    for step in path:
        if isinstance(step, str):
            name += f".{step}" if name else step
            pairs = node.value if node is not None and node.id == "mapping" else ()
            key, node = next(((key, value) for key, value in pairs if key.value == step), (None, None))
            line = key.start_mark.line if key else line
        elif node is None or node.id == "sequence":
            name += f"[{step}]"
            node = node.value[step] if node is not None and step < len(node.value) else None
            line = node.start_mark.line if node else line
        elif step != 0:
            node = None
    return name, line + 1


def _unknown_names(values: dict[str, Any], tree: Any) -> list[tuple[Place, str]]:
    """Methods, reducers and options of the runs that do not exist. Options are checked one by one, so that all mistakes are
    found; together only if no single one is wrong."""
    from navia.methods.base import METHODS
    from navia.reduction import parse

    found: list[tuple[Place, str | None]] = []
    for i, run in ((i, run) for i, run in enumerate(_listed(values.get("runs"))) if isinstance(run, dict)):
        options = run.get("options")
        for j, name in enumerate(_listed(run.get("reduce", "none"))):
            found.append((("runs", i, "reduce", j), _error(parse, name) if isinstance(name, str) else None))
        for j, name in enumerate(_listed(run.get("method"))):
            if not isinstance(name, str):
                continue
            found.append((("runs", i, "method", j), _error(METHODS.get, name)))
            if found[-1][1] is None and isinstance(options, dict) and all(isinstance(key, str) for key in options):
                make, place = METHODS.get(name).Options.from_kwargs, ("runs", i, "options")
                if error := _error(make, name, options):
                    each = [((*place, key), _error(make, name, {key: value})) for key, value in options.items()]
                    found += each if any(text for _, text in each) else [(place, error)]
    return [(path, f"{_locate(path, tree)[0]}: {text}") for path, text in found if text]


def _error(check: Callable[..., object], *arguments: Any) -> str | None:
    try:
        check(*arguments)
    except SpecError as error:
        return str(error)
    return None
