"""The paper's protocol in specs: chosen options, published files, preprocessing and gaps by data set, reference values."""

import json
import logging
from pathlib import Path

import pytest
import torch

import navia
from navia.adaptation.statistics import SourceStatistics
from navia.bench.cell import Cell, _measure_source, _open_data, run_cell
from navia.bench.grid import cells, is_available, run_grid
from navia.bench.presets import load_spec, presets
from navia.bench.spec import parse_spec
from navia.bench.store import Store
from navia.data.loader import Loader
from navia.data.sources import open_domains
from navia.data.streams import make_stream
from navia.errors import SpecError
from tests.test_cli import invoke

SPEC = """
models: {name: embedded}
data: {path: embedded, corruptions: contrast, severity: 2, images: 96}
source: {images: 32}
runs:
  - {method: navia, reduce: "tome:8", choose: {batches: 2, grid: {lr: [0.0, 0.01], budget: [2, 4]}}, label: NAVIA}
batch: 32
"""


def one(text: str) -> Cell:
    (cell,) = cells(parse_spec(text, "a"))
    return cell


# ---- options chosen by Eq. 7


def test_options_are_chosen_on_the_first_batches_and_the_stream_begins_anew() -> None:
    cell = one(SPEC)
    row, _ = run_cell(cell)
    vit = navia.load("embedded")
    opened = open_domains("embedded", 10, corruptions=["contrast"], severity=2)
    stream = make_stream(opened.domains, seed=0, limit=96)
    source = SourceStatistics.measure(vit, "embedded", "tome:8", limit=32)
    grid = {"lr": [0.0, 0.01], "budget": [2, 4]}
    images = Loader(stream, vit.preprocessing, 32)
    choice = navia.choose(vit, images, source, reduce="tome:8", grid=grid, batches=2, batch_size=32, seed=2020)
    assert row.choice is not None
    assert row.choice.options == {name: choice.options[name] for name in grid}
    assert row.choice.loss == pytest.approx(min(score for _, score in choice.table), rel=1e-5)
    assert (row.choice.images, row.choice.steps) == (64, 4 * 2)
    assert row.choice.gmacs == pytest.approx(row.gmacs * 4 * 64 / 96)
    fixed = SPEC.replace("choose: {batches: 2, grid: {lr: [0.0, 0.01], budget: [2, 4]}}", f"options: {row.choice.options}")
    by_hand, _ = run_cell(one(fixed))
    assert (by_hand.top1, by_hand.nll) == (row.top1, row.nll)
    assert by_hand.key != row.key
    assert "choice" not in by_hand.as_json()


def test_rows_of_one_label_are_one_line_whatever_was_chosen(tmp_path: Path) -> None:
    text = SPEC.replace("corruptions: contrast", "corruptions: [contrast, gaussian_noise]")
    list(run_grid(parse_spec(text, "a"), Store(tmp_path)))
    result = invoke("report", str(tmp_path), "--json", catch=False)
    (table,) = json.loads(result.stdout)["tables"]
    (line,) = table["blocks"][0]["lines"]
    assert line["name"] == "NAVIA"
    assert set(line["options_by_domain"]) == {"contrast", "gaussian_noise"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("choose: {grid: {budgett: [1]}}", "'navia' has no option budgett to choose"),
        ("choose: {grid: {budget: [1]}}, options: {budget: 2}", "budget is both in options and in the grid"),
        ("choose: {batches: 1}", "choose.batches must be at least 2"),
        ("choose: {bathces: 4}", "unknown key 'bathces'.*did you mean 'batches'"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(change: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        cells(parse_spec(SPEC.replace("choose: {batches: 2, grid: {lr: [0.0, 0.01], budget: [2, 4]}}", change), "a"))


def test_a_method_without_the_papers_options_has_nothing_to_choose() -> None:
    text = SPEC.replace("method: navia", "method: align").replace("choose: {batches: 2, grid: {lr: [0.0, 0.01], ", "x: {")
    text = text.replace("x: {budget: [2, 4]}}", "choose: true")
    with pytest.raises(SpecError, match="'align' has no option budget, eta_delta, eta_delta_l to choose"):
        cells(parse_spec(text, "a"))


# ---- data sets with names


NAMED = """
models: {name: embedded}
data:
  - {name: shifted, path: SHIFTED, corruptions: [contrast], severity: 3, files: FILES, images: 64}
  - {name: other, path: OTHER, images: 64, preprocessing: {resize: 32, interpolation: bilinear}}
source: {path: SHIFTED, images: 32, preprocessing: {resize: 30}}
runs:
  - {method: align, options_for: {other: {lr: 0.001}}, label: aligned}
batch: 32
"""


def named(**paths: Path | str) -> str:
    text = NAMED
    for name in ("shifted", "files", "other"):
        text = text.replace(name.upper(), str(paths.get(name, "nowhere")))
    return text


def test_a_data_set_has_its_own_options_preprocessing_and_source(clothes_by_class: Path, few_by_class: Path) -> None:
    shifted, other = cells(parse_spec(named(shifted=clothes_by_class, other=few_by_class), "a"))
    assert (shifted.options, other.options) == ({}, {"lr": 0.001})
    assert (shifted.label, other.label) == ("aligned", "aligned")
    assert (shifted.source_path, other.source_path) == (None, str(clothes_by_class))  # left out of its own stream
    mine, theirs = (run_cell(cell)[0].fingerprint for cell in (shifted, other))
    assert mine.preprocessing == navia.load("embedded").preprocessing.describe()
    assert theirs.preprocessing.startswith("shorter side to 32 px (bilinear), centre crop 28x28")
    for prints in (mine, theirs):
        assert prints.source is not None
        assert prints.source["preprocessing"].startswith("shorter side to 30 px (bilinear)")


def test_another_preprocessing_gives_other_predictions(few_by_class: Path) -> None:
    plain = "models: {name: embedded}\ndata: {path: PATH}\nsource: {images: 16}\nruns: {method: none}\n"
    plain = plain.replace("PATH", str(few_by_class))
    given = plain.replace("}\nsource", ", preprocessing: {resize: 40, interpolation: bilinear}}\nsource")
    cropped = plain.replace("}\nsource", ", preprocessing: {crop: 28}}\nsource")  # the images have 28 px
    usual, resized, same = (run_cell(one(text))[0] for text in (plain, given, cropped))
    assert usual.nll == same.nll
    assert usual.nll != resized.nll
    assert len({usual.key, resized.key, same.key}) == 3


def test_published_files_are_taken_where_they_exist(clothes_by_class: Path, tmp_path: Path) -> None:
    text = named(shifted=clothes_by_class, files=tmp_path / "c", other=clothes_by_class)
    assert cells(parse_spec(text, "a"))[0].corrupted
    made = ("corrupt", str(clothes_by_class), "--out", str(tmp_path / "c"), "--corruption", "contrast", "--severity", "3")
    assert invoke(*made, "--as-is", catch=False).exit_code == 0
    cell = cells(parse_spec(text, "a"))[0]
    assert (cell.data, cell.domain, cell.corrupted, cell.severity) == (str(tmp_path / "c"), "contrast/3", False, 0)
    assert cell.preprocessing is not None
    assert cell.preprocessing.resize is None
    assert cell.source_path == str(clothes_by_class)
    assert run_cell(cell)[0].count == 64
    with pytest.raises(SpecError, match="is no ImageNet-C folder"):
        cells(parse_spec(named(shifted=clothes_by_class, files=clothes_by_class, other=clothes_by_class), "a"))
    lost = text.replace("corruptions: [contrast]", "corruptions: [contrast, fog]")
    with pytest.raises(SpecError, match="has no part fog/3"):
        cells(parse_spec(lost, "a"))


def test_a_missing_data_set_leaves_a_gap(few_by_class: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = parse_spec(named(shifted=tmp_path / "gone", other=few_by_class), "a")
    spec = spec.model_copy(update={"source": spec.source.model_copy(update={"path": None, "images": 16})})
    asked = cells(spec)
    assert [is_available(cell) for cell in asked] == [False, True]
    with caplog.at_level(logging.WARNING):
        rows = [done.row for done in run_grid(spec, Store(tmp_path / "out"))]
    assert [row.dataset for row in rows] == ["other"]
    assert "shifted" in caplog.text
    assert "--data NAME=PATH" in caplog.text
    assert len(Store(tmp_path / "out").specs()[0]["cells"]) == 2  # the report shows the gap


def test_nothing_but_gaps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none of the data sets is here: shifted .* other"):
        list(run_grid(parse_spec(named(), "a"), Store(tmp_path)))
    result = invoke("bench", "paper-table2", "--dry-run", "--out", str(tmp_path / "dry"))
    assert result.exit_code == 0, result.output
    assert "(no 'imagenet-r' here)" in result.stdout
    assert "0 cells to run, 69 more of data sets that are not here" in result.stdout


def test_paths_are_given_by_name(few_by_class: Path) -> None:
    spec = parse_spec(named(shifted="a", other="b"), "a")
    moved = spec.scaled(data={"shifted": str(few_by_class)})
    assert [part.path for part in moved.data] == [str(few_by_class), "b"]
    assert moved.source.path == str(few_by_class)  # it was the folder of that data set
    assert moved.data[0].files is None
    whole = spec.scaled(data="embedded")
    assert [(part.path, part.name, part.corruptions) for part in whole.data] == [("embedded", None, ("contrast",))]
    assert whole.data[0].preprocessing is None
    assert whole.source.path is None
    with pytest.raises(SpecError, match="no data set 'third'; its data sets are shifted, other"):
        spec.scaled(data={"third": "c"})
    with pytest.raises(SpecError, match="is there twice"):
        parse_spec(NAMED.replace("name: other", "name: shifted").replace("other: {lr", "shifted: {lr"), "a")
    with pytest.raises(SpecError, match="options_for names third"):
        parse_spec(NAMED.replace("{other: {lr: 0.001}}", "{third: {lr: 0.001}}"), "a")


def test_fisher_information_may_come_from_more_images_than_the_statistics(clothes_by_class: Path) -> None:
    text = f"""
models: {{name: embedded}}
data: {{path: embedded, corruptions: contrast, severity: 2, images: 32}}
source: {{path: "{clothes_by_class}", images: 32, fisher_images: 96}}
runs: {{method: [eata, align]}}
"""
    eata, align = cells(parse_spec(text, "a"))
    assert (eata.fisher_images, align.fisher_images) == (96, None)
    vit = navia.load("embedded")
    many = _measure_source(eata, vit, _open_data(eata, vit)[1], 0)
    few = _measure_source(align, vit, _open_data(align, vit)[1], 0)
    wanted = SourceStatistics.measure(vit, clothes_by_class, limit=96, fisher=True)
    assert many is not None
    assert few is not None
    assert torch.equal(many.mean, few.mean)
    assert many.provenance.count == 32
    assert all(torch.allclose(many.fisher[name], value, rtol=1e-4) for name, value in wanted.fisher.items())


# ---- what the paper prints


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("paper-")])
def test_paper_presets_run_as_published(name: str) -> None:
    spec = load_spec(name)
    for run in spec.runs:
        assert run.guard == str(run.label).endswith(", guard"), run
    for part in spec.data if name != "paper-latency" else ():
        assert part.preprocessing is not None
        assert (part.preprocessing.resize, part.preprocessing.interpolation) == (256, "bilinear")
        assert bool(part.corruptions) == (part.name == "imagenet-c") == (part.files == "imagenet-c")
    if name in ("paper-table1", "paper-table2", "paper-ablation"):
        chosen = {run.label for run in spec.runs if run.choose}
        fixed = {run.label for run in spec.runs if str(run.label).endswith(", fixed")}
        assert fixed <= {f"{label}, fixed" for label in chosen}
        assert spec.source.preprocessing == spec.data[0].preprocessing


def test_options_of_the_paper_by_data_set_and_number_of_layers() -> None:
    second = load_spec("paper-table2")
    assert second.source.fisher_images == 2000
    (foa,) = (run for run in second.runs if run.label == "FOA")
    assert foa.options_for == {"imagenet-r": {"discrepancy_weight": 0.2}}
    curve = [run.options for run in load_spec("paper-layers").runs if str(run.label).startswith("shallow ")]
    assert curve == [{"biases": False}, *({"budget": number} for number in range(1, 13))]
    tsne = load_spec("paper-tsne").runs[0].tsne
    assert tsne is not None
    assert list(tsne.groups or {}) == ["fish", "birds"]


def test_super_classes_of_a_tsne_are_in_the_trace() -> None:
    text = """
models: {name: embedded}
data: {path: embedded, corruptions: contrast, severity: 1, images: 96}
runs: {method: none, adapt_for: 1, tsne: {blocks: 3, classes: [0, 3, 5, 7], groups: {clothes: [0, 3], shoes: [5, 7]}}}
batch: 16
"""
    shown = run_cell(one(text))[1]["tsne"]
    assert dict(zip(shown["names"], shown["groups"], strict=True)) == {
        "t-shirt": "clothes", "dress": "clothes", "sandal": "shoes", "sneaker": "shoes",
    }  # fmt: skip
    with pytest.raises(SpecError, match="groups must name every one of `classes` once"):
        parse_spec(text.replace("shoes: [5, 7]", "shoes: [5]"), "a")
