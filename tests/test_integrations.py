"""Other people's frames around an adapter: the bare library module, Lightning's predict loop, torchmetrics."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import navia
from navia.data.sample import source_images
from navia.data.sources import Domain
from tests.families import MODELS, THREE, build, images_for

pytestmark = pytest.mark.slow


def logits_of(model: Callable[..., object], images: Tensor) -> Tensor:
    """Logits of a library's own module."""
    with torch.no_grad():
        out = model(images)
    return out if isinstance(out, Tensor) else out.logits  # type: ignore[attr-defined]


# ---- adapter.model


@pytest.mark.parametrize("method", ["tent", "cotta"])
@pytest.mark.parametrize("family", THREE)
def test_the_model_is_the_librarys_own_module_with_the_weights_that_predict(family: str, method: str) -> None:
    vit = build(family)
    images = images_for(vit, 6)
    before = logits_of(vit.model, images)
    adapter = navia.adapt(vit, method, lr=0.05, **({"ema_decay": 0.5} if method == "cotta" else {}))
    for _ in range(3):
        adapter(images)
    assert type(adapter.model) is type(vit.model)
    torch.testing.assert_close(logits_of(adapter.model, images), adapter.predict(images), rtol=1e-4, atol=1e-4)
    assert adapter.drift > 0
    assert not torch.allclose(logits_of(adapter.model, images), before, atol=1e-3)
    assert torch.equal(logits_of(vit.model, images), before)  # the user's model is as it was


def test_its_weights_load_into_a_fresh_model_of_the_library() -> None:
    vit = build("timm plain")
    images = images_for(vit, 6)
    adapter = navia.adapt(vit, "tent", lr=0.05)
    adapter(images)
    fresh: nn.Module = MODELS["timm plain"]().eval()
    fresh.load_state_dict(adapter.model.state_dict())
    torch.testing.assert_close(logits_of(fresh, images), adapter.predict(images), rtol=1e-4, atol=1e-4)


def test_it_moves_with_the_steps_and_a_copy_does_not() -> None:
    vit = build("timm plain")
    adapter = navia.adapt(vit, "tent", lr=0.05)
    kept, images = copy.deepcopy(adapter.model), images_for(vit, 6)
    adapter(images)
    assert torch.equal(logits_of(kept, images), logits_of(vit.model, images))
    assert not torch.equal(logits_of(adapter.model, images), logits_of(kept, images))
    adapter.reset()
    assert torch.equal(logits_of(adapter.model, images), logits_of(kept, images))


def test_what_navia_adds_beside_the_weights_is_no_part_of_it() -> None:
    """As documented: CLS shift, CLS biases and the reducer belong to `predict` alone."""
    vit = build("timm plain")
    images = images_for(vit, 16)
    source = navia.SourceStatistics.measure(vit, images, "tome:2")
    adapter = navia.adapt(vit, "navia", "tome:2", source, eta_delta_l=0.5)
    for seed in range(3):
        adapter(images_for(vit, 16, seed) * 2)
    assert not torch.allclose(logits_of(adapter.model, images), adapter.predict(images), atol=1e-3)
    assert adapter.model.state_dict().keys() == vit.model.state_dict().keys()


# ---- Lightning and torchmetrics


@pytest.fixture(scope="module")
def noisy() -> tuple[navia.ViT, navia.SourceStatistics, TensorDataset]:
    vit = navia.load("embedded")
    clean = Domain("clean", source_images()).tensors(range(64), vit.preprocessing)
    source = navia.SourceStatistics.measure(vit, clean, "tome:8")
    shifted = Domain("noise", source_images(), "gaussian_noise", 2).tensors(range(48), vit.preprocessing)
    return vit, source, TensorDataset(shifted, vit(clean[:48]).argmax(dim=1))


def test_a_lightning_predict_step_adapts_as_the_plain_loop_does(
    noisy: tuple[navia.ViT, navia.SourceStatistics, TensorDataset],
) -> None:
    import lightning

    vit, source, data = noisy

    class Adapting(lightning.LightningModule):
        def __init__(self, adapter: navia.Adapter) -> None:
            super().__init__()
            self.adapter = adapter

        def predict_step(self, batch: list[Tensor]) -> Tensor:
            return self.adapter(batch[0])

    module = Adapting(navia.adapt(vit, "navia", "tome:8", source))
    loader = DataLoader(data, batch_size=16)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    predicted = trainer.predict(module, loader)
    plain = navia.adapt(vit, "navia", "tome:8", source)
    assert module.adapter.steps == 3
    for logits, (images, _) in zip(predicted, loader, strict=True):
        assert torch.equal(logits, plain(images))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_torchmetrics_takes_the_logits_as_they_come(
    noisy: tuple[navia.ViT, navia.SourceStatistics, TensorDataset], mode: Callable[[], object]
) -> None:
    from torchmetrics.classification import MulticlassAccuracy

    vit, source, data = noisy
    adapter = navia.adapt(vit, "navia", "tome:8", source)
    accuracy = MulticlassAccuracy(vit.num_classes, average="micro")
    right = 0
    with mode():  # type: ignore[attr-defined]
        for images, labels in DataLoader(data, batch_size=16):
            logits = adapter(images)
            accuracy.update(logits, labels)
            right += int((logits.argmax(dim=1) == labels).sum())
    assert float(accuracy.compute()) == pytest.approx(right / 48)
    assert adapter.drift > 0
