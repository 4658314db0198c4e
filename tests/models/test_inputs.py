"""Bad inputs are refused at the boundary with one line that says what is wrong."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import navia
from navia.data.preprocessing import Preprocessing
from navia.errors import InputError, ModelError, NaviaError, SpecError
from navia.reduction import EViT, NoReduction, ToFu, ToMe, parse
from tests.families import build, images_for


@pytest.fixture(scope="module")
def vit() -> navia.ViT:
    return build("timm plain")


def _spoilt(value: float, *rows: int) -> torch.Tensor:
    images = torch.zeros(12, 3, 32, 32)
    for row in rows:
        images[row, 1, 5, 7] = value
    return images


BAD_IMAGES: dict[str, tuple[Any, str]] = {
    "wrong size": (torch.zeros(2, 3, 32, 40), "takes images of 32x32 px, got 40x32"),
    "wrong channels": (torch.zeros(2, 1, 32, 32), r"takes 3 channel\(s\), got images with 1"),
    "channels last": (torch.zeros(2, 32, 32, 3), r"takes 3 channel\(s\), got images with 32"),
    "NaN": (_spoilt(float("nan"), 1, 10), r"NaN or infinite pixels \(rows 1, 10 of the batch\)"),
    "infinity": (_spoilt(float("inf"), 0), r"NaN or infinite pixels \(rows 0 of the batch\)"),
    "minus infinity": (_spoilt(float("-inf"), 3), r"rows 3 of the batch"),
    "many NaN": (_spoilt(float("nan"), *range(12)), r"rows 0, 1, 2, 3, 4, 5, 6, 7 of the batch"),
    "empty batch": (torch.zeros(0, 3, 32, 32), "empty batch"),
    "integers": (torch.zeros(2, 3, 32, 32, dtype=torch.uint8), r"normalised floats .*preprocessing.*uint8"),
    "booleans": (torch.zeros(2, 3, 32, 32, dtype=torch.bool), r"normalised floats"),
    "complex": (torch.zeros(2, 3, 32, 32, dtype=torch.complex64), r"normalised floats"),
    "one image without a batch": (torch.zeros(3, 32, 32), r"4 dimensions \[B, C, H, W\], got shape \(3, 32, 32\)"),
    "five dimensions": (torch.zeros(1, 2, 3, 32, 32), "4 dimensions"),
    "numpy array": (np.zeros((2, 3, 32, 32), dtype=np.float32), r"tensor \[B, C, H, W\], got ndarray"),
    "list": ([torch.zeros(3, 32, 32)], "got list"),
    "nothing": (None, "got NoneType"),
    "another device": (torch.zeros(2, 3, 32, 32, device="meta"), "images are on meta, .* is on cpu"),
}


@pytest.mark.parametrize("what", BAD_IMAGES)
def test_bad_images_are_refused(vit: navia.ViT, what: str) -> None:
    images, complaint = BAD_IMAGES[what]
    with pytest.raises(InputError, match=complaint) as caught:
        vit(images, reduce="tome:2")
    assert "\n" not in str(caught.value)


def test_oblong_size_is_named_width_first() -> None:
    with pytest.raises(InputError, match="takes images of 40x24 px, got 24x40"):
        build("timm grey, oblong")(torch.zeros(1, 1, 40, 24))


@pytest.mark.parametrize("name", ["timm dynamic size", "transformers dinov2"])
def test_dynamic_size_takes_multiples_of_the_patch_and_no_others(name: str) -> None:
    vit = build(name)
    assert vit(torch.zeros(1, 3, 24, 48), reduce="tome:1").shape == (1, 11)
    with pytest.raises(InputError, match="image size 36x24 px is not a multiple of the patch size 8x8"):
        vit(torch.zeros(1, 3, 24, 36))
    with pytest.raises(InputError, match="not a multiple"):
        vit(torch.zeros(1, 3, 0, 8))


@pytest.mark.parametrize(
    ("classes", "complaint"),
    [
        ([0, 11], "reach from 0 to 11, but .* has 11 classes"),
        ([-1, 3], "reach from -1 to 3"),
        ([2, 3, 2], "name a class twice"),
        ([], "non-empty list of class indices"),
        ([0.5, 1.0], "list of class indices"),
        ([[1, 2]], "list of class indices"),
        (torch.ones(11, dtype=torch.bool), "list of class indices"),
        (3, "list of class indices"),
        ("abc", "list of class indices"),
        ([[1], [1, 2]], "list of class indices"),
    ],
)
def test_bad_class_masks_are_refused(vit: navia.ViT, classes: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        vit(images_for(vit), classes=classes)


BAD_REDUCERS: dict[Any, str] = {
    "nosuch:3": "unknown reducer 'nosuch'; known: evit, none, tofu, tome",
    "": "unknown reducer ''",
    "tome:eight": "malformed reducer 'tome:eight': 'eight' is not a number",
    "tome:-1": "r must not be negative, got -1",
    "tome": "malformed reducer 'tome'; known forms: 'none', 'tome:8'",
    "tome:": "malformed reducer 'tome:'",
    "tome:1,2,3": "malformed reducer 'tome:1,2,3'",
    "tome:8,2": "inflection between -1 and 1",
    "tome:8,nan": "inflection between -1 and 1",
    "tome:2.5": r"r must be an int.* got 2\.5",
    "tome:2.5,1": r"inflected r is \(int, inflection",
    "tome:inf": "r must be an int",
    "none:3": "'none' takes no amount, got 'none:3'",
    "evit:4,nosuch=1": "no option 'nosuch'; known: fuse",
    "tofu:4,fuse=true": "no option 'fuse'; known: split, compat",
    "evit:4,fuse=maybe": "option fuse must be true or false, got 'maybe'",
    "tome:4,proportional=3": "option proportional must be true or false, got '3'",
    "tofu:4,split=true": "option split must be a number, got 'true'",
    "tofu:4,split=-2": "option split must be a number, got '-2'",
    "tome:[1,2": "malformed reducer",
    "tome:[12": r"'\[12' is not a number",
    "tome:12]": r"'12\]' is not a number",
    "tome:[1,x]": "malformed reducer",
    "tome:[1,-2]": "one int >= 0 per block",
    "tome:[1,2],3": "malformed reducer",
    "tome:[1,1,1,1,1]": "5 amounts given, but the model has 4 blocks",
    8: "got int",
    ("tome", 8): "got tuple",
}


@pytest.mark.parametrize("spec", BAD_REDUCERS)
def test_bad_reducers_are_refused(vit: navia.ViT, spec: Any) -> None:
    with pytest.raises(SpecError, match=BAD_REDUCERS[spec]) as caught:
        vit(images_for(vit), reduce=spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [ToMe, EViT, ToFu])
@pytest.mark.parametrize(
    "r", [2.0, True, -1, "8", None, (1, 2, 3), (1, 2.0), (True, 0.5), (-3, 0.5), [1, 2.5], [True], [-1]]
)
def test_amounts_that_are_none_are_refused(kind: type, r: Any) -> None:
    with pytest.raises(SpecError):
        kind(r)


def test_negative_split_is_refused() -> None:
    with pytest.raises(SpecError, match="split must be a block number >= 0, got -1"):
        ToFu(4, split=-1)


def test_inputs_that_are_fine_pass(vit: navia.ViT) -> None:
    """The counterparts of what is refused above."""
    images = images_for(vit)
    for spec in (
        None,
        "none",
        " tome:2 ",
        "tome:2,-1",
        "tome:2,0.5",
        "tome:[2,0,1]",
        "evit:2,fuse=false",
        "tofu:2,split=1",
    ):
        assert vit(images, reduce=spec, classes=(0, 10)).shape == (3, 2)
    assert vit(images.double()).dtype == torch.float32
    assert parse(None) == NoReduction()
    assert parse("tofu:2,split=1,compat=TRUE") == ToFu(2, split=1, compat=True)


def test_all_errors_are_one_family() -> None:
    """One `except navia.NaviaError` catches what navia raises on purpose; an `except ValueError` does too."""
    for kind in (InputError, ModelError, SpecError):
        assert issubclass(kind, NaviaError)
    assert issubclass(NaviaError, ValueError)
    assert navia.NaviaError is NaviaError


def _pixels(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_pixels_from_0_to_255_are_refused_everywhere(vit: navia.ViT) -> None:
    adapter = navia.adapt(vit, "tent")
    raw = (_pixels(4) * 255).round()
    for use in (vit, adapter, adapter.predict, lambda x: navia.SourceStatistics.measure(vit, x)):
        with pytest.raises(InputError, match=r"not normalised .* 0 to 255.* between -1 and 1; .*vit.preprocessing"):
            use(raw)
    assert adapter.steps == 0
    dark = raw / 255 * 12  # nearly black pictures are refused too
    with pytest.raises(InputError, match="not normalised"):
        adapter(dark)


def test_normalised_and_noisy_images_are_taken_in_silence(vit: navia.ViT) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter = navia.adapt(vit, "tent")
        adapter((_pixels(8) - 0.5) / 0.5)
        adapter(torch.randn(64, 3, 32, 32) * 1.5)
        adapter(_pixels(1))  # a bright picture may well be like this
        adapter(torch.zeros(8, 3, 32, 32))


def test_pixels_from_0_to_1_are_warned_of_once_per_adapter(vit: navia.ViT) -> None:
    for _ in range(2):
        adapter = navia.adapt(vit, "tent")
        with pytest.warns(UserWarning, match="not normalised") as caught:
            [adapter(_pixels(8)) for _ in range(2)]
        assert len(caught) == 1
    plain = navia.load(vit, preprocessing=Preprocessing((32, 32), (0.0,) * 3, (1.0,) * 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        navia.adapt(plain, "tent")(_pixels(8))  # its pixels are meant to be so
