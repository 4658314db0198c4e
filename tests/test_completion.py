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
from navia.cli import completion
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
        ("navia cost e", ["embedded"]),
        ("navia run images -r t", ["tome:8", "tofu:8"]),
        ("navia tokens image --reduce e", ["evit:8"]),
        ("navia corrupt src dst --corruption gl", ["glass_blur"]),
        ("navia explain images --corruption fo", ["fog"]),
        ("navia bench paper-ta", ["paper-table1", "paper-table2"]),
        ("navia stats images out -m t", ["timm:", "torchvision:"]),
        ("navia run images --log m", ["mlflow:"]),
        ("navia run images --stream c", ["continual"]),
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
    assert completion.methods("") == navia.list_methods()
    assert sorted(name.partition(":")[0] for name in completion.reducers("")) == navia.list_reducers()
    assert completion.presets("") == [*presets(), "presets"]
    assert tuple(completion.corruptions("")) == names(extra=True)


def test_kinds_are_those_that_are_accepted() -> None:
    from navia.data.streams import KINDS as STREAMS
    from navia.integrations.loggers import LOGGERS

    assert tuple(completion.streams("")) == STREAMS
    assert [name.rstrip(":") for name in completion.logs("")] == list(LOGGERS)


def test_completing_loads_no_torch() -> None:
    asks = "completion.methods(''), completion.reducers(''), completion.presets(''), completion.corruptions('')"
    code = f"import sys; from navia.cli import completion; {asks}; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
