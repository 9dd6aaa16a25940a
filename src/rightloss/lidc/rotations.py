"""Orientations in space: random ones, uniform over all, and fixed ones, well spread.

Stage: how many → rotation matrices `(…, 3, 3)`, which multiply columns (x, y, z).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ..rng import checked_generator
from ..sampling.checks import whole_number

__all__ = ["checked_rotations", "fixed_rotations", "random_rotations"]

# Quaternions (w, x, y, z). Each is the one that keeps its three planes farthest from those of all before it; the closest two of
# the first t triplets are 48°, 38°, 27°, 26°, 26°, 22°, 21°, 20°, 19°, 17°, 16°, 16°, 15°, 15°, 14° apart for t = 2 … 16.
_SPREAD = (
    (1.0, 0.0, 0.0, 0.0),
    (0.866, 0.2887, -0.2887, -0.2887),
    (0.8881, 0.3251, 0.0, 0.325),
    (0.9564, -0.1626, 0.1716, -0.1716),
    (0.9048, 0.1593, 0.3629, -0.1556),
    (0.952, 0.2101, -0.1759, 0.1366),
    (0.8948, -0.3668, -0.1595, -0.1981),
    (0.9569, -0.2229, -0.0141, 0.1854),
    (0.9184, 0.0965, 0.1395, 0.3574),
    (0.9331, 0.0001, -0.2692, 0.2384),
    (0.9632, 0.1874, 0.1908, 0.0288),
    (0.9299, -0.2508, 0.2669, -0.0324),
    (0.9308, 0.1329, -0.0865, -0.3293),
    (0.9393, -0.3167, 0.0189, -0.1305),
    (0.9597, -0.0643, -0.1142, -0.2484),
    (0.9277, -0.0976, 0.352, 0.0767),
)


def random_rotations(
    n: Any, generator: Any = None, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "n 3 3"]:
    """n rotations, uniform (Haar) over SO(3): a Gaussian in four dimensions has no preferred direction.

    Args:
        n: how many.
        generator: where the random numbers come from, on any device; by default torch's own on the CPU.
        device: where the result goes. The numbers are drawn on the generator's device: one seed gives the same everywhere.
        dtype: of the result.
    """
    n = whole_number(n, "n", 1)
    source = checked_generator(generator)
    drawn = dtype if dtype == torch.float64 else torch.float32
    quaternions = torch.randn(n, 4, generator=source, device="cpu" if source is None else source.device, dtype=drawn)
    return _matrices(quaternions).to(device=device, dtype=dtype)


def fixed_rotations(n: Any) -> Float[Tensor, "n 3 3"]:
    """The first n of a list of 16 that never changes: the identity, then each with its three planes far from all before it."""
    n = whole_number(n, "n", 1)
    if n > len(_SPREAD):
        raise ValueError(f"Expected at most {len(_SPREAD)} fixed rotations, but got {n}: draw `random_rotations` instead.")
    return _matrices(torch.tensor(_SPREAD[:n], dtype=torch.float64)).float()


def checked_rotations(rotations: Any, n: int) -> Float[Tensor, "n t 3 3"]:
    """`rotations` for n examples, or a ValueError where they are of another shape, or mirror, stretch or shear."""
    shape = tuple(rotations.shape) if isinstance(rotations, Tensor) else type(rotations).__name__
    if not isinstance(rotations, Tensor) or rotations.ndim != 4 or rotations.shape[2:] != (3, 3) or len(rotations) != n:
        raise ValueError(
            f"Expected `rotations` to be a tensor of shape ({n}, t, 3, 3), t for each example, but got {shape}: "
            "write random_rotations(n * t).unflatten(0, (n, t))."
        )
    if rotations.shape[1] == 0 or not rotations.is_floating_point():
        raise ValueError(
            f"Expected at least one rotation of floats for each example, but got {shape} of {rotations.dtype}: "
            "one rotation gives three views."
        )
    wide = rotations.detach().double()
    error = (wide @ wide.mT - torch.eye(3, dtype=wide.dtype, device=wide.device)).abs().amax((2, 3))
    good = (error < 1e-3) & (torch.linalg.det(wide) > 0)  # NaN is not
    if not bool(good.all()):
        row, which = torch.nonzero(~good)[0].tolist()
        raise ValueError(
            f"Expected rotations, whose columns are orthonormal with determinant 1, but number {which} of example {row} is "
            f"{rotations[row, which].tolist()}: stretch by `spacing`, and leave mirrors out."
        )
    return rotations.detach()


def _matrices(quaternions: Float[Tensor, "n 4"]) -> Float[Tensor, "n 3 3"]:
    """The rotations v ↦ q v q⁻¹ of quaternions of any length but 0."""
    w, x, y, z = (quaternions / quaternions.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)
