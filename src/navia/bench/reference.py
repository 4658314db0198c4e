"""Published values of the paper's tables, by the labels that the presets give to their runs. The numbers are in
reference.json, in percent; averages alone where only these are known."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from navia.errors import SpecError
from navia.methods.base import changed_options

TABLES = ("table1", "table2", "ablation", "layers", "tokens")
_PRESETS = {name: f"paper-{name}" for name in TABLES}


@dataclass(frozen=True)
class Published:
    """values: by corruption (severity 5), and under imagenet-c (their average), -r, -v2, -sketch. notes: on some of them."""

    values: Mapping[str, float]
    notes: Mapping[str, str]


def reference(table: str) -> dict[str, Published]:
    """One table of the paper: label -> values."""
    if table not in TABLES:
        raise SpecError(f"no published values {table!r}; known: {', '.join(TABLES)}")
    content = _content()
    return {label: _published(entry, content["order"]) for label, entry in content[table].items()}


@functools.cache
def published(label: str | None) -> Published | None:
    """All that the paper prints under a label: Tables 1 and 2 have the same ones."""
    found = [known[label] for table in TABLES if label is not None and label in (known := reference(table))]
    if not found:
        return None
    values = {column: value for entry in found for column, value in entry.values.items()}
    return Published(values, {column: note for entry in found for column, note in entry.notes.items()})


def label_of(method: str, reduce: str, options: Mapping[str, Any]) -> str | None:
    """The label of the same run in a preset with published values: a row keeps the label under which it was run first."""
    return _labels().get((method, reduce, json.dumps(options, sort_keys=True)))


def published_model() -> str:
    return str(_content()["model"])


def _published(entry: Mapping[str, Any], order: list[str]) -> Published:
    values = dict(zip(order, entry["each"], strict=True)) if "each" in entry else {}
    values |= {column: value for column, value in entry.items() if column not in ("each", "notes")}
    return Published(values, entry.get("notes", {}))


@functools.cache
def _content() -> dict[str, Any]:
    return dict(json.loads(resources.files(__package__).joinpath("reference.json").read_text(encoding="utf-8")))


@functools.cache
def _labels() -> dict[tuple[str, str, str], str]:
    from navia.bench.presets import named
    from navia.reduction import parse

    found: dict[tuple[str, str, str], str] = {}
    for table, preset in _PRESETS.items():
        known = reference(table)
        try:
            runs = named(preset).runs
        except SpecError:  # the presets are YAML: without its reader only the rows' own labels are known
            return {}
        for run in runs:
            if run.label in known:
                for method in run.method:
                    for reduce in run.reduce:
                        place = (
                            method,
                            str(parse(reduce)),
                            json.dumps(changed_options(method, run.options), sort_keys=True),
                        )
                        found.setdefault(place, str(run.label))
    return found
