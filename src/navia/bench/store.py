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
from navia.bench.row import check_rows
from navia.errors import InputError
from navia.io import atomic_write, lock_file

if TYPE_CHECKING:
    from navia.bench.cell import Cell
    from navia.bench.spec import Spec


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rows.jsonl"

    def rows(self) -> list[dict[str, Any]]:
        """All whole rows; a last line that was cut off by a kill does not count. Of rows with one key the last one counts: a
        cell is run again where its images have changed."""
        if not self.path.exists():
            return []
        rows = []
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:  # no JSON, or no UTF-8
                raise InputError(f"line {number} of {str(self.path)!r} is no row of `navia bench`: {error}") from error
        check_rows(rows, repr(str(self.path)))
        return _newest(rows)

    @contextmanager
    def writing(self) -> Iterator["Store"]:
        """Exclusive: two runs into one folder would answer the same cells."""
        refusal = f"another run writes to {str(self.folder)!r}; wait for it or take another --out"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = lock_file(self.folder / "lock", refusal)
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error}") from error
        with lock:
            self._refuse_other_versions()
            self._cut_torn_line()
            yield self

    def add(self, row: dict[str, Any], trace: dict[str, Any]) -> None:
        """The trace first, then the row that makes it count; each for good before the next."""
        traces = self.folder / "traces"
        try:
            traces.mkdir(exist_ok=True)
            with atomic_write(traces / f"{row['key']}.json") as path:
                path.write_text(json.dumps(trace, allow_nan=False))
            with self.path.open("ab") as file:
                file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error}; finished cells are kept") from error

    def trace(self, key: str) -> dict[str, Any]:
        return json.loads((self.folder / "traces" / f"{key}.json").read_text())

    def keep_spec(self, name: str, spec: "Spec", cells: "Sequence[Cell]") -> None:
        """Write DIR/specs/NAME.json: the spec, and the cells it asks for with their keys and labels, so that rows can be put
        into tables without the data and the weights. A spec that was kept under this name before is replaced."""
        folder = self.folder / "specs"
        path = folder / f"{_file_name(name)}.json"
        before = {kept["name"]: kept["order"] for kept in self.specs()}
        content = {
            "name": name,
            "order": before.get(name, max(before.values(), default=-1) + 1),
            "spec": spec.model_dump(mode="json"),
            "cells": [{"key": cell.key, **cell.values()} for cell in cells],
        }
        try:
            folder.mkdir(exist_ok=True)
            with atomic_write(path) as unfinished:
                unfinished.write_text(json.dumps(content))
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error}") from error

    def specs(self) -> list[dict[str, Any]]:
        """All kept specs as `keep_spec` wrote them, in the order in which their names were first kept."""
        found = []
        for path in sorted((self.folder / "specs").glob("*.json")):
            try:
                kept = json.loads(path.read_text())
                found.append((int(kept["order"]), kept))
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{str(path)!r} is no spec that `navia bench` wrote; delete it: {error!r}") from error
        return [kept for _, kept in sorted(found, key=lambda pair: pair[0])]

    def _refuse_other_versions(self) -> None:
        others = sorted({row["fingerprint"]["versions"]["navia"] for row in self.rows()} - {__version__})
        if others:
            raise InputError(
                f"{str(self.folder)!r} holds rows of navia {', '.join(others)}, this is {__version__}: take another --out"
            )

    def _cut_torn_line(self) -> None:
        if self.path.exists():
            whole = self.path.read_bytes()
            kept = whole[: whole.rfind(b"\n") + 1]
            if len(kept) < len(whole):
                with self.path.open("r+b") as file:
                    file.truncate(len(kept))


def _newest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last row of each key, in the order of the file."""
    last = {row["key"]: number for number, row in enumerate(rows)}
    return [rows[number] for number in sorted(last.values())]


def _file_name(name: str) -> str:
    """A name of letters, digits, dots, dashes and underscores that every file system takes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name).lstrip(".")[:100] or "spec"
