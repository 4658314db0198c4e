"""`navia.load`: names, files and modules that are taken, and those that are refused with the reason."""

import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer
from torch import nn

import navia
from navia.data.preprocessing import Preprocessing
from navia.errors import CheckpointError, InputError, ModelError
from navia.models.checkpoint import num_classes_in
from tests.families import MODELS, THREE, build, images_for, own_forward, relative, shake

# ---- names and modules


def test_timm_by_name_with_options_of_its_constructor() -> None:
    vit = navia.load("timm:vit_tiny_patch16_224", pretrained=False, img_size=32, num_classes=7, depth=2)
    assert (vit.library, vit.depth, vit.embed_dim, vit.num_heads, vit.num_prefix_tokens) == ("timm", 2, 192, 3, 1)
    assert (vit.image_size, vit.patch_size, vit.grid, vit.num_classes) == ((32, 32), (16, 16), (2, 2), 7)
    assert "vit_tiny_patch16_224" in vit.name
    assert vit(torch.randn(2, 3, 32, 32)).shape == (2, 7)


def test_torchvision_by_name() -> None:
    with torch.device("meta"):  # no need to draw 86 million weights
        vit = navia.load("torchvision:vit_b_16", pretrained=False, num_classes=5)
    assert (vit.library, vit.depth, vit.num_heads, vit.embed_dim, vit.num_classes) == ("torchvision", 12, 12, 768, 5)
    assert vit.grid == (14, 14)
    assert vit.name == "torchvision:vit_b_16"


@pytest.mark.parametrize(("tag", "size"), [("IMAGENET1K_V1", 224), ("IMAGENET1K_SWAG_E2E_V1", 384)])
def test_a_torchvision_tag_shapes_the_model_for_a_checkpoint(tag: str, size: int) -> None:
    theirs = torchvision.models.ViT_B_16_Weights[tag].transforms()
    with torch.device("meta"):
        vit = navia.load(f"torchvision:vit_b_16.{tag}", pretrained=False)  # as with checkpoint=
        smaller = navia.load(f"torchvision:vit_b_16.{tag}", pretrained=False, image_size=64)
    assert vit.image_size == vit.preprocessing.size == (size, size)
    assert (vit.preprocessing.resize, vit.preprocessing.interpolation) == (theirs.resize_size[0], theirs.interpolation.value)
    assert vit.preprocessing.origin == f"torchvision's {tag}"
    assert smaller.preprocessing.size == (64, 64)
    with pytest.raises(ModelError, match="no weights 'NOSUCH' for vit_b_16"):
        navia.load("torchvision:vit_b_16.NOSUCH", pretrained=False)


def test_embedded_by_name() -> None:
    vit = navia.load("embedded")
    assert (vit.library, vit.depth, vit.embed_dim, vit.num_heads, vit.num_classes) == ("timm", 12, 64, 2, 10)
    assert (vit.in_chans, vit.image_size, vit.preprocessing.size) == (1, (28, 28), (28, 28))
    assert not vit.training
    assert torch.equal(navia.load("embedded").model.state_dict()["head.weight"], vit.model.state_dict()["head.weight"])
    with pytest.raises(ModelError, match="takes no options, got num_classes"):
        navia.load("embedded", num_classes=3)
    random = navia.load("embedded", pretrained=False)
    assert not torch.equal(random.model.state_dict()["head.weight"], vit.model.state_dict()["head.weight"])
    assert random.preprocessing == vit.preprocessing


@pytest.fixture
def hf_folder(tmp_path: Path) -> Path:
    model: Any = shake(MODELS["transformers vit"]())
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_hf_folder_without_image_processor_assumes_the_usual_and_says_so(hf_folder: Path) -> None:
    vit = navia.load(f"hf:{hf_folder}")
    images = images_for(vit)
    assert relative(vit(images), own_forward(build("transformers vit"), images)) <= 1e-5
    assert vit.library == "transformers"
    assert vit.preprocessing.size == (32, 32)
    assert "assumed" in vit.preprocessing.origin


def test_hf_folder_with_image_processor_takes_its_values(hf_folder: Path) -> None:
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1, 0.2, 0.3], resample=3)
    processor.save_pretrained(hf_folder)
    given = navia.load(f"hf:{hf_folder}").preprocessing
    assert given.size == given.resize == (32, 32)
    assert given.mean == (0.1, 0.2, 0.3)
    assert given.std == (0.5, 0.5, 0.5)
    assert given.interpolation == "bicubic"
    assert given.origin == "image processor of model"


def test_hf_image_processor_that_does_not_normalise(hf_folder: Path) -> None:
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}, do_normalize=False).save_pretrained(hf_folder)
    given = navia.load(f"hf:{hf_folder}").preprocessing
    assert (given.mean, given.std) == ((0, 0, 0), (1, 1, 1))


def test_hf_image_processor_without_a_fixed_size_gives_way_to_ones_own(hf_folder: Path) -> None:
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, do_center_crop=False).save_pretrained(hf_folder)
    with pytest.raises(ModelError, match="neither crops nor resizes to a fixed size; pass preprocessing="):
        navia.load(f"hf:{hf_folder}")
    given = Preprocessing((32, 32), (0.1,) * 3, (0.2,) * 3)
    assert navia.load(f"hf:{hf_folder}", preprocessing=given).preprocessing is given


def test_hf_folder_random_weights_on_request(hf_folder: Path) -> None:
    images = torch.randn(1, 3, 32, 32)
    assert relative(navia.load(f"hf:{hf_folder}", pretrained=False)(images), navia.load(f"hf:{hf_folder}")(images)) > 0.01


@pytest.mark.parametrize("name", MODELS)
def test_ready_modules_are_wrapped_not_copied(name: str) -> None:
    model = MODELS[name]().train()
    vit = navia.load(model)
    assert vit.model is model
    assert not any(module.training for module in vit.modules())
    assert vit.image_size is None or vit.grid[0] * vit.grid[1] == vit.embed(images_for(vit)).shape[1] - vit.num_prefix_tokens
    assert vit.cls_token.shape == (1, 1, vit.embed_dim)
    assert vit.num_classes == 11
    assert vit.name.startswith({"timm": "timm:", "transformers": "hf:", "torchvision": "torchvision:"}[vit.library])


@pytest.mark.parametrize("name", MODELS)
def test_layer_norms_are_named_as_in_the_model_and_in_the_order_of_the_forward(name: str) -> None:
    vit = build(name)
    norms = vit.layer_norms()
    assert len(norms) == 2 * vit.depth + 1
    assert all(vit.model.get_submodule(key) is norm for key, norm in norms.items())
    called: list[str] = []
    hooks = [norm.register_forward_hook(lambda *_, key=key: called.append(key)) for key, norm in norms.items()]
    with torch.no_grad():
        own_forward(vit, images_for(vit))
    for hook in hooks:
        hook.remove()
    assert called == list(norms)


def test_a_vit_passes_through() -> None:
    vit = build("timm plain")
    assert navia.load(vit) is vit


def test_a_vit_takes_new_preprocessing_and_checkpoints(tmp_path: Path) -> None:
    vit = build("timm plain")
    other = build("timm plain", seed=5)
    save_file(other.model.state_dict(), tmp_path / "other.safetensors")
    given = Preprocessing((32, 32), (0.1,) * 3, (0.2,) * 3)
    loaded = navia.load(vit, preprocessing=given, checkpoint=tmp_path / "other.safetensors")
    assert loaded.preprocessing is given
    assert torch.equal(loaded(images_for(vit)), other(images_for(vit)))


def test_new_preprocessing_keeps_how_a_vit_walks() -> None:
    vit = build("timm plain")
    own = vit.preprocessing
    vit.grad_checkpointing, vit.precision, vit.compile_backend, vit.whole_last_block = True, "bfloat16", "eager", True
    other = navia.load(vit, preprocessing=Preprocessing((32, 32), (0.1,) * 3, (0.2,) * 3))
    assert (other.grad_checkpointing, other.precision, other.compile_backend, other.whole_last_block) == (
        True,
        "bfloat16",
        "eager",
        True,
    )
    assert other is not vit
    assert vit.preprocessing is own


def test_a_checkpoint_never_overwrites_what_was_given(tmp_path: Path) -> None:
    vit, other = build("timm plain"), build("timm plain", seed=5)
    save_file(other.model.state_dict(), tmp_path / "other.safetensors")
    adapter, images = navia.adapt(vit, "tent"), images_for(vit)
    before, answer = vit(images), adapter.predict(images)
    of_vit = navia.load(vit, checkpoint=tmp_path / "other.safetensors")
    of_module = navia.load(vit.model, checkpoint=tmp_path / "other.safetensors")
    assert torch.equal(vit(images), before)
    assert torch.equal(adapter.predict(images), answer)
    for loaded in (of_vit, of_module):
        assert torch.equal(loaded(images), other(images))


def test_a_view_of_a_vit_shares_its_weights_and_no_setting() -> None:
    vit = build("timm plain")
    vit.train()
    vit.compile_backend = "eager"
    given = Preprocessing((32, 32), (0.1,) * 3, (0.2,) * 3)
    view = navia.load(vit, grad_checkpointing=True, precision="bfloat16", preprocessing=given)
    assert (vit.grad_checkpointing, vit.precision, vit.preprocessing is given) == (False, "float32", False)
    assert (view.grad_checkpointing, view.precision, view.preprocessing is given, view.compile_backend) == (
        True,
        "bfloat16",
        True,
        "eager",
    )
    assert view.model is vit.model
    assert vit.model.training
    view.model = build("timm plain", seed=5).model
    view.register_forward_hook(lambda *_: None)
    assert vit.model is not view.model
    assert not vit._forward_hooks


def test_settings_of_a_vit_are_kept_unless_they_are_given() -> None:
    vit = navia.load(build("timm plain"), grad_checkpointing=True, precision="bfloat16")
    kept = navia.load(vit)
    assert kept is vit
    back = navia.load(vit, grad_checkpointing=False, precision="float32")
    assert (back.grad_checkpointing, back.precision) == (False, "float32")
    assert (vit.grad_checkpointing, vit.precision) == (True, "bfloat16")
    fresh = navia.load(MODELS["timm plain"]())
    assert (fresh.grad_checkpointing, fresh.precision) == (False, "float32")


@pytest.mark.parametrize(
    ("library", "suffix"),
    [
        ("timm", "safetensors"),
        ("timm", "pth"),
        ("timm distilled", "safetensors"),
        ("hf", "safetensors"),
    ],
)
def test_the_number_of_classes_is_read_from_the_checkpoint(
    library: str, suffix: str, hf_folder: Path, tmp_path: Path
) -> None:
    name, model = {
        "timm": ("timm:vit_tiny_patch16_224", lambda: timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=7)),
        "timm distilled": (
            "timm:deit_tiny_distilled_patch16_224",
            lambda: timm.create_model("deit_tiny_distilled_patch16_224", depth=1, num_classes=7),
        ),
        "hf": (f"hf:{hf_folder}", lambda: transformers.AutoModelForImageClassification.from_pretrained(
            hf_folder, num_labels=7, ignore_mismatched_sizes=True)),
    }[library]  # fmt: skip
    path, state = tmp_path / f"mine.{suffix}", model().state_dict()
    save_file(state, path) if suffix == "safetensors" else torch.save({"state_dict": state}, path)
    options = {"depth": 1} if library.startswith("timm") else {}
    vit = navia.load(name, checkpoint=path, **options)
    assert vit.num_classes == 7
    assert all(torch.equal(vit.model.state_dict()[key], value) for key, value in state.items())
    with pytest.raises(CheckpointError, match=r"\(7, .*in the file, \(5, "):
        navia.load(name, checkpoint=path, num_classes=5, **options)  # what one says counts


def test_the_number_of_classes_of_a_torchvision_checkpoint(tmp_path: Path) -> None:
    save_file(MODELS["torchvision"]().state_dict(), tmp_path / "mine.safetensors")
    assert num_classes_in(tmp_path / "mine.safetensors", "torchvision") == 11
    assert num_classes_in(tmp_path / "mine.safetensors", "timm") is None


def test_a_checkpoint_with_two_numbers_of_classes_asks_for_the_option(tmp_path: Path) -> None:
    save_file({"head.weight": torch.zeros(3, 192), "head_dist.weight": torch.zeros(4, 192)}, tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"classifiers of 3 and 4 classes: give num_classes \(--num-classes\)"):
        navia.load("timm:deit_tiny_distilled_patch16_224", checkpoint=tmp_path / "two.safetensors", depth=1)


def test_given_preprocessing_overrides_the_models_own() -> None:
    given = Preprocessing((32, 32), (0.1,) * 3, (0.2,) * 3)
    assert navia.load(MODELS["timm plain"](), preprocessing=given).preprocessing is given


def test_options_for_a_ready_module_are_refused() -> None:
    with pytest.raises(ModelError, match="num_classes"):
        navia.load(MODELS["timm plain"](), num_classes=3)


@pytest.mark.parametrize("name", ["vit_tiny", "", "timm:", "hf:", "torchvision:", "keras:vit", ":vit_tiny"])
def test_malformed_names_are_refused_with_the_known_forms(name: str) -> None:
    with pytest.raises(ModelError, match="write timm:NAME, hf:ORG/NAME, hf:FOLDER, torchvision:NAME or embedded"):
        navia.load(name)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("timm:nope", "timm has no model 'nope'"),
        ("timm:vit_tiny_patch16_22", "near: .*vit_tiny_patch16_224"),
        ("torchvision:vit_z_16", "no ViT 'vit_z_16'; known: .*vit_b_16"),
        ("torchvision:resnet18", "no ViT 'resnet18'"),
        ("torchvision:vit_b_16.NOSUCH", "no weights 'NOSUCH' for vit_b_16; known: .*IMAGENET1K_V1"),
    ],
)
def test_unknown_names_are_refused_with_a_hint(name: str, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        navia.load(name)


def test_hf_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="transformers cannot load") as caught:
        navia.load(f"hf:{tmp_path / 'nothing'}")
    assert "\n" not in str(caught.value)


def test_unknown_constructor_option_is_refused() -> None:
    with pytest.raises(ModelError, match="nosuch"):
        navia.load("timm:vit_tiny_patch16_224", pretrained=False, nosuch=1)


# ---- checkpoints


def _wrapped(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        "plain": state,
        "state_dict": {"state_dict": state, "epoch": 3},
        "model": {"model": state, "optimizer": {"lr": 0.1}},
        "data parallel": {f"module.{key}": value for key, value in state.items()},
        "both": {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    }


@pytest.mark.parametrize("name", THREE)
def test_safetensors_round_trip(name: str, tmp_path: Path) -> None:
    source = build(name, seed=4)
    save_file({key: value.contiguous() for key, value in source.model.state_dict().items()}, tmp_path / "w.safetensors")
    loaded = navia.load(MODELS[name](), checkpoint=tmp_path / "w.safetensors")
    images = images_for(source)
    assert torch.equal(loaded(images), source(images))
    assert not loaded.training


@pytest.mark.parametrize("form", ["plain", "state_dict", "model", "data parallel", "both"])
def test_pth_round_trip_out_of_the_usual_wrappers(form: str, tmp_path: Path) -> None:
    source = build("timm plain", seed=4)
    torch.save(_wrapped(source.model.state_dict())[form], tmp_path / "w.pth")
    images = images_for(source)
    assert torch.equal(navia.load(MODELS["timm plain"](), checkpoint=tmp_path / "w.pth")(images), source(images))


def _spoil(state: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    if how == "missing":
        del state["head.weight"], state["head.bias"]
    elif how == "extra":
        state["surplus.weight"] = torch.zeros(3)
    elif how == "shape":
        state["head.weight"] = torch.zeros(12, 48)
    elif how == "nan":
        state["blocks.1.norm1.weight"][3] = float("nan")
    elif how == "inf":
        state["head.bias"][0] = float("inf")
    return state


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ("missing", r"2 missing \(head.weight, head.bias\)"),
        ("extra", r"1 unknown to the model \(surplus.weight\)"),
        ("shape", r"1 of another shape \(head.weight: \(12, 48\) in the file, \(11, 48\) in the model\)"),
        ("nan", r"NaN or infinite weights \(blocks.1.norm1.weight\)"),
        ("inf", r"NaN or infinite weights \(head.bias\)"),
    ],
)
def test_checkpoint_that_does_not_fit_is_named_and_changes_nothing(
    how: str, complaint: str, suffix: str, tmp_path: Path
) -> None:
    model = MODELS["timm plain"]()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    path = tmp_path / f"w.{suffix}"
    state = _spoil({key: value.clone() for key, value in build("timm plain").model.state_dict().items()}, how)
    if suffix == "pth":
        torch.save(state, path)
    else:
        save_file(state, path)
    with pytest.raises(CheckpointError, match=complaint):
        navia.load(model, checkpoint=path)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


class _Payload:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.write_text, (self.path, "ran")


def test_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "ran.txt"
    torch.save({"head.weight": _Payload(trace)}, tmp_path / "torch.pth")
    (tmp_path / "plain.pth").write_bytes(pickle.dumps(_Payload(trace)))
    for name in ("torch.pth", "plain.pth"):
        with pytest.raises(CheckpointError, match=f"cannot read checkpoint {name}"):
            navia.load(MODELS["timm plain"](), checkpoint=tmp_path / name)
    assert not trace.exists()
    with (tmp_path / "plain.pth").open("rb") as file:
        pickle.load(file)
    assert trace.exists()  # it would have run


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("content", [b"", b"garbage" * 50, b"\x80\x04garbage"])
def test_unreadable_checkpoint_is_refused_in_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"cannot read checkpoint {name}") as caught:
        navia.load(MODELS["timm plain"](), checkpoint=tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("content", "complaint"), [([1, 2], "found list"), ({"epoch": 3}, "holds no tensors")])
def test_checkpoint_without_weights_is_refused(content: Any, complaint: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=complaint):
        navia.load(MODELS["timm plain"](), checkpoint=tmp_path / "w.pth")


def test_missing_checkpoint_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint file '.*nowhere\.pth'"):
        navia.load("timm:vit_tiny_patch16_224", checkpoint=tmp_path / "nowhere.pth", depth=1)


def test_hf_folder_without_classifier_weights_is_refused(tmp_path: Path) -> None:
    """transformers itself would fill them with random numbers."""
    model: Any = MODELS["transformers vit"]()
    model.vit.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no weights for classifier\.bias, classifier\.weight: .* at random"):
        navia.load(f"hf:{tmp_path}")


# ---- classifiers of one's own


HEAD_OF = {
    "timm plain": "head",
    "transformers vit": "classifier",
    "transformers dinov2": "classifier",
    "torchvision": "heads",
}

OWN_HEADS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda dim: nn.Linear(dim, 5),
    "dropout, linear": lambda dim: nn.Sequential(nn.Dropout(0.5), nn.Linear(dim, 5)),
    "mlp, dropout": lambda dim: nn.Sequential(
        nn.LayerNorm(dim), nn.Sequential(nn.Linear(dim, 7), nn.GELU()), nn.Linear(7, 5), nn.Dropout(0.5)
    ),
}


def _with_head(family: str, head: Callable[[int], nn.Module]) -> nn.Module:
    model = MODELS[family]()
    setattr(model, HEAD_OF[family], head(96 if "dinov2" in family else 48))
    return shake(model)


@pytest.mark.parametrize("head", OWN_HEADS)
@pytest.mark.parametrize("family", HEAD_OF)
def test_classifiers_in_a_sequential_are_taken(family: str, head: str) -> None:
    vit = navia.load(_with_head(family, OWN_HEADS[head]))
    images = images_for(vit, 8)
    assert vit.num_classes == 5
    assert relative(vit(images), own_forward(vit, images)) <= 1e-5
    linears = 7 * (vit.model.get_submodule(HEAD_OF[family])[1][0].in_features + 5) if head == "mlp, dropout" else None
    if linears is not None:
        assert navia.cost(vit).macs["head"] == linears
    adapter = navia.adapt(vit, "tent", classes=[0, 2])
    assert adapter(images).shape == (8, 2)


@pytest.mark.parametrize("family", HEAD_OF)
@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (lambda dim: nn.Sequential(nn.Linear(dim, 5), nn.Softmax(1)), "ends in Softmax"),
        (lambda dim: nn.Bilinear(dim, dim, 5), "is a Bilinear"),
        (lambda dim: nn.Sequential(nn.Dropout(0.5)), "has no classifier"),
        (lambda dim: nn.Identity(), "has no classifier"),
    ],
)
def test_other_classifiers_are_refused_by_name(family: str, head: Callable[[int], nn.Module], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        navia.load(_with_head(family, head))


# ---- what is refused


class _OwnFeatures(VisionTransformer):
    def forward_features(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        return super().forward_features(x.flip(-1))


def _small(**options: Any) -> VisionTransformer:
    return VisionTransformer(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=11, **options)


def _hf_tiny(kind: str, config: str, **options: Any) -> nn.Module:
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    made = getattr(transformers, config)(**{**sizes, "image_size": 32, "patch_size": 8, **options})
    return getattr(transformers, kind)(made)


def _siglip() -> nn.Module:
    config = transformers.SiglipConfig()
    config.vision_config = transformers.SiglipVisionConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96, image_size=32, patch_size=8
    )
    return transformers.SiglipForImageClassification(config)


def _hf_swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=24, depths=[1, 1], num_heads=[2, 2], window_size=4
    )
    return transformers.SwinForImageClassification(config)


def _hf_convnext() -> nn.Module:
    return transformers.ConvNextForImageClassification(
        transformers.ConvNextConfig(hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1])
    )


def _torchvision_swin() -> nn.Module:
    return torchvision.models.SwinTransformer([4, 4], 24, [1, 1], [2, 2], [4, 4])


REFUSED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "timm eva02": (lambda: timm.create_model("eva02_tiny_patch14_224", depth=1), "Eva", "rotary"),
    "timm rope vit": (lambda: timm.create_model("vit_small_patch16_rope_224", depth=1), "Eva", "rotary"),
    "timm beit": (
        lambda: timm.create_model("beit_base_patch16_224", depth=1, embed_dim=48, num_heads=3),
        "Beit",
        "relative",
    ),
    "timm relpos": (
        lambda: timm.create_model("vit_relpos_small_patch16_224", depth=1),
        "VisionTransformerRelPos",
        "relative",
    ),
    "timm swin": (
        lambda: timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)),
        "SwinTransformer",
        "windowed",
    ),
    "timm resnet": (lambda: timm.create_model("resnet10t"), "ResNet", "convolutional"),
    "timm no class token": (
        lambda: _small(class_token=False, global_pool="avg"),
        "VisionTransformer",
        "no [CLS] token",
    ),
    "timm siglip": (
        lambda: timm.create_model("vit_base_patch16_siglip_224", depth=1, embed_dim=48, num_heads=3, num_classes=11),
        "VisionTransformer",
        "no [CLS] token",
    ),
    "timm average pooling": (lambda: _small(global_pool="avg"), "VisionTransformer", "does not read [CLS]"),
    "timm no head": (
        lambda: timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=0),
        "VisionTransformer",
        "num_classes=0",
    ),
    "timm parallel blocks": (
        lambda: _small(block_fn=ParallelScalingBlock),
        "VisionTransformer",
        "is a ParallelScalingBlock",
    ),
    "timm rms norm": (
        lambda: _small(norm_layer=timm.layers.RmsNorm),
        "VisionTransformer",
        "RmsNorm, not by LayerNorm",
    ),
    "timm hybrid": (
        lambda: timm.create_model("vit_tiny_r_s16_p8_224", depth=1),
        "VisionTransformer",
        "HybridEmbed is not a convolution",
    ),
    "timm subclass": (
        lambda: _OwnFeatures(img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=3),
        "_OwnFeatures",
        "overrides timm's VisionTransformer.forward_features",
    ),
    "transformers beit": (
        lambda: _hf_tiny("BeitForImageClassification", "BeitConfig"),
        "BeitForImageClassification",
        "relative",
    ),
    "transformers swin": (_hf_swin, "SwinForImageClassification", "windowed"),
    "transformers siglip": (_siglip, "SiglipForImageClassification", "no [CLS] token"),
    "transformers convnext": (_hf_convnext, "ConvNextForImageClassification", "convolutional"),
    "transformers dinov3": (lambda: _hf_tiny("DINOv3ViTModel", "DINOv3ViTConfig"), "DINOv3ViTModel", "rotary"),
    "transformers vit without head": (lambda: _hf_tiny("ViTModel", "ViTConfig"), "ViTModel", "no classifier"),
    "transformers vit without labels": (
        lambda: _hf_tiny("ViTForImageClassification", "ViTConfig", num_labels=0),
        "ViTForImageClassification",
        "num_labels=0",
    ),
    "transformers dinov2 without head": (
        lambda: _hf_tiny("Dinov2Model", "Dinov2Config"),
        "Dinov2Model",
        "no classifier",
    ),
    "torchvision resnet18": (torchvision.models.resnet18, "ResNet", "convolutional"),
    "torchvision swin": (_torchvision_swin, "SwinTransformer", "windowed"),
    "plain module": (lambda: nn.Linear(3, 3), "torch.nn.modules.linear.Linear", "not one of the supported classes"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_models_that_cannot_be_walked_are_refused_by_name(what: str) -> None:
    make, kind, reason = REFUSED[what]
    with pytest.raises(ModelError) as caught:
        navia.load(make())
    message = str(caught.value)
    assert kind in message
    assert reason in message
    assert "Supported: timm VisionTransformer" in message
    assert "\n" not in message


def test_refusal_by_timm_name_too() -> None:
    with pytest.raises(ModelError, match=r"timm\.models\.resnet\.ResNet is not supported: .*Supported"):
        navia.load("timm:resnet10t", pretrained=False)


# ---- preprocessing, against the libraries' own transforms

SHAPES = [(301, 233), (224, 224), (200, 203)]  # a large margin, none, an odd one after upscaling


@cache
def picture(size: tuple[int, int], mode: str = "RGB") -> Image.Image:
    """Smooth noise in all channels, away from black and white, where resizing backends clip differently."""
    rng = np.random.default_rng(size[0])
    coarse = rng.integers(48, 208, (size[1] // 9 + 2, size[0] // 9 + 2, 4), dtype=np.uint8)
    return Image.fromarray(coarse, "RGBA").resize(size, Image.Resampling.BICUBIC).convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize(
    "name",
    [
        "vit_tiny_patch16_224.augreg_in21k_ft_in1k",  # half means, crop 0.9
        "deit3_small_patch16_224.fb_in1k",  # ImageNet means
        "vit_base_patch16_clip_224.openai_ft_in1k",  # CLIP means
    ],
)
def test_preprocessing_is_that_of_timm(name: str, mode: str) -> None:
    model = timm.create_model(name, depth=1, embed_dim=48, num_heads=3)
    theirs: Any = create_transform(**resolve_model_data_config(model), is_training=False)
    ours = navia.load(model).preprocessing
    for size in SHAPES:
        image = picture(size, mode)
        assert torch.allclose(ours(image), theirs(image.convert("RGB")), rtol=0, atol=1e-6), size


def test_squashing_preprocessing_is_that_of_timm() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1)
    model.pretrained_cfg = {**model.pretrained_cfg, "crop_mode": "squash"}
    theirs: Any = create_transform(**resolve_model_data_config(model), is_training=False)
    for size in SHAPES:
        assert torch.allclose(navia.load(model).preprocessing(picture(size)), theirs(picture(size)), rtol=0, atol=1e-6)


def test_unknown_crop_mode_is_refused_rather_than_guessed() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1)
    model.pretrained_cfg = {**model.pretrained_cfg, "crop_mode": "border"}
    with pytest.raises(ModelError, match="crop mode 'border' is not known; pass preprocessing="):
        navia.load(model)


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_preprocessing_is_that_of_torchvision(mode: str) -> None:
    theirs = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1.transforms()
    ours = navia.load(torchvision.models.VisionTransformer(224, 16, 1, 3, 48, 96)).preprocessing
    for size in SHAPES:
        image = picture(size, mode)
        assert torch.allclose(ours(image), theirs(image.convert("RGB")), rtol=0, atol=1e-6), size


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize(("kind", "config"), [("ViT", "ViT"), ("DeiT", "DeiT"), ("Bit", "Dinov2")])
def test_preprocessing_is_that_of_the_transformers_processor(kind: str, config: str, mode: str, tmp_path: Path) -> None:
    """To the bit with the Pillow backend. The tensor backend rounds its resize differently: 2 of 255 levels at most."""
    options = {"image_size": 224, "patch_size": 56, "num_labels": 11}
    _hf_tiny(f"{config}ForImageClassification", f"{config}Config", **options).save_pretrained(tmp_path)
    for backend, levels in (("Pil", 0.0), ("", 2.0)):
        processor = getattr(transformers, f"{kind}ImageProcessor{backend}")()
        processor.save_pretrained(tmp_path)
        ours = navia.load(f"hf:{tmp_path}").preprocessing
        for size in SHAPES:
            image = picture(size, mode)
            theirs = torch.as_tensor(processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0])
            apart = ours.denormalise(ours(image) - theirs) - ours.denormalise(torch.zeros_like(theirs))
            assert apart.abs().max() * 255 <= levels + 1e-3, size


@pytest.mark.parametrize(
    ("name", "processor"),
    [
        ("transformers vit", "ViTImageProcessor"),
        ("transformers deit", "DeiTImageProcessor"),
    ],
)
def test_assumed_preprocessing_is_the_librarys_default(name: str, processor: str) -> None:
    base = name.split()[1].replace("vit", "ViT").replace("deit", "DeiT")
    model = _hf_tiny(f"{base}ForImageClassification", f"{base}Config", image_size=224, patch_size=56)
    ours, theirs = navia.load(model).preprocessing, getattr(transformers, processor)()
    assert list(ours.mean) == list(theirs.image_mean)
    assert list(ours.std) == list(theirs.image_std)
    assert ours.resize == (theirs.size["height"], theirs.size["width"])
    assert ours.interpolation == Image.Resampling(theirs.resample).name.lower()
    assert ours.size == (224, 224)


def test_grey_models_get_one_channel_and_oblong_ones_any_picture() -> None:
    preprocessing = build("timm grey, oblong").preprocessing
    for size in SHAPES:
        assert preprocessing(picture(size)).shape == (1, 24, 40)
    values = preprocessing(picture((300, 300)))
    expected = np.asarray(picture((300, 300)).convert("L").resize((40, 40), Image.Resampling.BICUBIC))[8:32] / 255
    assert torch.allclose(values[0], torch.tensor((expected - 0.5) / 0.5, dtype=torch.float32), atol=1e-6)


def test_crop_only_leaves_the_pixels_as_they_are() -> None:
    """For files that are already resized, as those of ImageNet-C."""
    preprocessing = Preprocessing((4, 6), (0.5,) * 3, (0.25,) * 3, resize=99).crop_only()
    image = picture((9, 8))
    pixels = np.asarray(image)[2:6, 2:8].transpose(2, 0, 1) / 255  # left margin 1.5 goes to the even side
    assert torch.allclose(preprocessing(image), torch.tensor((pixels - 0.5) / 0.25, dtype=torch.float32), atol=1e-6)
    assert "crop only" in preprocessing.origin
    assert "shorter side" not in preprocessing.describe()


def test_denormalise_undoes_the_last_step_and_batch_stacks() -> None:
    preprocessing = Preprocessing((8, 8), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1), resize=8)
    images = [picture((20, 30)), picture((21, 17), "L")]
    batch = preprocessing.batch(images)
    assert batch.shape == (2, 3, 8, 8)
    assert torch.equal(batch[1], preprocessing(images[1]))
    pixels = torch.from_numpy(np.array(preprocessing.crop(images[0]))).permute(2, 0, 1) / 255
    assert torch.allclose(preprocessing.denormalise(batch)[0], pixels, atol=1e-6)


def test_images_come_as_pillow_arrays_tensors_or_paths(tmp_path: Path) -> None:
    preprocessing = Preprocessing((8, 8), (0.5,) * 3, (0.5,) * 3, resize=8)
    image, grey = picture((20, 30)), picture((20, 30), "L")
    image.save(tmp_path / "one.png")
    pixels, light = np.array(image), np.array(grey)
    several = [image, pixels, torch.tensor(pixels).permute(2, 0, 1), tmp_path / "one.png", str(tmp_path / "one.png")]
    batch = preprocessing.batch(several)
    assert all(torch.equal(one, preprocessing(image)) for one in batch)
    for same in (light, light[..., None], torch.tensor(light)[None]):
        assert torch.equal(preprocessing(same), preprocessing(grey))
    assert torch.equal(preprocessing.batch(np.stack([pixels, pixels])), batch[:2])


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        ([np.zeros((8, 8, 3), np.float32)], "an image must be .* got an array of float32"),
        ([np.zeros((8, 8, 2), np.uint8)], r"array of uint8 and shape \(8, 8, 2\)"),
        ([torch.zeros(3, 8, 8)], r"tensor of torch\.float32"),
        ([torch.zeros(8, 8, 3, dtype=torch.uint8)], r"tensor of torch\.uint8 and shape \(8, 8, 3\)"),
        ([7], "got int"),
        (["nowhere.png"], "no image file 'nowhere.png'"),
        ("nowhere.png", "a list of images"),
        (Image.new("L", (8, 8)), "a list of images"),
        ([], "a list of images"),
    ],
)
def test_other_images_are_refused_by_name(images: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Preprocessing((8, 8), (0.5,) * 3, (0.5,) * 3, resize=8).batch(images)


def test_describe_says_what_is_done_to_a_picture() -> None:
    text = Preprocessing((224, 196), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, "bilinear", "somewhere").describe()
    for part in ("256", "bilinear", "196x224", "0.485, 0.456, 0.406", "0.229, 0.224, 0.225", "somewhere"):
        assert part in text
    assert "resize to 30x40" in Preprocessing((40, 30), (0.5,), (0.5,), (40, 30)).describe()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"interpolation": "cubic"}, "unknown interpolation 'cubic'; known: nearest, bilinear"),
        ({"mean": (0.5,) * 3}, "got 3 and 1"),
        ({"mean": (0.5,) * 2, "std": (0.5,) * 2}, "1, 3 or 4 channels, got 2 and 2"),
        ({"size": (0, 8)}, "positive sizes"),
        ({"std": (0.0,)}, "positive standard deviations"),
        ({"resize": 0}, "positive"),
        ({"resize": (8, -1)}, "positive"),
    ],
)
def test_impossible_preprocessing_is_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Preprocessing(**{"size": (8, 8), "mean": (0.5,), "std": (0.5,), **options})


def test_picture_smaller_than_the_crop_is_refused() -> None:
    with pytest.raises(InputError, match="image of 5x9 px is smaller than the crop of 8x8 px: leave out --crop-only"):
        Preprocessing((8, 8), (0.5,), (0.5,))(picture((5, 9)))
    with pytest.raises(InputError, match=r"smaller than the crop of 8x8 px$"):  # resized, but to less than the crop
        Preprocessing((8, 8), (0.5,), (0.5,), resize=6)(picture((5, 9)))
