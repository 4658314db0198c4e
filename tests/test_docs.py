"""The documentation is tested: its Python and `navia` commands run, generated parts are up to date, links have targets.

A block whose title begins with "needs" requires something that is not here (ImageNet, weights, a network, a GPU): its Python
must compile, and the options, methods, reducers, presets and files of its commands must exist.
"""

import doctest
import importlib
import inspect
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import navia
from navia.bench.grid import cells as cells_of
from navia.bench.presets import load_spec, presets, reference
from navia.bench.spec import parse_spec, read_spec
from navia.cli.main import app
from navia.cli.terminal import parse_options
from navia.data import sample
from navia.data.corruptions import names as corruption_names
from navia.methods.base import METHODS, Method
from navia.reduction import REDUCERS, parse
from navia.registry import load_plugin

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
GENERATED = ("results.md",)  # its commands take hours: checked, not run
ENDLESS = ("serve",)  # commands that run until they are stopped
NOT_OURS = ("curl", "docker", "source", "torchrun")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    code: str

    @property
    def needs(self) -> bool:
        """Whether it requires something that is not here."""
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
    """An empty folder with four images in place of ImageNet; what examples register is removed afterwards."""
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


def test_the_readme_is_short() -> None:
    assert (ROOT / "README.md").read_text().count("\n") <= 110


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
    shown = f"{block.where}: navia {shlex.join(arguments)}\n{result.output}"
    hint = 'If it asks for something that is not here, say so: ```sh title="needs ..."'
    assert result.exit_code == 0, f"{shown}{result.exception!r}\n{hint}"


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("navia.cli.options.warn_renamed", refuse_old_name)
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


def refuse_old_name(old: str, new: str) -> None:
    raise ValueError(f"{old} is now {new}")


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


def test_hooks_of_extend_exist() -> None:
    for heading in ("Hooks to override", "Attributes to set"):
        for names, *_ in table_after(DOCS / "extend.md", heading):
            for name in re.findall(r"`(\w+)", names):
                assert hasattr(Method, name) or name in Method.__annotations__, f"extend.md: Method has no {name}"


def test_links_point_somewhere() -> None:
    for page in (*PAGES, *(DOCS / "reference").glob("*.md"), *ROOT.glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


# ---- the reference, and what is generated


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "tools" / "reference.py"))


def test_generated_parts_are_up_to_date(generator: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert generator["main"](["--check"]) == 0, capsys.readouterr().err


def test_every_generated_table_is_shown(generator: dict[str, Any]) -> None:
    """Also that every marker is complete: without its end a table would never be written again."""
    texts = [page.read_text() for page in PAGES]
    assert {name for text in texts for name in re.findall(r"<!-- begin (.*) -->", text)} == set(generator["BLOCKS"])
    assert all(text.count("<!-- begin ") == text.count("<!-- end -->") for text in texts)


def documented() -> dict[str, Any]:
    """Every name that the reference renders from its docstring."""
    texts = [page.read_text() for page in sorted((DOCS / "reference").glob("*.md"))]
    names = [name for text in texts for name in re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)]
    return {name: getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in names}


def test_the_reference_has_every_public_name() -> None:
    public = {f"navia.{name}" for name in navia.__all__ if name != "__version__"}
    assert public <= set(documented())


def test_every_public_name_has_an_example() -> None:
    parts = {"Provenance", "DomainResult", "Timing"}  # of results that have one
    for name, value in documented().items():
        if value.__name__ in parts or (
            isinstance(value, type) and issubclass(value, Exception) and value is not navia.NaviaError
        ):
            continue
        assert "Example:\n" in (inspect.getdoc(value) or ""), f"{name} has no example"


@pytest.mark.slow
@pytest.mark.parametrize("name", documented())
def test_examples_of_docstrings_run(name: str, sandbox: Path) -> None:
    """With `navia` and `torch` as the only names."""
    value = documented()[name]
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(verbose=False)
    for test in finder.find(value, name, module=sys.modules[value.__module__], globs={"navia": navia, "torch": torch}):
        output: list[str] = []
        runner.run(test, out=output.append)
        assert not output, "".join(output)


# ---- published numbers


def test_expected_numbers_are_the_published_ones() -> None:
    first, second = reference("table1"), reference("table2")
    table = table_after(DOCS / "reproduce.md", "## Expected numbers")
    assert [cells[0] for cells in table] == [run.label for run in load_spec("paper-table1").runs if run.label in first]
    for label, *cells in table:
        known = first[label].values | (second[label].values if label in second else {})
        wanted = [known.get(f"imagenet-{part}") for part in ("c", "r", "v2", "sketch")]
        assert cells == ["–" if value is None else f"{value:.1f}" for value in wanted], label


def test_the_numbers_of_cells_are_those_of_the_presets() -> None:
    """Counted where the data are missing; there every data set has one part, and ImageNet-C its corruptions."""
    text = (DOCS / "reproduce.md").read_text()
    counts = {name: int(count) for name, count in re.findall(r"navia bench (paper-\w+) .*# (\d+)", text)}
    assert set(counts) == {name for name in presets() if name.startswith("paper-")}
    for name, count in counts.items():
        assert len(cells_of(load_spec(name))) == count, name
