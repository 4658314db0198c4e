"""The paper's tables and figures as specs: one YAML file each beside this one, its first comment line says what it is. The
published values are in reference.json, in percent, by the labels that the presets give to their runs."""

import functools
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from navia.bench.spec import Spec, parse_spec, read_spec
from navia.errors import SpecError, known_names

TABLES = ("table1", "table2", "ablation", "layers", "tokens")


def presets() -> dict[str, str]:
    """Names, and what each is."""
    files = {f.name.removesuffix(".yaml"): f for f in resources.files(__name__).iterdir() if f.name.endswith(".yaml")}
    return {name: files[name].read_text().splitlines()[0].lstrip("# ") for name in sorted(files)}


def load_spec(name: str) -> Spec:
    """A preset by its name, or the spec in a YAML file."""
    if name in presets():
        return parse_spec((resources.files(__name__) / f"{name}.yaml").read_text(), name)
    if Path(name).suffix in (".yaml", ".yml"):
        return read_spec(Path(name))
    raise SpecError(f"no preset {name!r}{known_names(name, presets())} (or give a .yaml file)")


@dataclass(frozen=True)
class Published:
    """values: by corruption (severity 5), and under imagenet-c (their average), -r, -v2, -sketch. notes: on some of them."""

    values: Mapping[str, float]
    notes: Mapping[str, str]


def reference(table: str) -> dict[str, Published]:
    """One table of the paper: label -> values."""
    if table not in TABLES:
        raise SpecError(f"no published values {table!r}; known: {', '.join(TABLES)}")
    found = {}
    for label, entry in _content()[table].items():
        values = dict(zip(_content()["order"], entry["each"], strict=True)) if "each" in entry else {}
        values |= {column: value for column, value in entry.items() if column not in ("each", "notes")}
        found[label] = Published(values, entry.get("notes", {}))
    return found


@functools.cache
def published(label: str | None) -> Published | None:
    """All that the paper prints under a label: Tables 1 and 2 have the same ones."""
    found = [known[label] for table in TABLES if label is not None and label in (known := reference(table))]
    if not found:
        return None
    values = {column: value for entry in found for column, value in entry.values.items()}
    return Published(values, {column: note for entry in found for column, note in entry.notes.items()})


def label_of(method: str, reduce: str, options: Mapping[str, Any]) -> str | None:
    """The label of the same run in a preset with published values: a row keeps the label of its first run."""
    return _labels().get((method, reduce, json.dumps(options, sort_keys=True)))


def published_model() -> str:
    return str(_content()["model"])


@functools.cache
def _content() -> dict[str, Any]:
    return dict(json.loads(resources.files(__name__).joinpath("reference.json").read_text(encoding="utf-8")))


@functools.cache
def _labels() -> dict[tuple[str, str, str], str]:
    from navia.methods.base import changed_options
    from navia.reduction import parse

    found: dict[tuple[str, str, str], str] = {}
    try:
        runs = [run for table in TABLES for run in load_spec(f"paper-{table}").runs if run.label in reference(table)]
    except SpecError:  # the presets are YAML: without PyYAML only the rows' own labels are known
        return {}
    for run in runs:
        for method, reduce in itertools.product(run.method, run.reduce):
            options = json.dumps(changed_options(method, run.options), sort_keys=True)
            found.setdefault((method, str(parse(reduce)), options), str(run.label))
    return found
