"""Intensities on one scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metreg.core.grid import Array
from metreg.errors import MetregError

BACKGROUND = 0.02
"""Standardised intensities below this are background."""
SHARES = np.linspace(0, 1, 101)
"""The shares of the foreground at which a quantile function is kept."""
BORDER_SHARE, BORDER_PERCENTILE = 0.25, 5.0
"""A value that this share of an image's border has is its background; if none has it, this percentile of the border is."""


def match(scaled: Array, standard: Sequence[float], mask: Array | None = None) -> Array:
    """Standardised intensities with those of the foreground matched to a `standard`, the quantile function of others."""
    own = quantile_function(scaled, mask)
    rising = np.maximum.accumulate(own) + 1e-6 * np.arange(1, len(own) + 1)
    return np.interp(scaled, [0, *rising], [0, *standard]).astype(np.float32)


def quantile_function(scaled: Array, mask: Array | None = None) -> Array:
    """Standardised intensities of the foreground, inside the mask, at evenly spaced shares of it, (101,)."""
    seen = scaled > BACKGROUND if mask is None else (scaled > BACKGROUND) & (mask > 0)
    return np.quantile(scaled[seen], SHARES)


def fill_value(values: Array, asked: float | None) -> float:
    """What lies outside an image (*S): what is asked for, else its background."""
    if asked is None:
        return border_value(values)
    if not abs(asked) <= float(np.finfo(np.float32).max):  # NaN is neither more nor less
        raise MetregError(f"fill: wanted a finite number, got {asked}")
    return float(asked)


def border_value(values: Array) -> float:
    """The background of an image (*S), judged by its outermost layer: what lies outside the image is most likely the same.

    That is the value, such as padding, that a quarter of the layer or more has; else the layer's 5th percentile, which is
    air where there is some. For a mask, which has no more than two values, it is 0.
    """
    layers = []
    for axis in range(values.ndim):
        layers.append(values.take(0, axis).ravel())
        layers.append(values.take(-1, axis).ravel())
    border = np.concatenate(layers)
    border = border[np.isfinite(border)]
    if not border.size:
        return 0.0
    found, counts = np.unique(border, return_counts=True)
    background = float(np.percentile(border, BORDER_PERCENTILE, method="lower"))
    if counts.max() >= BORDER_SHARE * border.size:
        background = float(found[counts.argmax()])
    if background != 0 and bool(((values == values.min()) | (values == values.max())).all()):
        return 0.0
    return background
