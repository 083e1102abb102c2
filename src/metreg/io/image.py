"""An image: numbers with a place in the world. World is RAS, millimetres."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from metreg.core.grid import Array, voxel_size

TOP = 99.0
"""Percentile of the foreground that becomes 1; the top 1 % is flattened."""


@dataclass(frozen=True, eq=False)
class Image:
    """An image (*S), 2-D or 3-D, or (*S, N) where channels are wanted, with its index-to-world `affine` (D+1, D+1).

    A single slice of a 3-D file is 2-D here; `plane` (4, 3) then takes its 2-D world to the 3-D world of the file.
    """

    values: Array
    affine: Array
    name: str = "image"
    plane: Array | None = None
    header: Any = None
    """The NIfTI header it came with, if any."""

    @property
    def dim(self) -> int:
        return len(self.affine) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[: self.dim])

    @property
    def extent_mm(self) -> tuple[float, ...]:
        """How far it reaches along its axes."""
        return tuple(float(n * size) for n, size in zip(self.shape, voxel_size(self.affine), strict=True))

    @cached_property
    def scaled(self) -> Array:
        """Its intensities in [0, 1], as `standardise` has them."""
        return standardise(self.values)

    def scaled_in(self, mask: Image | None) -> Array:
        """The same by what lies in a mask."""
        return self.scaled if mask is None else standardise(self.values, mask.values)

    def with_values(self, values: Array) -> Image:
        """Other values on the same voxels."""
        return replace(self, values=values)


def standardise(values: Array, mask: Array | None = None) -> Array:
    """Intensities in [0, 1]: the smallest becomes 0, the brightest percent of what is above it 1, both inside the mask."""
    seen = values if mask is None else values[mask > 0]
    low = float(seen.min())
    above = seen[seen > low]
    high = float(np.percentile(above, TOP)) if above.size else low
    scale = high - low if high > low else 1.0
    return np.clip((values - low) / scale, 0, 1).astype(np.float32)
