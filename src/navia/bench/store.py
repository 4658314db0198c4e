"""Finished cells on disk: DIR/rows.jsonl, one line each, appended and synced; their traces in DIR/traces."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from navia import __version__
from navia.bench.rows import check_rows
from navia.errors import InputError
from navia.files import exclusive, written_whole


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "rows.jsonl"

    def rows(self) -> list[dict[str, Any]]:
        """All whole rows; a last line that was cut off by a kill does not count."""
        if not self.path.exists():
            return []
        rows = []
        for number, line in enumerate(self.path.read_bytes().split(b"\n")[:-1], 1):
            try:
                rows.append(json.loads(line))
            except ValueError as error:  # no JSON, or no UTF-8
                raise InputError(f"line {number} of {str(self.path)!r} is no row of `navia bench`: {error}") from error
        check_rows(rows, repr(str(self.path)))
        return rows

    @contextmanager
    def writing(self) -> Iterator["Store"]:
        """Exclusive: two runs into one folder would answer the same cells."""
        refusal = f"another run writes to {str(self.folder)!r}; wait for it or take another --out"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = exclusive(self.folder / "lock", refusal)
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
            with written_whole(traces / f"{row['key']}.json") as path:
                path.write_text(json.dumps(trace))
            with self.path.open("ab") as file:
                file.write(json.dumps(row).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error}; finished cells are kept") from error

    def trace(self, key: str) -> dict[str, Any]:
        return json.loads((self.folder / "traces" / f"{key}.json").read_text())

    def specs(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in (self.folder / "specs").glob("*.json")]
        return sorted(found, key=lambda kept: int(kept["order"]))

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
