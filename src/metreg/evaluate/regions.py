"""Regularity region by region: what the metric says of it, and what the deformation did there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metreg.evaluate.overlap import common_labels, ranks
from metreg.grid import Array


@dataclass(frozen=True)
class Region:
    """One label of the moving image."""

    label: int
    name: str
    volume_ml: float
    """Before the deformation."""
    sigma_mm: float
    """Mean of sigma(x) over it."""
    displacement_mm: float
    """Mean length of the deformation's displacement over where it ends."""
    determinant: float
    log_spread: float
    """Standard deviation of the determinant's logarithm."""


def regions_of(
    before: Array,
    after: Array,
    *,
    sigma: Array,
    displacement: Array,
    jacobian: Array,
    voxel_ml: float,
    names: dict[int, str],
) -> list[Region]:
    """Every label that is there `before` and `after` the deformation; all arrays (*S) on the same voxels, lengths in mm."""
    labels = common_labels(before, after)
    counts, sigmas = _sums(before, labels, sigma)
    log = np.log(jacobian.clip(1e-6))
    ends, *sums = _sums(after, labels, displacement, jacobian, log, log**2)
    moved, grown, logs, squares = (total / ends for total in sums)
    return [
        Region(
            label=int(label),
            name=names.get(int(label), ""),
            volume_ml=float(counts[i] * voxel_ml),
            sigma_mm=float(sigmas[i] / counts[i]),
            displacement_mm=float(moved[i]),
            determinant=float(grown[i]),
            log_spread=float(np.sqrt(max(0.0, squares[i] - logs[i] ** 2))),
        )
        for i, label in enumerate(labels)
    ]


def _sums(where: Array, labels: Array, *fields: Array) -> list[Array]:
    """For each of the labels, which are sorted: how many voxels it has, and the sums of fields over them."""
    place = ranks(where.ravel(), labels)
    weights = (None, *[f.ravel().astype(float) for f in fields])
    return [np.bincount(place, weights=w, minlength=len(labels) + 1)[: len(labels)] for w in weights]
