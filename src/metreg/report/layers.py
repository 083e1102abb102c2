"""The volumes of a registered pair as layers of the viewer."""

from __future__ import annotations

import math

import numpy as np

from metreg.core.grid import Array
from metreg.io.image import Image
from metreg.report.viewer import Layer

ENOUGH = 500_000
"""Voxels that tell what is white."""


def image_layers(fixed: Image, moving: dict[str, Array], window: tuple[float, float]) -> list[Layer]:
    """The fixed image, seen at first, and the moving one in several states on its voxels, in one window."""
    first = Layer("fixed", fixed.values, fixed.affine, "gray", *shown_range(fixed.values))
    others = [
        Layer(f"moving, {name}", values.reshape(fixed.shape), fixed.affine, "gray", *window, opacity=0.0)
        for name, values in moving.items()
    ]
    return [first, *others]


def metric_layers(sigma: Array, jacobian: Array, affine: Array) -> list[Layer]:
    """sigma(x) in mm and the determinant's logarithm, both on the grid of the map."""
    log = np.log2(jacobian.clip(2.0**-4, 2.0**4))
    spread = float(max(0.25, np.abs(np.percentile(log, (0.5, 99.5))).max()))
    return [
        Layer("sigma(x) in mm", sigma, affine, "viridis", 0.0, float(sigma.max()), opacity=0.0),
        Layer("log2 determinant", log, affine, "PuOr", -spread, spread, opacity=0.0),
    ]


def label_layer(name: str, values: Array, affine: Array) -> Layer:
    return Layer(name, values, affine, "labels", 0.0, float(values.max()), opacity=0.0)


def shown_range(values: Array) -> tuple[float, float]:
    """What is shown as black and as white."""
    low = float(values.min())
    step = max(1, values.size // ENOUGH)
    while math.gcd(step, values.size) > 1:  # or it might see a few slices only
        step += 1
    some = values.reshape(-1)[::step]
    above = some[some > low]
    if not above.size:
        above = values[values > low]
    return low, float(np.percentile(above, 99.5)) if above.size else low + 1
