"""One stream in several settings: time relative to timm's dense float32 forward, share of updated batches, top-1.

python benchmarks/stream.py                                            embedded model and images, all settings below
python benchmarks/stream.py --model timm:deit_tiny_patch16_224 --checkpoint model.safetensors --data VAL --crop-only
    --corruption contrast --seed 0 --seed 1 --batches 120 --batch 16 --setting float32 --setting int8,auto
python benchmarks/stream.py --corruption fog --then contrast           the domain changes in the middle

A setting is PRECISION[,ADAPT_EVERY][,OPTION=VALUE...]; the first one is the reference of the paired differences. All
settings see the same batches in turn, beside timm's forward of every eighth batch. 64 clean images are the source and are
left out. Each finished stream is a line of --json FILE; lines that are there are not run again. Ctrl-C keeps the finished
ones.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor

import navia
from cases import instruction_sets, script_parser
from navia.data.sources import Domain, ImageSource, leave_out_source, open_domains
from navia.models.base import ViT
from navia.models.device import keep_freed_memory
from navia.models.labels import class_names

DENSE_EVERY = 8  # batches from one timing of timm's forward to the next
SETTINGS = ("float32", "float32,auto", "bfloat16", "int8", "int8,auto")


@dataclass(frozen=True)
class AdapterSetting:
    name: str
    precision: str
    adapt_every: int | str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> "AdapterSetting":
        precision, *parts = text.split(",")
        options = {key: json.loads(value) for key, _, value in (part.partition("=") for part in parts if "=" in part)}
        every = next((part for part in parts if "=" not in part), "1")
        return cls(text, precision, int(every) if every.isdecimal() else every, options)


@dataclass(frozen=True)
class StreamPlan:
    """What is run. changed: first batch after the change of the domain, if there is one."""

    model: str
    method: str
    reduce: str
    corruption: str
    then: str | None
    severity: int
    seed: int
    batch: int
    batches: int

    @property
    def changed(self) -> int | None:
        return None if self.then is None else self.batches // 2


@dataclass(frozen=True)
class StreamResult:
    """top1: accuracy in percent; right: correct predictions of each batch; ratio: time over timm's dense forward; updated:
    numbers of the batches with an update; share: of these; noticed: batches until the first update after the change."""

    setting: str
    top1: float
    right: list[int]
    ratio: float
    share: float
    updated: list[int]
    noticed: int | None


def run(
    stream: StreamPlan, settings: list[AdapterSetting], vit: ViT, images: ImageSource, clean: Tensor
) -> list[StreamResult]:
    adapters = {}
    for setting in settings:
        own = navia.load(vit, precision=setting.precision)
        source = navia.SourceStatistics.measure(own, clean, stream.reduce)
        adapters[setting.name] = navia.adapt(
            own, setting.options.get("method", stream.method), stream.reduce, source, adapt_every=setting.adapt_every,
            **{key: value for key, value in setting.options.items() if key != "method"},
        )  # fmt: skip
    dense: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in adapters}
    right: dict[str, list[int]] = {name: [] for name in adapters}
    updated: dict[str, list[int]] = {name: [] for name in adapters}
    for number, (batch, labels) in enumerate(batches(stream, vit, images)):
        if number % DENSE_EVERY == 0:
            dense.append(timed(torch.no_grad()(vit.model), batch)[0])
        for name, adapter in adapters.items():
            took, logits = timed(adapter, batch)
            seconds[name].append(took)
            right[name].append(int((logits.argmax(dim=1) == labels).sum()))
            updated[name] += [number] * bool(adapter.last is not None and adapter.last.kept)
    results = []
    for name in adapters:
        after = [number for number in updated[name] if stream.changed is not None and number >= stream.changed]
        noticed = after[0] - stream.changed if stream.changed is not None and after else None
        share, top1 = len(updated[name]) / stream.batches, 100 * sum(right[name]) / (stream.batch * stream.batches)
        results.append(
            StreamResult(name, top1, right[name], mean(seconds[name]) / mean(dense), share, updated[name], noticed)
        )
    return results


def batches(stream: StreamPlan, vit: ViT, images: ImageSource) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches and labels; the images are repeated in other orders where there are too few."""
    labels = torch.tensor(images.labels)
    domains = [Domain(name, images, name, stream.severity) for name in (stream.corruption, stream.then) if name]
    generator = np.random.default_rng(stream.seed)
    order = np.concatenate(
        [generator.permutation(len(images)) for _ in range(-(-stream.batch * stream.batches // len(images)))]
    )
    for number in range(stream.batches):
        part = order[number * stream.batch : (number + 1) * stream.batch]
        domain = domains[int(stream.changed is not None and number >= stream.changed)]
        yield domain.tensors(part.tolist(), vit.preprocessing), labels[part]


def timed(call: Any, images: Tensor) -> tuple[float, Any]:
    start = time.perf_counter()
    found = call(images)
    return time.perf_counter() - start, found


def print_results(stream: StreamPlan, results: list[StreamResult]) -> None:
    first = results[0]
    print(f"{stream.corruption}{f' then {stream.then}' if stream.then else ''}, seed {stream.seed}:")
    for result in results:
        noticed = "" if result.noticed is None else f", first update {result.noticed} batches after the change"
        print(
            f"  {result.setting:24} top-1 {result.top1:5.1f} ({result.top1 - first.top1:+.1f})  ratio {result.ratio:.2f}  "
            f"updated {100 * result.share:.0f} %{noticed}",
            flush=True,
        )


def print_summary(lines: list[dict[str, Any]]) -> None:
    """Means over all streams, and the mean difference to the first setting with its spread over them."""
    by_setting: dict[str, list[StreamResult]] = {}
    for line in lines:
        for found in line["results"]:
            by_setting.setdefault(found["setting"], []).append(StreamResult(**found))
    first = next(iter(by_setting.values()))
    print(f"all {len(lines)} streams:")
    for name, own in by_setting.items():
        pairs = [result.top1 - other.top1 for result, other in zip(own, first, strict=False)]
        error = float(np.std(pairs, ddof=1) / len(pairs) ** 0.5) if len(pairs) > 1 else 0.0
        print(
            f"  {name:24} top-1 {mean(r.top1 for r in own):5.2f} ({mean(pairs):+.2f}, standard error {error:.2f})  ratio "
            f"{mean(r.ratio for r in own):.2f}  updated {100 * mean(r.share for r in own):.0f} %"
        )


def main() -> None:
    keep_freed_memory()
    parser = script_parser(__doc__)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--data", default="embedded", help="folder of clean, labelled images; default: embedded")
    parser.add_argument("--crop-only", action="store_true", help="the images are already resized")
    parser.add_argument("--corruption", action="append", help="repeatable; default: gaussian_noise")
    parser.add_argument("--then", help="corruption of the second half")
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--method", default="navia")
    parser.add_argument("--reduce", default="tome:8")
    parser.add_argument("--seed", action="append", type=int, help="order of the images; repeatable; default: 0")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--setting", action="append", help=f"repeatable; default: {' '.join(SETTINGS)}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a line for each stream")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = [AdapterSetting.parse(text) for text in options.setting or SETTINGS]
    vit = navia.load(options.model, checkpoint=options.checkpoint)
    if options.crop_only:
        vit.preprocessing = vit.preprocessing.crop_only()
    opened = open_domains(options.data, vit.num_classes, class_names(vit))
    opened, source = leave_out_source(opened, 64)
    clean = source.tensors(range(len(source.images)), vit.preprocessing)
    print(f"{', '.join(instruction_sets())}; {options.threads} threads", file=sys.stderr)
    done = (
        [json.loads(line) for line in options.json.read_text().splitlines()]
        if options.json and options.json.exists()
        else []
    )
    lines = []
    for seed in options.seed or [0]:
        for corruption in options.corruption or ["gaussian_noise"]:
            stream = StreamPlan(
                options.model, options.method, options.reduce, corruption, options.then, options.severity, seed,
                options.batch, options.batches,
            )  # fmt: skip
            names = [setting.name for setting in settings]
            known = (line for line in done if line["stream"] == asdict(stream) and line["settings"] == names)
            line = next(known, None)
            if line is None:
                results = run(stream, settings, vit, opened.domains[0].images, clean)
                line = {"stream": asdict(stream), "settings": names, "results": [asdict(result) for result in results]}
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(line) + "\n")
            print_results(stream, [StreamResult(**found) for found in line["results"]])
            lines.append(line)
    print_summary(lines)


if __name__ == "__main__":
    main()
