"""The documentation does what it prints: Python and `navia` commands run, everything else is checked as far as it can be.

A block whose title begins with "needs" asks for something that is not here (ImageNet, weights, a network, a GPU): its Python
must compile, and of its commands every option, method, reducer, preset and file must exist.
"""

import json
import re
import shlex
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import navia
from navia.bench.presets import presets, reference
from navia.bench.spec import parse_spec, read_spec
from navia.cli.main import app
from navia.cli.terminal import parse_options
from navia.data import sample
from navia.data.corruptions import names as corruption_names
from navia.methods.base import METHODS
from navia.reduction import REDUCERS, parse
from navia.registry import load_plugin
from navia.report.lines import t95

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
GENERATED = ("results.md",)  # its commands take hours: checked, not run
ENDLESS = ("serve",)  # commands that run until they are stopped
NOT_OURS = ("curl", "docker", "source", "torchrun")
ALIGN, MERGED, NAVIA = "align + none", "align + tome:8", "navia + tome:8"
RUNS = ("none + none", "tent + none", ALIGN, MERGED, NAVIA)  # on fifteen corruptions


@dataclass(frozen=True)
class Block:
    """A fenced piece of a page, and the title that it may have."""

    page: Path
    line: int
    language: str
    title: str
    code: str

    @property
    def needs(self) -> bool:
        """Whether it asks for something that is not here."""
        return self.title.startswith("needs ") or self.page.name in GENERATED

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each shell command, continued lines joined, comments left out."""
        for line in self.code.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield words


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [
        Block(page, text[: m.start()].count("\n") + 1, m[1], (re.search(r'title="([^"]*)"', m[2]) or ["", ""])[1], m[3])
        for m in found
    ]


def table_after(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table after a text, without its header."""
    lines = page.read_text().split(heading, 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().replace("\\_", "_") for cell in line.strip("|").split("|")])
    return rows


# ---- what runs


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with four pictures where ImageNet would lie; what examples register is forgotten afterwards."""
    for registry in (METHODS, REDUCERS):
        registry.names()  # filled before it is copied
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr("navia.registry._loaded", {})
    folder = tmp_path / "imagenet" / "val" / "n01440764"
    folder.mkdir(parents=True)
    for i in range(4):
        noise = np.random.default_rng(i).integers(0, 255, (300, 320, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{i}.JPEG")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_blocks_run(page: Path, sandbox: Path) -> None:
    """In the order of the page; its Python blocks share their names, and all share a folder."""
    names: dict[str, object] = {"__name__": page.stem}
    for block in blocks_of(page):
        if block.language == "python" and block.title.endswith(".py"):
            (sandbox / block.title).write_text(block.code)
            load_plugin(str(sandbox / block.title))
        elif block.language == "python":
            code = compile("\n" * block.line + block.code, str(page), "exec")
            if not block.needs and not block.code.startswith("# torchrun"):  # tests of several processes cover these
                exec(code, names)
        elif block.language == "yaml" and block.title:
            (sandbox / block.title).write_text(block.code)  # the file that the page tells to make
        elif block.language == "sh":
            for words in block.commands():
                check_command(words, block)
                if words[0] == "navia" and not block.needs and words[1] not in ENDLESS:
                    run_command(words[1:], block)


def test_the_example_of_the_readme_runs_on_the_embedded_model(sandbox: Path) -> None:
    (block,) = [b for b in blocks_of(ROOT / "README.md") if b.language == "python"]
    vit = navia.load("embedded")
    pictures = [sample.source_images().read(i) for i in range(24)]
    (sandbox / "clean_images").mkdir()
    for i, picture in enumerate(pictures):
        picture.save(sandbox / "clean_images" / f"{i}.png")
    model = re.compile(r'navia\.load\("[^"]*"\)')
    assert model.search(block.code)
    stream = [vit.preprocessing.batch(pictures[:8]), vit.preprocessing.batch(pictures[8:16])]
    exec(model.sub('navia.load("embedded")', block.code), {"stream": stream})
    assert (sandbox / "delta.safetensors").stat().st_size < 300_000


def run_command(arguments: list[str], block: Block) -> None:
    result = CliRunner().invoke(app, arguments)
    told = f"{block.where}: navia {shlex.join(arguments)}\n{result.output}"
    hint = 'If it asks for something that is not here, say so: ```sh title="needs ..."'
    assert result.exit_code == 0, f"{told}{result.exception!r}\n{hint}"


# ---- what is checked without running


def check_command(words: Sequence[str], block: Block) -> None:
    program, *arguments = words
    if program == "navia":
        check_navia(arguments, block)
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        assert set(arguments) <= set(targets), f"{block.where}: make has no {arguments}"
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for extra in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
            assert set(extra.split(",")) <= set(extras), f"{block.where}: no extra {extra}"
    elif program == "python":
        assert arguments[0] in ("-c", "-m") or (ROOT / arguments[0]).is_file(), f"{block.where}: no {arguments[0]}"
    else:
        assert program in NOT_OURS, f"{block.where}: is {program!r} a command?"


def check_navia(arguments: Sequence[str], block: Block) -> None:
    """The command exists and takes these options with values of these kinds, and what they name exists."""
    name, *rest = arguments
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert name in commands, f"{block.where}: no command navia {name}"
    try:
        given = commands[name].make_context(name, rest).params
    except Exception as error:
        pytest.fail(f"{block.where}: navia {shlex.join(arguments)}: {error}")
    for reduce in listed(given.get("reduce")):
        parse(reduce)
    for method in listed(given.get("method")):
        METHODS.get(method).Options.from_kwargs(method, parse_options(listed(given.get("option"))))
    assert set(listed(given.get("corruption"))) <= set(corruption_names(extra=True)), block.where
    if name == "bench" and given["spec"] not in ("presets", *presets()):
        here = {other.title for other in blocks_of(block.page) if other.language == "yaml"}
        if given["spec"] not in here:
            read_spec(ROOT / given["spec"])


def listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_files_in_the_text_exist(page: Path) -> None:
    """`navia ...` in a sentence may be cut short, but its command and options exist; so do files of the project."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for text in re.findall(r"`navia ([a-z][^`]*)`", prose):
        name, *rest = text.split()
        assert name in commands, f"{page.name}: no command navia {name}"
        known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
        for word in rest:
            assert not re.match(r"--?[a-z]", word) or word in known, f"{page.name}: navia {name} has no {word}"
    for path in re.findall(r"`(?:python )?((?:benchmarks|deploy|examples|src|tests|tools)/[\w./-]+)", prose):
        assert (ROOT / path).exists(), f"{page.name}: no {path}"


def test_no_block_escapes_under_another_name() -> None:
    languages = {block.language for page in PAGES for block in blocks_of(page)}
    assert languages <= {"python", "sh", "yaml", "json", "text"}


def test_specs_are_valid() -> None:
    specs = [b for page in PAGES for b in blocks_of(page) if b.language == "yaml" and "runs:" in b.code]
    assert specs
    for block in specs:
        assert parse_spec(block.code, block.where).runs


def test_worked_examples_are_short() -> None:
    examples = [b.code for b in blocks_of(DOCS / "extend.md") if ".register(" in b.code]
    assert len(examples) == 2
    assert all(code.count("\n") < 60 for code in examples)


def test_links_point_somewhere() -> None:
    for page in (*PAGES, *ROOT.glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


# ---- figures


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DOCS / "assets" / name).read_text().splitlines()]


def in_three_orders() -> dict[tuple[str, str], list[float]]:
    """Top-1 in percent by run and corruption: one of each order; without adaptation the order changes nothing."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in sorted(rows_of("results.jsonl"), key=lambda row: row["seed"]):
        run = f"{row['method']} + {row['reduce']}"
        if run in RUNS and not row["options"]:
            found.setdefault((run, row["domain"]), []).append(100 * row["top1"])
    assert {len(own) for (run, _), own in found.items() if run != RUNS[0]} == {3}
    return {(run, domain): own * (3 // len(own)) for (run, domain), own in found.items()}


def means_of(run: str) -> list[float]:
    """Over the fifteen corruptions, for each order."""
    accuracies = in_three_orders()
    return [statistics.fmean(own) for own in zip(*(accuracies[run, domain] for domain in corruption_names()), strict=True)]


def test_figures_of_choosing_are_those_of_the_rows() -> None:
    page, accuracies = DOCS / "choosing.md", in_three_orders()
    *table, (_, *means) = table_after(page, "**A.**")
    assert [corruption for corruption, *_ in table] == list(corruption_names())
    for corruption, *cells in table:
        assert cells == [f"{statistics.fmean(accuracies[run, corruption]):.1f}" for run in RUNS], corruption
    assert means == [f"{statistics.fmean(means_of(run)):.1f}" for run in RUNS]
    plain = [r for r in rows_of("results.jsonl") if r["seed"] == 0 and r["options"] in ({}, {"variant": "foa"})]
    rows = {(f"{r['method']} + {r['reduce']}", r["domain"]): r for r in plain}
    corruptions = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
    for run, *cells in table_after(page, "**B.**"):
        own = [rows[run, corruption] for corruption in corruptions]
        top1, ece = ([100 * row[name] for row in own] for name in ("top1", "ece"))
        wanted = [*top1, statistics.fmean(top1), statistics.fmean(ece)]
        assert cells == [*(f"{value:.1f}" for value in wanted), f"{own[0]['gmacs']:.2f}"], run


def test_the_readme_tells_the_means_over_the_fifteen_corruptions() -> None:
    text = (
        "{} % without adaptation, {} Tent, {} alignment, {} with a quarter fewer multiply-accumulates by merged tokens, {} "
    )
    said = " ".join((ROOT / "README.md").read_text().split())
    assert text.format(*(f"{statistics.fmean(means_of(run)):.1f}" for run in RUNS)) in said


def differences(one: str, other: str) -> dict[str, list[float]]:
    """Points between two runs by corruption, one number for each order."""
    accuracies = in_three_orders()
    return {
        name: [a - b for a, b in zip(accuracies[one, name], accuracies[other, name], strict=True)]
        for name in corruption_names()
    }


def gain_of_navia() -> str:
    """Mean over the corruptions, with its interval over the orders."""
    gains = [statistics.fmean(own) for own in zip(*differences(NAVIA, MERGED).values(), strict=True)]
    return f"{statistics.fmean(gains):.1f} ± {t95(3) * statistics.stdev(gains) / 3**0.5:.1f}"


def mean_of(numbers: dict[str, list[float]]) -> float:
    return statistics.fmean(map(statistics.fmean, numbers.values()))


def test_what_choosing_tells_of_navia_and_align_is_in_the_rows() -> None:
    gain, to_dense = differences(NAVIA, MERGED), differences(NAVIA, ALIGN)
    said = " ".join((DOCS / "choosing.md").read_text().split())
    pairs = sum(points > 0 for own in gain.values() for points in own)
    orders, dense = (sum(statistics.fmean(own) > 0 for own in found.values()) for found in (gain, to_dense))
    told = (
        f"merging costs {mean_of(differences(ALIGN, MERGED)):.1f} points and NAVIA gives {gain_of_navia()} back. It is "
        f"above `align -r tome:8` in {pairs} of the 45 pairs of the same corruption and order, and in the mean of the "
        f"orders on {orders} of the fifteen corruptions; above dense `align` on {dense}"
    )
    assert told in said
    accuracies = in_three_orders()
    aligned, ours = (
        [value for run in runs for value in accuracies[run, "contrast"]] for runs in ((ALIGN, MERGED), (NAVIA,))
    )
    assert f"`align` varies from {min(aligned):.0f} to {max(aligned):.0f} with the order" in said
    assert f"NAVIA from {min(ours):.0f} to {max(ours):.0f}" in said
    best = [max(RUNS, key=lambda run, name=name: statistics.fmean(accuracies[run, name])) for name in corruption_names()]
    assert f"the highest of table A on {best.count(ALIGN)} of the fifteen corruptions" in said
    merged, whole = (
        next(r["gmacs"] for r in rows_of("results.jsonl") if r["reduce"] == name) for name in ("tome:8", "none")
    )
    assert f"{100 * merged / whole:.0f} % of the products; {gain_of_navia()} points above `align` with the same" in said
    by_run = [
        mean_of({name: own for (r, name), own in accuracies.items() if r == run and name != "contrast"})
        for run in (ALIGN, MERGED, NAVIA)
    ]
    assert "{:.1f} for `align`, {:.1f} for `align -r tome:8` and {:.1f} for `navia -r tome:8`".format(*by_run) in said


def test_what_concepts_tell_of_merging_and_navia_is_in_the_rows() -> None:
    cost = differences(ALIGN, MERGED)
    noise, defocus = (statistics.fmean(cost[name]) for name in ("gaussian_noise", "defocus_blur"))
    said = " ".join((DOCS / "concepts.md").read_text().split())
    assert f"{noise:.1f} points under noise and {defocus:.1f} under defocus when tokens are merged" in said
    assert f"when tokens are merged, {mean_of(cost):.1f} in the mean of fifteen corruptions" in said
    assert f"NAVIA gives back {gain_of_navia()} points against `align`" in said


def test_what_is_told_of_a_lower_rate_is_in_the_rows() -> None:
    usual, lower = in_three_orders(), [row for row in rows_of("results.jsonl") if row["options"] == {"lr": 0.001}]
    assert {(row["method"], row["reduce"]) for row in lower} == {("navia", "tome:8")}
    told, five = [], ("contrast", "fog", "gaussian_noise", "defocus_blur", "jpeg_compression")
    for name in five:
        own = [100 * row["top1"] for row in lower if row["domain"] == name]
        assert len(own) == 3
        told.append(f"{statistics.fmean(own) - statistics.fmean(usual[NAVIA, name]):+.1f} on {name}")
    said = " ".join((DOCS / "measurements.md").read_text().split())
    assert f"changes `navia -r tome:8` by {', '.join(told)} points" in said
    means = (statistics.fmean(100 * row["top1"] for row in lower), mean_of({name: usual[NAVIA, name] for name in five}))
    assert "{:.1f} instead of {:.1f} % in the mean".format(*means) in said


def test_parts_and_layers_of_navia_are_those_of_the_rows() -> None:
    five = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
    runs: dict[str, list[float]] = {}
    for row in rows_of("results.jsonl"):
        if row["seed"] == 0 and row["domain"] in five and (row["method"], row["reduce"]) == ("navia", "tome:8"):
            runs.setdefault(json.dumps(row["options"], sort_keys=True), []).append(row["top1"])
    mean = {options: f"{100 * statistics.fmean(own):.1f}" for options, own in runs.items() if len(own) == 5}
    parts = [{"biases": False, "embedding": False}, {"biases": False}, {"embedding": False}, {}]
    layers = [{}, {"layers": "uniform"}, {"layers": "deep"}, *({"budget": count} for count in (1, 4, 8, 12))]
    both = (mean[json.dumps(options)] for options in [*parts, *layers])
    assert mean['{"budget": 1}'] == mean['{"budget": 2}']  # told as one
    text = (
        "{} % with neither, {} with δ alone, {} with the δ_l alone and {} with both ([results](results.md), one order "
        "each). Biases in the six shallow blocks give {}, spread over the depth {}, in the six deep ones {}, so the "
        "paper's order holds here; in one or two blocks {}, four {}, eight {}, all twelve {}."
    )
    assert text.format(*both) in " ".join((DOCS / "methods.md").read_text().split())


def test_what_is_told_of_cotta_and_foa_is_in_table_b() -> None:
    table = {run: cells for run, *cells in table_after(DOCS / "choosing.md", "**B.**")}
    (none, cotta, foa, align), contrast, mean = (table[f"{m} + none"] for m in ("none", "cotta", "foa", "align")), 3, 5
    said = " ".join((DOCS / "methods.md").read_text().split())
    assert f"it does not ({cotta[contrast]} %, {none[contrast]} without adaptation)" in said
    assert f"{cotta[mean]} % in the mean of five corruptions ({none[mean]} without)" in said
    assert (
        f"{foa[mean]} % in the mean of five corruptions: {none[mean]} without adaptation, {align[mean]} for `align`" in said
    )


def test_expected_numbers_are_the_published_ones() -> None:
    first, second = reference("table1"), reference("table2")
    table = table_after(DOCS / "reproduce.md", "## Expected numbers")
    assert [cells[0] for cells in table] == [run.label for run in parse_spec(spec_of_table1(), "reproduce.md").runs]
    for label, *cells in table:
        known = first[label].values | (second[label].values if label in second else {})
        wanted = [known.get(f"imagenet-{part}") for part in ("c", "r", "v2", "sketch")]
        assert cells == ["–" if value is None else f"{value:.1f}" for value in wanted], label


def spec_of_table1() -> str:
    return next(b.code for b in blocks_of(DOCS / "reproduce.md") if b.title == "imagenet-c.yaml")


def test_the_spec_of_table_1_has_the_rows_of_the_preset() -> None:
    preset = read_spec(ROOT / "src" / "navia" / "bench" / "presets" / "paper-table1.yaml")
    assert parse_spec(spec_of_table1(), "reproduce.md").runs == preset.runs
