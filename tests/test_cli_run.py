"""`navia run` and `navia demo` as a person uses them: whole folders, kills, watched folders, broken pictures."""

import csv
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import navia
from navia.bench.predictions import Predictions
from navia.bench.run import BatchResult
from navia.data import SOURCE_IMAGES, sample
from navia.data.sources import Domain, scan
from navia.errors import InputError, SpecError
from tests.paused import PATIENCE, start_paused
from tests.test_cli import invoke

pytestmark = pytest.mark.slow


def run_arguments(images: Path, out: Path, *more: str) -> list[str]:
    source = ("--source", str(images), "-r", "tome:8", "--batch-size", "32")
    return ["run", str(images), "-m", "embedded", *source, "--out", str(out), *more]


def test_run_answers_every_picture_once_with_names_and_accuracy(clothes_by_class: Path, tmp_path: Path) -> None:
    out, delta = tmp_path / "answers.csv", tmp_path / "delta.safetensors"
    result = invoke(*run_arguments(clothes_by_class, out, "--save", str(delta), "--json"))
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len({row["path"] for row in rows}) == len(rows) == 320
    assert {row["name"] for row in rows} <= set(sample.CLASSES)
    for row in rows:
        assert row["path"].split("/")[0] == sample.CLASSES[int(row["truth"])]
        assert row["name"] == sample.CLASSES[int(row["label"])]
    right = sum(row["label"] == row["truth"] for row in rows) / 320
    assert told["scores"]["all"]["judged"]["top1"] == pytest.approx(right)
    assert delta.is_file()
    assert told["finished"]
    assert len({row["truth"] for row in rows[:32]}) > 5  # dealt, not class by class


def test_run_adapts_to_every_second_batch_and_says_so(few_by_class: Path, tmp_path: Path) -> None:
    arguments = run_arguments(few_by_class, tmp_path / "a.csv", "--batch-size", "8", "--limit", "32", "--adapt-every", "2")
    told = json.loads(invoke(*arguments, "--json").stdout)
    assert (told["batches"], told["updates"], told["observed"]["update_share"]) == (4, 2, 0.5)
    with pytest.raises(InputError, match="adapt every 2"):
        invoke(*arguments[:-1], "3", catch=False)
    wrong = invoke(*arguments[:-1], "often")
    assert wrong.exit_code == 2
    assert "nor auto" in wrong.output


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(few_by_class: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    assert invoke(*run_arguments(few_by_class, whole)).exit_code == 0
    arguments = run_arguments(few_by_class, killed, "--save-every", "0", "--workers", "1")
    process = start_paused("navia.bench.run.predict_and_adapt", 3, arguments, tmp_path)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    before = killed.read_bytes()
    assert before.count(b"\n") > 32  # the first batch
    assert len(before) < len(whole.read_bytes())
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert killed.read_bytes() == whole.read_bytes()
    assert "97" in result.stdout


def test_ctrl_c_saves_the_state_and_says_how_to_go_on(few_by_class: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    arguments = run_arguments(few_by_class, out, "--save-every", "0", "--workers", "0")
    process = start_paused("navia.bench.run.predict_and_adapt", 2, arguments, tmp_path)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, told
    assert "stops after this batch" in told
    assert "interrupted after 2 batches" in told
    assert invoke(*arguments).exit_code == 0
    whole = tmp_path / "whole.csv"
    assert invoke(*run_arguments(few_by_class, whole)).exit_code == 0
    assert out.read_bytes() == whole.read_bytes()


def test_eata_measures_what_it_needs_from_the_source(clothes_by_class: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    result = invoke(*run_arguments(clothes_by_class, out, "--method", "eata", "--limit", "64", "--workers", "0", "--json"))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["settings"]["source images"] == SOURCE_IMAGES


def test_the_embedded_source_has_a_name(clothes: Path, tmp_path: Path) -> None:
    arguments = ("run", str(clothes), "-m", "embedded", "--source", "embedded", "--out", str(tmp_path / "p.csv"), "--json")
    told = json.loads(invoke(*arguments).stdout)
    assert told["settings"]["source images"] == SOURCE_IMAGES


def test_options_that_are_none_of_the_method_are_refused_by_name(clothes: Path, tmp_path: Path) -> None:
    arguments = ("run", str(clothes), "-m", "embedded", "--method", "tent", "--out", str(tmp_path / "p.csv"))
    for name in ("classes=[0]", "seed=1", "guard=false"):
        with pytest.raises(SpecError, match=f"method 'tent' has no option '{name.split('=')[0]}'"):
            invoke(*arguments, "--opt", name, catch=False)
        with pytest.raises(SpecError, match="has no option"):
            invoke("explain", str(clothes), "--method", "tent", "--opt", name, catch=False)
        with pytest.raises(SpecError, match="has no option"):
            invoke("serve", "-m", "embedded", "--method", "tent", "--opt", name, catch=False)


def test_follow_refuses_what_it_would_not_do(clothes: Path, tmp_path: Path) -> None:
    arguments = ("run", str(clothes), "-m", "embedded", "--method", "tent", "--follow", "--out", str(tmp_path / "p.csv"))
    others = (
        "--corruption",
        "fog",
        "--severity",
        "3",
        "--stream",
        "mixed",
        "--order",
        "names",
        "--seed",
        "1",
        "--label-shift",
        "0.1",
    )
    with pytest.raises(
        SpecError, match="leave out --corruption, --severity, --stream, --order, --seed, --label-shift, --limit"
    ):
        invoke(*arguments, *others, "--limit", "3", catch=False)


def make_old(folder: Path) -> None:
    """A picture counts once it has not changed for a while."""
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))


def test_run_follows_a_folder_and_does_not_answer_twice(clothes: Path, tmp_path: Path) -> None:
    out = tmp_path / "live.csv"
    arguments = ["run", str(clothes), "-m", "embedded", "--method", "tent", "--follow", "--idle", "0.6", "--wait", "0.1"]
    arguments += ["--batch-size", "8", "--out", str(out), "--json"]
    (clothes / "broken.png").write_bytes(b"no picture")
    make_old(clothes)
    first = json.loads(invoke(*arguments).stdout)
    assert first["scores"]["all"]["images"] == 16
    assert [name for name, _ in first["unreadable"]] == ["broken.png"]
    Image.fromarray(sample.source_images().images[20]).save(clothes / "late.png")
    make_old(clothes)
    again = invoke(*arguments)
    assert json.loads(again.stdout)["scores"]["all"]["images"] == 17
    assert len(out.read_text().splitlines()) == 18
    compared = json.loads(again.stdout)["observed"]["source_model"]
    assert compared["images"] == 16  # of batches 1 and 2; the next is batch 4
    assert "truth" not in out.read_text().splitlines()[0]


def test_run_on_pictures_without_labels_and_with_a_broken_one(clothes: Path, tmp_path: Path) -> None:
    (clothes / "05.png").write_bytes((clothes / "05.png").read_bytes()[:90])
    out = tmp_path / "p.csv"
    arguments = [
        "run",
        str(clothes),
        "-m",
        "embedded",
        "--method",
        "none",
        "--batch-size",
        "4",
        "--workers",
        "0",
        "--out",
        str(out),
    ]
    with pytest.raises(InputError, match=r"05\.png.*--skip-unreadable"):
        invoke(*arguments, catch=False)
    assert len(out.read_text().splitlines()) == 1 + 4
    told = json.loads(invoke(*arguments, "--skip-unreadable", "--json").stdout)
    assert told["scores"]["all"] == {
        "images": 15,
        "entropy": pytest.approx(told["scores"]["all"]["entropy"]),
        "judged": None,
    }
    assert [name for name, _ in told["unreadable"]] == ["05.png"]


@pytest.fixture(scope="module")
def unlabelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 images side by side, the last twelve of one class."""
    root, unseen = tmp_path_factory.mktemp("unlabelled"), sample.unseen_images()
    assert unseen.labels is not None
    bags = [i for i, label in enumerate(unseen.labels) if label == sample.CLASSES.index("bag")][:12]
    for place, i in enumerate([*range(36), *bags]):
        (root / "images").mkdir(exist_ok=True)
        Image.fromarray(unseen.images[i]).save(root / "images" / f"{place:02}.png")
    assert invoke("stats", str(root / "images"), "-o", str(root), "-m", "embedded").exit_code == 0
    return root / "images"


def run_unlabelled(images: Path, out: Path, *more: str) -> Any:
    source = str(images.parent / "statistics.safetensors")
    settings = ("-m", "embedded", "--source", source, "--corruption", "contrast", "--severity", "2", "--batch-size", "6")
    return invoke("run", str(images), *settings, "--workers", "0", "--compare", "4", "--out", str(out), *more, catch=False)


def observed(result: Any) -> dict[str, Any]:
    return dict(json.loads(result.stdout)["observed"])


def test_a_run_without_labels_tells_what_helps_to_judge_it(unlabelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    told = observed(run_unlabelled(unlabelled, out, "--json"))
    rows = answers(out)
    assert list(rows[0]) == ["path", "label", "name", "confidence", "entropy", "domain", "batch"]
    vit = navia.load("embedded")
    domain = Domain("contrast", scan(unlabelled), "contrast", 2)
    source = vit.model(domain.tensors(range(48), vit.preprocessing)).argmax(dim=1).tolist()
    ours = [int(row["label"]) for row in rows]
    sampled = [i for i in range(48) if i // 6 in (1, 3, 5, 7)]  # four of the eight batches, with the last
    assert told["source_model"] == {
        "images": 24,
        "changed": pytest.approx(sum(ours[i] != source[i] for i in sampled) / 24),
        "effective_classes": pytest.approx(effective([ours[i] for i in sampled])),
        "source_effective_classes": pytest.approx(effective([source[i] for i in sampled])),
    }
    assert told["effective_classes"] == pytest.approx(effective(ours))
    assert told["discrepancy"]["all"] == told["discrepancy"]["contrast"]
    assert 0 < told["discrepancy"]["all"]["last"] < told["discrepancy"]["all"]["first"]
    assert told["guard_verdicts"] == 0


def effective(labels: list[int]) -> float:
    shares = [count / len(labels) for count in Counter(labels).values()]
    return math.exp(-sum(share * math.log(share) for share in shares))


def test_the_summary_has_no_empty_columns(unlabelled: Path, clothes_by_class: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    text = run_unlabelled(unlabelled, out).stdout
    told = observed(run_unlabelled(unlabelled, out, "--json"))  # finished: the same numbers again
    compared = told["source_model"]
    assert "top-1" not in text
    assert "ECE" not in text
    assert f"{told['discrepancy']['all']['first']:.4f}" in text
    assert f"{told['discrepancy']['all']['last']:.4f}" in text
    assert f"predicted classes (effective number): {told['effective_classes']:.1f}" in text
    assert f"on 24 of 48 images: {100 * compared['changed']:.1f} % of the predictions changed" in text
    assert f"source model {compared['source_effective_classes']:.1f}" in text
    assert "guard: no verdicts" in text
    tent = ("run", str(clothes_by_class), "-m", "embedded", "--method", "tent", "--limit", "32", "--batch-size", "16")
    text = invoke(*tent, "--workers", "0", "--compare", "0", "--out", str(tmp_path / "t.csv"), catch=False).stdout
    assert "top-1" in text
    assert "discrepancy" not in text
    assert "source model" not in text


def test_a_run_that_goes_on_gives_the_summary_of_an_undisturbed_one(
    unlabelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped = tmp_path / "whole.csv", tmp_path / "stopped.csv"
    expected = observed(run_unlabelled(unlabelled, whole, "--json"))
    add = Predictions.add

    def stop_at_the_fifth(self: Predictions, answered: BatchResult) -> None:
        if answered.batch.number == 4:
            raise InputError("killed")
        add(self, answered)

    with monkeypatch.context() as patch:
        patch.setattr(Predictions, "add", stop_at_the_fifth)
        with pytest.raises(InputError, match="killed"):
            run_unlabelled(unlabelled, stopped, "--save-every", "0")
    assert observed(run_unlabelled(unlabelled, stopped, "--json")) == expected
    assert stopped.read_bytes() == whole.read_bytes()


def test_guard_verdicts_are_counted(unlabelled: Path, tmp_path: Path) -> None:
    arguments = (
        "run",
        str(unlabelled),
        "-m",
        "embedded",
        "--method",
        "tent",
        "--opt",
        "lr=1e9",
        "--batch-size",
        "16",
        "--workers",
        "0",
    )
    text = invoke(*arguments, "--out", str(tmp_path / "p.csv"), catch=False).stdout
    told = json.loads(invoke(*arguments, "--out", str(tmp_path / "p.csv"), "--json", catch=False).stdout)
    count = told["observed"]["guard_verdicts"]
    assert count == len(told["guard"]) > 1
    assert f"guard: {count} verdicts" in text


def test_demo_tells_the_story_in_numbers_and_on_a_page(tmp_path: Path) -> None:
    out = tmp_path / "story.html"
    result = invoke("demo", "--json", "--limit", "384", "--corruption", "contrast", "--out", str(out))
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    assert [row["method"] for row in rows] == ["none", "align", "navia", "align", "navia"]
    assert [row["reduce"] for row in rows] == ["none", "none", "none", "tome:8", "tome:8"]
    assert rows[-1]["gmacs"] < rows[0]["gmacs"]
    assert rows[2]["top1"]["contrast"] > rows[0]["top1"]["contrast"] + 0.05
    for row in rows:
        low, high = row["interval"]["contrast"]
        assert low <= row["top1"]["contrast"] <= high
    page = out.read_text()
    assert page.startswith("<!doctype html>")
    assert f"{100 * rows[-1]['top1']['contrast']:.1f}" in page


def test_demo_ends_with_the_pair_and_suggests_a_command_that_runs(tmp_path: Path) -> None:
    shown = ("demo", "-n", "64", "-b", "32", "--corruption", "contrast", "--out", str(tmp_path / "d.html"))
    lines = [line for line in invoke(*shown, catch=False).stdout.splitlines() if line.strip()]
    last = re.fullmatch(
        r"navia \+ tome:8 against align \+ tome:8: .* points \(.* to .*\), .*; (settled|open: more images .*)\.", lines[-1]
    )
    assert last, lines[-1]
    command = next(line for line in lines if line.startswith("    navia ")).split()
    assert invoke(*command[1:], "-n", "32", "-b", "32", catch=False).exit_code == 0


def test_demo_on_a_model_and_folder_of_ones_own(clothes_by_class: Path, tmp_path: Path) -> None:
    own = ("demo", "-m", "embedded", "--data", str(clothes_by_class), "--limit", "64", "--corruption", "contrast")
    result = invoke(*own, "--corruption", "fog", "--json", "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    page = (tmp_path / "navia-demo.html").read_text()  # a folder gets the default name
    for row in rows:
        assert set(row["top1"]) == {"contrast", "fog"}
        assert 0 <= row["top1"]["fog"] <= 1
    assert f"{100 * rows[-1]['top1']['fog']:.1f}" in page


def torchrun(*arguments: str) -> None:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "navia.cli"]
    subprocess.run([*start, *arguments], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=PATIENCE)


def answers(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_torchrun_gives_the_answers_of_one_process(few_by_class: Path, tmp_path: Path) -> None:
    alone, spread = tmp_path / "alone.csv", tmp_path / "spread.csv"
    assert invoke(*run_arguments(few_by_class, alone)).exit_code == 0
    torchrun(*run_arguments(few_by_class, spread))
    rows = list(zip(answers(alone), answers(spread), strict=True))
    assert len(rows) == 97  # the last batch holds one image: fewer than processes
    for ours, theirs in rows:
        assert (ours["path"], ours["label"]) == (theirs["path"], theirs["label"])
        assert float(ours["confidence"]) == pytest.approx(float(theirs["confidence"]), abs=1e-4)


def test_processes_that_divide_a_stream_skip_each_others_broken_pictures(clothes: Path, tmp_path: Path) -> None:
    alone, spread = tmp_path / "alone.csv", tmp_path / "spread.csv"
    arguments = [
        "run",
        str(clothes),
        "-m",
        "embedded",
        "--method",
        "tent",
        "--batch-size",
        "8",
        "--skip-unreadable",
        "--out",
    ]
    (clothes / "05.png").write_bytes(b"no picture")  # of the second process
    for number in range(8, 12):  # the whole share of the first process
        (clothes / f"{number:02}.png").write_bytes(b"no picture")
    assert invoke(*arguments, str(alone)).exit_code == 0
    torchrun(*arguments, str(spread))
    assert [row["path"] for row in answers(spread)] == [f"{i:02}.png" for i in (0, 1, 2, 3, 4, 6, 7, 12, 13, 14, 15)]
    for ours, theirs in zip(answers(alone), answers(spread), strict=True):
        assert (ours["path"], ours["label"]) == (theirs["path"], theirs["label"])
        assert float(ours["confidence"]) == pytest.approx(float(theirs["confidence"]), abs=1e-4)
