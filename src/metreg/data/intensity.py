"""Intensities on one scale."""

from __future__ import annotations

import numpy as np

from metreg.grid import Array

TOP = 99.0
"""Percentile of the foreground that becomes 1; the top 1 % is flattened."""


def standardise(values: Array, mask: Array | None = None) -> Array:
    """Intensities in [0, 1]: the smallest becomes 0, the brightest percent of what is above it 1, both inside the mask."""
    seen = values if mask is None else values[mask > 0]
    low = float(seen.min())
    above = seen[seen > low]
    high = float(np.percentile(above, TOP)) if above.size else low
    scale = high - low if high > low else 1.0
    return np.clip((values - low) / scale, 0, 1).astype(np.float32)
