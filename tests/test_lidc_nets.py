"""The nets of the case study: sizes, views in any order, π at the start, and what they can learn."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from members import assert_refused, generator, population, unchecked_types
from nodule_nets import NETS, Make, awake, each_net, images, inputs, logits
from torch import Tensor, nn
from torch.export import Dim

from rightloss import Categorical, Gaussian, OnionPeeling, Prevalence, start_at_prevalence
from rightloss.lidc.nets import convnet, gated_net, inception_net
from rightloss.predictive import PrevalenceLayer

LOW = 38_144  # weights and biases of the low-level block
TRAINED = {  # of the rest with 5 outputs: full, small
    "convnet": (997_317, 74_213),
    "inception": (255_781, 17_077),
    "fully convolutional": (407_237, 37_285),
    "gated": (433_958, 52_182),
    "metadata": (997_893, 74_789),
}
VIEW_MAPS = {  # side of each map of a view of 32×32, layer by layer
    ("convnet", False): [32, 32, 16, 8, 4, 2],
    ("convnet", True): [32, 16, 8, 4, 2],
    ("fully convolutional", False): [32, 32, 16, 8, 8, 8],
    ("fully convolutional", True): [32, 16, 8, 8, 8],
}


class TestSizes:
    @pytest.mark.parametrize("name", NETS)
    def test_there_are_as_many_weights_as_counted_by_hand(self, name: str) -> None:
        for small, frozen in ((False, True), (True, False)):
            net = NETS[name](5, small=small, frozen=frozen)
            expected = TRAINED[name][small]
            assert sum(each.numel() for each in net.parameters()) == LOW + expected
            assert sum(each.numel() for each in net.parameters() if each.requires_grad) == expected + LOW * (not frozen)

    @pytest.mark.parametrize(("name", "small"), VIEW_MAPS)
    def test_maps_of_a_view_shrink_by_2_per_stride(self, name: str, small: bool) -> None:
        net, sides = NETS[name](small=small), []
        for part in net.modules():
            if isinstance(part, nn.Conv2d):
                part.register_forward_hook(lambda _, __, found: sides.append(tuple(found.shape[2:])))
        net(images(1, 1))
        assert sides == [(side, side) for side in VIEW_MAPS[name, small]]

    @each_net
    def test_views_of_any_number_and_size_give_logits(self, make: Make) -> None:
        net = awake(make(3, small=True))
        for s, size in ((1, (17, 40)), (4, (1, 1))):
            found = logits(net, images(2, s, size))
            assert found.shape == (2, 3)
            assert bool(torch.isfinite(found).all())


class TestViews:
    @each_net
    def test_neither_their_order_nor_the_other_nodules_of_the_batch_matter_but_they_do(self, make: Make) -> None:
        net, views = awake(make(small=True)), images(4, 5)
        found = logits(net, views)
        torch.testing.assert_close(logits(net, views[:, torch.tensor([3, 0, 4, 2, 1])]), found, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(logits(net, views.roll(1, 2)), found, rtol=1e-3)
        alone = torch.cat([net(*(part[i : i + 1] for part in inputs(net, views))) for i in range(4)])
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(("make", "pool"), [(convnet, "min"), (inception_net, "max"), (gated_net, "mean")])
    def test_logits_are_the_heads_of_the_pooled_features_of_each_view(self, make: Make, pool: str) -> None:
        net, views = awake(make(small=True, pool=pool)), images()
        each = torch.stack([net.body(net.low_level(views[:, v, None])) for v in range(3)])
        pooled = {"min": each.min(0).values, "max": each.max(0).values, "mean": each.mean(0)}[pool]
        torch.testing.assert_close(net(views), pooled @ net.head.weight.T + net.head.bias, rtol=1e-4, atol=1e-4)


class TestStart:
    @each_net
    def test_a_net_for_a_likelihood_predicts_the_population_for_every_x(self, make: Make) -> None:
        likelihood, k = OnionPeeling(5), 5
        prevalence = Prevalence(population(k))
        net: Any = make(likelihood, small=True)  # in train mode: no draw of the dropout may matter
        start_at_prevalence(net.head, prevalence, likelihood)
        found = likelihood.table(logits(net, images(3, 2, (8, 8)))).exp()
        torch.testing.assert_close(found, torch.tensor(prevalence.population).expand(3, k).to(found), rtol=1e-5, atol=1e-6)

    def test_outputs_are_a_number_or_those_of_a_likelihood(self) -> None:
        assert convnet(Gaussian(2), small=True)(images()).shape == (4, 2)
        with unchecked_types():
            assert convnet(cast(Any, np.int64(3)), small=True)(images()).shape == (4, 3)

    @each_net
    def test_a_seed_or_a_generator_gives_the_same_net_again(self, make: Make) -> None:
        def weights(seed: int, number: int | None) -> list[Tensor]:
            torch.manual_seed(seed)
            return list(make(small=True, generator=None if number is None else generator(number)).parameters())

        def same(one: list[Tensor], other: list[Tensor]) -> bool:
            return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))

        assert same(weights(0, None), weights(0, None))
        assert not same(weights(0, None), weights(1, None))
        assert same(weights(0, 5), weights(1, 5))
        assert not same(weights(0, 5), weights(0, 6))


def balanced_nodules(n: int = 32, s: int = 1) -> tuple[Tensor, Tensor]:
    """Views of noise around a disc, half of them labelled 1 at random: there is nothing to learn but the cases themselves."""
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    radius = 4 + 8 * torch.rand(n, s, 1, 1, generator=generator(7))
    disc = torch.sigmoid(radius - (rows - 15.5).hypot(columns - 15.5))
    views = 0.7 * disc + 0.3 * torch.rand(n, s, 32, 32, generator=generator(8))
    return views, torch.arange(n) % 2


def steps_to_fit(net: Any, most: int, rate: float) -> int:
    """Steps until all nodules are classified right, at most `most`."""
    views, y = balanced_nodules()
    optimiser = torch.optim.Adam([each for each in net.parameters() if each.requires_grad], rate)
    for step in range(most):
        if step % 10 == 0:
            with torch.no_grad():
                right = logits(net.eval(), views).argmax(1) == y
            if bool(right.all()):
                return step
        optimiser.zero_grad()
        F.cross_entropy(logits(net.train(), views), y).backward()
        optimiser.step()
    return most


class TestLearning:
    @pytest.mark.long
    @each_net
    def test_gradients_reach_every_trainable_parameter(self, make: Make) -> None:
        net = awake(make(3, small=True, frozen=False))
        loss = F.cross_entropy(logits(net, images(16)), torch.arange(16) % 3)
        loss.backward()
        for name, each in net.named_parameters():
            assert each.grad is not None, name
            assert bool(torch.isfinite(each.grad).all()), name
            assert bool(each.grad.any()), name

    @each_net
    def test_from_the_zero_head_on_a_second_step_moves_all_but_what_is_frozen(self, make: Make) -> None:
        net: Any = make(small=True)
        before = {name: each.clone() for name, each in net.named_parameters()}
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(2):
            optimiser.zero_grad()
            F.cross_entropy(logits(net, images(16)), torch.arange(16) % 2).backward()
            optimiser.step()
        for name, each in net.named_parameters():
            assert torch.equal(each, before[name]) == ("low_level" in name), name

    @pytest.mark.long
    @each_net
    def test_a_small_net_overfits_32_nodules_with_random_labels(self, make: Make) -> None:
        assert steps_to_fit(make(small=True, dropout=0.0, generator=generator(9)), 300, 5e-3) < 300

    @pytest.mark.slow
    @each_net
    def test_a_full_net_overfits_32_nodules_with_random_labels(self, make: Make) -> None:
        assert steps_to_fit(make(dropout=0.0, generator=generator(9)), 300, 1e-3) < 300

    @each_net
    def test_dropout_is_random_in_training_and_absent_in_evaluation(self, make: Make) -> None:
        net, views = awake(make(small=True)), images()
        assert torch.equal(logits(net, views), logits(net, views))
        net.train()
        assert not torch.equal(logits(net, views), logits(net, views))
        without = awake(make(small=True, dropout=0.0)).train()
        assert torch.equal(logits(without, views), logits(without, views))

    @each_net
    def test_vmap_over_weights_is_a_loop_over_them(self, make: Make) -> None:
        nets = [awake(make(small=True, generator=generator(number))) for number in (10, 11)]
        stacked, buffers = torch.func.stack_module_state(nets)
        views = images(3, 2, (16, 16))
        given = inputs(nets[0], views)
        found = torch.func.vmap(lambda *state: torch.func.functional_call(nets[0], state, given))(stacked, buffers)
        torch.testing.assert_close(found, torch.stack([net(*given) for net in nets]), rtol=1e-4, atol=1e-4)


class OfOne(nn.Module):
    """A net of one input, the tuple of its own."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, parts: Any) -> Tensor:
        return self.net(*parts)


@pytest.mark.long
@each_net
def test_a_net_with_a_prevalence_exports_for_any_number_of_nodules_and_views(make: Make) -> None:
    net = awake(make(small=True))
    layer = PrevalenceLayer(OfOne(net), Prevalence.binary(0.1))
    mix, few = torch.tensor([0.7, 0.3]), inputs(net, images(3))
    n, s = Dim("n"), Dim("s")
    sizes = ({0: n, 1: s}, {0: n})[: len(few)]
    with unchecked_types():  # sizes are symbols while a graph is traced
        exported = torch.export.export(layer, (few, mix), dynamic_shapes=(sizes, None))
    many = inputs(net, images(40, 2))  # more than the low-level block takes at a time
    torch.testing.assert_close(exported.module()(many, mix), layer(many, mix), rtol=1e-4, atol=1e-4)


class TestRefused:
    @pytest.mark.parametrize(
        ("views", "words"),
        [
            (torch.rand(4, 32, 32), r"\(4, 32, 32\)"),
            (torch.zeros(4, 3, 8, 8, dtype=torch.uint8), "uint8"),
            (torch.zeros(4, 0, 8, 8), "none of them 0"),
            (torch.full((4, 3, 8, 8), -700.0), "window"),
            (torch.full((4, 3, 8, 8), torch.nan), "NaN"),
        ],
    )
    def test_what_are_not_views_in_0_1(self, views: Tensor, words: str) -> None:
        net = convnet(small=True)
        assert_refused(lambda: logits(net, views), words)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"num_outputs": 0}, "num_outputs"),
            ({"num_outputs": np.True_}, "num_outputs"),
            ({"num_outputs": Categorical()}, r"Categorical\(5\)"),
            ({"dropout": 1.0}, "dropout"),
            ({"pool": "median"}, "pool"),
        ],
    )
    def test_impossible_options(self, options: dict[str, Any], words: str) -> None:
        assert_refused(lambda: convnet(small=True, **options), words)
