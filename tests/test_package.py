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
from navia.registry import Registry
from navia.vit import torchvision_ops


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
    assert program.value == "navia.cli:main"


# ---- registry


def test_registering_a_name_twice_is_refused_and_lookups_name_what_is_known() -> None:
    registry: Registry[object] = Registry("thing", "navia.reduce")
    thing = object()
    registry.register("one")(thing)
    registry.register("one")(thing)  # the same thing again, as after a reload
    with pytest.raises(SpecError, match="thing 'one' is registered twice"):
        registry.register("one")(object())
    assert registry.get("one") is thing
    with pytest.raises(SpecError, match="unknown thing 'two'; known: one"):
        registry.get("two")


# ---- torchvision where its compiled operators do not load


def test_second_call_finds_torchvision_working_and_declares_nothing() -> None:
    first = torchvision_ops.ensure_torchvision_imports()
    declared, operators = list(torchvision_ops._declared), set(dir(torch.ops.torchvision))
    assert torchvision_ops.ensure_torchvision_imports() is first
    assert torchvision_ops._declared == declared
    assert set(dir(torch.ops.torchvision)) == operators
    import torchvision

    assert torchvision.ops.nms is not None


def _fake_torchvision(folder: Path, body: str) -> str:
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(body)
    return str(folder)


def test_a_working_torchvision_gets_no_declarations(tmp_path: Path) -> None:
    code = (
        "from navia.vit import torchvision_ops as ops\n"
        "print(ops.ensure_torchvision_imports(), ops.ensure_torchvision_imports(), ops._declared)"
    )
    done = fresh(code, PYTHONPATH=_fake_torchvision(tmp_path, "works = True\n"))
    assert done.stdout.strip() == "False False []", done.stderr


def test_other_failures_of_torchvision_are_not_hidden(tmp_path: Path) -> None:
    code = "from navia.vit import torchvision_ops as ops; ops.ensure_torchvision_imports()"
    done = fresh(code, PYTHONPATH=_fake_torchvision(tmp_path, "raise RuntimeError('something else')\n"))
    assert done.returncode == 1
    assert "RuntimeError: something else" in done.stderr
