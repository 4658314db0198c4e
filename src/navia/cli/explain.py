"""`navia explain`: what reduction and adaptation do inside the model, layer by layer."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from navia.cli import options
from navia.cli.options import IMAGES, option, suggest
from navia.cli.terminal import load_model, method_options, print_result, progress
from navia.errors import InputError

if TYPE_CHECKING:
    from navia.data.sources import OpenedData
    from navia.evaluation.explain import Explanation, Layer
    from navia.evaluation.information import Estimate

_GROUP = "Labels of the probe: classes, imagenet (10 kinds of its classes; their default), or a JSON file."
Group = Annotated[str | None, option("--group", IMAGES, _GROUP, autocompletion=suggest("classes", "imagenet"))]


def explain(
    data: options.Data,
    model: options.Model = "embedded", checkpoint: options.Checkpoint = None, num_classes: options.NumClasses = None,
    labels: options.Labels = None, method: options.Method = "navia", reduce: options.Reduce = "tome:8",
    source: options.Source = None, opt: options.Opt = None, plugins: options.Plugins = None,
    corruption: options.Corruption = None, severity: options.Severity = 5, limit: options.Limit = 512,
    batch_size: options.BatchSize = 64, crop_only: options.CropOnly = False, group: Group = None,
    device: options.Device = "auto", as_json: options.Json = False,
) -> None:  # fmt: skip
    """Show for each layer the information about the label in the CLS feature, its distance from the source, the tokens left
    and what adaptation changed.

    Compares on the same images: dense; merged (with --reduce); align (norms tuned); +E (and the CLS embedding); +S (or the
    CLS biases); both (navia). With another --method: dense, merged and that method. Adapts to --limit images and evaluates
    as many others.

    Information is in nats with 95 % intervals, a lower bound of the mutual information: label entropy minus the
    cross-entropy of a linear probe on held-out images (5 folds), and InfoNCE with the same probe. Labels with fewer than
    5 images are left out. A JSON file for --group has {"NAME": [class, ...], ...}; other classes are left out.
    """
    import numpy as np

    from navia.adaptation.statistics import open_source_statistics
    from navia.data.loader import Loader
    from navia.data.sources import leave_out_source, open_domains, open_source
    from navia.data.streams import Segment, Stream
    from navia.evaluation.explain import explain as explain_layers
    from navia.evaluation.explain import make_conditions
    from navia.models.labels import class_names

    settings = method_options(method, opt)
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    corruptions = [corruption] if corruption else ()
    opened = open_domains(data, vit.num_classes, class_names(vit), corruptions=corruptions, severity=severity)
    groups = read_groups(group, opened, vit.num_classes)
    if source is not None:
        clean = open_source(source, allow_fewer=True)
    elif corruption is None and data != "embedded":
        raise InputError("these images are the target: give clean ones with --source, or a --corruption to shift them with")
    else:
        opened, clean = leave_out_source(opened)
    domain = opened.domains[0]
    chosen = np.random.default_rng(0).permutation(len(domain.images))[: 2 * limit]
    if len(chosen) < 32:
        raise InputError(f"explaining needs at least 32 images besides the source, {data!r} leaves {len(chosen)}")
    source_images = clean.tensors(range(len(clean.images)), vit.preprocessing)
    statistics = {spec: open_source_statistics(vit, source_images, spec, method=method) for spec in {"none", reduce}}
    conditions = make_conditions(vit, method, reduce, statistics[reduce], classes=opened.classes, **settings)

    def loader(part: np.ndarray) -> Loader:
        segment = Segment(domain.name, np.stack([np.zeros_like(part), part], axis=1))
        return Loader(Stream((domain,), (segment,)), vit.preprocessing, batch_size, device=vit.device)

    half = len(chosen) // 2
    with progress("steps") as show:
        found = explain_layers(
            conditions, loader(chosen[:half]), loader(chosen[half:]), list(statistics.values()), groups, show
        )  # fmt: skip
    print_result(as_json, found, *_report(found))


def read_groups(group: str | None, opened: "OpenedData", num_classes: int) -> list[int] | None:
    """For each label the group that the probe predicts, -1 for none; None for the classes themselves."""
    from navia.data import imagenet

    if group == "classes" or (group is None and opened.names != imagenet.names()):
        return None
    if group in (None, "imagenet"):
        if num_classes != len(imagenet.wnids()):
            raise InputError(f"--group imagenet is for ImageNet's 1000 classes, the model has {num_classes}")
        kinds: Sequence[int] = imagenet.super_classes()
    else:
        kinds = _read_group_file(Path(str(group)), num_classes)
    return [kinds[index] for index in opened.classes or range(num_classes)]


def _read_group_file(path: Path, num_classes: int) -> list[int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read --group {str(path)!r} ({error}): classes, imagenet or a JSON file") from error
    if not isinstance(found, dict) or not all(isinstance(classes, list) for classes in found.values()):
        raise InputError(f'{str(path)!r} must have the form {{"NAME": [class, ...], ...}}')
    kinds = [-1] * num_classes
    for kind, (name, classes) in enumerate(found.items()):
        for index in classes:
            if type(index) is not int or not 0 <= index < num_classes:
                raise InputError(f"group {name!r} of {str(path)!r} has {index!r}, not a class from 0 to {num_classes - 1}")
            if kinds[index] >= 0:
                raise InputError(f"{str(path)!r} has class {index} in two groups")
            kinds[index] = kind
    return kinds


def _report(found: "Explanation") -> list[str | Table]:
    last, probing = found.layers[-1], found.probing
    adapted = f"adapted to {found.adapted_on} images, evaluated on {found.looked_at} others; reducer {found.reduce}"
    parts: list[str | Table] = [adapted]
    if probing is None:
        parts += [f"information about the label was not estimated: {found.note}"]
    else:
        parts += [
            _information_table(found),
            f"{probing.num_images} images of {probing.num_labels} labels, label entropy {probing.label_entropy:.3f} nats;"
            f" InfoNCE of {probing.num_pairs} pairs, at most {math.log(probing.num_pairs):.2f}",
        ]
    parts += [_block_table(found)]
    if found.accuracy:
        parts += [_last_table(found, last)]
    if last.differences:
        table = Table("last block: difference of the information", "nats", "95 % interval", "")
        for pair, value in last.differences.items():
            clear = "" if value.low <= 0 <= value.high else "above 0" if value.low > 0 else "below 0"
            table.add_row(pair, f"{value.value:+.3f}", f"{value.low:+.3f} to {value.high:+.3f}", clear)
        parts += [table]
    return parts


def _information_table(found: "Explanation") -> Table:
    table = Table(title="information about the label in the CLS feature, nats ± half of the 95 % interval")
    for column in ("block", *found.conditions):
        table.add_column(column, justify="right")
    for layer in found.layers:
        table.add_row(str(layer.layer), *(_plus_minus(value) for value in (layer.information or {}).values()))
    return table


def _block_table(found: "Explanation") -> Table:
    name = found.conditions[-1]
    table = Table(title="distance of CLS mean and std from the source, in source variances; what adaptation changed")
    for column in ("block", "tokens", *found.conditions, "norms moved", "CLS bias"):
        table.add_column(column, justify="right")
    for layer in found.layers:
        changes = f"{100 * layer.moved[name]:.1f} %", f"{100 * layer.bias[name]:.1f} %"
        table.add_row(str(layer.layer), str(layer.tokens[name]), *(f"{gap:.3f}" for gap in layer.gap.values()), *changes)
    return table


def _last_table(found: "Explanation", last: "Layer") -> Table:
    table = Table("condition", title="after the last block")
    for column in ("top-1", *(("information", "InfoNCE", "probe accuracy") if found.probing else ())):
        table.add_column(column, justify="right")
    for name, top1 in (found.accuracy or {}).items():
        cells = [f"{100 * top1:.1f} %"]
        if last.information and last.infonce and last.probe:
            right = last.probe[name]
            cells += [_plus_minus(last.information[name]), _plus_minus(last.infonce[name])]
            cells += [f"{100 * right.value:.1f} % [{100 * right.low:.1f}, {100 * right.high:.1f}]"]
        table.add_row(name, *cells)
    return table


def _plus_minus(value: "Estimate") -> str:
    return f"{value.value:.2f} ± {(value.high - value.low) / 2:.2f}"
