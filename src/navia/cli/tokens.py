"""`navia tokens`: draw which patches were merged."""

from pathlib import Path
from typing import Annotated

import typer

from navia.cli import options
from navia.cli.options import OUTPUT, option
from navia.cli.terminal import file_to_write, load_model, print_result, write
from navia.errors import InputError


def tokens(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="Image file.")],
    model: options.Model = "timm:vit_base_patch16_224", checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None, reduce: options.Reducers = None, out: options.Out = Path("tokens.png"),
    scale: Annotated[int, option("--scale", OUTPUT, "Scale factor of the drawing.", min=1, max=8)] = 2,
    plugins: options.Plugins = None, as_json: options.Json = False,
) -> None:  # fmt: skip
    """Draw an image beside the groups that its patches were merged into (grey: dropped)."""
    from PIL import Image

    from navia.data.preprocessing import open_image
    from navia.reduction import parse
    from navia.report.images import draw_token_maps

    out = file_to_write(out, "tokens.png")
    if out.suffix.lower() not in Image.registered_extensions():
        raise InputError(f"cannot write {str(out)!r}: its name must end with .png, .jpg or that of another image format")
    reducers = [parse(spec) for spec in reduce or ["tome:8"]]
    pixels = open_image(image)
    vit = load_model(model, checkpoint, num_classes=num_classes)
    write(out, draw_token_maps(vit, pixels, reducers, scale).save)
    specs = [str(reducer) for reducer in reducers]
    described = {"out": str(out), "reduce": specs, "preprocessing": vit.preprocessing.as_dict()}
    print_result(as_json, described, f"{vit.name}: {vit.preprocessing.describe()}", f"image, {', '.join(specs)} -> {out}")
