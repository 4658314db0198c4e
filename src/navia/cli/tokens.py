"""`navia tokens`: Draw which patches were merged."""

from pathlib import Path
from typing import Annotated

import typer

from navia.cli.terminal import (
    CheckpointOption,
    ImportOption,
    JsonOption,
    ModelOption,
    NumClassesOption,
    ReduceOptions,
    console,
    file_to_write,
    load_model,
    print_json,
    write,
)
from navia.errors import InputError


def tokens(
    image: Annotated[Path, typer.Argument(help="A picture.")],
    model: ModelOption = "timm:vit_base_patch16_224.augreg2_in21k_ft_in1k",
    checkpoint: CheckpointOption = None,
    num_classes: NumClassesOption = None,
    reduce: ReduceOptions = None,
    out: Annotated[Path, typer.Option(help="Where the drawing goes.")] = Path("tokens.png"),
    scale: Annotated[int, typer.Option(help="Enlargement of the drawing.", min=1, max=8)] = 2,
    plugins: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw a picture beside the groups that its patches were merged into (grey: dropped)."""
    from PIL import Image

    from navia.data.folder import open_image
    from navia.reduction import parse
    from navia.report.token_map import draw_token_maps

    out = file_to_write(out, "tokens.png")
    if out.suffix.lower() not in Image.registered_extensions():
        raise InputError(f"cannot write {str(out)!r}: its name must end with .png, .jpg or that of another image format")
    reducers = [parse(spec) for spec in reduce or ["tome:8"]]
    picture = open_image(image)
    vit = load_model(model, checkpoint, num_classes=num_classes)
    drawing = draw_token_maps(vit, picture, reducers, scale)
    write(out, drawing.save)
    if as_json:
        described = vit.preprocessing.as_dict()
        print_json({"out": str(out), "reduce": [str(r) for r in reducers], "preprocessing": described})
        return
    console.print(f"{vit.name}: {vit.preprocessing.describe()}", markup=False)
    console.print(f"image, {', '.join(str(r) for r in reducers)} -> {out}", markup=False, soft_wrap=True)
