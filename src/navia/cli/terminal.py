"""What the commands share: where they print, and the options that several of them have."""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from navia.cli import completion
from navia.data import SOURCE_IMAGES
from navia.errors import InputError, NaviaError

if TYPE_CHECKING:
    from navia.models.base import ViT

console = Console()
errors = Console(stderr=True)

MODEL_HELP = "timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded."
ModelOption = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP, autocompletion=completion.models)]
CheckpointOption = Annotated[Path | None, typer.Option(help="Local weights (.safetensors or .pth); nothing is downloaded.")]
NumClassesOption = Annotated[
    int | None,
    typer.Option("--num-classes", help="Classes of the weights in --checkpoint; by default read from the file.", min=1),
]
LabelsOption = Annotated[
    str | None,
    typer.Option("--labels", help="Names of the classes: imagenet, or a file with one name per line."),
]
MethodOption = Annotated[
    str, typer.Option(help="Adaptation method; see `navia methods`.", autocompletion=completion.methods)
]
ReduceOption = Annotated[
    str,
    typer.Option("--reduce", "-r", help="Token reducer: none, tome:8, evit:8, tofu:8.", autocompletion=completion.reducers),
]
ReduceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--reduce",
        "-r",
        help="none, tome:8, evit:8, tofu:8, tome:8,-1, tome:[8,4]; repeatable.",
        autocompletion=completion.reducers,
    ),
]
SourceOption = Annotated[
    str | None,
    typer.Option(help=f"Clean images (folder; {SOURCE_IMAGES} are used), statistics from `navia stats`, or embedded."),
]
CorruptionOption = Annotated[
    str | None, typer.Option(help="Corrupt the images on the way, e.g. fog.", autocompletion=completion.corruptions)
]
SeverityOption = Annotated[int, typer.Option(help="Of the corruption.", min=1, max=5)]
CropOnlyOption = Annotated[bool, typer.Option("--crop-only", help="The images are already resized.")]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto: a GPU where there is one.")]
LeanOption = Annotated[bool, typer.Option("--lean", help="Less memory for gradients, more time; the same answers.")]
PrecisionOption = Annotated[str, typer.Option(help="float32, or bfloat16 (quicker only where the hardware has it).")]


def _load_plugins(context: typer.Context, names: list[str] | None) -> list[str] | None:
    from navia.registry import load_plugin

    for name in () if context.resilient_parsing else names or ():
        load_plugin(name)
    return names


ImportOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import", help="Python file or module with methods or reducers of your own; repeatable.", callback=_load_plugins
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def load_model(
    model: str,
    checkpoint: Path | None,
    crop_only: bool = False,
    device: str = "cpu",
    lean: bool = False,
    precision: str = "float32",
    *,
    num_classes: int | None = None,
    labels: str | None = None,
) -> "ViT":
    from navia.models.device import find_device, keep_freed_memory
    from navia.models.load import load

    if num_classes is not None and checkpoint is None:
        raise InputError("--num-classes is for weights of your own: give them with --checkpoint")
    own: dict[str, Any] = {} if num_classes is None else {"num_classes": num_classes}
    where = find_device(device)
    if where.type == "cpu":
        keep_freed_memory()
    vit = load(model, checkpoint=checkpoint, grad_checkpointing=lean, precision=precision, labels=labels, **own).to(where)
    if crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    return vit


def method_options(method: str, pairs: list[str] | None) -> dict[str, Any]:
    """Options of a method from the pairs of --option; anything that is none of its own is refused by name."""
    from navia.methods.base import METHODS

    options = parse_options(pairs)
    METHODS.get(method).Options.from_kwargs(method, options)
    return options


def parse_options(pairs: list[str] | None) -> dict[str, Any]:
    """key=value pairs of --option; values as JSON where they are (0.01, true, [0, 1]), as text otherwise."""
    options: dict[str, Any] = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise InputError(f"--option needs key=value, not {pair!r}")
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = value
    return options


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_wide(table: Table) -> None:
    """In full, even where the terminal is narrower: a number or reducer cut short would mislead."""
    width = console.measure(table, options=console.options.update(max_width=1000)).maximum
    Console(width=max(width, console.width)).print(table)


def file_to_write(out: Path, default: str) -> Path:
    """`out`, or the file `default` in it where it is a folder. Refused before any work where nothing could be written."""
    if out.is_dir():
        out = out / default
    if out.is_dir() or (out.exists() and not os.access(out, os.W_OK)):
        raise InputError(f"cannot write {str(out)!r}: it is {'a folder' if out.is_dir() else 'read-only'}")
    _check_writable(out.parent, out)
    return out


def folder_to_write(out: Path) -> Path:
    """`out`, refused before any work where it is a file or nothing could be written in it."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{str(out)!r} is a file, not a folder: give another folder to write to")
    _check_writable(out, out)
    return out


def _check_writable(folder: Path, out: Path) -> None:
    """Nothing is left behind: the folder itself is made when there is something to write."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        if not existing.is_dir():
            raise NotADirectoryError(f"{str(existing)!r} is a file, not a folder")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise InputError(f"cannot write {str(out)!r}: {error.strerror or error}") from error


def write(out: Path, save: Callable[[Path], None]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        save(out)
    except NaviaError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {str(out)!r}: {error}") from error
