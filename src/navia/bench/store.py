"""Finished cells on disk: DIR/rows.jsonl, one line each, appended and synced; their traces in DIR/traces; which cells each
spec asked for in DIR/specs."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from navia import __version__
from navia.bench.row import Row, check_rows
from navia.errors import InputError
from navia.io import atomic_write, lock_file

if TYPE_CHECKING:
    from navia.bench.cell import Cell
    from navia.bench.spec import Spec


class Store:
    """The folder of a benchmark. Rows are appended under `with store.writing()`, by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rows.jsonl"

    def rows(self) -> list[Row]:
        """All complete rows; a last line that was cut off by a kill does not count. The last row of a key counts: a cell is
        run again if its images have changed.

        Raises:
            InputError: A line is not a row.
        """
        if not self.path.exists():
            return []
        values = []
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                values.append(json.loads(line))
            except ValueError as error:  # no JSON, or no UTF-8
                raise InputError(f"line {number} of {str(self.path)!r} is no row of `navia bench`: {error}") from error
        rows = check_rows(values, repr(str(self.path)))
        last = {row.key: row for row in rows}
        return [row for row in rows if last[row.key] is row]

    @contextmanager
    def writing(self) -> Iterator["Store"]:
        """Lock the folder: two runs into one folder would run the same cells."""
        refusal = f"another run writes to {str(self.folder)!r}; wait for it or take another --out"
        with self._errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = lock_file(self.folder / "lock", refusal)
        with lock:
            if others := sorted({row.fingerprint.versions["navia"] for row in self.rows()} - {__version__}):
                made_by = f"rows of navia {', '.join(others)}, this is {__version__}"
                raise InputError(f"{str(self.folder)!r} holds {made_by}: take another --out")
            if self.path.exists():
                os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)  # a line that was cut off by a kill
            yield self

    def add(self, row: Row, trace: dict[str, Any]) -> None:
        """Write the trace, then the row that makes it count; each is synced to disk before the next."""
        with self._errors("; finished cells are kept"):
            self._write(self.folder / "traces" / f"{row.key}.json", trace)
            with self.path.open("ab") as file:
                file.write(json.dumps(row.as_json(), allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def trace(self, key: str) -> dict[str, Any]:
        return json.loads((self.folder / "traces" / f"{key}.json").read_text())

    def keep_spec(self, name: str, spec: "Spec", cells: "Sequence[Cell]") -> None:
        """Write DIR/specs/NAME.json: the spec, and its cells with their keys and labels, so that rows can be put into tables
        without the data and the weights. An earlier spec of this name is replaced."""
        file_name = re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")[:100] or "spec"
        before = {kept["name"]: kept["order"] for kept in self.specs()}
        content = {
            "name": name,
            "order": before.get(name, max(before.values(), default=-1) + 1),
            "spec": spec.model_dump(mode="json"),
            "cells": [{"key": cell.key, **cell.model_dump(mode="json")} for cell in cells],
        }
        with self._errors():
            self._write(self.folder / "specs" / f"{file_name}.json", content)

    def specs(self) -> list[dict[str, Any]]:
        """All kept specs as `keep_spec` wrote them, in the order in which their names were first kept."""
        found = []
        for path in sorted((self.folder / "specs").glob("*.json")):
            try:
                found.append(json.loads(path.read_text()))
                int(found[-1]["order"])
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{str(path)!r} is no spec that `navia bench` wrote; delete it: {error!r}") from error
        return sorted(found, key=lambda kept: int(kept["order"]))

    def _write(self, path: Path, content: dict[str, Any]) -> None:
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path) as unfinished:
            unfinished.write_text(json.dumps(content))

    @contextmanager
    def _errors(self, more: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error}{more}") from error
