"""`navia choose`: choose NAVIA's settings without labels."""

from typing import Annotated

from rich.table import Table

import navia
from navia.cli import options
from navia.cli.options import IMAGES, option
from navia.cli.terminal import load_model, print_result, progress
from navia.errors import InputError


def choose(
    data: options.Data, source: options.SourceRequired,
    model: options.Model, checkpoint: options.Checkpoint = None, num_classes: options.NumClasses = None,
    labels: options.Labels = None, reduce: options.Reduce = "none", plugins: options.Plugins = None,
    batches: Annotated[int, option("--batches", IMAGES, "Batches for each setting.", min=2)] = 8,
    batch_size: options.BatchSize = 64, corruption: options.Corruption = None, severity: options.Severity = 5,
    crop_only: options.CropOnly = False, device: options.Device = "auto", as_json: options.Json = False,
) -> None:  # fmt: skip
    """Choose NAVIA's layers and learning rates by its loss on target images without labels.

    Statistics in --source must have been measured with the same --reduce.
    """
    from navia.adaptation.statistics import open_source_statistics
    from navia.data.loader import Loader
    from navia.data.sources import open_domains
    from navia.data.streams import make_stream
    from navia.models.labels import class_names

    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes, labels=labels)
    corruptions = [corruption] if corruption else ()
    opened = open_domains(data, vit.num_classes, class_names(vit), corruptions=corruptions, severity=severity)
    if len(opened.domains) > 1:
        names = ", ".join(domain.name for domain in opened.domains[:3])
        raise InputError(f"{data!r} has {len(opened.domains)} parts ({names}, ...): choose on one of them, give its folder")
    seed = None if opened.domains[0].images.labels is None else 0  # the images that `navia run` reads first
    stream = make_stream(opened.domains, seed=seed, limit=batches * batch_size)
    statistics = open_source_statistics(vit, source, reduce)
    with progress("settings") as show:
        choice = navia.choose(
            vit, Loader(stream, vit.preprocessing, batch_size, device=vit.device), statistics, reduce=reduce,
            batches=batches, batch_size=batch_size, classes=opened.classes, progress=show,
        )  # fmt: skip
    table = Table(*choice.table[0][0], "Eq. 7 over the last half")
    for settings, score in sorted(choice.table, key=lambda row: row[1]):
        table.add_row(*(f"{value:g}" for value in settings.values()), f"{score:.4f}")
    chosen = ", ".join(f"{key}={value:g}" for key, value in choice.options.items())
    summary = f"chosen: {chosen} ({choice.steps} steps on {choice.images} images, {choice.seconds:.0f} s)"
    print_result(as_json, choice, f"{vit.name}: {vit.preprocessing.describe()}", table, summary)
