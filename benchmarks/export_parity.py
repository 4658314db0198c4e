"""Difference between exported files and the adapter they were exported from, for every reducer: table of docs/export.md.

    python benchmarks/export_parity.py timm:deit_tiny_patch16_224 --checkpoint model.safetensors --images VAL
    python benchmarks/export_parity.py transformers        # a random ViT-Ti of transformers, on generated images

The adapter is NAVIA after two steps, so that norms, CLS embedding and CLS biases have all changed.
"""

import tempfile
import time
from pathlib import Path

import torch

import navia
from cases import script_parser
from navia.adaptation.statistics import image_batches
from navia.export.parity import BATCHES, random_images
from navia.models.load import load

FEWEST = sum(BATCHES) + 16
REDUCERS = ("none", "tome:8", "evit:8", "tofu:8")


def random_transformers() -> navia.ViT:
    """ViT-Ti with weights away from their initial values, so that predictions differ between images."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    size = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    model = ViTForImageClassification(ViTConfig(**size, num_labels=100))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.dim() < 2 else 0.05))
    return load(model)


def row(vit: navia.ViT, images: torch.Tensor, reduce: str, format: str) -> str:
    suffix = {"onnx": ".onnx", "torch": ".pt2"}[format]
    source = navia.SourceStatistics.measure(vit, images[:32], reduce)
    adapter = navia.adapt(vit, "navia", reduce, source, guard=False)
    for batch in images.split(16)[:2]:
        adapter(batch * 0.6)  # low contrast
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"model{suffix}"
        start = time.perf_counter()
        parity = adapter.export(path, format, images=images)
        seconds, size = time.perf_counter() - start, path.stat().st_size / 2**20
    largest = " | ".join(f"{parity.differences[batch]:.1e}" for batch in (1, 7, 16))
    ties = f"{parity.undecided} of {parity.beyond}" if parity.beyond else "0"
    cells = f"{parity.agree} of {parity.images} | {ties} | {size:.1f} | {seconds:.0f}"
    return f"| {vit.name} | {reduce} | {format} | {largest} | {cells} |"


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("model", help="name for navia.load, or: transformers")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--images", type=Path, help="folder of images")
    parser.add_argument("--count", type=int, default=72, help="number of images; default: 72")
    parser.add_argument("--format", choices=("onnx", "torch"), default="onnx")
    given = parser.parse_args()
    vit = random_transformers() if given.model == "transformers" else load(given.model, checkpoint=given.checkpoint)
    if given.images is None:
        images = random_images(vit, given.count)
    else:
        images = torch.cat(list(image_batches(vit, given.images, 16, given.count)))
    if len(images) < FEWEST:
        parser.error(f"batches of 1, 7 and 16 need {FEWEST} images, got {len(images)}: use a larger --count")
    print("| model | reducer | format | batch 1 | batch 7 | batch 16 | top-1 agrees | beyond 1e-4 (ties) | MiB | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for reduce in REDUCERS:
        print(row(vit, images, reduce, given.format), flush=True)


if __name__ == "__main__":
    main()
