"""Rotations, uniform or well spread; planes cut, against SciPy's interpolation and by geometry."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from members import SEED, assert_mean_is, generator
from scipy.ndimage import map_coordinates
from scipy.spatial.transform import Rotation
from torch import Tensor

from rightloss.lidc.views import fixed_rotations, inplane_views, orthogonal_views, random_rotations

PLANES = ((0, 1), (0, 2), (1, 2))  # which of x, y, z the columns and the rows of a triplet's views run along, unrotated


def volumes(n: int = 2, shape: tuple[int, ...] = (12, 15, 18), seed: int = 0) -> Tensor:
    """White noise, the hardest to interpolate."""
    return torch.rand(n, *shape, generator=generator(seed))


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

    def test_the_identity_gives_the_central_planes_exactly(self) -> None:
        patches = volumes(2, (7, 9, 11))
        axial, coronal, sagittal = orthogonal_views(patches, torch.eye(3).expand(2, 1, 3, 3), size=7).unbind(1)
        assert torch.equal(axial, patches[:, 3, 1:8, 2:9])
        assert torch.equal(coronal, patches[:, :, 4, 2:9])
        assert torch.equal(sagittal, patches[:, :, 1:8, 5])

    def test_between_two_voxels_the_identity_gives_their_mean(self) -> None:
        patches = volumes(1, (64, 64, 64))
        views = orthogonal_views(patches, torch.eye(3).expand(1, 1, 3, 3), size=32)[0]
        middle, around = slice(31, 33), slice(16, 48)
        torch.testing.assert_close(views[0], patches[0, middle, around, around].mean(0))
        torch.testing.assert_close(views[1], patches[0, around, middle, around].mean(1))
        torch.testing.assert_close(views[2], patches[0, around, around, middle].mean(2))

    def test_three_linear_ramps_show_planes_at_right_angles_through_one_centre(self) -> None:
        """Where a voxel holds its own x, y or z, the views tell where each of their pixels was cut."""
        line = torch.arange(40) - 19.5
        ramps = torch.stack([each.expand(40, 40, 40) for each in (line, line[:, None], line[:, None, None])])
        turn = rotations(1, 2)
        where = orthogonal_views(ramps, turn.expand(3, -1, -1, -1), size=17).double()  # axis, view, row, column
        torch.testing.assert_close(where[:, :, 8, 8], torch.zeros(3, 6, dtype=torch.float64), rtol=0, atol=1e-5)
        across, down = where[:, :, 8, 9] - where[:, :, 8, 8], where[:, :, 9, 8] - where[:, :, 8, 8]
        normals = torch.linalg.cross(across, down, dim=0).view(3, 2, 3)
        gram = torch.einsum("atj,atk->tjk", normals, normals)
        torch.testing.assert_close(gram, torch.eye(3, dtype=torch.float64).expand(2, 3, 3), rtol=0, atol=1e-4)

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
        found = inplane_views(slices, angles, flips, size, spacing, outside)
        steps = np.arange(size) - (size - 1) / 2
        for i in range(n):
            for j in range(s):
                angle, sign = float(angles[i, j].double()), -1 if flips[i, j] else 1
                turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
                local = float(spacing[i]) * np.stack(np.broadcast_arrays(sign * steps[None, :], steps[:, None]))
                point = np.einsum("ij,jrc->irc", turn, local)
                expected = torch.from_numpy(place_of(slices[i].numpy(), point, outside)).float()
                torch.testing.assert_close(found[i, j], expected, rtol=0, atol=2e-5)

    def test_quarter_turns_and_flips_are_those_of_the_array(self) -> None:
        slices = volumes(2, (9, 9))
        quarters = torch.arange(4).expand(2, 4) * (math.pi / 2)
        turned = torch.stack([slices.rot90(k, (1, 2)) for k in range(4)], 1)
        torch.testing.assert_close(inplane_views(slices, quarters, size=9), turned, rtol=0, atol=1e-5)
        flips = torch.ones(2, 4, dtype=torch.bool)
        torch.testing.assert_close(inplane_views(slices, quarters, flips, size=9), turned.flip(3), rtol=0, atol=1e-5)


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

    @pytest.mark.parametrize("turned", [False, True], ids=["as drawn", "multiplied from the left"])
    def test_a_vector_turned_is_uniform_on_the_sphere(self, turned: bool) -> None:
        """Every coordinate is uniform on [−1, 1] (Archimedes), and the longitude uniform and independent of the height."""
        left = torch.from_numpy(Rotation.random(random_state=SEED).as_matrix()) if turned else torch.eye(3).double()
        x, y, z = (left @ self.drawn(2) @ torch.tensor([0.6, 0.0, 0.8]).double()).unbind(1)
        for values in (x, y, z):
            assert scipy.stats.kstest(values.numpy(), scipy.stats.uniform(-1, 2).cdf).pvalue > 1e-4
        longitude = torch.atan2(y, x)
        assert scipy.stats.kstest(longitude.numpy(), scipy.stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-4
        for part in (longitude[z < -0.3], longitude[z > 0.6]):
            assert scipy.stats.kstest(part.numpy(), scipy.stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > 1e-4

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
