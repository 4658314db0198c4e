"""The files that a report wrote into a folder: it keeps a list of them there, and replaces and deletes no others."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from navia.errors import InputError
from navia.io import atomic_write

LIST = "navia-report.json"


class Written:
    """`with Written(folder) as written:` and then `with written.file(name) as path:` for each file. What an earlier report
    wrote and this one did not is deleted at the end; a file of anyone else's is never touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []
        self._listed = self._read()

    def __enter__(self) -> "Written":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        names = {path.name for path in self.paths}
        for name in self._listed - names:
            (self.folder / name).unlink(missing_ok=True)
        self._listed = names
        self._save()

    def check(self, *names: str) -> None:
        """Refuse names that files of others have."""
        for name in names:
            path = self.folder / name
            if name not in self._listed and os.path.lexists(path):
                raise InputError(
                    f"{str(path)!r} is there already, and is not in the list of what `navia report` wrote "
                    f"({LIST} beside it): move it away, or choose another --out"
                )

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        """A temporary path to write to, which becomes the file `name`. It is listed first: a report that was interrupted can
        be made again."""
        self.check(name)
        if name not in self._listed:
            self._listed.add(name)
            self._save()
        path = self.folder / name
        with atomic_write(path, sync=False) as unfinished:  # it can be made again at any time
            yield unfinished
        self.paths.append(path)

    def _read(self) -> set[str]:
        path = self.folder / LIST
        try:
            names = json.loads(path.read_text(encoding="utf-8"))["files"]
            return {name for name in names if Path(name).name == name}
        except FileNotFoundError:
            return set()
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{str(path)!r} is no list of files that `navia report` wrote; delete it: {error!r}") from error

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.folder / LIST, sync=False) as unfinished:
            unfinished.write_text(json.dumps({"files": sorted(self._listed)}, indent=1) + "\n", encoding="utf-8")
