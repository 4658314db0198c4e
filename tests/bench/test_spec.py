"""Specs: what is accepted, and errors that point at the line."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from navia.bench.grid import cells
from navia.bench.presets import load_spec, presets
from navia.bench.spec import parse_spec
from navia.data import imagenet
from navia.errors import NaviaError, SpecError

GOOD = """
models: [{name: embedded}]
data: [{path: embedded, corruptions: [fog, contrast], severity: 3, images: 64}]
runs:
  - {method: none}
  - {method: [align, navia], reduce: [tome:4, tome:8]}
seeds: [0, 1]
"""


def test_a_grid_is_every_combination_and_no_adaptation_once_where_order_cannot_matter() -> None:
    spec = parse_spec(GOOD, "good.yaml")
    made = cells(spec)
    assert len(made) == 2 * 2 * 5
    assert len({cell.key for cell in made}) == len(made)
    whole = parse_spec(GOOD.replace(", images: 64", ""), "good.yaml")
    assert len(cells(whole)) == 2 * (5 + 4)


def test_keys_depend_on_what_decides_the_row_and_not_on_its_label() -> None:
    first = cells(parse_spec(GOOD, "a"))
    labelled = cells(parse_spec(GOOD.replace("{method: none}", "{method: none, label: NoAdapt}"), "a"))
    assert [c.key for c in first] == [c.key for c in labelled]
    other = cells(parse_spec(GOOD.replace("severity: 3", "severity: 4"), "a"))
    assert not {c.key for c in first} & {c.key for c in other}


def test_a_cell_keeps_the_key_that_its_rows_have_been_stored_under() -> None:
    text = "models: {name: embedded}\ndata: {path: embedded, corruptions: fog, images: 64}\n"
    (cell,) = cells(parse_spec(text + "runs: {method: navia, reduce: tome:8}", "a"))
    assert cell.key == "500e582832d3807b"


def test_the_view_of_a_tsne_is_part_of_the_key() -> None:
    views = [
        "",
        ", tsne: {blocks: 3}",
        ", tsne: {blocks: [3, 6]}",
        ", tsne: {blocks: 3, classes: [1, 2]}",
        ", tsne: {blocks: 3, classes: [1, 2], or_frequent: true}",
    ]
    run = "{method: [align, navia], reduce: [tome:4, tome:8]"
    keys = [{c.key for c in cells(parse_spec(GOOD.replace(run, f"{run}, adapt_for: 1{view}"), "a"))} for view in views]
    shared = set.intersection(*keys)
    assert len(shared) == 4  # no adaptation, which has no t-SNE here
    assert len(set.union(*keys)) == 4 + 5 * 16


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("tsne: {blocks: 3}", "give adapt_for"),
        ("adapt_for: [null, 2], tsne: {blocks: 3}", "give adapt_for"),
        ("adapt_for: 2, realtime: true, tsne: {blocks: 3}", "no realtime"),
        ("adapt_for: 2, tsne: {blocks: []}", "tsne.blocks must have a length of at least 1, not []"),
        ("adapt_for: 2, tsne: {blocks: [3, -1]}", "must be at least 0, not -1"),
        ("adapt_for: 2, tsne: {blocks: [3, 6, 3]}", "3 is there twice"),
        ("adapt_for: 2, tsne: {blocks: 3, classes: [1]}", "must have a length of at least 2, not [1]"),
        ("adapt_for: 2, tsne: {blocks: 3, classes: [1, cat]}", "must be a whole number, not 'cat'"),
        ("adapt_for: 2, tsne: {blocks: 3, classes: [4, 4]}", "4 is there twice"),
        ("adapt_for: 2, tsne: {blocks: 3, layers: 3}", "layers"),
        ("adapt_for: 2, tsne: {classes: [1, 2]}", "runs[0].tsne needs the key 'blocks'"),
    ],
)
def test_a_tsne_that_cannot_be_drawn_is_refused_with_its_line(given: str, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(GOOD.replace("{method: none}", "{method: none, " + given + "}"), "my.yaml")
    assert any(text.startswith("my.yaml:5:") and complaint in text for text in str(caught.value).splitlines()), caught.value


def test_classes_of_a_tsne_give_way_only_to_other_models_and_data() -> None:
    paper = load_spec("paper-tsne")
    assert paper.runs[0].tsne is not None
    assert [imagenet.names()[i] for i in paper.runs[0].tsne.classes or ()] == [
        "goldfish", "great white shark", "hammerhead", "stingray", "hen", "ostrich", "goldfinch", "junco",
    ]  # fmt: skip
    assert set(paper.runs[0].tsne.classes or ()) <= set(imagenet.r_classes())

    def gives_way(**changes: Any) -> bool:
        view = paper.scaled(**changes).runs[0].tsne
        assert view is not None
        assert view.classes == (1, 2, 4, 6, 8, 9, 11, 13)
        return view.or_frequent

    assert not gives_way(batch=32, seeds=[1])
    assert gives_way(model="embedded")
    assert gives_way(data="embedded")
    assert gives_way(images=64)
    free = parse_spec(GOOD.replace("{method: none}", "{method: none, adapt_for: 2, tsne: {blocks: 3}}"), "a")
    assert free.scaled(model="embedded").runs == free.runs


def test_without_scikit_learn_a_tsne_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # what Python takes for not installed
    text = GOOD.replace("{method: none}", "{method: none, adapt_for: 2, tsne: {blocks: 3}}")
    with pytest.raises(NaviaError, match=r"t-SNE needs scikit-learn: pip install 'navia\[bench\]'"):
        cells(parse_spec(text, "a"))
    assert cells(parse_spec(GOOD, "a"))


@pytest.mark.parametrize(
    ("change", "line", "complaint"),
    [
        (
            ("runs:", "rums:"),
            4,
            "unknown key 'rums'; known: models, data, runs, source",
        ),
        (("severity: 3", "severity: 9"), 3, "data[0].severity must be at most 5, not 9"),
        (("[fog, contrast]", "[fog, smog]"), 3, "unknown corruption 'smog'"),
        (("{method: none}", "{methud: none}"), 5, "unknown key 'methud' in runs[0]; known: method, reduce"),
        (("seeds: [0, 1]", "seeds: [0, one]"), 7, "seeds[1] must be a whole number, not 'one'"),
        (("images: 64", "images: 0"), 3, "images must be at least 1, not 0"),
        (
            ("[{path: embedded, corruptions: [fog, contrast], severity: 3, images: 64}]", "{path: x, severty: 5}"),
            3,
            "unknown key 'severty' in data; known: path, corruptions",
        ),
        (("models: [{name: embedded}]", "models:\n  name: embedded\n  chekpoint: x"), 4, "did you mean 'checkpoint'?"),
        (("[align, navia]", "navia, options: 3"), 6, "runs[1].options must be a mapping, {key: value}, not 3"),
    ],
)
def test_errors_name_the_line(change: tuple[str, str], line: int, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(GOOD.replace(*change), "my.yaml")
    lines = str(caught.value).splitlines()
    assert any(text.startswith(f"my.yaml:{line}:") and complaint in text for text in lines), lines


MISTAKES = """
models: [{name: embedded, chekpoint: x}]
data:
  - {path: embedded, corruptions: [fgo, contrast], severity: nine, strem: reset}
  - {path: 3, stream: continal, label_shift: 0}
runs:
  - {metods: none}
  - {method: [aling, navia], reduce: [tume:4, tome:x], options: {lrr: 1, budget: two}}
  - {method: [], reduce: [], adapt_for: [], realtime: perhaps, tsne: {blocks: 1, classes: [1]}}
  - 5
seeds: []
batch:
source: 4
colour: red
"""


def test_all_mistakes_are_told_at_once_in_plain_words_with_the_near_name() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(MISTAKES, "my.yaml")
    told = str(caught.value).splitlines()
    expected = [
        (2, "unknown key 'chekpoint' in models[0]; known: .*; did you mean 'checkpoint'?"),
        (4, "data[0].corruptions: unknown corruption 'fgo'; known: .*; did you mean 'fog'?"),
        (4, "data[0].severity must be a whole number, not 'nine'"),
        (4, "unknown key 'strem' in data[0]; known: .*; did you mean 'stream'?"),
        (5, "data[1].label_shift must be more than 0.0, not 0"),
        (5, "data[1].path must be text, not 3"),
        (5, "data[1].stream must be 'reset', 'continual' or 'mixed', not 'continal'; did you mean 'continual'?"),
        (7, "unknown key 'metods' in runs[0]; known: .*; did you mean 'method'?"),
        (8, "runs[1].method[0]: unknown method 'aling'; known: .*; did you mean 'align'?"),
        (8, "runs[1].options.budget: option budget must be a whole number or none, got 'two'"),
        (8, "runs[1].options.lrr: method 'navia' has no option 'lrr'; known: .*; did you mean 'lr'?"),
        (8, "runs[1].reduce[0]: unknown reducer 'tume'; known: .*; did you mean 'tome'?"),
        (8, "runs[1].reduce[1]: malformed reducer 'tome:x': 'x' is not a number; .*"),
        (9, "runs[2].adapt_for must have a length of at least 1, not []"),
        (9, "runs[2].method must have a length of at least 1, not []"),
        (9, "runs[2].realtime must be true or false, not 'perhaps'"),
        (9, "runs[2].reduce must have a length of at least 1, not []"),
        (9, "runs[2].tsne.classes must have a length of at least 2, not [1]"),
        (10, "runs[3] must be a mapping, {key: value}, not 5"),
        (11, "seeds must have a length of at least 1, not []"),
        (12, "batch must be a whole number, not nothing"),
        (13, "source must be a mapping, {key: value}, not 4"),
        (14, "unknown key 'colour'; known: models, data, .*"),
    ]
    assert len(told) == len(expected), told
    for line, (number, text) in zip(told, expected, strict=True):
        pattern = re.escape(f"my.yaml:{number}: {text}").replace(r"\.\*", ".*")
        assert re.fullmatch(pattern, line), line


def test_no_error_of_the_validator_reaches_the_user_in_its_own_words() -> None:
    """Also of kinds that nobody has thought of."""
    for text in (
        "1: x",
        "runs: {method: {a: b}}",
        "models: {name: x, checkpoint: [1]}",
        "data: {path: [x]}",
        "seeds: {a: 1}",
    ):
        with pytest.raises(SpecError) as caught:
            parse_spec(text, "my.yaml")
        assert not re.search("Input|should|pydantic|valid|Field|permitted", str(caught.value)), caught.value


def test_options_that_only_fit_together_are_accepted() -> None:
    spec = parse_spec(GOOD.replace("{method: none}", "{method: navia, options: {layers: [0, 1], lr: 0.001}}"), "a")
    assert spec.runs[0].options == {"layers": [0, 1], "lr": 0.001}


def test_command_line_values_are_refused_in_plain_words() -> None:
    with pytest.raises(
        SpecError, match=r"^data\[0\]\.corruptions: unknown corruption 'fgo'; known: .*; did you mean 'fog'\?$"
    ):
        load_spec("quick").scaled(corruptions=["fgo"])


def test_broken_yaml_is_named() -> None:
    with pytest.raises(SpecError, match=r"my\.yaml: .*line 1"):
        parse_spec("runs: [", "my.yaml")
    with pytest.raises(SpecError, match="a mapping with models"):
        parse_spec("- 1", "my.yaml")


def test_unknown_methods_options_and_reducers_are_refused_before_anything_runs() -> None:
    for change in (
        ("method: none", "method: nosuch"),
        ("tome:4", "tume:4"),
        ("{method: none}", "{method: none, options: {x: 1}}"),
    ):
        with pytest.raises(NaviaError, match=r"nosuch|tume|x"):
            cells(parse_spec(GOOD.replace(*change), "a"))


@pytest.mark.parametrize("name", presets())
def test_every_preset_gives_cells_on_the_embedded_sample(name: str) -> None:
    spec = load_spec(name).scaled(model="embedded", data="embedded", corruptions=["fog"], images=64)
    made = cells(spec)
    assert made
    assert {cell.model for cell in made} == {"embedded"}
    assert presets()[name]


def test_unknown_presets_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no preset 'paper-table9'; known: .*; did you mean 'paper-table\d'\?"):
        load_spec("paper-table9")
    with pytest.raises(SpecError, match="cannot read"):
        load_spec(str(tmp_path / "nowhere.yaml"))
