"""The low-level block: VGG16's own features of a grey image, up to its edges; frozen or not."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from members import assert_mean_is, assert_refused, generator
from torch import Tensor

import rightloss
from rightloss.lidc.nets import LowLevelBlock

SHIPPED = Path(rightloss.__file__).parent / "lidc" / "data" / "vgg16_conv1.npz"
SHARED = Path(os.environ.get("RIGHTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")) / "vgg16_conv1.npz"
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
SIZES = [(32, 32), (7, 12), (1, 1)]


def raw_weights() -> list[np.ndarray]:
    raw = np.load(SHIPPED, allow_pickle=False)
    names = ("features.0.weight", "features.0.bias", "features.2.weight", "features.2.bias")
    return [raw[name].astype(np.float64) for name in names]


def grey(*shape: int) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=generator(1))


def colour_features(images: Tensor) -> Tensor:
    """VGG16 as published: three channels, normalised, then a border of zeros."""
    weight_1, bias_1, weight_2, bias_2 = map(torch.from_numpy, raw_weights())
    mean, std = torch.from_numpy(MEAN)[:, None, None], torch.from_numpy(STD)[:, None, None]
    normal = (images.expand(-1, 3, -1, -1) - mean) / std
    return F.relu(F.conv2d(F.relu(F.conv2d(normal, weight_1, bias_1, padding=1)), weight_2, bias_2, padding=1))


class TestFeatures:
    @pytest.mark.parametrize("size", SIZES)
    def test_they_are_those_of_the_grey_image_in_three_normalised_channels(self, size: tuple[int, int]) -> None:
        images = grey(5, 1, *size)
        found = LowLevelBlock().double()(images)
        assert found.shape == (5, 64, *size)
        assert (found > 0).any()
        torch.testing.assert_close(found, colour_features(images), rtol=1e-6, atol=1e-5)

    def test_at_stride_2_they_are_every_second_of_the_same(self) -> None:
        images = grey(3, 1, 7, 12)
        every = LowLevelBlock().double()(images)
        torch.testing.assert_close(LowLevelBlock(stride=2).double()(images), every[:, :, ::2, ::2], rtol=0, atol=1e-12)

    def test_those_of_many_images_are_those_of_each(self) -> None:
        block, images = LowLevelBlock(stride=2).double(), grey(130, 1, 4, 4)
        each = torch.cat([block(image[None]) for image in images])
        torch.testing.assert_close(block(images), each, rtol=0, atol=1e-12)
        assert block(images[:0]).shape == (0, 64, 2, 2)

    def test_the_shipped_weights_are_those_handed_over(self) -> None:
        if not SHARED.exists():
            pytest.skip("the shared data are not here")
        assert SHIPPED.read_bytes() == SHARED.read_bytes()


class TestFrozen:
    def test_it_has_nothing_to_train_and_keeps_no_graph(self) -> None:
        block = LowLevelBlock()
        assert not any(each.requires_grad for each in block.parameters())
        assert not block(grey(2, 1, 8, 8).float()).requires_grad

    def test_gradients_still_reach_the_image(self) -> None:
        images = grey(2, 1, 8, 8).float().requires_grad_()
        LowLevelBlock()(images).sum().backward()
        assert images.grad is not None
        assert bool((images.grad != 0).all())

    def test_unfrozen_gradients_reach_every_weight(self) -> None:
        block = LowLevelBlock(frozen=False).double()
        block(grey(2, 1, 6, 6)).square().sum().backward()
        assert all(each.grad is not None and bool(each.grad.any()) for each in block.parameters())


class TestRandomWeights:
    def test_they_train_unless_told_otherwise(self) -> None:
        assert all(each.requires_grad for each in LowLevelBlock(pretrained=False).parameters())
        assert not any(each.requires_grad for each in LowLevelBlock(pretrained=False, frozen=True).parameters())

    def test_they_have_hes_variance_and_no_bias(self) -> None:
        block = LowLevelBlock(pretrained=False, generator=generator(2))
        for conv, inputs in ((block.first, 2 * 9), (block.second, 64 * 9)):
            weights = conv.weight.detach().flatten()
            assert_mean_is(weights, 0.0)
            assert_mean_is(weights.square(), 2 / inputs)
            assert conv.bias is not None
            assert not conv.bias.any()

    def test_they_come_from_the_generator_alone(self) -> None:
        torch.manual_seed(0)
        one = LowLevelBlock(pretrained=False, generator=generator(3)).second.weight
        torch.manual_seed(1)
        assert torch.equal(one, LowLevelBlock(pretrained=False, generator=generator(3)).second.weight)
        assert not torch.equal(one, LowLevelBlock(pretrained=False, generator=generator(4)).second.weight)


def test_images_of_other_shapes_and_other_strides_are_refused() -> None:
    for shape in [(2, 3, 8, 8), (2, 8, 8)]:
        assert_refused(partial(LowLevelBlock(), torch.rand(shape)), rf"\(n, 1, h, w\).*{', '.join(map(str, shape))}")
    assert_refused(lambda: LowLevelBlock(stride=3), "stride")
