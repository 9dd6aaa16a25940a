"""Parts of the nets, each against its formula: inception blocks, class maps, recurrent gates, metadata."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from members import assert_refused, generator, population
from nodule_nets import FEATURES, awake, images, metadata
from scipy.ndimage import correlate
from torch import nn

from rightloss import Prevalence, start_at_prevalence
from rightloss.lidc.nets import (
    ConvBody,
    FullyConvolutionalNet,
    GatedBody,
    InceptionBlock,
    InceptionBody,
    LowLevelBlock,
    MetadataBlock,
    RecurrentGate,
    WithMetadata,
    convnet,
    fully_convolutional_net,
    gated_net,
    metadata_net,
)


def test_features_of_a_convolutional_body_are_means_over_every_second_pixel() -> None:
    body = ConvBody(2, (3,), generator=generator(18)).double().eval()
    image = torch.rand(2, 6, 8, dtype=torch.float64, generator=generator(19)).numpy()
    weight, bias = (each.detach().numpy() for each in body.parameters())
    maps = [sum(correlate(x, w, mode="constant") for x, w in zip(image, row, strict=True)) for row in weight]
    expected = np.maximum(np.stack(maps) + bias[:, None, None], 0)[:, ::2, ::2].mean((1, 2))
    found = body(torch.from_numpy(image)[None])[0]
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-12, atol=1e-12)


class TestInception:
    def test_features_of_a_body_are_means_over_positions(self) -> None:
        body = InceptionBody(2, (8,), generator=generator(20)).eval()
        image = torch.rand(1, 2, 8, 8, generator=generator(21))
        torch.testing.assert_close(body(image), body.layers(image).flatten(2).sum(2) / 16)

    def test_branches_see_1_3_5_and_3_pixels_a_side(self) -> None:
        block = InceptionBlock(2, 16)
        for each in block.parameters():
            nn.init.constant_(each, 0.1)  # positive, so that any pixel raised raises all that see it
        image = torch.zeros(1, 2, 11, 11)
        base = block(image)[0, :, 3, 3]  # around pixel 6, 6
        seen = torch.zeros(16, 11, 11)
        for row in range(11):
            for column in range(11):
                raised = image.clone()
                raised[:, :, row, column] = 1
                seen[:, row, column] = (block(raised)[0, :, 3, 3] > base).float()
        for branch, side in enumerate((1, 3, 5, 3)):
            expected = torch.zeros(11, 11)
            reach = side // 2
            expected[6 - reach : 7 + reach, 6 - reach : 7 + reach] = 1
            for channel in range(4 * branch, 4 * branch + 4):
                assert torch.equal(seen[channel], expected), (branch, channel)


class TestFullyConvolutional:
    def test_logits_are_the_mean_of_class_maps_that_move_with_the_image(self) -> None:
        net = awake(fully_convolutional_net(3, small=True))
        views = torch.zeros(1, 1, 64, 64)
        views[:, :, 24:32, 24:32] = images(1, 1, (8, 8))
        maps, moved = net.class_maps(views), net.class_maps(views.roll(12, 3))
        assert maps.shape == (1, 1, 3, 16, 16)
        torch.testing.assert_close(net(views)[0], torch.stack([maps[0, 0, c].mean() for c in range(3)]))
        within = slice(4, 10)
        torch.testing.assert_close(maps[..., within], moved[..., 7:13], rtol=1e-4, atol=1e-4)


class TestGates:
    def test_the_map_is_the_recurrence_written_out(self) -> None:
        gate = RecurrentGate(3, 2, 3).double()
        f = torch.randn(3, 5, 6, dtype=torch.float64, generator=generator(12))
        weights = {name: each.detach().numpy() for name, each in gate.named_parameters()}

        def filtered(name: str, parts: list[np.ndarray]) -> np.ndarray:
            weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
            rows = [sum(correlate(x, w, mode="constant") for x, w in zip(parts, row, strict=True)) for row in weight]
            return np.stack(rows) + bias[:, None, None]

        def sigmoid(x: np.ndarray) -> np.ndarray:
            return 1 / (1 + np.exp(-x))

        p, h, a = filtered("projection", [*f.numpy()]), np.zeros((2, 5, 6)), np.ones((1, 5, 6))
        for _ in range(3):
            x = a * p
            rates = sigmoid(filtered("rates", [*x, *h]))
            z, r = rates[:2], rates[2:]
            h = (1 - z) * h + z * np.tanh(filtered("proposal", [*x, *(r * h)]))
            a = sigmoid(filtered("map", [*h]))
        np.testing.assert_allclose(gate(f[None])[0].detach(), a, rtol=0, atol=1e-12)

    def test_maps_are_in_0_1_and_of_the_views_size(self) -> None:
        net = awake(gated_net(small=True))
        found = net.gates(images(2, 3, (32, 20)))
        assert found.shape == (2, 3, 32, 20)
        assert bool((found >= 0).all() & (found <= 1).all())
        assert not torch.allclose(found, found.mean())
        assert not found.requires_grad

    def test_nothing_is_seen_through_a_closed_gate(self) -> None:
        net = awake(gated_net(small=True))
        with torch.no_grad():
            net.body.gate.map.weight.zero_()
            net.body.gate.map.bias.fill_(-1e4)
        assert torch.equal(net(images()), net.head.bias.expand(4, 2))


def lively_block() -> MetadataBlock:
    """With logits that differ from row to row."""
    block = MetadataBlock(FEATURES, generator=generator(16))
    nn.init.normal_(block.what.weight, generator=generator(17))
    return block


class TestMetadata:
    def test_logits_are_the_sum_over_units(self) -> None:
        block = MetadataBlock(FEATURES, 3, units=4).double()
        for each in block.parameters():
            nn.init.normal_(each, generator=generator(13))
        x = metadata(6).double()
        weights = {name: each.detach().numpy() for name, each in block.named_parameters()}
        g = x.numpy() @ weights["where.weight"].T + weights["where.bias"]
        lines = (x.numpy() @ weights["what.weight"].T + weights["what.bias"]).reshape(6, 4, 3)
        expected = weights["bias"] + sum(np.exp(-(g[:, u, None] ** 2)) * lines[:, u] for u in range(4))
        np.testing.assert_allclose(block(x).detach(), expected, rtol=1e-12, atol=1e-12)

    def test_a_metadata_block_alone_starts_by_its_own_bias(self) -> None:
        block = MetadataBlock(FEATURES, 3)
        start_at_prevalence(block.head, Prevalence(population(3)))
        found = block(metadata()).softmax(1)
        torch.testing.assert_close(found, population(3).float().expand(4, 3), rtol=1e-5, atol=1e-6)

    def test_they_add_to_the_images(self) -> None:
        net = awake(metadata_net(FEATURES, 3, small=True))
        views, x = images(), metadata()
        assert bool(net.metadata(x).all())
        assert net.head is net.image.head
        torch.testing.assert_close(net(views, x), net.image(views) + net.metadata(x), rtol=0, atol=0)

    @pytest.mark.long
    def test_a_block_learns_what_no_affine_predictor_can(self) -> None:
        x = torch.rand(200, 2, generator=generator(14)) * 2 - 1
        y = (x.prod(1) > 0).long()
        block = MetadataBlock(2, generator=generator(15))
        optimiser = torch.optim.Adam(block.parameters(), 0.05)
        for _ in range(200):
            optimiser.zero_grad()
            F.cross_entropy(block(x), y).backward()
            optimiser.step()
        assert float((block(x).argmax(1) == y).float().mean()) > 0.9

    def test_standardised_columns_are_what_their_scale_was_before(self) -> None:
        block, x = lively_block(), metadata(50)
        x[:, 4] = 3.0  # which tells nothing
        expected = block((x - x.mean(0)) / torch.tensor([*np.std(x.numpy()[:, :4], 0, ddof=1), 1.0]))
        raw = x * torch.tensor([1.0, 1e3, 1e-3, 10.0, 1.0]) + torch.tensor([0.0, 1e4, 0.0, -5.0, 0.0])
        block.standardise_by(raw)
        torch.testing.assert_close(block(raw), expected, rtol=1e-3, atol=1e-3)

    def test_the_standard_is_saved_with_the_weights(self) -> None:
        block, raw = lively_block(), 1e3 * metadata(50) + 1e4
        block.standardise_by(raw)
        fresh = MetadataBlock(FEATURES)
        fresh.load_state_dict(block.state_dict())
        assert torch.equal(fresh(raw), block(raw))

    def test_half_precision_standardises_in_float32(self) -> None:
        """Volumes beyond float16's range, and years."""
        block, dtype = lively_block(), torch.float16
        raw = metadata(50) * torch.tensor([1e5, 5.0, 1.0, 1.0, 1.0]) + torch.tensor([1e6, 1990.0, 0.0, 0.0, 0.0])
        block.standardise_by(raw)
        centre, scale = block.centre.clone(), block.scale.clone()
        WithMetadata(convnet(small=True), block).to(dtype)  # as a part of a net
        found = block(raw)
        assert found.dtype == dtype
        assert torch.equal(found, lively_block().to(dtype)((raw - centre) / scale))
        assert block.float().centre.equal(centre)

    def test_raw_columns_are_warned_of_once_until_they_are_standardised(self) -> None:
        block, raw = MetadataBlock(FEATURES), metadata()
        raw[2, 3] = -500.0
        with pytest.warns(UserWarning, match=r"size 500 \(column 3\).*standardise_by"):
            block(raw)
        other = MetadataBlock(FEATURES)
        other.standardise_by(raw)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            block(raw)
            other(1e3 * raw)
        assert seen == []

    def test_a_block_that_was_started_alone_hands_its_bias_to_the_image(self) -> None:
        image, block, prevalence = awake(convnet(3, small=True)), MetadataBlock(FEATURES, 3), Prevalence(population(3))
        start_at_prevalence(block.head, prevalence)
        start_at_prevalence(image.head, Prevalence(population(3, 1)))
        before = image(images()) + block(metadata())
        net = WithMetadata(image, block)
        torch.testing.assert_close(net(images(), metadata()), before)
        nn.init.zeros_(image.head.weight)
        start_at_prevalence(net.head, prevalence)
        found = net(images(), metadata()).softmax(1)
        torch.testing.assert_close(found, population(3).float().expand(4, 3), rtol=1e-5, atol=1e-6)


class TestRefused:
    def test_an_inception_block_that_cannot_be_divided(self) -> None:
        assert_refused(lambda: InceptionBlock(64, 20), "multiple of 8")

    def test_metadata_that_do_not_fit(self) -> None:
        net = metadata_net(FEATURES, small=True)
        assert_refused(lambda: net(images(), metadata(1)), "1 rows for 4 nodules")
        assert_refused(lambda: net(images(), metadata()[:, :3]), r"\(4, 3\)")
        assert_refused(lambda: net(images(), metadata().long()), "int64")
        assert_refused(lambda: MetadataBlock(0), "num_features")
        assert_refused(lambda: MetadataBlock(3, units=0), "units")
        assert_refused(lambda: net.metadata.standardise_by(metadata(1)), "but got 1: .*two")
        assert_refused(lambda: net.metadata.standardise_by(torch.full((3, FEATURES), torch.nan)), "15 of the numbers")

    def test_metadata_that_are_not_finite(self) -> None:
        net, x, bad = metadata_net(FEATURES, small=True), metadata(), -torch.inf
        x[2, 1] = bad
        assert_refused(lambda: net(images(), x), f"row 2, column 1 is {bad}")
        found = torch.func.vmap(net.metadata)(x[:, None])  # where values cannot be looked at, it passes
        assert found.shape == (4, 1, 2)

    @pytest.mark.parametrize("widths", [(), 8, (8, 0), (8, 8.0)])
    def test_widths_that_are_no_counts_of_layers(self, widths: Any) -> None:
        assert_refused(lambda: ConvBody(64, widths), "widths")
        assert_refused(lambda: GatedBody(widths, 4), "widths")
        assert_refused(lambda: FullyConvolutionalNet(LowLevelBlock(), widths, (2,), 2), "widths")

    @pytest.mark.parametrize("strides", [(2,), (2, 0)])
    def test_strides_that_are_not_one_for_each_layer(self, strides: Any) -> None:
        assert_refused(lambda: FullyConvolutionalNet(LowLevelBlock(), (8, 8), strides, 2), "strides")

    def test_a_sum_of_logits_of_different_number(self) -> None:
        assert_refused(lambda: WithMetadata(convnet(3, small=True), MetadataBlock(FEATURES, 2)), "but got 3")
        assert_refused(lambda: WithMetadata(nn.Linear(2, 2), MetadataBlock(FEATURES, 2)), "no such layer")
