"""The adapted state on disk: written whole, the one before kept, damage noticed and set aside."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from navia.adaptation.adapter import Adapter
from navia.adaptation.delta import BrokenDeltaError
from navia.errors import InputError
from navia.io import lock_file

_NOTE = "serve"  # under which the counters stand in the delta's metadata


class Checkpoints:
    """FOLDER/delta.safetensors and, one older, delta.previous.safetensors. One service per folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = folder / "delta.safetensors"
        self.previous = folder / "delta.previous.safetensors"
        self.step: int | None = None
        self.written: float | None = None
        self.failures = 0  # writes that failed, of this process
        self._lock: ExitStack | None = None

    def claim(self) -> None:
        """Two services that write to one folder would mix their states."""
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
        """Load the newest sound checkpoint: the counters that were saved with it, and what there is to say."""
        said = []
        for path in (self.current, self.previous):
            if not path.exists():
                continue
            try:
                metadata = adapter.load(path)
            except BrokenDeltaError as error:
                said.append(f"{error}; set aside as {_set_aside(path)}")
                continue
            self.step, self.written = adapter.steps, path.stat().st_mtime
            said.append(f"went on from step {adapter.steps} of {path.name}")
            return json.loads(metadata.get(_NOTE, "{}")), said
        return {}, said

    def write(self, adapter: Adapter, counters: Mapping[str, int]) -> None:
        """Counters and parameters in one file, so that they cannot disagree."""
        fresh = self.folder / "delta.new.safetensors"
        adapter.save(fresh, {_NOTE: json.dumps(dict(counters))})
        if self.current.exists():
            self.current.replace(self.previous)
        fresh.replace(self.current)
        self.step, self.written = adapter.steps, time.time()


def _set_aside(path: Path) -> str:
    """Kept for whoever wants to know what happened, under a name that nothing loads."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = path.with_name(f"{path.stem}.corrupt-{stamp}")
    path.replace(aside)
    return aside.name
