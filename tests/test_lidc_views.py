"""Views for the nets: random and fixed, of volumes and slices, predictions averaged over them; and what is refused."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scipy.stats
import torch
from members import assert_mean_is, assert_refused, generator
from scipy.ndimage import map_coordinates
from torch import Tensor, nn

from rightloss.lidc.nets import metadata_net
from rightloss.lidc.views import (
    FixedViews,
    RandomViews,
    average_over_views,
    inplane_views,
    orthogonal_views,
    random_rotations,
)

DATA = Path(os.environ.get("RIGHTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def volumes(n: int = 2, shape: tuple[int, ...] = (12, 15, 18), seed: int = 0) -> Tensor:
    """White noise, the hardest to interpolate."""
    return torch.rand(n, *shape, generator=generator(seed))


class Recorder:
    """A model of two classes that sees the mean of the views, and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, views: Tensor) -> Tensor:
        self.seen.append(views)
        mean = 30 * (views.flatten(1).mean(1) - 0.5)
        return torch.stack([nn.functional.logsigmoid(-mean), nn.functional.logsigmoid(mean)], 1)


PATCHES = {"volumes": (12, 15, 18), "slices": (15, 18)}
each_patch = pytest.mark.parametrize("shape", PATCHES.values(), ids=PATCHES.keys())
each_pair = pytest.mark.parametrize(("make", "shape"), [(RandomViews, PATCHES["volumes"]), (FixedViews, PATCHES["slices"])])


class TestCutters:
    @each_pair
    def test_both_are_called_alike_and_give_views_within_the_patchs_range(self, make: Any, shape: tuple[int, ...]) -> None:
        patches = volumes(3, shape) / 2 + torch.arange(3).view(3, *[1] * len(shape))
        views = make(views=6, size=10)(patches, generator=generator(), spacing_mm=torch.tensor([1.0, 0.7, 2.0]))
        assert views.shape == (3, 6, 10, 10)
        assert [views[i].floor().unique().tolist() for i in range(3)] == [[0], [1], [2]]

    @each_pair
    def test_rows_are_cut_as_copies_of_these_patches_would_be(self, make: Any, shape: tuple[int, ...]) -> None:
        patches, rows, spacing = volumes(4, shape), torch.tensor([3, 1, 3]), torch.tensor([1.0, 0.7, 2.0])
        views = make(views=6, size=10)(patches, generator(), spacing, rows)
        assert torch.equal(views, make(views=6, size=10)(patches[rows], generator(), spacing))

    @each_patch
    def test_random_views_are_made_by_their_generator(self, shape: tuple[int, ...]) -> None:
        cut = RandomViews(views=3, size=8)
        views = cut(volumes(2, shape), generator=generator())
        assert torch.equal(views, cut(volumes(2, shape), generator=generator()))
        assert not torch.equal(views, cut(volumes(2, shape), generator=generator(1)))

    @each_patch
    def test_fixed_views_leave_the_generator_alone(self, shape: tuple[int, ...]) -> None:
        own = generator()
        before = own.get_state()
        first, second = (FixedViews(views=3)(volumes(2, shape), generator=own) for _ in range(2))
        assert torch.equal(first, second)
        assert torch.equal(own.get_state(), before)

    def test_the_first_fixed_views_are_the_patch_as_it_lies(self) -> None:
        patches, slices = volumes(2, (9, 9, 9)), volumes(2, (9, 9))
        planes = torch.stack([patches[:, 4], patches[:, :, 4], patches[:, :, :, 4]], 1)
        assert torch.equal(FixedViews(views=9, size=9)(patches)[:, :3], planes)
        quarters = torch.stack([slices.rot90(k, (1, 2)) for k in range(4)], 1)
        torch.testing.assert_close(FixedViews(views=4, size=9)(slices), quarters, rtol=0, atol=1e-5)

    @each_pair
    def test_a_scene_looks_the_same_on_any_grid_that_shows_it(self, make: Any, shape: tuple[int, ...]) -> None:
        """A linear scene in mm, which interpolation keeps, on grids of 0.6 and 1.5 mm."""

        def scene(length: int, spacing: float) -> Tensor:
            line = spacing * (torch.arange(length) - (length - 1) / 2)
            patch = 0.3 * line + 0.5 * line[:, None]
            return (patch if len(shape) == 2 else patch - 0.2 * line[:, None, None])[None]

        fine = make(views=3, size=12, spacing=1.2)(scene(61, 0.6), generator=generator(), spacing_mm=0.6)
        coarse = make(views=3, size=12, spacing=1.2)(scene(30, 1.5), generator=generator(), spacing_mm=[1.5])
        torch.testing.assert_close(fine, coarse, rtol=0, atol=1e-4)

    @pytest.mark.long
    def test_real_slices_come_at_the_millimetres_asked_for(self) -> None:
        if not (DATA / "lidc_slices.npz").exists():
            pytest.skip("the slices of LIDC-IDRI are not in RIGHTLOSS_DATA")
        with np.load(DATA / "lidc_slices.npz", allow_pickle=False) as file:
            patches, mm = file["patches"][:40], file["spacing_mm"][:40]
        views = FixedViews(views=1, size=32, spacing=1.1)(patches, spacing_mm=mm)[:, 0]
        for patch, spacing, view in zip(patches, mm.astype(np.float64), views, strict=True):
            line = 35 + 1.1 * (np.arange(32) - 15.5) / spacing  # the centre of 71 pixels is pixel 35
            places = np.stack(np.meshgrid(line, line, indexing="ij"))
            expected = map_coordinates(patch, places, order=1, output=np.float32, mode="nearest")
            torch.testing.assert_close(view, torch.from_numpy(expected), rtol=0, atol=0.05)  # HU, of thousands

    def test_slices_are_turned_by_all_angles_and_half_of_them_flipped(self) -> None:
        """Cut views from slices that hold x and y: the slopes of a view are its rotation."""
        line = torch.arange(9) - 4.0
        ramps = torch.stack([line.expand(9, 9), line[:, None].expand(9, 9)])
        views = torch.stack([RandomViews(views=4000, size=3)(ramp[None], generator=generator())[0] for ramp in ramps])
        across, down = (views[:, :, 1, 2] - views[:, :, 1, 1]).double(), (views[:, :, 2, 1] - views[:, :, 1, 1]).double()
        handed = across[0] * down[1] - across[1] * down[0]
        torch.testing.assert_close(handed.abs(), torch.ones(4000).double(), rtol=0, atol=1e-4)
        assert_mean_is(handed, 0.0)
        angles = torch.atan2(-down[0], down[1]).numpy()
        assert scipy.stats.kstest(angles, scipy.stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-4


class TestAverage:
    def test_it_is_the_log_of_the_mean_probability_of_the_draws(self) -> None:
        patches, model = volumes(5), Recorder()
        found = average_over_views(model, patches, RandomViews(views=3, size=4), 7, generator(), batch_size=2)
        assert [len(views) for views in model.seen] == [2] * 14 + [1] * 7
        batches = [torch.stack(model.seen[at : at + 7], 1) for at in (0, 7, 14)]
        rows = [torch.stack([Recorder()(draw).exp().double() for draw in batch.unbind(1)]).mean(0).log() for batch in batches]
        torch.testing.assert_close(found.double(), torch.cat(rows), rtol=1e-5, atol=1e-6)
        spread = torch.stack([Recorder()(draw)[:, 1] for draw in batches[0].unbind(1)]).std(0)
        assert bool((spread > 1e-2).all())  # else there would be nothing to average

    def test_it_stays_in_log_space(self) -> None:
        def certain(views: Tensor) -> Tensor:
            return torch.log_softmax(torch.tensor([[0.0, -500.0]]).double().expand(len(views), 2), 1)

        found = average_over_views(certain, volumes(3), RandomViews(views=3, size=4), 4, generator())
        torch.testing.assert_close(found, torch.tensor([[0.0, -500.0]]).double().expand(3, 2))

    def test_one_draw_of_fixed_views_is_one_prediction_at_each_spacing(self) -> None:
        patches, cut, mm = volumes(5, (15, 18)), FixedViews(views=2, size=6), torch.linspace(0.5, 1.5, 5)
        found = average_over_views(Recorder(), patches, cut, 1, spacing_mm=mm, batch_size=3)
        torch.testing.assert_close(found, Recorder()(cut(patches, spacing_mm=mm)))

    def test_the_model_is_evaluated_without_gradient_and_left_in_its_mode(self) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2), nn.Dropout(0.5), nn.LogSoftmax(1))
        model[2].eval()
        cut = FixedViews(views=3, size=4)
        first, second = (average_over_views(model, volumes(2), cut, 1) for _ in range(2))
        assert torch.equal(first, second)
        assert not first.requires_grad
        assert [module.training for module in model] == [True, True, False, True]
        assert model.training

        def fails(module: nn.Module, args: Any) -> None:
            assert not model.training
            raise ArithmeticError

        model[1].register_forward_pre_hook(fails)
        with pytest.raises(ArithmeticError):
            average_over_views(model, volumes(2), cut, 1)
        assert [module.training for module in model] == [True, True, False, True]

    def test_what_goes_with_the_patches_is_split_along_with_them(self) -> None:
        patches, cut = volumes(5), FixedViews(views=3, size=4)
        scale, offset = torch.rand(5, 1, generator=generator(1)), torch.rand(5, generator=generator(2)).numpy()

        def model(views: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
            return torch.log_softmax(torch.stack([scale[:, 0] * views.mean((1, 2, 3)), offset], 1), 1)

        found = average_over_views(model, patches, cut, 2, batch_size=2, extra=(scale, offset))
        torch.testing.assert_close(found, model(cut(patches), scale, torch.from_numpy(offset)))

    def test_a_net_with_metadata_is_averaged_by_a_function_around_it(self) -> None:
        net, x = metadata_net(2, small=True).eval(), torch.randn(3, 2, generator=generator(1))
        for layer in (net.head, net.metadata.what):
            nn.init.normal_(layer.weight, generator=generator(2))
        cut = FixedViews(views=3, size=8)
        found = average_over_views(lambda *each: net(*each).log_softmax(1), volumes(3), cut, 1, extra=[x])
        torch.testing.assert_close(found, net(cut(volumes(3)), x).log_softmax(1))


def averaged(**changed: Any) -> Any:
    settings: dict[str, Any] = {"model": Recorder(), "patches": volumes(), "cutter": RandomViews(views=3, size=4)}
    return average_over_views(**settings | changed)


EYE = torch.eye(3).expand(2, 1, 3, 3)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "rows that are not there": (
        lambda: FixedViews(views=3)(volumes(2, (9, 9, 9)), rows=torch.tensor([0, 2])),
        "whole numbers below 2",
    ),
    "views that are no triplets": (lambda: RandomViews(views=8)(volumes()), "a multiple of 3 for volumes, but got 8"),
    "no views": (lambda: RandomViews(views=0), "`views` to be an int of at least 1"),
    "more fixed views than there are": (lambda: FixedViews(views=51)(volumes()), "`n` to be an int in 1..16, but got 17"),
    "size 0": (lambda: orthogonal_views(volumes(), EYE, size=0), "`size` to be an int of at least 1"),
    "a spacing of NaN": (lambda: orthogonal_views(volumes(), EYE, spacing=math.nan), "`spacing` to be positive"),
    "a spacing per axis": (
        lambda: orthogonal_views(volumes(), EYE, spacing=[1.0, 1.0, 2.0]),
        r"of shape \(2,\), but got \[1\.0, 1\.0, 2\.0\]",
    ),
    "a spacing per patch of a cutter": (lambda: RandomViews(spacing=cast(Any, [1.0, 2.0])), "`spacing` to be a finite number"),
    "spacing_mm below 0": (lambda: RandomViews()(volumes(), spacing_mm=-1), "`spacing_mm` to be positive"),
    "outside NaN": (lambda: FixedViews(outside=math.nan), "`outside` to be a finite number"),
    "one volume": (lambda: RandomViews()(volumes()[0, 0]), r"patches of shape \(n, h, w\) or \(n, d, h, w\)"),
    "slices for volumes": (lambda: orthogonal_views(volumes(2, (9, 9)), EYE), r"shape \(n, d, h, w\), .*but got \(2, 9, 9\)"),
    "a flat volume": (lambda: orthogonal_views(volumes(2, (1, 9, 9)), EYE), "at least two voxels"),
    "complex patches": (lambda: orthogonal_views(volumes() * 1j, EYE), "real numbers.*complex64"),
    "no patches": (lambda: RandomViews()(volumes(0)), "at least one patch"),
    "rotations of other patches": (lambda: orthogonal_views(volumes(3), EYE), r"\(3, t, 3, 3\)"),
    "an array of rotations": (lambda: orthogonal_views(volumes(), cast(Any, EYE.numpy())), "a tensor of floats"),
    "a mirror": (lambda: orthogonal_views(volumes(), torch.stack([EYE[0], -EYE[1]])), "but number 0 of example 1 is"),
    "a stretch": (lambda: orthogonal_views(volumes(), 1.1 * EYE), "columns are orthonormal.*stretch by `spacing`"),
    "a rotation of NaN": (lambda: orthogonal_views(volumes(), EYE * torch.nan), "columns are orthonormal"),
    "infinite angles": (lambda: inplane_views(volumes(1, (9, 9)), [[math.inf]]), "finite `angles`.*NaN or infinity"),
    "flips of another shape": (
        lambda: inplane_views(volumes(2, (9, 9)), torch.zeros(2, 3), torch.zeros(2, 4)),
        r"`flips` of shape \(2, 3\), but got shape \(2, 4\)",
    ),
    "a seed for a generator": (
        lambda: RandomViews()(volumes(), generator=cast(Any, 3)),
        "to be a torch.Generator, but got int",
    ),
    "no rotations drawn": (lambda: random_rotations(0), "`n` to be an int of at least 1"),
    "no draws": (lambda: averaged(draws=0), "`draws` to be an int of at least 1"),
    "extra without its tuple": (lambda: averaged(extra=torch.ones(2, 3)), r"extra=\(metadata,\)"),
    "extra of other patches": (lambda: averaged(extra=(torch.ones(3, 3),)), r"extra\[0\] has shape \(3, 3\)"),
    "a number of views for a cutter": (lambda: averaged(cutter=9), "a model and a cutter to call, but got Recorder and int"),
    "logits": (lambda: averaged(model=lambda views: torch.ones(len(views), 2)), "log-probabilities.*are these logits"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_with_what_came_and_what_to_do(what: str) -> None:
    assert_refused(*BAD[what])
