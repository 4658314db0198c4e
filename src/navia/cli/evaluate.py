"""`navia evaluate`: accuracy, calibration and cost of a method on labelled images."""

from typing import Annotated

import navia
from navia.cli import options
from navia.cli.options import ADAPTATION, option
from navia.cli.terminal import load_model, method_options, print_result, progress


def evaluate(
    data: options.Data,
    model: options.Model, checkpoint: options.Checkpoint = None, num_classes: options.NumClasses = None,
    labels: options.Labels = None, method: options.Method = "navia", reduce: options.Reduce = "none",
    source: options.Source = None, opt: options.Opt = None, adapt_every: options.AdaptEvery = "1",
    plugins: options.Plugins = None,
    corruption: options.Corruptions = None, severity: options.Severity = 5, limit: options.LimitOrNone = None,
    batch_size: options.BatchSize = 64, seed: options.Seed = 0,
    continual: Annotated[bool, option("--continual", ADAPTATION, "Do not reset between domains.")] = False,
    crop_only: options.CropOnly = False, workers: options.Workers = 0, device: options.Device = "auto",
    grad_checkpointing: options.GradCheckpointing = False, precision: options.Precision = "float32",
    tf32: options.TF32 = False, deterministic: options.Deterministic = False,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Evaluate a method on labelled images: top-1 with a 95 % interval, calibration error and cost, for each domain.

        navia evaluate imagenet-c -m timm:deit_tiny_patch16_224 --source clean/

    Each image is predicted before the model adapts to it. The model is reset between domains.
    """
    from navia.data.sources import open_domains
    from navia.models.labels import class_names

    settings = method_options(method, opt)
    vit = load_model(
        model, checkpoint, crop_only, device, grad_checkpointing=grad_checkpointing, precision=precision,
        num_classes=num_classes, labels=labels,
    )  # fmt: skip
    classes = open_domains(data, vit.num_classes, class_names(vit)).classes
    adapter = navia.adapt(vit, method, reduce, source, classes=classes, adapt_every=adapt_every, **settings)
    with progress("images") as show:
        result = navia.evaluate(
            adapter, data, batch_size=batch_size, limit=limit, workers=workers, seed=seed, corruptions=corruption,
            severity=severity, reset=not continual, progress=show,
        )  # fmt: skip
    print_result(as_json, result.to_dict(), f"{vit.name}: {vit.preprocessing.describe()}", str(result))
