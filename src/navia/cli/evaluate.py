"""`navia evaluate`: accuracy, calibration and cost of a method on labelled images."""

from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from navia.cli import options
from navia.cli.options import ADAPTATION, option
from navia.cli.terminal import load_model, method_options, print_json, print_line, print_wide, progress, source_statistics

if TYPE_CHECKING:
    from navia.evaluation.evaluate import EvaluationResult


def evaluate(
    data: options.Data,
    model: options.Model,
    checkpoint: options.Checkpoint = None,
    num_classes: options.NumClasses = None,
    labels: options.Labels = None,
    method: options.Method = "navia",
    reduce: options.Reduce = "none",
    source: options.Source = None,
    opt: options.Opt = None,
    plugins: options.Plugins = None,
    corruption: options.Corruptions = None,
    severity: options.Severity = 5,
    limit: options.LimitOrNone = None,
    batch_size: options.BatchSize = 64,
    seed: options.Seed = 0,
    continual: Annotated[bool, option("--continual", ADAPTATION, "Do not reset between domains.")] = False,
    crop_only: options.CropOnly = False,
    workers: options.Workers = 0,
    device: options.Device = "auto",
    grad_checkpointing: options.GradCheckpointing = False,
    precision: options.Precision = "float32",
    as_json: options.Json = False,
) -> None:
    """Evaluate a method on labelled images: top-1 with a 95 % interval, calibration error and cost, for each domain.

        navia evaluate imagenet-c -m timm:vit_base_patch16_224 --source clean/ -r tome:8

    Each image is predicted before the model adapts to it. The model is reset between domains.
    """
    from navia.adaptation.adapter import adapt
    from navia.data.open import open_domains
    from navia.evaluation.evaluate import evaluate as run_evaluation
    from navia.methods.base import METHODS
    from navia.models.labels import class_names

    settings, fisher = method_options(method, opt), METHODS.get(method).needs_fisher
    vit = load_model(
        model, checkpoint, crop_only, device, grad_checkpointing, precision, num_classes=num_classes, labels=labels
    )
    classes = open_domains(data, vit.num_classes, class_names(vit)).classes
    adapter = adapt(vit, method, reduce, source_statistics(vit, source, reduce, fisher), classes=classes, **settings)
    with progress("images") as show:
        result = run_evaluation(
            adapter, data, batch_size=batch_size, limit=limit, workers=workers, seed=seed, corruptions=corruption,
            severity=severity, reset=not continual, progress=show,
        )  # fmt: skip
    if as_json:
        print_json(result.to_dict())
        return
    print_line(f"{vit.name}: {vit.preprocessing.describe()}")
    print_wide(_table(result, f"{method}, reduce {reduce}"))
    share = f"{result.cost.gmacs:.2f} GMACs and {result.cost.trainable:,} trainable parameters"
    print_line(f"cost per image: {share}; top-1 with 95 % interval, expected calibration error (ECE)")


def _table(result: "EvaluationResult", title: str) -> Table:
    table = Table("domain", title=Text(title), title_justify="left")
    for column in ("images", "top-1", "95 %", "ECE", "mean entropy"):
        table.add_column(column, justify="right")
    several = len(result.domains) > 1
    for domain in result.domains:
        _add_row(table, domain.name, domain.images, domain.top1, domain.interval, domain.ece, f"{domain.entropy:.3f}")
    if several:
        _add_row(table, "all", result.images, result.top1, result.interval, result.ece, "")
    return table


def _add_row(
    table: Table, name: str, images: int, top1: float, interval: tuple[float, float], ece: float, entropy: str
) -> None:
    low, high = interval
    cells = (f"{images:,}", f"{100 * top1:.1f} %", f"{100 * low:.1f} - {100 * high:.1f}", f"{ece:.3f}", entropy)
    table.add_row(Text(name), *cells)
