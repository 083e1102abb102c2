"""Slices as they are shown. Radiological view: the patient's right is on the left of the picture, front and head on top."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from metreg.core.fields import jacobian_determinant
from metreg.core.grid import Array, Grid, transform_points, voxel_size
from metreg.core.resample import sample
from metreg.io.image import Image
from metreg.io.transforms import Field, sample_at
from metreg.prepare.intensity import BACKGROUND

TOWARDS = ("RL", "AP", "SI")
"""Along each world axis, the letter where a picture begins and the one where it ends."""
NAMES = ("sagittal", "coronal", "axial")
"""The slice across each world axis."""


@dataclass(frozen=True)
class Cut:
    """Where a slice lies in an array, and how it is turned."""

    name: str
    letters: tuple[str, str, str, str]
    """Of the patient's sides at the left, right, top and bottom of the picture; empty where nobody knows."""
    axes: tuple[int, int]
    """The array's axes along the rows' order (down) and the columns' order (to the right)."""
    backwards: tuple[bool, bool]
    """Whether the picture runs against them."""
    at: tuple[int, ...]
    """A voxel of the slice."""
    shape: tuple[int, ...]

    def take(self, f: Array) -> Array:
        """The slice (..., rows, columns) of an array (..., *S)."""
        lead = f.ndim - len(self.shape)
        where = [slice(None) if d in self.axes else self.at[d] for d in range(len(self.shape))]
        found = f[(..., *where)]
        if self.axes[0] > self.axes[1]:
            found = np.swapaxes(found, lead, lead + 1)
        return np.ascontiguousarray(np.flip(found, tuple(lead + i for i, back in enumerate(self.backwards) if back)))

    def voxels(self) -> Array:
        """The index of every pixel, (rows, columns, D)."""
        rows, columns = (
            np.arange(self.shape[axis])[::-1] if back else np.arange(self.shape[axis])
            for axis, back in zip(self.axes, self.backwards, strict=True)
        )
        index = np.empty((len(rows), len(columns), len(self.shape)), dtype=int)
        index[:] = self.at
        index[..., self.axes[0]], index[..., self.axes[1]] = rows[:, None], columns
        return index

    def pixels(self, index: Array) -> Array:
        """Where indices (rows, columns, D) lie in the picture: row and column, (2, rows, columns)."""
        parts = []
        for axis, back in zip(self.axes, self.backwards, strict=True):
            parts.append(self.shape[axis] - 1 - index[..., axis] if back else index[..., axis])
        return np.stack(parts)


def cuts(
    shape: tuple[int, ...], affine: Array, *, at: tuple[int, ...], plane: Array | None = None, lost: bool = False
) -> tuple[Cut, ...]:
    """Axial, coronal and sagittal slices through a voxel of a 3-D array, or a 2-D array whole.

    `plane` (4, 3) takes the world of a 2-D array to that of the 3-D file from which it came. An array that is `lost` came
    with no word on the patient's sides.
    """
    import nibabel as nib

    turn = nib.io_orientation(affine)
    dim = len(shape)
    worlds = list(range(3)) if dim == 3 else _worlds(plane)
    axis_of = {worlds[int(world)]: (axis, sign > 0) for axis, (world, sign) in enumerate(turn)}

    def cut(down: int, right: int) -> Cut:
        across = 3 - down - right
        letters = ("", "", "", "") if lost else (*TOWARDS[right], *TOWARDS[down])
        (row, row_back), (column, column_back) = axis_of[down], axis_of[right]
        name = "image" if lost else NAMES[across]
        return Cut(name, letters, (row, column), (bool(row_back), bool(column_back)), at, shape)

    if dim == 2:
        return (cut(max(worlds), min(worlds)),)
    return cut(1, 0), cut(2, 0), cut(2, 1)


def _worlds(plane: Array | None) -> list[int]:
    """The world axes of the 3-D file along which the two of a slice lie."""
    if plane is None:
        return [0, 1]
    first = int(np.abs(plane[:3, 0]).argmax())
    rest = [axis for axis in range(3) if axis != first]
    return [first, rest[int(np.abs(plane[rest, 1]).argmax())]]


def middle_of(seen: Array) -> tuple[int, ...]:
    """The voxel in the middle of what is seen, an array of booleans (*S)."""
    if not seen.any():
        return tuple(n // 2 for n in seen.shape)
    axes = range(seen.ndim)
    along = [np.count_nonzero(seen, axis=tuple(other for other in axes if other != axis)).cumsum() for axis in axes]
    return tuple(int(np.searchsorted(count, count[-1] / 2)) for count in along)  # the lower median


@dataclass(frozen=True, eq=False)
class Plane:
    """One slice of a registered pair, arrays (rows, columns), rows down the page; images in [0, 1]."""

    cut: Cut
    pixel_mm: tuple[float, float]
    """Height and width of a pixel."""
    fixed: Array
    before: Array
    """The moving image after the affine alone."""
    after: Array
    jacobian: Array
    positions: Array
    """The map: row and column from which each pixel was taken, (2, rows, columns)."""
    sigma: Array | None = None
    """Of the metric, in mm, where `before` is."""
    weights: Array | None = None
    """Likewise, (N, rows, columns)."""

    def around(self, seen: Array, margin: float = 0.06) -> Plane:
        """The part of the picture around what is `seen`, booleans (rows, columns), with a margin."""
        if not seen.any():
            return self
        parts, starts = [], []
        for axis, n in enumerate(seen.shape):
            where = np.flatnonzero(seen.any(1 - axis))
            edge = int(np.ceil(margin * (where[-1] - where[0] + 1)))
            starts.append(max(0, int(where[0]) - edge))
            parts.append(slice(starts[-1], min(n, int(where[-1]) + 1 + edge)))
        crop: Any = (..., *parts)
        names = ("fixed", "before", "after", "jacobian", "sigma", "weights")
        cropped = {name: f[crop] for name in names if (f := getattr(self, name)) is not None}
        return replace(self, **cropped, positions=self.positions[crop] - np.array(starts).reshape(2, 1, 1))

    @property
    def planes(self) -> tuple[Plane, ...]:
        """So that a plane can be drawn where a result can."""
        return (self,)


class Shown(Protocol):
    """What figures are made of: a result, or a plane."""

    @property
    def planes(self) -> tuple[Plane, ...]: ...


def plane_of_map(source: Tensor, target: Tensor, phi_inv: Tensor, grid: Grid, sigma: Tensor | None = None) -> Plane:
    """The middle axial slice, in 2-D the whole, of tensors (1, C, *S): a pair in [0, 1], its map, sigma in mm."""
    shown = target[0, 0].cpu().numpy() > BACKGROUND
    cut = cuts(grid.shape, grid.affine, at=middle_of(shown), lost=grid.dim == 2)[0]
    size = voxel_size(grid.affine)
    shift = ((phi_inv - grid.points(phi_inv)) / grid.spacings(phi_inv))[0]
    warped, det = sample(source, phi_inv, grid), jacobian_determinant(phi_inv, grid)[:, None]
    fixed, before, after, jacobian = (cut.take(f[0, 0].cpu().numpy()) for f in (target, source, warped, det))
    return Plane(
        cut,
        (float(size[cut.axes[0]]), float(size[cut.axes[1]])),
        fixed=fixed,
        before=before,
        after=after,
        jacobian=jacobian,
        positions=cut.pixels(cut.voxels() + np.moveaxis(cut.take(shift.cpu().numpy()), 0, -1)),
        sigma=None if sigma is None else cut.take(sigma[0, 0].cpu().numpy()),
    )


def pair_planes(
    fixed: Image, moving: Image, affine: Array, field: Field, jacobian: Array, metric: Image | None
) -> tuple[Plane, ...]:
    """The slices through the middle of what the fixed image shows.

    `affine` takes fixed to moving points, `field` is the deformation before it, `jacobian` (*S) is given at the fixed
    image's voxels, `metric`, if local, has sigma(x) in mm and the weights, (1 + N, *S'), in the space of the source.
    """
    target, size = fixed.scaled, voxel_size(fixed.affine)
    shown = target > BACKGROUND
    lost = fixed.dim == 2 and fixed.plane is None and fixed.header is None
    found = cuts(fixed.shape, fixed.affine, at=middle_of(shown), plane=fixed.plane, lost=lost)

    indices = [cut.voxels() for cut in found]
    x = transform_points(fixed.affine, np.concatenate([index.reshape(-1, fixed.dim) for index in indices]))
    moved = field.apply(x)
    values = sample_at(moving.scaled[None], moving.affine, transform_points(affine, np.concatenate([x, moved])))
    parts = [*values.reshape(2, -1), *transform_points(np.linalg.inv(fixed.affine), moved).T]  # all planes in a row
    if metric is not None:
        parts += [*sample_at(metric.values, *inside_grid(metric.affine, metric.values.shape[1:], x))]
    ends = np.cumsum([index[..., 0].size for index in indices])

    def picture(cut: Cut, of_plane: Array) -> Plane:
        before, after, *rest = of_plane
        places, layers = np.stack(rest[: fixed.dim], axis=-1), rest[fixed.dim :]
        return Plane(
            cut,
            (float(size[cut.axes[0]]), float(size[cut.axes[1]])),
            fixed=cut.take(target),
            before=before,
            after=after,
            jacobian=cut.take(jacobian),
            positions=cut.pixels(places),
            sigma=layers[0] if layers else None,
            weights=np.stack(layers[1:]) if layers else None,
        ).around(cut.take(shown))

    each = np.split(np.stack(parts), ends[:-1], axis=1)
    return tuple(
        picture(cut, values.reshape(-1, *index.shape[:2])) for cut, index, values in zip(found, indices, each, strict=True)
    )


def inside_grid(affine: Array, shape: tuple[int, ...], points: Array) -> tuple[Array, Array]:
    """For `sample_at`: an affine, and world points (P, D) as indices, those a little outside a grid on its border."""
    index = transform_points(np.linalg.inv(affine), points).clip(0, np.array(shape) - 1)
    return np.eye(len(affine)), index
