"""Predict and adapt on frames that a camera writes into a folder.

    python examples/folder_stream.py                     simulates a camera in a thread; noise starts halfway
    python examples/folder_stream.py --frames FOLDER --source CLEAN --model timm:vit_base_patch16_224

Any program may fill the folder, such as `ffmpeg -i rtsp://camera -vf fps=5 FOLDER/%06d.jpg`. A frame in a folder with the
name of a class is labelled. Ctrl-C ends the program; --save writes the adapted parameters.
"""

import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
import torch
from PIL import Image

import navia
from navia.data.preprocessing import open_image
from navia.data.watch import watch_folder
from navia.errors import InputError


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--frames", type=Path, help="folder that is being filled; by default a camera is simulated")
    parser.add_argument("--rate", type=float, default=60.0, help="frames per second of the simulated camera")
    parser.add_argument("--idle", type=float, default=3.0, help="stop after so many seconds without a frame")
    parser.add_argument("--wait", type=float, default=0.5, help="seconds that a frame may wait for its batch")
    parser.add_argument("--save", type=Path, help="file for the adapted parameters (.safetensors)")
    given = parser.parse_args()
    if given.frames:
        if not given.source:
            parser.error("--frames needs --source, a folder of clean images")
        given.images = given.source  # defines the classes: --frames may still be empty
    setup = common.load(given)
    adapter = setup.adapter("navia", "tome:8")
    watcher = FrameWatcher(adapter, setup.names)
    try:
        if given.frames:
            watcher.follow(given.frames, given.batch_size, given.wait, given.idle)
        else:
            with simulated_camera(setup, given.rate) as folder:
                watcher.follow(folder, given.batch_size, given.wait, given.idle)
    except KeyboardInterrupt:  # a stream without end
        print("stopped")
    print(watcher.summary())
    if given.save and adapter.steps:
        adapter.save(given.save)
        print(f"adapted parameters -> {given.save}")


class FrameWatcher:
    """Predicts frames as they arrive and counts."""

    def __init__(self, adapter: navia.Adapter, names: list[str]) -> None:
        self.adapter = adapter
        self.classes = {name: i for i, name in enumerate(names)}
        self.frames = self.unreadable = 0
        self.busy = 0.0
        self.correct: deque[bool] = deque(maxlen=64)  # of the last labelled frames

    def follow(self, folder: Path, batch_size: int, wait: float, idle: float) -> None:
        if not folder.is_dir():
            raise SystemExit(f"no folder {str(folder)!r}")
        for paths in watch_folder(folder, (), batch_size, wait=wait, idle=idle, poll=0.1, settle=0.2):
            read = [(path, image) for path in paths if (image := self._read(path)) is not None]
            if read:
                self._predict([path for path, _ in read], [image for _, image in read])

    def summary(self) -> str:
        speed = f"{self.frames / self.busy:.1f} frames/s" if self.busy else "no frames"
        broken = f", {self.unreadable} unreadable" if self.unreadable else ""
        return f"{self.frames} frames in {self.adapter.steps} steps, {speed} while busy{broken}"

    def _read(self, path: Path) -> Image.Image | None:
        try:
            return open_image(path)
        except InputError:  # a frame may be cut off
            self.unreadable += 1
            return None

    def _predict(self, paths: list[Path], images: list[Image.Image]) -> None:
        start = time.perf_counter()
        vit = self.adapter.source_vit
        logits = self.adapter(vit.preprocessing.batch(images).to(vit.device))
        took = time.perf_counter() - start
        self.frames, self.busy = self.frames + len(paths), self.busy + took
        for path, label in zip(paths, logits.argmax(dim=1).tolist(), strict=True):
            if path.parent.name in self.classes:
                self.correct.append(label == self.classes[path.parent.name])
        assert self.adapter.last is not None
        share = sum(self.correct) / max(1, len(self.correct))
        accuracy = f"  accuracy {share:.0%} of the last {len(self.correct)}" if self.correct else ""
        speed = f"{len(paths) / took:.1f} frames/s"
        print(f"frame {self.frames:5}  {speed}  entropy {self.adapter.last.entropy:.3f}{accuracy}", flush=True)


@contextmanager
def simulated_camera(setup: common.Setup, rate: float) -> Iterator[Path]:
    """A folder that a thread fills with labelled frames: clean in the first half, corrupted in the second."""
    over = threading.Event()
    with tempfile.TemporaryDirectory() as name:
        camera = threading.Thread(target=_simulate, args=(setup, Path(name), rate, over), daemon=True)
        camera.start()
        try:
            yield Path(name)
        finally:
            over.set()
            camera.join()


def _simulate(setup: common.Setup, folder: Path, rate: float, over: threading.Event) -> None:
    domain = setup.opened.domains[0]
    total = len(domain.images)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))[: setup.limit].tolist()
    for number, index in enumerate(order):
        label = domain.label(index)
        target = folder / setup.names[label] if label >= 0 else folder
        target.mkdir(exist_ok=True)
        setup.image(index, shifted=number >= len(order) // 2).save(target / f"{number:06}.png")
        if over.wait(1 / rate):
            return


if __name__ == "__main__":
    main()
