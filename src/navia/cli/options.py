"""Options that commands share: declared once, checked by the parser, completed by Tab.

A key press must not wait for torch: the names of methods and reducers are read from the files that register them.
"""

import functools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import navia
from navia.cli.terminal import warn_renamed
from navia.data import SOURCE_IMAGES
from navia.errors import known_names

MODEL, ADAPTATION, IMAGES, COMPUTE, OUTPUT = "Model", "Adaptation", "Images", "Compute", "Output"  # help panels
_PACKAGE = Path(navia.__file__).parent
PRECISIONS = ("float32", "bfloat16", "float16", "int8")


def choice(kind: str, names: Callable[[], Iterable[str]], plugins: Callable[[], Iterable[str]] = tuple) -> dict[str, Any]:
    """Keywords for an option that takes one of `names`, or one of the names that plugins may have added."""

    def check(context: typer.Context, value: Any) -> Any:
        for name in [] if context.resilient_parsing else [value] if isinstance(value, str) else value or []:
            name = name.partition(":")[0] if kind == "reducer" else name  # the library checks the amount after the colon
            if name not in names() and name not in plugins():
                raise typer.BadParameter(f"unknown {kind} {name!r}{known_names(name, plugins() or names())}")
        return value

    return {"autocompletion": lambda incomplete: suggest(*names())(incomplete), "callback": check}


def suggest(*names: str) -> Callable[[str], list[str]]:
    """Completion for an option whose value begins with one of `names`."""
    return lambda incomplete: [name for name in names if name.startswith(incomplete)]


def _registered_in(folder: str) -> list[str]:
    texts = [path.read_text(encoding="utf-8") for path in (_PACKAGE / folder).glob("*.py")]
    return sorted(name for text in texts for name in re.findall(r'^@[A-Z]+\.register\("(\w+)"\)', text, re.MULTILINE))


method_names = functools.partial(_registered_in, "methods")
reducer_names = functools.partial(_registered_in, "reduction")


def corruption_names() -> tuple[str, ...]:
    from navia.data.corruptions import names

    return names(extra=True)


def preset_names() -> list[str]:
    return [*sorted(path.stem for path in (_PACKAGE / "bench/presets").glob("*.yaml")), "presets"]


def _check_device(value: str) -> str:
    if not re.fullmatch(r"[a-z]+(:\d+)?", value):
        raise typer.BadParameter(f"no device {value!r}; known: auto, cpu, cuda, cuda:N, mps, xpu")
    return value


def _use_tf32(context: typer.Context, value: bool) -> bool:
    if value and not context.resilient_parsing:
        from navia.models.device import use_tf32

        use_tf32()
    return value


def _use_deterministic(context: typer.Context, value: bool) -> bool:
    if value and not context.resilient_parsing:
        from navia.models.device import use_deterministic_algorithms

        use_deterministic_algorithms()
    return value


def _adapt_every(value: str) -> int | str:
    """The number, or auto."""
    if value != "auto" and not (value.isdecimal() and int(value) > 0):
        raise typer.BadParameter(f"{value!r} is neither a number of batches from 1 on, nor auto")
    return value if value == "auto" else int(value)


def _load_plugins(context: typer.Context, names: list[str] | None) -> list[str] | None:
    from navia.registry import load_plugin

    for name in () if context.resilient_parsing else names or ():
        load_plugin(name)
    return names


def option(names: str, panel: str, help_text: str, **settings: Any) -> Any:
    """An option in a panel of the help; names: long and short, with a space between them."""
    return typer.Option(*names.split(), rich_help_panel=panel, help=help_text, **settings)


_MODELS = {"autocompletion": suggest("embedded", "timm:", "hf:", "torchvision:")}
_MODEL = option("--model -m", MODEL, "timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded.", **_MODELS)
Model = Annotated[str, _MODEL]
ModelOrNone = Annotated[str | None, _MODEL]
_WEIGHTS = "Local weights (.safetensors or .pth); nothing is downloaded."
Checkpoint = Annotated[Path | None, option("--checkpoint", MODEL, _WEIGHTS, metavar="FILE")]
NumClasses = Annotated[int | None, option("--num-classes", MODEL, "Number of classes of the --checkpoint.", min=1)]
Labels = Annotated[str | None, option("--labels", MODEL, "Class names: imagenet, or a file with one name per line.")]

_METHOD = choice("method", method_names, lambda: navia.list_methods())
Method = Annotated[str, option("--method", ADAPTATION, "Adaptation method; see `navia methods`.", **_METHOD)]
MethodArgument = Annotated[str | None, typer.Argument(metavar="[METHOD]", help="Show its options.", **_METHOD)]
Methods = Annotated[list[str] | None, option("--method", ADAPTATION, "Adaptation method; repeatable.", **_METHOD)]
_REDUCE = choice("reducer", reducer_names, lambda: navia.list_reducers())
_REDUCE["autocompletion"] = suggest("none", "tome:8", "evit:8", "tofu:8")
_REDUCER = option("--reduce -r", ADAPTATION, "Token reducer: none, tome:8, evit:8, tofu:8.", **_REDUCE)
Reduce = Annotated[str, _REDUCER]
ReduceOrNone = Annotated[str | None, _REDUCER]
Reducers = Annotated[list[str] | None, option("--reduce -r", ADAPTATION, "Token reducer; repeatable.", **_REDUCE)]
_CLEAN = f"Clean images ({SOURCE_IMAGES} are used), statistics from `navia stats`, or embedded."
_SOURCE = option("--source", ADAPTATION, _CLEAN)
Source = Annotated[str | None, _SOURCE]
SourceRequired = Annotated[str, _SOURCE]
Opt = Annotated[list[str] | None, option("--opt", ADAPTATION, "Option of the method; repeatable.", metavar="KEY=VALUE")]
_SPARSE = {"parser": _adapt_every, "metavar": "1|N|auto", "autocompletion": suggest("1", "auto")}
AdaptEvery = Annotated[Any, option("--adapt-every", ADAPTATION, "Adapt to all batches (1), every N-th, or auto.", **_SPARSE)]
_IMPORT = option("--import", ADAPTATION, "File or module of a plugin; repeatable.", callback=_load_plugins, is_eager=True)
Plugins = Annotated[list[str] | None, _IMPORT]

Data = Annotated[str, typer.Argument(metavar="DATA", help="Folder of images, embedded, or datasets:NAME.")]
_CORRUPTION = choice("corruption", corruption_names)
Corruption = Annotated[str | None, option("--corruption", IMAGES, "Corrupt the images, e.g. fog.", **_CORRUPTION)]
_CORRUPTIONS = option("--corruption", IMAGES, "Corrupt the images, e.g. fog; repeatable.", **_CORRUPTION)
Corruptions = Annotated[list[str] | None, _CORRUPTIONS]
_SEVERITY = option("--severity", IMAGES, "Severity of the corruption.", min=1, max=5)
Severity = Annotated[int, _SEVERITY]
SeverityOrNone = Annotated[int | None, _SEVERITY]
CropOnly = Annotated[bool, option("--crop-only", IMAGES, "The images are already resized.")]
SkipUnreadable = Annotated[bool, option("--skip-unreadable", IMAGES, "Skip broken images.")]
_LIMIT = option("--limit -n", IMAGES, "Use at most this many images of each domain.", min=1)
Limit = Annotated[int, _LIMIT]
LimitOrNone = Annotated[int | None, _LIMIT]
_BATCH_SIZE = option("--batch-size -b", IMAGES, "Images per batch.", min=1)
BatchSize = Annotated[int, _BATCH_SIZE]
BatchSizeOrNone = Annotated[int | None, _BATCH_SIZE]
Seed = Annotated[int, option("--seed", IMAGES, "Seed of the random numbers.", min=0)]
SeedOrNone = Annotated[int | None, option("--seed", IMAGES, "Shuffle the images with this seed.", min=0)]

Workers = Annotated[int, option("--workers", COMPUTE, "Workers that decode images; 0: the default.", min=0)]
WorkersOrNone = Annotated[int | None, option("--workers", COMPUTE, "Processes; half of the cores by default.", min=0)]
_DEVICE: dict[str, Any] = {"callback": _check_device, "autocompletion": suggest("auto", "cpu", "cuda", "mps", "xpu")}
Device = Annotated[str, option("--device", COMPUTE, "cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.", **_DEVICE)]
_PRECISION = choice("precision", lambda: PRECISIONS)
Precision = Annotated[str, option("--precision", COMPUTE, f"{', '.join(PRECISIONS)}.", **_PRECISION)]
TF32 = Annotated[bool, option("--tf32", COMPUTE, "GPU: faster, less exact float32 products.", callback=_use_tf32)]
_DETERMINISTIC = option("--deterministic", COMPUTE, "GPU: equal results in equal runs.", callback=_use_deterministic)
Deterministic = Annotated[bool, _DETERMINISTIC]
GradCheckpointing = Annotated[bool, option("--grad-checkpointing", COMPUTE, "Less memory for gradients, more time.")]

_OUT = option("--out -o", OUTPUT, "File or folder to write.")
Out = Annotated[Path, _OUT]
OutOrNone = Annotated[Path | None, _OUT]
Json = Annotated[bool, option("--json", OUTPUT, "Print JSON instead of a table.")]


# ---- names of the previous release

# Old option, new option, and a pattern of the values that the old name meant ("": all). Used where the command has the new
# option and either no option of the old name, or a value that fits the pattern.
RENAMED = (
    ("--batch", "--batch-size", ""),
    ("--count", "--limit", ""),
    ("--images", "--limit", r"\d+"),
    ("--images", "--data", ""),
    ("--option", "--opt", ""),
    ("-o", "--opt", r"[a-z]\w*=.*"),
    ("--order", "--seed", r"\d+"),
    ("--every", "--save-every", ""),
    ("--wait", "--batch-timeout", ""),
    ("--classes", "--num-classes", ""),
    ("--lean", "--grad-checkpointing", ""),
)
ARGUMENTS = {"cost": "--model", "export": "--model", "stats": "--out", "corrupt": "--out"}  # were arguments


class Command(TyperCommand):
    """A command that accepts the names of the previous release, with a warning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = re.sub(r"(?<=\S)\n(?=\S)", " ", self.help or "")  # one line per paragraph: wrapped to the terminal
        for parameter in self.params:
            parameter.show_envvar = False  # type: ignore[attr-defined]  # long names do not fit; the help of serve has the rule

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            self._read_old_variables(ctx)
            args = self._replace_old_argument(ctx, self._replace_old_options(args))
        return super().parse_args(ctx, args)

    def _new_name(self, old: str, value: str) -> str | None:
        own = {name for parameter in self.params for name in parameter.opts}
        for name, new, pattern in RENAMED:
            if name == old and new in own and (re.fullmatch(pattern, value) if pattern else old not in own):
                return new
        return None

    def _replace_old_options(self, args: list[str]) -> list[str]:
        replaced = list(args)
        for place, word in enumerate(args):
            name, _, value = word.partition("=") if word.startswith("--") else (word[:2], "", word[2:])
            new = self._new_name(name, value or "".join(args[place + 1 : place + 2]))
            if new is not None:
                warn_renamed(name, new)
                replaced[place] = f"{new}={value}" if value else new
        return replaced

    def _replace_old_argument(self, ctx: Any, args: list[str]) -> list[str]:
        new, extra = ARGUMENTS.get(self.name or ""), self.make_parser(ctx).parse_args(list(args))[1]
        if new is None or len(extra) != 1:
            return args
        warn_renamed(f"the argument {extra[0]!r}", f"{new} {extra[0]}")
        last = len(args) - 1 - args[::-1].index(extra[0])
        return [new, extra[0], *args[:last], *args[last + 1 :]]

    def _read_old_variables(self, ctx: Any) -> None:
        for old, new, pattern in RENAMED if ctx.auto_envvar_prefix else ():
            before, now = (f"{ctx.auto_envvar_prefix}_{name[2:].replace('-', '_').upper()}" for name in (old, new))
            if not pattern and before in os.environ and self._new_name(old, "") == new:
                warn_renamed(before, now)
                parameter = next(parameter for parameter in self.params if new in parameter.opts)
                value: Any = os.environ[before].split() if getattr(parameter, "multiple", False) else os.environ[before]
                ctx.default_map = {**(ctx.default_map or {}), parameter.name: value}
