"""How regular a transform is, whatever tool it came from: folds, certificate, Jacobian determinants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from metreg.core.fields import jacobian_determinant
from metreg.core.grid import Array, Grid, some_of, transform_points
from metreg.deformation.maps import certify, count_folds
from metreg.io.image import Image
from metreg.io.transforms import Affine, Field, Transform
from metreg.measure.statistics import PERCENTILES

if TYPE_CHECKING:
    from metreg.solve.registration import Repair

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


class FoldCount(NamedTuple):
    """Folds of many maps before they were repaired, and how many were.

    As text: voxels, in so many pairs, and the smallest determinant.
    """

    pairs: int = 0
    voxels: int = 0
    smallest: float = 1.0
    """A lower bound of the determinant of all of them."""
    repaired: int = 0

    def __str__(self) -> str:
        if self.voxels == 0:
            return "0"
        return f"{self.voxels} in {self.pairs} ({self.smallest:.2f})"

    @classmethod
    def of(cls, repair: Repair) -> FoldCount:
        pairs = int((repair.folds > 0).sum())
        return cls(pairs, int(repair.folds.sum()), float(repair.smallest.min()), int(repair.repaired.sum()))

    def and_of(self, others: Sequence[FoldCount]) -> FoldCount:
        """All of them together."""
        counts = [self, *others]
        return FoldCount(
            pairs=sum(count.pairs for count in counts),
            voxels=sum(count.voxels for count in counts),
            smallest=min(count.smallest for count in counts),
            repaired=sum(count.repaired for count in counts),
        )

    def row(self) -> dict[str, Any]:
        """Of a single pair, for a row of an evaluation."""
        return {
            "folds_before_repair": self.voxels,
            "smallest_before_repair": self.smallest,
            "repaired": bool(self.repaired),
        }

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, Any]]) -> FoldCount | None:
        """Of the rows of an evaluation that tell it: those that metreg registered."""
        told = [row for row in rows if "folds_before_repair" in row]
        if not told:
            return None
        return cls(
            pairs=sum(row["folds_before_repair"] > 0 for row in told),
            voxels=sum(row["folds_before_repair"] for row in told),
            smallest=min(row["smallest_before_repair"] for row in told),
            repaired=sum(row["repaired"] for row in told),
        )
