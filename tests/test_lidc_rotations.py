"""Orientations: rotations, uniform over all of them; and a fixed list, well spread."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from members import SEED, assert_mean_is, generator
from scipy.spatial.transform import Rotation
from torch import Tensor

from rightloss.lidc.views import fixed_rotations, random_rotations


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

    def test_their_angles_are_distributed_as_those_of_scipy(self) -> None:
        other = Rotation.random(self.N, random_state=SEED).as_matrix()
        fixed = Rotation.from_rotvec([0.3, -1.1, 0.7]).as_matrix()  # seen from elsewhere than the identity
        ours, theirs = (np.trace(matrices @ fixed, axis1=1, axis2=2) for matrices in (self.drawn(3).numpy(), other))
        assert scipy.stats.ks_2samp(ours, theirs).pvalue > 1e-4

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
        # 60° about (1, −1, −1): the farthest that three planes can be from the first three, arccos 2/3.
        second = Rotation.from_rotvec(np.deg2rad(60) / 3**0.5 * np.array([1, -1, -1])).as_matrix()
        torch.testing.assert_close(found[1], torch.from_numpy(second), rtol=0, atol=1e-4)

    @pytest.mark.parametrize(("count", "degrees"), [(1, 90), (2, 48), (3, 37), (4, 27), (8, 21), (16, 14)])
    def test_no_two_planes_are_close(self, count: int, degrees: float) -> None:
        normals = fixed_rotations(count).mT.flatten(0, 1).double()
        cosines = (normals @ normals.mT).abs().fill_diagonal_(0)
        assert float(torch.rad2deg(torch.acos(cosines.max()))) > degrees - 1e-4
