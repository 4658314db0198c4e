"""Pictures of merged patches: every patch in its group, groups in their mean colour, dropped patches greyed."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import navia
from navia.errors import InputError
from navia.models.forward import forward
from navia.reduction import EViT, NoReduction, Reducer, ToFu, ToMe
from navia.report.images import draw_token_maps, paint_token_map, token_map
from tests.families import build, images_for

NAMES = ("timm plain", "timm dinov2 registers", "timm deit distilled", "transformers dinov2", "torchvision")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reducer", [NoReduction(), ToMe(3), EViT(3), EViT(3, fuse=False), ToFu(3)])
def test_groups_cover_all_patches(name: str, reducer: Reducer) -> None:
    """Every image token that is left holds a patch, and only dropping reducers leave patches without a token."""
    vit = build(name)
    image = images_for(vit, 1)[0]
    groups = token_map(vit, image, reducer)
    assert groups.shape == (image.shape[1] // vit.patch_size[0], image.shape[2] // vit.patch_size[1])
    left = forward(vit, image[None], reducer).counts[-1] - vit.num_prefix_tokens
    assert set(groups.reshape(-1).tolist()) - {-1} == set(range(vit.num_prefix_tokens, vit.num_prefix_tokens + left))
    assert (groups == -1).any() == (reducer in (EViT(3, fuse=False), ToFu(3)))


def test_groups_of_oblong_grey_images() -> None:
    vit = build("timm grey, oblong")
    assert token_map(vit, images_for(vit, 1)[0], ToMe(2)).shape == (3, 5)


def test_unreduced_patches_are_each_their_own_group() -> None:
    vit = build("timm plain")
    assert token_map(vit, images_for(vit, 1)[0], NoReduction()).tolist() == np.arange(1, 17).reshape(4, 4).tolist()


def test_like_patches_are_grouped() -> None:
    """Four kinds of patches, two by two, without positions to tell them apart: no group mixes kinds."""
    vit: Any = build("timm plain")
    with torch.no_grad():
        vit.model.pos_embed.zero_()
    kinds = torch.arange(16).reshape(4, 4) // 2 % 2 + 2 * (torch.arange(4)[:, None] // 2)
    tiles = torch.randn(4, 3, 8, 8)[kinds]  # [4, 4, 3, 8, 8]
    image = tiles.permute(2, 0, 3, 1, 4).reshape(3, 32, 32)
    groups = token_map(vit, image, ToMe([8]))
    assert len(np.unique(groups)) == 8
    for group in np.unique(groups):
        assert len(np.unique(kinds.numpy()[groups == group])) == 1


def test_images_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="takes images of 32x32 px"):
        token_map(build("timm plain"), torch.zeros(3, 40, 40), ToMe(2))


# ---- painting


def quarters() -> np.ndarray:
    """8 x 8 pixels, four cells of 4 x 4: two colours on the left, two halves each on the right."""
    picture = np.zeros((8, 8, 3), dtype=np.uint8)
    picture[:4, :4] = (200, 0, 40)
    picture[4:, :4] = (100, 50, 0)
    picture[:, 4:6] = (10, 20, 30)
    picture[:, 6:] = (30, 40, 50)
    return picture


def inner(painted: np.ndarray, row: int, column: int) -> np.ndarray:
    """A cell without its first row and column, where outlines are drawn."""
    return painted[4 * row + 1 : 4 * row + 4, 4 * column + 1 : 4 * column + 4].reshape(-1, 3)


def test_groups_get_their_mean_colour_exactly() -> None:
    painted = paint_token_map(quarters(), np.array([[3, 7], [3, 7]]))
    assert painted.shape == (8, 8, 3)
    assert painted.dtype == np.uint8
    for row in (0, 1):
        assert (inner(painted, row, 0) == (150, 25, 20)).all()
        assert (inner(painted, row, 1) == (20, 30, 40)).all()


def test_groups_need_not_be_connected() -> None:
    painted = paint_token_map(quarters(), np.array([[1, 2], [2, 1]]))
    for row, column in ((0, 0), (1, 1)):  # the mean of (200, 0, 40) and (20, 30, 40)
        assert (inner(painted, row, column) == (110, 15, 40)).all()


def test_groups_are_outlined_where_they_meet_and_nowhere_else() -> None:
    painted = paint_token_map(quarters(), np.array([[0, 1], [0, 1]]))
    outline = (painted == 255).all(axis=-1)
    assert outline[:, 4].all()
    assert outline.sum() == 8
    assert not (paint_token_map(quarters(), np.zeros((2, 2), dtype=int)) == 255).any()


def test_dropped_patches_are_greyed_and_do_not_colour_others() -> None:
    painted = paint_token_map(quarters(), np.array([[0, -1], [0, -1]]))
    assert (inner(painted, 0, 0) == (150, 25, 20)).all()
    greyed = 0.25 * quarters()[0:1, 5] + 0.75 * 128
    assert (painted[1:4, 5] == greyed.round()).all()


def test_drawing_puts_the_picture_beside_each_reducers_groups() -> None:
    vit = build("timm plain")
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8))
    drawing = draw_token_maps(vit, picture, [ToMe(3), EViT(3)], scale=3)
    assert drawing.size == (3 * 96 + 2 * 8, 96)
    seen = vit.preprocessing.crop(picture).resize((96, 96), Image.Resampling.NEAREST)
    assert np.array_equal(np.asarray(drawing)[:, :96], np.asarray(seen))
    assert (np.asarray(drawing)[:, 96:104] == 255).all()


def test_drawing_a_grey_picture_for_a_grey_model() -> None:
    vit: navia.ViT = build("timm grey, oblong")
    assert draw_token_maps(vit, Image.new("L", (90, 70), 77), [ToMe(2)], scale=1).size == (40 + 8 + 40, 24)
