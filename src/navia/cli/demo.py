"""`navia demo`: the bench preset `demo` on the embedded model, or on the user's own, and its report page."""

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from navia.cli import options, terminal
from navia.cli.bench import _with_progress
from navia.cli.options import IMAGES, option
from navia.cli.report import print_tables
from navia.errors import InputError

if TYPE_CHECKING:
    from navia.bench.executors.serial import Failure
    from navia.report.lines import Line
    from navia.report.tables import Table


def demo(
    model: options.Model = "embedded",
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    data: Annotated[str, option("--data", IMAGES, "Clean images in class folders, or embedded.")] = "embedded",
    corruption: options.Corruptions = None,
    severity: options.Severity = 2,
    reduce: options.Reduce = "tome:8",
    limit: options.Limit = 768,
    batch_size: options.BatchSize = 64,
    seed: options.Seed = 0,
    out: options.Out = Path("navia-demo.html"),
    crop_only: options.CropOnly = False,
    device: options.Device = "auto",
    plugins: options.Plugins = None,
    as_json: options.Json = False,
) -> None:
    """Show what a shift does to a model, what adaptation gives back, and what merging tokens costs. Needs no network.

    The last line compares navia with align on the same images, both with merged tokens. Every number is computed in this
    run, by the bench preset `demo`. It takes your own ViT and images too:

        navia demo --model timm:deit_tiny_patch16_224 --data imagenet/val --severity 5
    """
    from navia.bench.executors.serial import run_serial
    from navia.bench.grid import run_grid
    from navia.bench.presets import load_spec
    from navia.bench.store import Store
    from navia.data.sources import open_domains
    from navia.models.labels import class_names
    from navia.report.files import read_rows, save_text
    from navia.report.page import demo_page
    from navia.report.tables import tabulate

    out = terminal.file_to_write(out, "navia-demo.html")
    vit = terminal.load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    opened = open_domains(data, vit.num_classes, class_names(vit))
    if len(opened.domains) > 1 or opened.domains[0].images.labels is None:
        raise InputError(f"the demo needs clean images in class folders, and {data!r} is {opened.kind!r}")
    spec = load_spec("demo").scaled(
        model=model, checkpoint=checkpoint, crop_only=crop_only, data=data, corruptions=corruption, severity=severity,
        images=limit, seeds=[seed], batch=batch_size,
    )  # fmt: skip
    runs = [run if run.reduce == ("none",) else run.model_copy(update={"reduce": (reduce,)}) for run in spec.runs]
    spec = spec.model_copy(update={"runs": tuple(runs)})
    with tempfile.TemporaryDirectory() as folder:
        list(_with_progress(run_grid(spec, Store(Path(folder)), partial(run_serial, vit=vit), _stop)))
        rows, traces, _ = read_rows(Path(folder))
    results = tabulate(rows, traces=traces)
    steps = _next_steps(model, data)
    save_text(out, demo_page(results, traces, steps))
    if as_json:
        terminal.print_json([_as_dict(results.tables[0], line) for line in results.tables[0].lines])
        return
    print_tables(results, pairs=False)
    for text in (f"Images, charts and the protocol: {out}", *(f"{sentence}\n    {command}" for sentence, command in steps)):
        terminal.print_line(text)
    terminal.print_line(_conclusion(results.tables[0]))


def _stop(failure: "Failure") -> None:
    raise InputError(f"{failure.cell.title}: {failure.why}")


def _conclusion(table: "Table") -> str:
    """What navia's augmentation adds to alignment, both with the same reducer and images."""
    from navia.report.compare import paired
    from navia.report.text import paired_text

    align, navia = (
        next(line for line in reversed(table.lines) if line.setting.method == method) for method in ("align", "navia")
    )
    pair = paired(navia, align, table.average)
    more = "" if pair is None or pair.settled else ": more images would tell (--limit)"
    return f"{paired_text(pair)}{more}."


def _next_steps(model: str, data: str) -> list[tuple[str, str]]:
    """Sentences, each with a command. Those for the embedded model run as they are printed."""
    if data == "embedded":
        own = "navia demo --model timm:deit_tiny_patch16_224 --data CLEAN --severity 5"
        return [
            ("Score one method on another shift:",
             "navia evaluate embedded -m embedded --source embedded -r tome:8 --corruption fog --severity 2"),
            ("The same as here on your own model, with your clean images in class folders as CLEAN:", own),
        ]  # fmt: skip
    run = f"navia run FIELD --model {model} --source {data} --method navia -r tome:8 --save adapted.safetensors"
    return [("Adapt to a folder of images from the field, here called FIELD, and save the result:", run)]


def _as_dict(table: "Table", line: "Line") -> dict[str, Any]:
    """Accuracies as shares, by domain."""
    values = {column.name: line.value(column) for column in (*table.single, table.average)}
    shares = {name: [(part or 0.0) / 100 for part in (v.mean, v.low, v.high)] for name, v in values.items()}
    domains = [column.name for column in table.single]
    return {
        "method": line.setting.method, "reduce": line.setting.reduce,
        "top1": {name: shares[name][0] for name in domains}, "interval": {name: shares[name][1:] for name in domains},
        "mean": shares[table.average.name][0], "gmacs": line.median("gmacs"), "ms_per_image": line.median("ms_per_image"),
        "guard": [event for row in line.rows.values() for event in row["guard"]],
    }  # fmt: skip
