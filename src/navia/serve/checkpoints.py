"""Checkpoints of the adapted state: written atomically, the previous one kept, damaged ones set aside."""

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from navia.adaptation.adapter import Adapter
from navia.adaptation.delta import BrokenDeltaError
from navia.errors import InputError
from navia.io import lock_file

_COUNTERS = "serve"  # key of the counters in the metadata of the delta


class Checkpoints:
    """FOLDER/delta.safetensors and its predecessor delta.previous.safetensors. One service per folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = folder / "delta.safetensors"
        self.previous = folder / "delta.previous.safetensors"
        self.step: int | None = None
        self.written: float | None = None
        self._lock: contextlib.ExitStack | None = None

    def lock(self) -> None:
        """Refuse a folder that another service writes to: their states would be mixed."""
        refusal = f"another service keeps its state in {str(self.folder)!r}; give each its own --state"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_file(self.folder / "lock", refusal)
        except OSError as error:
            raise InputError(f"cannot write to {str(self.folder)!r}: {error.strerror}") from error

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    @property
    def age(self) -> float | None:
        """Seconds since the newest was written; None: there is none."""
        return None if self.written is None else max(0.0, time.time() - self.written)

    def restore(self, adapter: Adapter) -> tuple[dict[str, int], list[str]]:
        """Load the newest valid checkpoint. Returns the counters saved with it, and messages for the event log."""
        messages = []
        for path in (self.current, self.previous):
            if not path.exists():
                continue
            try:
                metadata = adapter.load(path)
            except BrokenDeltaError as error:
                aside = path.with_name(f"{path.stem}.corrupt-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
                path.replace(aside)  # kept for inspection, under a name that is never loaded
                messages.append(f"{error}; set aside as {aside.name}")
                continue
            self.step, self.written = adapter.steps, path.stat().st_mtime
            messages.append(f"resumed from step {adapter.steps} of {path.name}")
            return json.loads(metadata.get(_COUNTERS, "{}")), messages
        return {}, messages

    def write(self, adapter: Adapter, counters: Mapping[str, int]) -> None:
        """Write counters and parameters to one file, so that they always agree."""
        fresh = self.folder / "delta.new.safetensors"
        adapter.save(fresh, {_COUNTERS: json.dumps(dict(counters))})
        if self.current.exists():
            self.current.replace(self.previous)
        fresh.replace(self.current)
        self.step, self.written = adapter.steps, time.time()
