"""The one schema of a bench row: cells write it, the store reads it, the report and the documentation take it from here.

A new knob of a run is one field of `Settings` and its use in `run_cell`; a new result is one field of `Row`.
"""

from collections.abc import Iterable
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from navia.bench.spec import ChooseSpec, PreprocessingSpec, TsneSpec
from navia.errors import InputError


class Settings(BaseModel):
    """What decides a row. Fields with a default came later: older rows lack them, and the default is no part of the key."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = Field(description="name of the model, as for `navia.load`")
    data: str = Field(description="folder or data set, as given")
    domain: str = Field(description='corruption or part; "" for a stream over all `domains`')
    domains: tuple[str, ...] = Field(description="all domains of the stream, in order")
    corrupted: bool = Field(description="corruptions were generated on the fly")
    severity: int = Field(description="of the generated corruptions, 1 to 5; 0 without")
    stream: str = Field(description="reset, continual or mixed")
    images: int | None = Field(description="limit of images per domain; null for all")
    label_shift: float | None = Field(description="Dirichlet concentration of the label shift")
    source_images: int = Field(description="number of clean images for the source statistics")
    source_path: str | None = Field(description="where these are from; null for a part of the data")
    method: str = Field(description="adaptation method")
    reduce: str = Field(description="token reducer")
    options: dict[str, Any] = Field(description="options of the method that differ from its defaults")
    realtime: bool = Field(description="batches arrive at the speed of the dense model without adaptation")
    adapt_for: int | None = Field(description="batches to adapt to before the last third of the stream is scored")
    seed: int = Field(description="of the order of the images and of the method")
    batch: int = Field(description="images per step")
    label: str | None = Field(description="name of the run in its spec; no part of the key")
    checkpoint: str | None = Field(description="file with the weights, as given")
    crop_only: bool = Field(description="the images were resized before: only the centre crop is taken")
    tsne: TsneSpec | None = Field(default=None, description="blocks and classes of the t-SNE")
    guarded: bool = Field(default=True, description="false: run without the guard")
    adapt_every: int | Literal["auto"] = Field(
        default=1, description="which batches are adapted to: all, every N-th, or auto"
    )
    precision: str = Field(default="float32", description="what the blocks compute in: float32, bfloat16, float16 or int8")
    dataset: str | None = Field(default=None, description="name of the data set in its spec; no part of the key")
    preprocessing: PreprocessingSpec | None = Field(default=None, description="of the data, if not the model's")
    source_preprocessing: PreprocessingSpec | None = Field(default=None, description="of the source, if not the model's")
    fisher_images: int | None = Field(default=None, description="images for EATA's Fisher information, if not the source's")
    choose: ChooseSpec | None = Field(default=None, description="how options were chosen without labels; null: not at all")
    model_digest: str | None = Field(default=None, description="of the local folder that `model` names")
    checkpoint_digest: str | None = Field(default=None, description="of the content of `checkpoint`")
    data_digest: str | None = Field(default=None, description="of the names and sizes of the images")
    source_digest: str | None = Field(default=None, description="of the names and sizes of the source images")
    plugin_digest: str | None = Field(default=None, description="of the files that define a third-party method or reducer")
    times_digest: str | None = Field(default=None, description="of the images' modification times; no part of the key")


class Fingerprint(BaseModel):
    """What two rows must share to be compared, and what made them."""

    model_config = ConfigDict(frozen=True, extra="allow")

    weights: str = Field(description="digest of the weights as loaded")
    preprocessing: str = Field(description="preprocessing in words")
    data: str = Field(description="layout of the data, and whether the corruptions were made here")
    pictures: str = Field(description="digest of the image names in the order of the stream")
    images: int = Field(description="length of the stream")
    classes: int = Field(description="number of classes to predict")
    reset: str = Field(description="when adaptation starts again: the kind of stream")
    source: dict[str, Any] | None = Field(description="number of source images, and the reducer they were measured with")
    versions: dict[str, str] = Field(description="of navia, torch and Python")
    threads: int | None = Field(default=None, description="threads of torch")
    device: str | None = Field(default=None, description="cpu or cuda")

    @pydantic.field_validator("versions")
    @classmethod
    def _with_navia(cls, value: dict[str, str]) -> dict[str, str]:
        if "navia" not in value:
            raise ValueError("no version of navia")
        return value


class ChosenOptions(BaseModel):
    """Options chosen on the first batches of the stream, before it began anew, and what that cost."""

    model_config = ConfigDict(frozen=True, extra="allow")

    options: dict[str, Any] = Field(description="chosen")
    loss: float = Field(description="Eq. 7 of the chosen options, mean over the last half of the batches")
    images: int = Field(description="number of images")
    steps: int = Field(description="adaptation steps of all settings together")
    seconds: float = Field(description="time they took")
    gmacs: float = Field(description="their forwards in GMACs, per image of the stream")


class _Keyed(BaseModel):
    key: str = Field(description="digest of the settings")


class Row(Settings, _Keyed):
    """One finished cell: its settings, scores, cost and fingerprint. Unknown fields (of a newer version) are kept."""

    model_config = ConfigDict(extra="allow")

    realtime_ratio: float | None = Field(default=None, description="with `realtime`: time of a step over a dense forward")
    skip_ratio: float | None = Field(default=None, description="the same of a batch that `adapt_every` leaves out")
    update_share: float | None = Field(default=None, description="share of the scored batches that led to an update")
    choice: ChosenOptions | None = Field(
        default=None, description="with `choose`: the chosen options and their cost; see below"
    )
    count: int = Field(description="scored images")
    correct: int | None = Field(default=None, description="correct predictions")
    top1: float | None = Field(description="top-1 accuracy, 0 to 1")
    top5: float | None = Field(default=None, description="top-5 accuracy")
    ece: float | None = Field(description="expected calibration error; null after a collapse")
    nll: float | None = Field(default=None, description="negative log-likelihood; null after a collapse")
    low: float | None = Field(description="lower end of the 95 % Wilson interval of `top1`")
    high: float | None = Field(description="its upper end")
    collapsed: int | None = Field(default=None, description="first batch with logits that are not finite")
    gmacs: float = Field(description="multiply-accumulates of a forward per image, in 1e9, counted layer by layer")
    gmacs_paper: float | None = Field(default=None, description="the same as the paper counts them")
    trainable: int | None = Field(default=None, description="number of trained parameters")
    ms_per_image: float | None = Field(description="median time of a step per image, in ms; the mean with `adapt_every`")
    peak_mib: float | None = Field(default=None, description="peak memory above the level before the stream, in MiB")
    guard: list[str] = Field(description="verdicts of the guard")
    finished: str | None = Field(default=None, description="when the cell ended, in UTC")
    wall_seconds: float = Field(description="time of the whole cell")
    fingerprint: Fingerprint = Field(description="what made the row; see below")

    def as_json(self) -> dict[str, Any]:
        """The fields that were set, as plain JSON values: what is on disk."""
        return self.model_dump(mode="json", exclude_unset=True)


def check_rows(values: Iterable[Any], where: str) -> list[Row]:
    """Validate rows.

    Raises:
        InputError: A value is not a row; the message names its line in `where`.
    """
    rows = []
    for number, value in enumerate(values, 1):
        try:
            rows.append(Row.model_validate(value))
        except pydantic.ValidationError as error:
            found = [(".".join(map(str, e["loc"])), e) for e in error.errors()]
            missing = [name for name, e in found if e["type"] == "missing"]
            reason = f"{found[0][0]} {str(found[0][1]['input'])[:60]!r}: {found[0][1]['msg']}"
            if missing:
                reason = f"it has no {', '.join(missing[:3])}"
            raise InputError(f"line {number} of {where} is no row of `navia bench`: {reason}") from error
    return rows


def schema_table() -> str:
    """The schema as a Markdown table: name, type and meaning of every field."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for prefix, schema in (("", Row), ("choice.", ChosenOptions), ("fingerprint.", Fingerprint)):
        for name, field in schema.model_fields.items():
            kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
            for module in ("typing.", f"{TsneSpec.__module__}.", f"{__name__}."):
                kind = kind.replace(module, "")
            lines.append(f"| `{prefix}{name}` | `{kind}` | {field.description} |".replace(" | None`", " \\| None`"))
    return "\n".join(lines)
