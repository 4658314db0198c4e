"""Third-party methods and reducers from files, modules and installed packages: on the command line, in specs and on Ray."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from navia import registry
from navia.bench.grid import FailedCellsError, cells, run_grid
from navia.bench.spec import Spec, parse_spec, read_spec
from navia.bench.store import Store
from navia.cli.main import app
from navia.errors import SpecError
from navia.methods.base import METHODS
from navia.reduction import REDUCERS
from navia.registry import Registry, load_plugin
from tests.test_cli import invoke

pytestmark = pytest.mark.slow

OWN = '''
"""Sharper: own method and reducer of the tests."""

from dataclasses import dataclass

from navia.methods.features import entropy
from navia.methods.base import METHODS, Method, UpdateResult
from navia.methods.options import SGDOptions
from navia.reduction import REDUCERS, ToMe


@dataclass(frozen=True)
class Options(SGDOptions):
    """Options of sharper.

    Args:
        weight: Factor of the loss.
    """

    weight: float = 2.0


@METHODS.register("sharper")
class Sharper(Method):
    name = "sharper"
    Options = Options

    def forward_step(self, images):
        return self.forward_with_grad(images)

    def update(self, prediction):
        loss = self.options.weight * entropy(prediction.output.logits).mean()
        self.optimize(loss)
        return UpdateResult(kept=len(prediction.images), loss=loss.item())


@REDUCERS.register("same")
@dataclass(frozen=True)
class Same(ToMe):
    name = "same"
'''
SPEC = """
models: {name: embedded}
data: {path: embedded, corruptions: contrast, images: 8}
source: {images: 4}
runs: {method: sharper, reduce: "same:8"}
batch: 4
"""


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Everything as it was, for the tests that go through all methods."""
    METHODS.names(), REDUCERS.names()
    tables: list[dict[str, Any]] = [METHODS._entries, REDUCERS._entries, registry._loaded]
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "sharper.py"
    path.write_text(OWN)
    return path


def spec_beside(own: Path, plugin: str = "sharper.py") -> Spec:
    (own.parent / "spec.yaml").write_text(f"{SPEC}plugins: {plugin}\n")
    return read_spec(own.parent / "spec.yaml")


def test_every_command_that_takes_a_method_or_a_reducer_takes_own_ones() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        names = inspect.signature(command.callback).parameters
        if command.callback.__name__ in ("methods", "bench") or {"method", "reduce"} & names.keys():
            assert "plugins" in names, command.callback.__name__


def test_the_command_line_loads_a_file(own: Path) -> None:
    assert "sharper" not in METHODS.names()
    result = invoke("methods", "--import", str(own), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["methods"]["sharper"]["weight"] == 2.0
    assert "same" in found["reducers"]
    result = invoke("cost", "-m", "embedded", "--method", "sharper", "-r", "same:8", "--import", str(own), "--json")
    assert json.loads(result.output)[0]["reduce"] == "same:8"


def test_a_plugin_that_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"no plugin 'nowhere\.py'"):
        load_plugin("nowhere.py")
    with pytest.raises(SpecError, match=r"cannot load plugin 'nowhere'.*a file ends with \.py"):
        load_plugin("nowhere")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(SpecError, match=r"broken\.py': ZeroDivisionError"):
        load_plugin(str(tmp_path / "broken.py"))
    with pytest.raises(SpecError, match=r"no plugin 'lost\.py': looked for"):
        spec_beside(tmp_path / "any", "lost.py")


def test_a_spec_finds_its_plugin_beside_itself_and_notices_when_it_changes(own: Path) -> None:
    spec, store = spec_beside(own), Store(own.parent / "rows")
    (done,) = run_grid(spec, store)
    assert (done.row.method, done.row.reduce) == ("sharper", "same:8")
    assert list(run_grid(spec, store)) == []
    before = cells(spec)[0].key
    METHODS._entries.pop("sharper"), REDUCERS._entries.pop("same")
    own.write_text(OWN.replace("2.0", "3.0"))
    assert cells(spec)[0].key != before
    assert METHODS.get("sharper").Options().weight == 3.0


def test_a_spec_may_name_a_module_and_a_file_in_the_working_directory(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(own.parent))
    elsewhere = own.parent / "specs" / "any"
    elsewhere.parent.mkdir()
    assert cells(spec_beside(elsewhere, "sharper"))[0].method == "sharper"
    sys.modules.pop("sharper")
    METHODS._entries.pop("sharper"), REDUCERS._entries.pop("same")
    monkeypatch.chdir(own.parent)
    assert cells(spec_beside(elsewhere))[0].method == "sharper"


def test_installed_packages_are_found_by_their_entry_points(own: Path) -> None:
    """One that cannot be loaded is reported, and the others work."""
    info = own.parent / "sharper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sharper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[navia.plugins]\nbroken = not_there\nsharper = sharper\n")
    path = os.pathsep.join([str(own.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "navia.cli", "methods", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    found = json.loads(ended.stdout)
    assert "sharper" in found["methods"]
    assert "same" in found["reducers"]
    assert "cannot load plugin broken = not_there" in ended.stderr


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One for all grids of a test."""
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_workers_of_a_cluster_know_own_methods(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file of a spec, and as a script or notebook registers them; of a module that workers lack it is said so."""
    from navia.bench.executors.ray import ray_executor

    spec = spec_beside(own)
    (here,) = run_grid(spec, Store(own.parent / "here"))
    (done,) = run_grid(spec, Store(own.parent / "file"), ray_executor())
    assert done.row.nll == here.row.nll
    exec(OWN.replace("sharper", "typed").replace('"same"', '"typed"'), {"__name__": "__main__"})
    typed = parse_spec(SPEC.replace("sharper", "typed").replace("same:8", "typed:8"), "a")
    (done,) = run_grid(typed, Store(own.parent / "typed"), ray_executor())
    assert done.row.nll == here.row.nll
    local = ModuleType("only_here")
    monkeypatch.setitem(sys.modules, "only_here", local)
    exec(OWN.replace("sharper", "local").replace('"same"', '"local"'), vars(local))
    with pytest.raises(FailedCellsError, match="cannot load the method 'local' on a worker"):
        list(run_grid(parse_spec(SPEC.replace("sharper", "local"), "a"), Store(own.parent / "local"), ray_executor()))


def test_a_registry_without_a_package_knows_what_is_registered_by_hand() -> None:
    families: Registry[type] = Registry("model family")
    families.register("int")(int)
    with pytest.warns(UserWarning, match="model family 'int' is replaced"):
        families.register("int")(bool)
    assert families.names() == ["int"]
    assert families.get("int") is bool
    with pytest.raises(SpecError, match="unknown model family 'ints'; known: int; did you mean 'int'"):
        families.get("ints")
