"""Regularity region by region: what the metric says of it, and what the deformation did there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metreg.core.grid import Array
from metreg.measure.overlap import common_labels, ranks


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
    starts, at = _labelled(before, labels)
    counts, sigmas = (np.bincount(starts, weights=w, minlength=len(labels)) for w in (None, sigma.ravel()[at]))
    ends, at = _labelled(after, labels)
    det = jacobian.ravel()[at].astype(float)
    log = np.log(det.clip(1e-6))
    fields = (None, displacement.ravel()[at], det, log, log**2)
    count, *sums = (np.bincount(ends, weights=w, minlength=len(labels)) for w in fields)
    moved, grown, logs, squares = (total / count for total in sums)
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


def _labelled(where: Array, labels: Array) -> tuple[Array, Array]:
    """Voxels that have one of the labels, which are sorted: which of them, and where they lie, (P,) both."""
    place = ranks(where.ravel(), labels)
    at = np.flatnonzero(place < len(labels))
    return place[at], at
