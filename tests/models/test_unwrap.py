"""Wrapped models are unwrapped with the same weights, or refused by name with what to do."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import navia
from navia.errors import ModelError
from navia.models.load import unwrap_module
from tests.families import MODELS, images_for


@pytest.fixture
def plain() -> nn.Module:
    torch.manual_seed(0)
    return MODELS["timm plain"]().eval()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def logits_of(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return navia.load(model)(images_for(navia.load(model), 2))


def test_data_parallel_and_compiled_modules_share_their_weights(plain: nn.Module) -> None:
    parallel = nn.DataParallel(plain)
    for wrapped in (parallel, torch.compile(plain, backend="eager"), torch.compile(parallel, backend="eager")):
        assert unwrap_module(wrapped) is plain
        assert navia.load(wrapped).model is plain
        assert torch.equal(logits_of(wrapped), logits_of(plain))


@pytest.mark.usefixtures("process_group")
def test_distributed_data_parallel_shares_its_weights(plain: nn.Module) -> None:
    assert navia.load(nn.parallel.DistributedDataParallel(plain)).model is plain


def test_a_wrapped_vit_of_navia_is_itself(plain: nn.Module) -> None:
    vit = navia.load(plain)
    assert navia.load(nn.DataParallel(vit)) is vit
    assert unwrap_module(plain) is plain


def test_adapt_takes_a_wrapped_model(plain: nn.Module) -> None:
    adapter = navia.adapt(nn.DataParallel(plain), "tent")
    assert adapter.source_vit.model is plain
    adapter(images_for(adapter.source_vit, 4))


# ---- PEFT: the class is recognised by name, so that these tests need no peft


class PeftModel(nn.Module):
    """Adds 1 to the classifier's bias when it is merged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.base_model = model

    def merge_and_unload(self) -> nn.Module:
        with torch.no_grad():
            self.base_model.head.bias += 1  # type: ignore[union-attr, operator]
        return self.base_model


PeftModel.__module__ = "peft.peft_model"


class UnmergeablePeftModel(PeftModel):
    def merge_and_unload(self) -> nn.Module:
        raise AttributeError("prompt tuning has nothing to merge")


UnmergeablePeftModel.__module__ = "peft.peft_model"


def test_a_peft_model_is_merged_in_a_copy(plain: nn.Module) -> None:
    wrapped = nn.DataParallel(PeftModel(plain))
    before = copy.deepcopy(wrapped.state_dict())
    merged, expected = logits_of(wrapped), logits_of(plain) + 1
    torch.testing.assert_close(merged, expected)
    assert all(torch.equal(value, before[name]) for name, value in wrapped.state_dict().items())


def test_a_peft_model_that_cannot_be_merged_is_refused(plain: nn.Module) -> None:
    with pytest.raises(ModelError, match=r"cannot merge UnmergeablePeftModel \(model.merge_and_unload\(\)\): Attr.* prompt"):
        navia.load(UnmergeablePeftModel(plain))


def test_peft_layers_without_their_peft_model_are_refused(plain: nn.Module) -> None:
    plain.head = PeftModel(plain.head)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"VisionTransformer has layers of PEFT .*merge_and_unload\(\)"):
        navia.load(plain)


def test_sharded_weights_are_refused(plain: nn.Module) -> None:
    sharded = type("FullyShardedDataParallel", (nn.Module,), {"__module__": "torch.distributed.fsdp"})
    with pytest.raises(ModelError, match=r"FullyShardedDataParallel holds a part .*get_model_state_dict"):
        navia.load(sharded())


@pytest.mark.parametrize(("family", "targets"), [("timm plain", ["qkv"]), ("transformers vit", ["q_proj", "v_proj"])])
def test_the_real_peft_library(family: str, targets: list[str]) -> None:
    peft: Any = pytest.importorskip("peft", reason="peft is not installed; the tests above use a class of the same name")
    torch.manual_seed(0)
    model = peft.get_peft_model(MODELS[family](), peft.LoraConfig(target_modules=targets, init_lora_weights=False)).eval()
    before = copy.deepcopy(model.state_dict())
    vit = navia.load(model)
    images = images_for(vit, 2)
    with torch.no_grad():
        out = model(images)
        expected = out if isinstance(out, Tensor) else out.logits
        torch.testing.assert_close(vit(images), expected, rtol=1e-4, atol=1e-4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(ModelError, match="layers of PEFT"):
        navia.load(model.get_base_model())
