"""`navia stats`: measure source statistics."""

from pathlib import Path
from typing import Annotated

import navia
from navia.cli import options
from navia.cli.options import ADAPTATION, option
from navia.cli.terminal import file_to_write, load_model, print_result, write
from navia.data import SOURCE_IMAGES


def stats(
    data: options.Data, model: options.Model, checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None, reduce: options.Reduce = "none",
    fisher: Annotated[bool, option("--fisher", ADAPTATION, "Also measure the Fisher information for EATA.")] = False,
    plugins: options.Plugins = None, limit: options.Limit = SOURCE_IMAGES, crop_only: options.CropOnly = False,
    device: options.Device = "auto", out: options.Out = Path("statistics.safetensors"), as_json: options.Json = False,
) -> None:  # fmt: skip
    """Measure the source statistics that align, navia, foa and foa_bp need, on clean images without labels.

    The images are sampled at random, always the same ones. Use the reducer that adaptation will use.
    """
    out = file_to_write(out, "statistics.safetensors")
    vit = load_model(model, checkpoint, crop_only, device, num_classes=num_classes)
    source = navia.SourceStatistics.measure(vit, data, reduce, limit=limit, fisher=fisher)
    write(out, source.save)
    summary = f"{source.provenance.count} images, reducer {source.provenance.reduce} -> {out}"
    print_result(as_json, source.provenance, f"{vit.name}: {vit.preprocessing.describe()}", summary)
