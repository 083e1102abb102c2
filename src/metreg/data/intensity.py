"""Intensities on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metreg.grid import Array

TOP = 99.0
"""Percentile of the foreground that becomes 1; the top 1 % is flattened."""
BACKGROUND = 0.02
"""Standardised intensities below this are background."""
SHARES = np.linspace(0, 1, 101)
"""The shares of the foreground at which a quantile function is kept."""


def standardise(values: Array, mask: Array | None = None) -> Array:
    """Intensities in [0, 1]: the smallest becomes 0, the brightest percent of what is above it 1, both inside the mask."""
    seen = values if mask is None else values[mask > 0]
    low = float(seen.min())
    above = seen[seen > low]
    high = float(np.percentile(above, TOP)) if above.size else low
    scale = high - low if high > low else 1.0
    return np.clip((values - low) / scale, 0, 1).astype(np.float32)


def match(scaled: Array, standard: Sequence[float], mask: Array | None = None) -> Array:
    """Standardised intensities with those of the foreground matched to a `standard`, the quantile function of others."""
    own = quantile_function(scaled, mask)
    rising = np.maximum.accumulate(own) + 1e-6 * np.arange(1, len(own) + 1)
    return np.interp(scaled, [0, *rising], [0, *standard]).astype(np.float32)


def quantile_function(scaled: Array, mask: Array | None = None) -> Array:
    """Standardised intensities of the foreground, inside the mask, at evenly spaced shares of it, (101,)."""
    seen = scaled > BACKGROUND if mask is None else (scaled > BACKGROUND) & (mask > 0)
    return np.quantile(scaled[seen], SHARES)
