"""`navia explain`: what reduction and adaptation do inside the model, layer by layer."""

from rich.table import Table

import navia
from navia.cli import options
from navia.cli.terminal import load_model, method_options, print_result
from navia.errors import InputError


def explain(
    data: options.Data,
    model: options.Model = "embedded", checkpoint: options.Checkpoint = None, num_classes: options.NumClasses = None,
    labels: options.Labels = None, method: options.Method = "navia", reduce: options.Reduce = "tome:8",
    source: options.Source = None, opt: options.Opt = None, plugins: options.Plugins = None,
    corruption: options.Corruption = None, severity: options.Severity = 5, limit: options.Limit = 512,
    batch_size: options.BatchSize = 64, crop_only: options.CropOnly = False,
    device: options.Device = "auto", as_json: options.Json = False,
) -> None:  # fmt: skip
    """Show for each layer the tokens left, the distance of the CLS statistics from the source, what adaptation changed, and
    the accuracy of a linear probe on the CLS feature: dense, reduced, and reduced and adapted.

    Adapts to --limit images and evaluates as many others. The probe shows what can be read linearly with these images, not
    all information that is there.
    """
    import numpy as np
    import torch

    from navia.adaptation.statistics import open_source_statistics
    from navia.data.sources import leave_out_source, open_domains, open_source
    from navia.evaluation.explain import explain as explain_layers
    from navia.models.labels import class_names

    settings = method_options(method, opt)
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    corruptions = [corruption] if corruption else ()
    opened = open_domains(data, vit.num_classes, class_names(vit), corruptions=corruptions, severity=severity)
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
    images, half = domain.tensors(chosen, vit.preprocessing), len(chosen) // 2
    truth = torch.tensor([domain.label(int(i)) for i in chosen[half:]])
    statistics = {spec: open_source_statistics(vit, source_images, spec, method=method) for spec in {"none", reduce}}
    adapter = navia.adapt(vit, method, reduce, statistics[reduce], classes=opened.classes, **settings)
    found = explain_layers(
        adapter, images[:half].split(batch_size), images[half:], statistics[reduce], statistics["none"],
        None if bool((truth < 0).any()) else truth, batch_size,
    )  # fmt: skip
    probes = [f"probe, {name}" for name in found.conditions] if found.layers[0].probe else []
    table = Table(title="per block, by condition", title_justify="left")
    gaps = [f"gap, {name}" for name in found.conditions]
    for column in ("block", "tokens left", *gaps, "norms moved", "CLS bias", *probes):
        table.add_column(column, justify="right")
    for layer in found.layers:
        cells = [str(layer.layer), str(layer.tokens[found.conditions[1]])]
        cells += [f"{layer.gap[name]:.3f}" for name in found.conditions]
        cells += [f"{100 * layer.moved:.1f} %", f"{100 * layer.bias:.1f} %"]
        cells += [f"{100 * p:.1f} [{100 * low:.0f}, {100 * high:.0f}]" for p, low, high in (layer.probe or {}).values()]
        table.add_row(*cells)
    lines = [f"adapted to {found.adapted_on} images, evaluated on {found.looked_at} others"]
    if found.accuracy:
        lines += [f"top-1: {', '.join(f'{name} {100 * value:.1f} %' for name, value in found.accuracy.items())}"]
    lines += ["gap: distance of CLS mean and std from the source's, in source variances; probe: 5 folds, 95 % interval"]
    print_result(as_json, found, table, *lines)
