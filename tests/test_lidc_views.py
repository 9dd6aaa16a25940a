"""Views: planes against SciPy's interpolation, rotations uniform or well spread, cutters, averages, and what is refused."""

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
from scipy.spatial.transform import Rotation
from torch import Tensor, nn

from rightloss.lidc.views import (
    FixedViews,
    RandomViews,
    average_over_views,
    fixed_rotations,
    inplane_views,
    orthogonal_views,
    random_rotations,
)

DATA = Path(os.environ.get("RIGHTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def volumes(n: int = 2, shape: tuple[int, ...] = (12, 15, 18), seed: int = 0) -> Tensor:
    """White noise, the hardest to interpolate."""
    return torch.rand(n, *shape, generator=generator(seed))


PLANES = ((0, 1), (0, 2), (1, 2))  # which of x, y, z the columns and the rows of a triplet's views run along, unrotated


def rotations(n: int = 2, t: int = 3, seed: int = 1) -> Tensor:
    return random_rotations(n * t, generator(seed)).unflatten(0, (n, t))


def place_of(array: np.ndarray, point: np.ndarray, outside: float | None) -> np.ndarray:
    """SciPy's value at `point`, (x, y[, z]) from the centre in voxels, along its first axis."""
    centre = (np.array(array.shape) - 1) / 2
    places = point[::-1] + centre.reshape(-1, *[1] * (point.ndim - 1))
    mode = "nearest" if outside is None else "constant"
    return map_coordinates(array.astype(np.float64), places, order=1, mode=mode, cval=outside or 0.0)


def by_scipy(patches: Tensor, turns: Tensor, size: int, spacing: float | Tensor, outside: float | None) -> Tensor:
    """The triplets pixel by pixel from the definition, in float64."""
    steps = np.arange(size) - (size - 1) / 2
    each = torch.as_tensor(spacing).expand(len(patches)).double().numpy()
    views = []
    for i, patch in enumerate(patches.numpy()):
        for turn in turns[i].double().numpy():
            for column, row in PLANES:
                local = np.zeros((3, size, size))
                local[column], local[row] = each[i] * steps[None, :], each[i] * steps[:, None]
                views.append(place_of(patch, np.einsum("ij,jrc->irc", turn, local), outside))
    return torch.from_numpy(np.stack(views)).float().view(len(patches), -1, size, size)


CUTS: dict[str, dict[str, Any]] = {
    "inside": {"size": 7, "spacing": 1.0},
    "over the border": {"size": 24, "spacing": 1.3},
    "a number outside": {"size": 24, "spacing": 1.3, "outside": -3.5},
    "zero outside": {"size": 15, "spacing": 2.0, "outside": 0},
    "a spacing each": {"size": 8, "spacing": torch.tensor([0.7, 1.9])},
}


class TestVolumes:
    @pytest.mark.parametrize("what", CUTS)
    def test_every_pixel_is_what_scipy_interpolates_there(self, what: str) -> None:
        settings = {"outside": None} | CUTS[what]
        found = orthogonal_views(volumes(), rotations(), **settings)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, by_scipy(volumes(), rotations(), **settings), rtol=0, atol=2e-5)

    def test_a_batch_is_its_examples_one_by_one_and_block_by_block(self) -> None:
        patches, turns, spacing = volumes(9), rotations(9, 4), torch.linspace(0.5, 2, 9)
        together = orthogonal_views(patches, turns, size=48, spacing=spacing)  # two to a block
        alone = [orthogonal_views(patches[i : i + 1], turns[i : i + 1], 48, float(spacing[i])) for i in range(9)]
        assert torch.equal(together, torch.cat(alone))

    def test_no_patches_give_no_views(self) -> None:
        assert orthogonal_views(volumes(0), torch.zeros(0, 2, 3, 3), size=5).shape == (0, 6, 5, 5)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.uint8, torch.int16, torch.bool, torch.uint32])
    def test_every_dtype_gives_what_its_numbers_in_float32_give(self, dtype: torch.dtype) -> None:
        patches = (volumes() * 100).to(dtype)
        assert torch.equal(orthogonal_views(patches, rotations()), orthogonal_views(patches.float(), rotations()))

    def test_unsigned_numbers_keep_the_half_of_their_range_that_signed_ones_lack(self) -> None:
        for kind in (np.uint16, np.uint32, np.uint64):
            top = np.iinfo(kind).max
            views = orthogonal_views(np.full((1, 4, 4, 4), top, kind), torch.eye(3)[None, None], size=3)
            assert torch.equal(views, torch.full((1, 3, 3, 3), float(top)))

    def test_strided_patches_and_arrays_are_read_alike(self) -> None:
        patches = volumes(4, (24, 15, 18))
        strided = patches[::2, ::2].transpose(1, 3)
        views = orthogonal_views(strided.contiguous(), rotations())
        assert torch.equal(orthogonal_views(strided, rotations()), views)
        assert torch.equal(orthogonal_views(strided.numpy(), rotations()), views)
        big_endian = strided.numpy().astype(">f4")
        big_endian.flags.writeable = False
        assert torch.equal(orthogonal_views(big_endian, rotations()), views)

    def test_gradients_are_the_transpose_of_cutting(self) -> None:
        """Views are linear in the patches, A p; so for any g the gradient of ⟨g, A p⟩ is Aᵀ g, and ⟨Aᵀ g, q⟩ = ⟨g, A q⟩."""
        patches, other, outside = volumes().requires_grad_(), volumes(seed=3), 0.0
        views = orthogonal_views(patches, rotations(), size=20, outside=outside)
        weights = torch.randn(views.shape, generator=generator(4))
        (gradient,) = torch.autograd.grad((views * weights).sum(), patches)
        there = (orthogonal_views(other, rotations(), size=20, outside=outside) * weights).double().sum()
        torch.testing.assert_close((gradient * other).double().sum(), there, rtol=0, atol=1e-3)

    def test_nan_stays_where_it_is(self) -> None:
        patches = volumes(2, (9, 9, 9))
        patches[1, 4, 4, 8] = torch.nan
        axial = orthogonal_views(patches, torch.eye(3).expand(2, 1, 3, 3), size=9)[:, 0]
        assert axial[1, 4, 8].isnan()
        assert not axial[0].isnan().any()
        assert not axial[1, :, :7].isnan().any()


class TestSlices:
    @pytest.mark.parametrize("outside", [None, 2.5])
    def test_every_pixel_is_what_scipy_interpolates_there(self, outside: float | None) -> None:
        slices, n, s, size = volumes(3, (17, 22)), 3, 4, 19
        angles = 7 * torch.randn(n, s, generator=generator(2))
        flips = torch.rand(n, s, generator=generator(3)) < 0.5
        spacing = torch.tensor([0.5, 1.0, 1.6])
        found = inplane_views(slices, angles.clone().requires_grad_(), flips, size, spacing, outside)
        assert not found.requires_grad
        steps = np.arange(size) - (size - 1) / 2
        for i in range(n):
            for j in range(s):
                angle, sign = float(angles[i, j].double()), -1 if flips[i, j] else 1
                turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
                local = float(spacing[i]) * np.stack(np.broadcast_arrays(sign * steps[None, :], steps[:, None]))
                point = np.einsum("ij,jrc->irc", turn, local)
                expected = torch.from_numpy(place_of(slices[i].numpy(), point, outside)).float()
                torch.testing.assert_close(found[i, j], expected, rtol=0, atol=2e-5)


class TestRandomRotations:
    N = 20_000

    def drawn(self, seed: int = 0) -> Tensor:
        return random_rotations(self.N, generator(seed), dtype=torch.float64)

    @pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 2e-6), (torch.float64, 4e-15), (torch.float16, 4e-3)])
    def test_they_are_rotations(self, dtype: torch.dtype, atol: float) -> None:
        found = random_rotations(1000, generator(), dtype=dtype)
        assert found.dtype == dtype
        wide = found.double()
        torch.testing.assert_close(wide @ wide.mT, torch.eye(3).double().expand(1000, 3, 3), rtol=0, atol=atol)
        torch.testing.assert_close(torch.linalg.det(wide), torch.ones(1000).double(), rtol=0, atol=2 * atol)

    def test_first_and_second_moments_are_those_of_the_uniform_distribution(self) -> None:
        """E R = 0, and E R_ij R_kl = δ_ik δ_jl / 3."""
        flat = self.drawn().flatten(1)
        assert_mean_is(flat, 0.0)
        assert_mean_is((flat[:, :, None] * flat[:, None, :]).flatten(1), (torch.eye(9) / 3).flatten(), z=4.5)

    def test_the_angle_has_density_one_minus_cosine(self) -> None:
        """p(θ) = (1 − cos θ) / π on [0, π], whose integral is (θ − sin θ) / π."""
        trace = self.drawn(1).diagonal(dim1=1, dim2=2).sum(1)
        angles = torch.acos(((trace - 1) / 2).clamp(-1, 1)).numpy()
        assert scipy.stats.kstest(angles, lambda t: (t - np.sin(t)) / np.pi).pvalue > 1e-4

    def test_a_generator_decides_and_by_default_torchs_own(self) -> None:
        assert torch.equal(random_rotations(5, generator()), random_rotations(5, generator()))
        assert not torch.equal(random_rotations(5, generator()), random_rotations(5, generator(1)))
        with torch.random.fork_rng():
            torch.manual_seed(3)
            first = random_rotations(5)
            torch.manual_seed(3)
            assert torch.equal(first, random_rotations(5))


class TestFixedRotations:
    def test_they_are_rotations_with_the_identity_first_and_never_change(self) -> None:
        found = fixed_rotations(16).double()
        assert torch.equal(found[0], torch.eye(3).double())
        torch.testing.assert_close(found @ found.mT, torch.eye(3).double().expand(16, 3, 3), rtol=0, atol=1e-6)
        assert torch.equal(fixed_rotations(3), fixed_rotations(16)[:3])
        # 60° about (1, −1, −1): the furthest that three planes can be from the first three, arccos 2/3.
        second = Rotation.from_rotvec(np.deg2rad(60) / 3**0.5 * np.array([1, -1, -1])).as_matrix()
        torch.testing.assert_close(found[1], torch.from_numpy(second), rtol=0, atol=1e-4)

    def test_no_two_planes_are_close(self) -> None:
        for count, degrees in [(1, 90), (2, 48), (3, 37), (4, 27), (8, 21), (16, 14)]:
            normals = fixed_rotations(count).mT.flatten(0, 1).double()
            cosines = (normals @ normals.mT).abs().fill_diagonal_(0)
            assert float(torch.rad2deg(torch.acos(cosines.max()))) > degrees - 1e-4


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
        for outside in (None, -1.0):  # the outermost voxels are inside
            assert torch.equal(FixedViews(views=9, size=9, outside=outside)(patches)[:, :3], planes)
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


def averaged(**changed: Any) -> Any:
    settings: dict[str, Any] = {"model": Recorder(), "patches": volumes(), "cutter": RandomViews(views=3, size=4)}
    return average_over_views(**settings | changed)


EYE = torch.eye(3).expand(2, 1, 3, 3)
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "rows that are not there": (
        lambda: FixedViews(views=3)(volumes(2, (9, 9, 9)), rows=torch.tensor([0, 2])),
        "whole numbers below 2",
    ),
    "rows that are floats": (
        lambda: FixedViews(views=3)(volumes(2, (9, 9, 9)), rows=torch.tensor([0.0])),
        "in an int64 tensor",
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
