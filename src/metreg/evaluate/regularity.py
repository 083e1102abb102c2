"""How regular a transform is, whatever tool it came from: folds, certificate, Jacobian determinants."""

from __future__ import annotations

import numpy as np
import torch

from metreg.data.formats import Image
from metreg.data.transforms import Affine, Field, Transform
from metreg.evaluate.statistics import PERCENTILES
from metreg.fields import jacobian_determinant
from metreg.flow.maps import certify, count_folds
from metreg.grid import Array, Grid, some_of, transform_points

MOST_POINTS = 100_000
"""At most about so many voxels are taken there and back again."""
LEAST = 1e-6
"""Determinants are not taken for smaller than this in logarithms."""


def check_written(transform: Transform) -> tuple[int, float, bool]:
    """Folds by the strict test in the fields as stored, a lower bound of the determinant, and whether it certifies.

    Fields are tested one by one: their composition folds nowhere if none of them does.
    """
    folds, smallest, holds = 0, float("inf"), True
    for part in transform.parts:
        if isinstance(part, Field):
            phi, grid = _local_map(part)
            certificate = certify(phi, grid)
            folds += 0 if certificate.smallest > 0 else int(count_folds(phi, grid))
            smallest, holds = min(smallest, certificate.smallest), holds and certificate.holds
    return folds, smallest, holds


def _local_map(field: Field) -> tuple[torch.Tensor, Grid]:
    """A field as a map (1, D, *S) in millimetres along its own axes; that of a single slice is 2-D."""
    shape = field.displacement.shape[1:]
    axes = [axis for axis, n in enumerate(shape) if n > 1]
    columns = field.affine[:-1, axes]
    spacing = np.linalg.norm(columns, axis=0)
    shift = np.einsum("ed,e...->d...", columns / spacing, field.displacement.astype(float))
    grid = Grid(tuple(shape[axis] for axis in axes), tuple(spacing.tolist()))
    phi = torch.from_numpy(shift.reshape(1, len(axes), *grid.shape))
    return grid.points(phi) + phi, grid


def determinants(transform: Transform, fixed: Image, moving: Image) -> Array:
    """det D of the deformation alone, without affine parts, at the voxels of the fixed image (*S); central differences."""
    points = torch.from_numpy(transform.at_voxels(fixed, moving).T.reshape(1, fixed.dim, *fixed.shape))
    found = jacobian_determinant(points, Grid(fixed.shape, (1.0,) * fixed.dim))[0].numpy()
    linear = [part.matrix for part in transform.parts if isinstance(part, Affine)]
    return np.asarray(found / np.prod([np.linalg.det(matrix) for matrix in (fixed.affine, *linear)]))


def jacobian_facts(det: Array) -> dict[str, float]:
    """Mean, percentiles and the standard deviation of the logarithm of determinants (P,)."""
    values = np.percentile(det, PERCENTILES)
    return {
        "mean": float(det.mean()),
        **{f"p{share}": float(value) for share, value in zip(PERCENTILES, values, strict=True)},
        "log_std": float(np.log(det.clip(min=LEAST)).std()),
    }


def round_trip(transform: Transform, inverse: Transform, fixed: Image, inside: Array) -> Array:
    """How far, in millimetres, voxels `inside` the fixed image (*S) are from home after the transform and its inverse."""
    points = transform_points(fixed.affine, some_of(inside, MOST_POINTS).astype(float))
    if transform.dim > fixed.dim and fixed.plane is not None:
        points = transform_points(fixed.plane, points)
    return np.asarray(np.linalg.norm(inverse.apply(transform.apply(points)) - points, axis=1))
