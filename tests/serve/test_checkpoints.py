"""What survives: a stop, a kill, a damaged file, somebody else's file."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors
import torch
from torch import Tensor

import navia
from navia.adaptation.delta import DeltaError
from navia.data.sample import unseen_images
from navia.data.sources import Domain
from navia.errors import InputError
from navia.serve.adaptation_worker import Checkpoints
from tests.serve.server import EMBEDDED, serving, until

VIT = navia.load("embedded")


@pytest.fixture(scope="module")
def images() -> Tensor:
    return Domain("shifted", unseen_images(), "contrast", 2).tensors(range(24), VIT.preprocessing)


def adapted(images: Tensor, steps: int, reduce: str = "none") -> navia.Adapter:
    adapter = navia.adapt(VIT, "tent", reduce)
    for step in range(steps):
        adapter(images[8 * step : 8 * step + 8])
    return adapter


def test_the_newest_is_restored_with_its_counters(tmp_path: Path, images: Tensor) -> None:
    written, adapter = Checkpoints(tmp_path), adapted(images, 2)
    written.write(adapter, {"images_adapted": 16})
    adapter(images[16:24])
    written.write(adapter, {"images_adapted": 24})
    again = navia.adapt(VIT, "tent")
    counters, said = Checkpoints(tmp_path).restore(again)
    assert (again.steps, counters) == (3, {"images_adapted": 24})
    assert said == ["resumed from step 3 of delta.safetensors"]
    assert torch.equal(again.predict(images), adapter.predict(images))


def test_nothing_there_is_a_fresh_start(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path).restore(navia.adapt(VIT, "tent")) == ({}, [])


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "replaced"])
def test_a_damaged_one_is_set_aside_and_the_one_before_is_taken(tmp_path: Path, images: Tensor, damage: str) -> None:
    checkpoints, adapter = Checkpoints(tmp_path), adapted(images, 1)
    checkpoints.write(adapter, {})
    adapter(images[8:16])
    checkpoints.write(adapter, {})
    content = bytearray(checkpoints.current.read_bytes())
    content[-100] ^= 1  # a single bit among the values
    broken = {"cut": content[:-200], "flipped": content, "emptied": b"", "replaced": b"\x80\x04K\x01."}[damage]
    checkpoints.current.write_bytes(bytes(broken))
    again = navia.adapt(VIT, "tent")
    _, said = Checkpoints(tmp_path).restore(again)
    assert again.steps == 1
    assert "set aside as delta.corrupt-" in said[0]
    (aside,) = tmp_path.glob("delta.corrupt-*")
    assert aside.read_bytes() == bytes(broken)
    assert not checkpoints.current.exists()


def test_a_kill_between_the_two_files_loses_nothing(tmp_path: Path, images: Tensor) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(adapted(images, 1), {})
    checkpoints.current.replace(checkpoints.previous)
    (tmp_path / "delta.new.safetensors").write_bytes(b"half of a f")
    again = navia.adapt(VIT, "tent")
    Checkpoints(tmp_path).restore(again)
    assert again.steps == 1


def test_a_checkpoint_of_another_set_up_is_refused_and_kept(tmp_path: Path, images: Tensor) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(adapted(images, 1), {})
    with pytest.raises(DeltaError, match="another reduce"):
        Checkpoints(tmp_path).restore(adapted(images, 0, "tome:24"))
    assert checkpoints.current.exists()


def test_two_services_do_not_share_a_folder(tmp_path: Path) -> None:
    first, second = Checkpoints(tmp_path), Checkpoints(tmp_path)
    lock = first.lock()
    with pytest.raises(InputError, match="another service"):
        second.lock()
    lock.close()
    second.lock().close()


def send(client: navia.Client, count: int, start: int = 0) -> int:
    """Pictures one by one; the step of the last answer."""
    shifted, step = Domain("shifted", unseen_images(), "contrast", 2), 0
    for position in range(start, start + count):
        step = client.predict(shifted.pixels(position, VIT.preprocessing))["step"]
    return step


def test_kill_and_restart(tmp_path: Path) -> None:
    """kill -9 costs what came after the newest checkpoint, by time or by number of steps; a clean end costs nothing, though
    a request is still under way. Counters and state agree."""
    state = tmp_path / "state"
    options = ("--state", str(state), "--adapt-batch", "8", "--every")
    with serving(*options, "1000", log=tmp_path / "first", every_seconds="0.1") as server:
        while (seen := send(server.client(), 8)) < 2:
            pass
        until(lambda: (server.client().status()["checkpoint"]["step"] or 0) >= seen)
        server.kill()
    with serving(*options, "2", log=tmp_path / "second") as server:
        client = server.client()
        start = client.status()["adaptation"]["step"]
        assert start >= seen
        while (seen := send(client, 8)) < start + 3:
            pass
        second_service_is_refused(*options, "2")
        server.kill()
    with serving(*options, "1000", log=tmp_path / "third") as server:
        status = server.client().status()
        step = status["adaptation"]["step"]
        assert step >= seen - 2
        assert status["adaptation"]["images_adapted"] == 8 * step
        assert any("resumed from step" in event["text"] for event in status["events"])
        while send(server.client(), 8) <= step:
            pass
        server.client().pause()
        server.client().save_delta(tmp_path / "delta")  # comes after the step that may be under way
        left = server.client().status()["adaptation"]
        head = b"POST /v1/predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ncontent-length: 1000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as slow:
            slow.sendall(head + b"x")
            until(lambda: server.client().ready())  # the service reads from that connection too by now
            server.process.send_signal(signal.SIGTERM)
            until(lambda: saved(state) == (left["step"], left["images_adapted"]))
            assert server.process.poll() is None  # the request is waited for; the checkpoint did not wait
        assert server.process.wait(60) == 0


def saved(state: Path) -> tuple[int, int] | None:
    """Step and images adapted in the newest checkpoint; None: it is being replaced."""
    try:
        with safetensors.safe_open(state / "delta.safetensors", "pt") as file:
            notes = file.metadata()
    except FileNotFoundError:
        return None
    return int(notes["steps"]), json.loads(notes["serve"])["images_adapted"]


def second_service_is_refused(*options: str) -> None:
    """With one sentence, and nothing else."""
    command = [sys.executable, "-m", "navia.cli", "serve", *EMBEDDED, "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"navia: another service keeps its state in '.*'; give each its own --state\n", done.stderr)
