"""The Tab key: names are offered, complete, and without waiting for torch."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import navia
from navia.bench.presets import presets
from navia.cli import export, options, run
from navia.data.corruptions import names

PROGRAM = Path(sys.executable).with_name("navia")


def offered(line: str, shell: str = "bash") -> str:
    """What the installed program prints when a shell asks it."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": line}
    asked |= {"_NAVIA_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return subprocess.run([PROGRAM], capture_output=True, text=True, env={**os.environ, **asked}, check=True).stdout


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("navia r", ["run", "report"]),
        ("navia run images --method fo", ["foa", "foa_bp"]),
        ("navia serve --method na", ["navia"]),
        ("navia cost model --method ta", []),
        ("navia cost -m e", ["embedded"]),
        ("navia run images -r t", ["tome:8", "tofu:8"]),
        ("navia tokens image --reduce e", ["evit:8"]),
        ("navia corrupt images --corruption gl", ["glass_blur"]),
        ("navia explain images --corruption fo", ["fog"]),
        ("navia bench paper-ta", ["paper-table1", "paper-table2"]),
        ("navia stats images -m t", ["timm:", "torchvision:"]),
        ("navia run images --log m", ["mlflow:"]),
        ("navia run images --stream c", ["continual"]),
        ("navia run images --precision b", ["bfloat16"]),
        ("navia evaluate images --device cu", ["cuda"]),
        ("navia export --format o", ["onnx"]),
        ("navia bench quick --on r", ["ray"]),
    ],
)
def test_bash_is_offered_names(line: str, expected: list[str]) -> None:
    assert sorted(offered(line).split()) == sorted(expected)


def test_zsh_and_fish_are_offered_the_same() -> None:
    for name in ("foa", "foa_bp"):
        assert f'"{name}"' in offered("navia run images --method fo", "zsh")
        assert name in offered("navia run images --method fo", "fish").split()
    assert r'"tome\\:8"' in offered("navia run images -r to", "zsh")  # a colon would end the name in zsh


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_bash_that_loads_the_script_completes() -> None:
    """The script that --install-completion writes, called as bash calls it at a Tab."""
    environment = {**os.environ, "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"}
    script = "_NAVIA_COMPLETE=source_bash navia"
    press = "COMP_WORDS=(navia run images --method fo); COMP_CWORD=4; _navia_completion navia; echo ${COMPREPLY[@]}"
    line = f'eval "$({script})"; complete -p navia; {press}'
    done = subprocess.run(["bash", "--norc", "-c", line], capture_output=True, text=True, env=environment, check=False)
    registered, reply = done.stdout.splitlines()
    assert "_navia_completion" in shlex.split(registered), done.stderr
    assert reply.split() == ["foa", "foa_bp"]


def test_names_are_those_of_the_registries() -> None:
    assert options.method_names() == navia.list_methods()
    assert options.reducer_names() == navia.list_reducers()
    assert options.preset_names() == [*presets(), "presets"]
    assert options.corruption_names() == names(extra=True)


def test_choices_are_those_that_the_library_accepts() -> None:
    from navia.data.streams import KINDS
    from navia.export import FORMATS
    from navia.integrations.loggers import LOGGERS as LOGS
    from navia.models.precision import PRECISIONS

    assert run.STREAMS == KINDS
    assert tuple(FORMATS) == export.FORMATS
    assert [name.rstrip(":") for name in run.LOGS] == list(LOGS)
    assert options.PRECISIONS == PRECISIONS


def test_completing_loads_no_torch() -> None:
    asks = "options.method_names(), options.reducer_names(), options.preset_names(), options.corruption_names()"
    code = f"import sys; from navia.cli import main, options; {asks}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
