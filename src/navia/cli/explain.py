"""`navia explain`: what reduction and adaptation do inside the model, layer by layer."""

import dataclasses
from typing import Annotated, Any

import typer
from rich.table import Table

from navia.cli import completion
from navia.cli.terminal import (
    CheckpointOption,
    CorruptionOption,
    CropOnlyOption,
    DeviceOption,
    ImportOption,
    JsonOption,
    LabelsOption,
    ModelOption,
    NumClassesOption,
    SeverityOption,
    console,
    load_model,
    method_options,
    print_json,
    print_wide,
)
from navia.data import SOURCE_IMAGES
from navia.errors import InputError


def explain(
    images: Annotated[str, typer.Argument(help="Folder of images, embedded, or datasets:NAME.")],
    model: ModelOption = "embedded",
    checkpoint: CheckpointOption = None,
    num_classes: NumClassesOption = None,
    labels: LabelsOption = None,
    method: Annotated[str, typer.Option(help="Adaptation method.", autocompletion=completion.methods)] = "navia",
    reduce: Annotated[
        str, typer.Option("--reduce", "-r", help="Token reducer.", autocompletion=completion.reducers)
    ] = "tome:8",
    source: Annotated[
        str | None,
        typer.Option(help=f"Clean images (folder or embedded); {SOURCE_IMAGES} of them are used. By default of the images."),
    ] = None,
    option: Annotated[list[str] | None, typer.Option("--option", "-o", help="Of the method, key=value; repeatable.")] = None,
    corruption: CorruptionOption = None,
    severity: SeverityOption = 5,
    count: Annotated[int, typer.Option(help="Images to adapt to, and as many others to look at.", min=16)] = 512,
    batch: Annotated[int, typer.Option(help="Images per step.", min=1)] = 64,
    crop_only: CropOnlyOption = False,
    device: DeviceOption = "auto",
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Layer by layer: tokens left, distance of the CLS statistics from the source, what adaptation moved, and how well a
    held-out linear probe reads the label from the CLS feature: dense, reduced, and reduced and adapted.

    The probe shows what can be read linearly with these images, not all that is there.
    """
    from navia.adaptation.adapter import adapt
    from navia.adaptation.statistics import open_source_statistics
    from navia.evaluation.explain import explain as look

    options = method_options(method, option)
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    clean, target, truth, classes = _images(vit, images, source, corruption, severity, count)
    measured = {spec: open_source_statistics(vit, clean, spec, method=method) for spec in {"none", reduce}}
    adapter = adapt(vit, method, reduce, measured[reduce], classes=classes, **options)
    half = len(target) // 2
    stream, others = target[:half].split(batch), target[half:]
    told = None if truth is None else truth[half:]
    found = look(adapter, stream, others, measured[reduce], measured["none"], told, batch)
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    _print(found)


def _images(
    vit: Any, images: str, source: str | None, corruption: str | None, severity: int, count: int
) -> tuple[Any, Any, Any, Any]:
    """Clean source images, target images (to adapt to and to look at), their labels if known, and the class mask."""
    import numpy as np
    import torch

    from navia.data.sources import leave_out_source, open_domains, open_source
    from navia.models.labels import class_names

    names = class_names(vit)
    opened = open_domains(images, vit.num_classes, names, corruptions=[corruption] if corruption else (), severity=severity)
    if source is not None:
        clean = open_source(source, allow_fewer=True)
    elif corruption is None and images != "embedded":
        raise InputError("these images are the target: give clean ones with --source, or a --corruption to shift them with")
    else:
        opened, clean = leave_out_source(opened)
    domain = opened.domains[0]
    target = np.random.default_rng(0).permutation(len(domain.images))[: 2 * count]
    if len(target) < 32:
        raise InputError(f"explaining needs at least 32 images besides the source, {images!r} leaves {len(target)}")
    labels = torch.tensor([domain.label(int(i)) for i in target])
    tensors = (clean.tensors(range(len(clean.images)), vit.preprocessing), domain.tensors(target, vit.preprocessing))
    return *tensors, None if bool((labels < 0).any()) else labels, opened.classes


def _print(found: Any) -> None:
    table = Table(title="per block, by condition", title_justify="left")
    table.add_column("block", justify="right")
    table.add_column("tokens left", justify="right")
    for name in found.conditions:
        table.add_column(f"gap, {name}", justify="right")
    table.add_column("norms moved", justify="right")
    table.add_column("CLS bias", justify="right")
    for name in found.conditions if found.layers[0].probe else ():
        table.add_column(f"probe, {name}", justify="right")
    reduced = found.conditions[1]
    for layer in found.layers:
        cells = [str(layer.layer), str(layer.tokens[reduced]), *(f"{layer.gap[name]:.3f}" for name in found.conditions)]
        cells += [f"{100 * layer.moved:.1f} %", f"{100 * layer.bias:.1f} %"]
        if layer.probe:
            cells += [f"{100 * p:.1f} [{100 * low:.0f}, {100 * high:.0f}]" for p, low, high in layer.probe.values()]
        table.add_row(*cells)
    print_wide(table)
    console.print(f"adapted to {found.adapted_on} images, looked at {found.looked_at} others", highlight=False)
    if found.accuracy:
        said = ", ".join(f"{name} {100 * value:.1f} %" for name, value in found.accuracy.items())
        console.print(f"top-1 on these: {said}", highlight=False)
    console.print("gap: distance of CLS mean and std from the source's, in source variances; probe: 5 folds, 95 % interval")
