"""Views for the networks: planes through patches, random for training, fixed for evaluation; predictions averaged over draws.

Stage: patches `(n, d, h, w)` or `(n, h, w)` of any real dtype → views `(n, s, size, size)`, float32; rotations `(…, 3, 3)`
multiply columns (x, y, z).

The frame: x runs along the columns of an array, y along its rows, z along its slices, in voxels from the patch's centre, which
is between voxels 31 and 32 of 64. A pixel of a view has c and r, its column and row from the view's centre. A rotation R takes
them to (x, y, z) = R (c, r, 0) in the first view of a triplet, R (c, 0, r) in the second, R (0, c, r) in the third. With the
identity these are the axial, coronal and sagittal planes through the centre, seen along the array's axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from numpy.typing import ArrayLike
from torch import Tensor, nn

from ..arrays import checked_int, checked_number, log_prob_table
from ..tensors import checked_generator, in_mode, tensor_of

_BLOCK = 1 << 16  # points interpolated at a time by a CPU thread, so that intermediate results stay in its cache
_WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.float64}  # torch cannot gather the former
_ROUNDING = 1e-4  # voxels by which a point may be beyond the border and still count as on it
# Quaternions (w, x, y, z), each chosen to have its three planes furthest from those of all before it; the closest two of the
# first t triplets are 48°, 38°, 27°, 26°, 26°, 22°, 21°, 20°, 19°, 17°, 16°, 16°, 15°, 15°, 14° apart for t = 2 … 16.
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


@dataclass(frozen=True)
class _Cutter:
    """What random and fixed views share; a subclass says how they are oriented."""

    views: int = 9
    size: int = 32
    spacing: float | int = 1.0
    outside: float | int | None = None

    def __post_init__(self) -> None:
        checked_int(self.views, "views", 1)
        checked_int(self.size, "size", 1)
        checked_number(self.spacing, "spacing", 1e-6, remedy="millimetres between pixels")
        checked_outside(self.outside)

    def __call__(
        self,
        patches: ArrayLike,
        generator: torch.Generator | None = None,
        spacing_mm: float | int | ArrayLike = 1.0,
        rows: Int64[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "n views size size"]:
        """Return views of `patches`, whose voxels are `spacing_mm` apart.

        Args:
            patches: `(n, d, h, w)` or `(n, h, w)`.
            generator: as in `random_rotations`; fixed views do not use it.
            spacing_mm: a number, or `(n,)`.
            rows: as in `orthogonal_views`; `spacing_mm` is theirs.
        """
        patches = checked_patches(patches, 3, 4)
        rows = checked_rows(rows, patches)
        if len(rows) == 0:
            raise ValueError("Expected at least one patch, but got none: is the data set empty?")
        if patches.ndim == 4 and self.views % 3:
            raise ValueError(
                f"Expected `views` to be a multiple of 3 for volumes, but got {self.views}: "
                "they come as triplets of orthogonal planes."
            )
        spacing = self.spacing / per_example(spacing_mm, "spacing_mm", patches, len(rows))
        if patches.ndim == 4:
            rotations = self._rotations(len(rows), self.views // 3, generator, patches.device)
            return orthogonal_views(patches, rotations, self.size, spacing, self.outside, rows)
        angles, flips = self._turns(len(rows), generator, patches.device)
        return inplane_views(patches, angles, flips, self.size, spacing, self.outside, rows)

    def _rotations(self, n: int, triplets: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        raise NotImplementedError

    def _turns(self, n: int, generator: torch.Generator | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


@dataclass(frozen=True)
class RandomViews(_Cutter):
    """Random views, drawn in each call: triplets of orthogonal planes of volumes, turned and flipped copies of slices.

    Args:
        views: how many of each patch; of volumes a multiple of 3.
        size: pixels along the sides of a view.
        spacing: millimetres from pixel to pixel.
        outside: as in `orthogonal_views`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import RandomViews
        >>> RandomViews(views=9, size=32)(torch.rand(5, 64, 64, 64)).shape
        torch.Size([5, 9, 32, 32])
    """

    def _rotations(self, n: int, triplets: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return random_rotations(n * triplets, generator, device).unflatten(0, (n, triplets))

    def _turns(self, n: int, generator: torch.Generator | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        source = checked_generator(generator)
        on = "cpu" if source is None else source.device
        angles, flips = (torch.rand((n, self.views), generator=source, device=on).to(device) * 2 - 1 for _ in range(2))
        return math.pi * angles, flips < 0


@dataclass(frozen=True)
class FixedViews(_Cutter):
    """Fixed views, equal in each call, for evaluation.

    Of volumes the triplets of `fixed_rotations`, axial, coronal and sagittal first, up to 48 views; of slices any number of
    turns by equal angles, the slice itself first.

    Args:
        views: how many of each patch; of volumes a multiple of 3.
        size: pixels along the sides of a view.
        spacing: millimetres from pixel to pixel.
        outside: as in `orthogonal_views`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import FixedViews
        >>> FixedViews(views=3, size=32)(torch.rand(5, 64, 64, 64)).shape
        torch.Size([5, 3, 32, 32])
    """

    def _rotations(self, n: int, triplets: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
        return fixed_rotations(triplets).expand(n, -1, 3, 3)

    def _turns(self, n: int, generator: torch.Generator | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
        return (torch.arange(self.views) * (2 * math.pi / self.views)).expand(n, -1), None


@torch.no_grad()
def average_over_views(
    model: Callable[..., Tensor],
    patches: ArrayLike,
    cutter: Callable[..., Tensor],
    draws: int = 10,
    generator: torch.Generator | None = None,
    spacing_mm: float | int | ArrayLike = 1.0,
    batch_size: int = 64,
    extra: Sequence[ArrayLike] = (),
) -> Float[Tensor, "n k"]:
    """Return log (1/D Σ_d p(y|views_d)), the log of probabilities averaged over D draws of views, without gradient.

    Args:
        model: views, and the tensors in `extra`, → log-probabilities `(n, k)`. An nn.Module is put into eval mode and back.
            Other callables are not: call `net.eval()` before you wrap a net in a function.
        patches: `(n, d, h, w)` or `(n, h, w)`.
        cutter: `RandomViews(…)`; with `FixedViews(…)`, the same in each draw, one draw is enough.
        draws: D.
        generator: as in `random_rotations`.
        spacing_mm: as for `RandomViews`.
        batch_size: patches per call of the model. The random draws depend on it.
        extra: tensors `(n, …)`, split like the patches and passed to the model after the views, such as `(metadata,)`.

    Examples:
        >>> import torch
        >>> from rightloss.lidc import RandomViews, average_over_views
        >>> from rightloss.lidc.nets import convnet
        >>> net = convnet(2, small=True).eval()
        >>> average_over_views(lambda views: net(views).log_softmax(1), torch.rand(5, 64, 64, 64), RandomViews(3), draws=2)[0]
        tensor([-0.6931, -0.6931])
    """
    patches = checked_patches(patches, 3, 4)
    draws, rows = checked_int(draws, "draws", 1), checked_int(batch_size, "batch_size", 1)
    spacing = per_example(spacing_mm, "spacing_mm", patches)
    if not callable(model) or not callable(cutter):
        raise ValueError(
            f"Expected a model and a cutter to call, but got {type(model).__name__} and {type(cutter).__name__}: "
            "write average_over_views(model, patches, RandomViews())."
        )
    others = [tensor_of(each, f"extra[{number}]") for number, each in enumerate(extra)]
    for number, each in enumerate(others):
        if each.shape[:1] != (len(patches),):
            came = f"extra[{number}] has shape {tuple(each.shape)}: write extra=(metadata,), of the same rows"
            raise ValueError(f"Expected a row for each of the {len(patches)} patches in `extra`, but {came}.")
    averages = []
    with in_mode(model, training=False) if isinstance(model, nn.Module) else nullcontext():
        for some, mm, *more in zip(*(each.split(rows) for each in (patches, spacing, *others)), strict=True):
            tables = [tensor_of(model(cutter(some, generator=generator, spacing_mm=mm), *more)) for _ in range(draws)]
            for table in tables:
                log_prob_table(table, name="predictions")
            averages.append(torch.logsumexp(torch.stack(tables), 0) - math.log(draws))
    return torch.cat(averages)


def orthogonal_views(
    patches: ArrayLike,
    rotations: Tensor,
    size: int = 32,
    spacing: float | int | ArrayLike = 1.0,
    outside: float | int | None = None,
    rows: Int64[Tensor, " n"] | None = None,
) -> Float[Tensor, "n views size size"]:
    """Return, for each rotation, the three orthogonal planes through the patch's centre, interpolated trilinearly.

    Patches are read in their own dtype; only values that are used become float32 (uint16 and wider unsigned numbers, which
    torch cannot gather, are copied to a wider dtype first). Gradients reach float patches, not the rotations. NaN in a patch is
    NaN in the views that touch it.

    Args:
        patches: `(n, d, h, w)`, at least two voxels along each axis.
        rotations: `(n, t, 3, 3)`; the frame is described at the top of this file. View 3i + j is plane j of rotation i.
        size: pixels along the sides of a view.
        spacing: from pixel to pixel, in voxels of the patch: a number, or `(n,)`.
        outside: the value beyond the centres of the outermost voxels, or None to repeat the closest voxel.
        rows: `(n,)`, the patches to cut, without the copy that `patches[rows]` would make. All by default.
    """
    patches = checked_patches(patches, 4)
    rows = checked_rows(rows, patches)
    spacing = per_example(spacing, "spacing", patches, len(rows))
    rotations = checked_rotations(rotations, len(rows)).to(patches.device, torch.float32)
    axes = rotations.flip(2) * spacing[:, None, None, None]  # rows z, y, x, as in the array
    across, down = (axes[..., columns].mT.flatten(1, 2) for columns in ([0, 0, 1], [1, 2, 2]))
    return _cut(patches, rows, across, down, checked_int(size, "size", 1), checked_outside(outside))


def inplane_views(
    slices: ArrayLike,
    angles: ArrayLike,
    flips: ArrayLike | None = None,
    size: int = 32,
    spacing: float | int | ArrayLike = 1.0,
    outside: float | int | None = None,
    rows: Int64[Tensor, " n"] | None = None,
) -> Float[Tensor, "n views size size"]:
    """Return views of slices turned in their plane, interpolated bilinearly: (x, y) = Q (c, r), or Q (−c, r) where flipped.

    Q turns by the angle from the x axis towards the y axis, which points down in an image: turning Q to the right by a quarter
    shows the slice turned to the left.

    Args:
        slices: `(n, h, w)`, at least two pixels along each axis.
        angles: `(n, s)`, radians.
        flips: `(n, s)`, bools; None for no flip.
        size: pixels along the sides of a view.
        spacing: from pixel to pixel, in pixels of the slice: a number, or `(n,)`.
        outside: as in `orthogonal_views`.
        rows: as in `orthogonal_views`.
    """
    slices = checked_patches(slices, 3)
    rows = checked_rows(rows, slices)
    spacing = per_example(spacing, "spacing", slices, len(rows))[:, None]
    angles = tensor_of(angles, "angles").detach().to(slices.device, torch.float32)
    flipped = torch.zeros_like(angles) if flips is None else tensor_of(flips, "flips").to(slices.device)
    if angles.shape != (len(rows), *angles.shape[1:2]) or 0 in angles.shape[1:] or not bool(angles.isfinite().all()):
        came = f"shape {tuple(angles.shape)}, or NaN or infinity in it: a number for each view"
        raise ValueError(f"Expected finite `angles` of shape ({len(rows)}, s), but got {came}.")
    if flipped.shape != angles.shape:
        came = f"shape {tuple(flipped.shape)}: a bool for each view"
        raise ValueError(f"Expected `flips` of shape {tuple(angles.shape)}, but got {came}.")
    cos, sin, sign = angles.cos() * spacing, angles.sin() * spacing, torch.where(flipped != 0, -1.0, 1.0)
    across, down = torch.stack([sin * sign, cos * sign], 2), torch.stack([cos, -sin], 2)  # y, x, as in the array
    return _cut(slices, rows, across, down, checked_int(size, "size", 1), checked_outside(outside))


def random_rotations(
    n: int,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "n 3 3"]:
    """Return n rotations, uniform (Haar) over SO(3): a Gaussian in four dimensions has no preferred direction.

    Args:
        n: number of rotations.
        generator: random generator, on any device; torch's default generator on the CPU if None.
        device: device of the result. The numbers are drawn on the generator's device, so a seed gives the same rotations
            everywhere.
        dtype: dtype of the result.
    """
    n = checked_int(n, "n", 1)
    source = checked_generator(generator)
    drawn = dtype if dtype == torch.float64 else torch.float32
    quaternions = torch.randn(n, 4, generator=source, device="cpu" if source is None else source.device, dtype=drawn)
    return _matrices(quaternions).to(device=device, dtype=dtype)


def fixed_rotations(n: int) -> Float[Tensor, "n 3 3"]:
    """Return the first n of 16 fixed rotations: the identity, then each with its three planes far from all before it."""
    n = checked_int(n, "n", 1, len(_SPREAD), "draw `random_rotations` for more")
    return _matrices(torch.tensor(_SPREAD[:n], dtype=torch.float64)).float()


def checked_patches(patches: ArrayLike, *axes: int) -> Tensor:
    """Return a tensor of real numbers that torch can gather; ValueError unless its number of axes is one of `axes`."""
    given = tensor_of(patches, "patches")
    if given.ndim not in axes or min(given.shape[1:]) < 2 or given.is_complex():
        wanted = " or ".join({3: "(n, h, w)", 4: "(n, d, h, w)"}[each] for each in axes)
        raise ValueError(
            f"Expected patches of shape {wanted}, real numbers, at least two voxels along each axis, but got "
            f"{tuple(given.shape)} of {given.dtype}: stack them along a first axis, and leave out an axis of channels."
        )
    return given.to(_WIDER.get(given.dtype, given.dtype))


def checked_rows(rows: Int64[Tensor, " n"] | None, patches: Tensor) -> Int64[Tensor, " n"]:
    """Return numbers of patches, by default of all."""
    if rows is None:
        return torch.arange(len(patches), device=patches.device)
    given = tensor_of(rows, "rows").to(patches.device)
    fits = given.ndim == 1 and given.dtype == torch.int64
    if not fits or bool(((given < 0) | (given >= len(patches))).any()):
        raise ValueError(
            f"Expected `rows` to be whole numbers below {len(patches)}, the number of patches, but got {rows!r}: "
            "count from 0, in an int64 tensor of one axis."
        )
    return given


def per_example(values: float | int | ArrayLike, name: str, patches: Tensor, count: int | None = None) -> Float[Tensor, " n"]:
    """Return a positive number for each of `count` examples, by default the patches; given is one for all or one for each."""
    count = len(patches) if count is None else count
    given = tensor_of(values, name).to(patches.device, torch.float32)
    if given.shape not in ((), (count,)) or not bool(((given > 0) & given.isfinite()).all()):
        raise ValueError(
            f"Expected `{name}` to be positive and finite, a number or of shape ({count},), but got {values!r}: it is the "
            "distance of two pixels; resample patches in which it is not the same along all axes."
        )
    return given.expand(count)


def checked_outside(outside: float | int | None) -> float | None:
    """Return the value beyond the outermost voxels, a finite number or None."""
    return None if outside is None else checked_number(outside, "outside", remedy="such as -1000 HU, air; None repeats voxels")


def _cut(
    patches: Tensor, rows: Tensor, across: Tensor, down: Tensor, size: int, outside: float | None
) -> Float[Tensor, "n views size size"]:
    """Return views whose pixel (r, c) is the value at centre + c · across + r · down; vectors `(n, views, axes)`."""
    steps = torch.arange(size, device=patches.device) - (size - 1) / 2
    centre = (torch.tensor(patches.shape[1:], device=patches.device) - 1) / 2
    along, aside = (across[..., None] * steps + centre[:, None]).movedim(2, 0), (down[..., None] * steps).movedim(2, 0)
    on_cpu = patches.device.type == "cpu"
    most = max(1, torch.get_num_threads() * _BLOCK // (across.shape[1] * size**2) if on_cpu else len(rows))
    blocks = zip(rows.split(most), along.unsqueeze(3).split(most, 1), aside.unsqueeze(4).split(most, 1), strict=True)
    flat, lengths = patches.reshape(-1), patches.shape[1:]
    return torch.cat(
        [_interpolate(flat, lengths, block, [c + r for c, r in zip(*each, strict=True)], outside) for block, *each in blocks]
    )


def _interpolate(
    flat: Tensor, lengths: Sequence[int], rows: Tensor, places: Sequence[Tensor], outside: float | None
) -> Float[Tensor, "n views size size"]:
    """Interpolate linearly between the 4 or 8 voxels around each point; `places` along the array's axes are overwritten.

    `flat` has the voxels of all patches, of these lengths along their axes, one after the other.
    """
    shape = places[0].shape
    pairs = list(zip(places, lengths, strict=True))
    beyond = [] if outside is None else [(place < -_ROUNDING) | (place > length - 1 + _ROUNDING) for place, length in pairs]
    index = torch.zeros((), dtype=torch.int32, device=flat.device)
    weights = []
    for place, length in pairs:
        lower = place.clamp_(0, length - 1).floor().clamp_(max=length - 2)
        index = lower.int().add_(index * length)
        weights.append(place.sub_(lower).flatten())
    index = (index.long() + math.prod(lengths) * rows[:, None, None, None]).flatten()

    def value(axis: int, start: int) -> Tensor:
        if axis == len(lengths):
            return flat[start:].index_select(0, index).float()
        step = math.prod(lengths[axis + 1 :])
        return value(axis + 1, start).lerp_(value(axis + 1, start + step), weights[axis])

    found = value(0, 0).view(shape)
    return found if outside is None else found.masked_fill(torch.stack(beyond).any(0), outside)


def checked_rotations(rotations: Tensor, n: int) -> Float[Tensor, "n t 3 3"]:
    """Return `rotations` for n examples; ValueError if their shape is wrong, or they mirror, stretch or shear."""
    fits = isinstance(rotations, Tensor) and rotations.ndim == 4 and rotations.shape[2:] == (3, 3) and rotations.shape[1] > 0
    if not fits or len(rotations) != n or not rotations.is_floating_point():
        came = f"{tuple(rotations.shape)} of {rotations.dtype}" if isinstance(rotations, Tensor) else type(rotations).__name__
        raise ValueError(
            f"Expected `rotations` to be a tensor of floats of shape ({n}, t, 3, 3), t for each example, but got {came}: "
            "write random_rotations(n * t).unflatten(0, (n, t))."
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
    """Return the rotations v ↦ q v q⁻¹ of quaternions of any positive length."""
    w, x, y, z = (quaternions / quaternions.norm(dim=1, keepdim=True)).unbind(1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, 1) for row in rows], 1)
