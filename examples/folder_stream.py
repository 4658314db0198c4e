"""A camera that writes its frames into a folder, and a model that answers and adapts while they come.

    python examples/folder_stream.py                     plays a camera in a thread of its own; noise sets in halfway
    python examples/folder_stream.py --frames FOLDER --source CLEAN --model timm:vit_base_patch16_224

Any program may fill the folder, such as `ffmpeg -i rtsp://camera -vf fps=5 FOLDER/%06d.jpg`. A frame in a folder with the
name of a class counts as labelled. Ctrl-C ends it; --save keeps what was learned.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import setting
import torch
from PIL import Image

import navia
from navia.data.preprocessing import open_image
from navia.data.watch import watch_folder
from navia.errors import InputError


def main() -> None:
    parser = setting.arguments(__doc__)
    parser.add_argument("--frames", type=Path, help="folder that is being filled; without it a camera is played")
    parser.add_argument("--rate", type=float, default=60.0, help="frames per second of the played camera")
    parser.add_argument("--idle", type=float, default=3.0, help="stop when no frame came for so many seconds")
    parser.add_argument("--wait", type=float, default=0.5, help="seconds that a frame may wait for its batch")
    parser.add_argument("--save", type=Path, help="where to keep what was learned (.safetensors)")
    given = parser.parse_args()
    if given.frames:
        if not given.source:
            parser.error("--frames needs --source, a folder of clean pictures")
        given.images = given.source  # they say which classes there are; the folder may still be empty
    here = setting.load(given)
    adapter = here.adapter("navia", "tome:8")
    watch = Watch(adapter, here.names)
    try:
        if given.frames:
            watch.follow(given.frames, given.batch, given.wait, given.idle)
        else:
            with played_camera(here, given.rate) as folder:
                watch.follow(folder, given.batch, given.wait, given.idle)
    except KeyboardInterrupt:  # the way that a stream without end is ended
        print("stopped")
    print(watch.summary())
    if given.save and adapter.steps:
        adapter.save(given.save)
        print(f"what was learned -> {given.save}")


class Watch:
    """Answers frames as they come and keeps the running figures."""

    def __init__(self, adapter: navia.Adapter, names: list[str]) -> None:
        self.adapter = adapter
        self.classes = {name: i for i, name in enumerate(names)}
        self.frames = self.unreadable = 0
        self.busy = 0.0
        self.right: deque[bool] = deque(maxlen=64)  # of the last labelled frames: what it is worth now, not on average

    def follow(self, folder: Path, batch: int, wait: float, idle: float) -> None:
        if not folder.is_dir():
            raise SystemExit(f"no folder {str(folder)!r}")
        for paths in watch_folder(folder, (), batch, wait=wait, idle=idle, poll=0.1, settle=0.2):
            read = [(path, picture) for path in paths if (picture := self._read(path)) is not None]
            if read:
                self._answer([path for path, _ in read], [picture for _, picture in read])

    def summary(self) -> str:
        pace = f"{self.frames / self.busy:.1f} frames/s" if self.busy else "no frames"
        broken = f", {self.unreadable} unreadable" if self.unreadable else ""
        return f"{self.frames} frames in {self.adapter.steps} steps, {pace} while busy{broken}"

    def _read(self, path: Path) -> Image.Image | None:
        try:
            return open_image(path)
        except InputError:  # a camera may well be cut off in the middle of a frame
            self.unreadable += 1
            return None

    def _answer(self, paths: list[Path], pictures: list[Image.Image]) -> None:
        start = time.perf_counter()
        vit = self.adapter.source_vit
        logits = self.adapter(vit.preprocessing.batch(pictures).to(vit.device))
        took = time.perf_counter() - start
        self.frames, self.busy = self.frames + len(paths), self.busy + took
        for path, label in zip(paths, logits.argmax(dim=1).tolist(), strict=True):
            if path.parent.name in self.classes:
                self.right.append(label == self.classes[path.parent.name])
        assert self.adapter.last is not None
        accuracy = f"  accuracy {sum(self.right) / len(self.right):.0%} of the last {len(self.right)}" if self.right else ""
        pace = f"{len(paths) / took:.1f} frames/s"
        print(f"frame {self.frames:5}  {pace}  entropy {self.adapter.last.entropy:.3f}{accuracy}", flush=True)


@contextmanager
def played_camera(here: setting.Setting, rate: float) -> Iterator[Path]:
    """A folder that a thread fills with labelled frames: clean ones first, the shift in the second half."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        camera = threading.Thread(target=_play, args=(here, Path(name), rate, over), daemon=True)
        camera.start()
        try:
            yield Path(name)
        finally:
            over.set()
            camera.join()


def _play(here: setting.Setting, folder: Path, rate: float, over: threading.Event) -> None:
    domain = here.opened.domains[0]
    total = len(domain.images)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))[: here.limit].tolist()
    for number, place in enumerate(order):
        label = domain.label(place)
        target = folder / here.names[label] if label >= 0 else folder
        target.mkdir(exist_ok=True)
        here.picture(place, shifted=number >= len(order) // 2).save(target / f"{number:06}.png")
        if over.wait(1 / rate):
            return


if __name__ == "__main__":
    main()
