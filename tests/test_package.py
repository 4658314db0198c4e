"""The package: quick to import, typed, and every public name where it is said to be."""

import importlib
import importlib.metadata
import importlib.resources
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import navia
from navia.errors import SpecError
from navia.methods.base import METHODS
from navia.reduction import REDUCERS
from navia.registry import Registry

ROOT = Path(__file__).parents[1]


def fresh(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`code` in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


@pytest.mark.parametrize("module", ["navia", "navia.cli"])
def test_importing_loads_no_library_before_it_is_needed(module: str) -> None:
    heavy = ("torch", "timm", "transformers", "torchvision", "numpy", "PIL")
    done = fresh(f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_every_public_name_is_there() -> None:
    for name in navia.__all__:
        assert getattr(navia, name) is not None
    for name, home in navia._HOMES.items():
        if name != "adapt":  # the function and the folder of that name
            assert getattr(navia, name) is getattr(importlib.import_module(home), name)
    assert callable(navia.adapt)
    assert dir(navia) == sorted(navia.__all__)
    assert set(navia._HOMES) < set(navia.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="module 'navia' has no attribute 'nosuch'"):
        _ = navia.nosuch


def test_types_are_shipped() -> None:
    assert importlib.resources.files("navia").joinpath("py.typed").is_file()


def test_names_for_type_checkers_are_those_of_the_package() -> None:
    """The imports under TYPE_CHECKING name the same things as `_HOMES`."""
    source = Path(navia.__file__).read_text()
    block = source[source.index("if TYPE_CHECKING:") : source.index("_HOMES = ")]
    found = {line.split()[3]: line.split()[1] for line in block.splitlines() if line.strip().startswith("from ")}
    assert found == navia._HOMES


def test_version_and_program_are_those_of_the_installed_package() -> None:
    assert importlib.metadata.version("navia") == navia.__version__
    (program,) = importlib.metadata.entry_points(group="console_scripts", name="navia")
    assert program.value == "navia.cli.main:main"


# ---- installation


@pytest.mark.parametrize(("given", "asked"), [((), False), (("TORCH_INDEX=URL",), True)])
def test_the_index_of_torch_can_be_chosen(given: tuple[str, ...], asked: bool, tmp_path: Path) -> None:
    """`make -n` prints what it would do."""
    command = ["make", "--dry-run", "setup", f"VENV={tmp_path}/venv", *given]
    plain = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "TORCH_INDEX")}
    done = subprocess.run(command, cwd=ROOT, env=plain, capture_output=True, text=True, check=True)
    (install,) = (line for line in done.stdout.splitlines() if "pip install" in line)
    assert ("--extra-index-url URL" in install) is asked
    assert "--constraint constraints.txt" in install
    assert f"tools/installed.py {tmp_path}/venv" in done.stdout


def test_setup_says_which_torch_it_installed(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(200_000_000)
    script = [sys.executable, str(ROOT / "tools" / "installed.py"), str(tmp_path)]
    said = subprocess.run(script, capture_output=True, text=True, check=True).stdout
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"
    assert said == f"installed: torch {torch.__version__} ({build} build), {tmp_path} 0.2 GB\n"


# ---- registry


def test_registering_a_name_again_replaces_it_with_a_warning() -> None:
    registry: Registry[object] = Registry("thing", "navia.reduction")
    first, second = object(), object()
    registry.register("one")(first)
    registry.register("one")(first)  # the same thing: nothing is replaced
    with pytest.warns(UserWarning, match="thing 'one' is replaced"):
        registry.register("one")(second)
    assert registry.get("one") is second
    with pytest.raises(SpecError, match="unknown thing 'two'; known: one"):
        registry.get("two")


def test_a_notebook_cell_can_be_run_again() -> None:
    cell = (
        "from dataclasses import dataclass\nfrom navia.reduction import REDUCERS, NoReduction\n"
        "@REDUCERS.register('cell')\n@dataclass(frozen=True)\nclass Cell(NoReduction):\n    name = 'cell'\n"
    )
    first: dict[str, object] = {}
    exec(cell, first)
    try:
        again: dict[str, object] = {}
        with pytest.warns(UserWarning, match="reducer 'cell' is replaced"):
            exec(cell, again)
        assert REDUCERS.get("cell") is again["Cell"]
    finally:
        del REDUCERS._entries["cell"]


def test_a_builtin_that_was_replaced_stays_replaced() -> None:
    """Also where nothing has been looked up before: the built-in ones are loaded first."""
    code = (
        "from navia.methods.base import METHODS, Method\n"
        "class Tent(Method): pass\n"
        "METHODS.register('tent')(Tent)\n"
        "print(METHODS.get('tent') is Tent, len(METHODS.names()))"
    )
    done = fresh(code)
    assert done.stdout.split() == ["True", str(len(METHODS.names()))], done.stderr
    assert "UserWarning: method 'tent' is replaced" in done.stderr


# ---- torchvision where its compiled operators do not load


def _torchvision(folder: Path, operators: str) -> str:
    """A package that fails as torchvision does: it looks for its operators after it has tried to load them."""
    package = folder / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(f"import torch\n{operators}\nfrom torchvision import _meta_registrations\n")
    asks = [f'torch.library.register_fake("torchvision::{name}")(lambda *given: None)' for name in ("nms", "qnms")]
    (package / "_meta_registrations.py").write_text("\n".join(["import torch", *asks]))
    return f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


_LOADED = """
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.mark.slow
def test_timm_can_be_imported_after_navia() -> None:
    """With whatever torch and torchvision are installed here."""
    done = fresh("import navia, timm; timm.create_model('vit_tiny_patch16_224', depth=1)")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_torchvision_without_its_operators_can_be_imported_after_navia(tmp_path: Path) -> None:
    broken = _torchvision(tmp_path, "")
    alone = fresh("import torchvision", PYTHONPATH=broken)
    assert "operator torchvision::nms does not exist" in alone.stderr
    code = "import navia, torchvision; from navia.models import torchvision_ops as ops; print(len(ops._declared))"
    done = fresh(code, PYTHONPATH=broken)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.slow
def test_importing_navia_mends_a_failed_import(tmp_path: Path) -> None:
    """In a notebook the first cell has failed; the next one imports navia and tries again."""
    code = "try:\n    import torchvision\nexcept RuntimeError:\n    import navia, torchvision\n    print('mended')"
    done = fresh(code, PYTHONPATH=_torchvision(tmp_path, ""))
    assert done.stdout.strip() == "mended", done.stderr


@pytest.mark.slow
def test_a_working_torchvision_gets_no_declarations(tmp_path: Path) -> None:
    code = "import navia, torchvision; from navia.models import torchvision_ops as ops; print(ops._declared)"
    done = fresh(code, PYTHONPATH=_torchvision(tmp_path, _LOADED))
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow
def test_other_failures_of_torchvision_are_not_hidden(tmp_path: Path) -> None:
    done = fresh("import navia, torchvision", PYTHONPATH=_torchvision(tmp_path, "raise RuntimeError('something else')"))
    assert done.returncode == 1
    assert "RuntimeError: something else" in done.stderr
