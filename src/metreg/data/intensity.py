"""Intensities on one scale."""

from __future__ import annotations

import numpy as np

from metreg.grid import Array

TOP = 99.0
"""Percentile of the foreground that becomes 1; the top 1 % is flattened."""


def standardise(values: Array) -> Array:
    """Intensities in [0, 1]: the smallest becomes 0, the brightest percent of what is above it 1."""
    low = float(values.min())
    high = float(np.percentile(values[values > low], TOP))
    scale = high - low if high > low else float(values.max()) - low
    return np.clip((values - low) / scale, 0, 1).astype(np.float32)
