"""Specs: what is accepted, and errors that point at the line."""

from pathlib import Path

import pytest

from navia.bench.grid import cells
from navia.bench.presets import named, presets
from navia.errors import NaviaError, SpecError
from navia.spec import parse_spec

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


@pytest.mark.parametrize(
    ("change", "line", "complaint"),
    [
        (("runs:", "rums:"), 4, "rums"),
        (("severity: 3", "severity: 9"), 3, "less than or equal to 5"),
        (("[fog, contrast]", "[fog, smog]"), 3, "unknown corruption smog"),
        (("{method: none}", "{methud: none}"), 5, "methud"),
        (("seeds: [0, 1]", "seeds: [0, one]"), 7, "valid integer"),
        (("images: 64", "images: 0"), 3, "greater than or equal to 1"),
    ],
)
def test_errors_name_the_line(change: tuple[str, str], line: int, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(GOOD.replace(*change), "my.yaml")
    lines = str(caught.value).splitlines()
    assert any(text.startswith(f"my.yaml:{line}:") and complaint in text for text in lines), lines


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
    spec = named(name).scaled(model="embedded", data="embedded", corruptions=["fog"], images=64)
    made = cells(spec.model_copy(update={"source": spec.source.model_copy(update={"path": None})}))
    assert made
    assert {cell.model for cell in made} == {"embedded"}
    assert presets()[name]


def test_unknown_presets_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no preset 'paper-table9'; known: .*paper-table1"):
        named("paper-table9")
    with pytest.raises(SpecError, match="cannot read"):
        named(str(tmp_path / "nowhere.yaml"))
