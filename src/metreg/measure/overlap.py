"""How well labels meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from metreg.core.grid import Array

MOST_LISTED = 2**20
"""Labels below this are looked up in a table, which is faster than to search for them."""


@dataclass(frozen=True)
class Overlap:
    """Per label, over the labels present in both images, background (0) excluded."""

    labels: tuple[int, ...]
    target_overlap: tuple[float, ...]
    """|warped and target| / |target|"""
    dice: tuple[float, ...]
    """2 |warped and target| / (|warped| + |target|)"""

    def rows(self, names: Mapping[int, str]) -> list[dict[str, Any]]:
        """One for every label, with its name where it has one."""
        return [
            {"label": label, "name": names.get(label, ""), "target_overlap": target, "dice": dice}
            for label, target, dice in zip(self.labels, self.target_overlap, self.dice, strict=True)
        ]

    def means(self) -> dict[str, float]:
        return {"target_overlap": float(np.mean(self.target_overlap)), "dice": float(np.mean(self.dice))}


def overlap(warped: Array, target: Array, labels: Array) -> Overlap:
    """Overlap of each of `labels`, those that both label images have before any warping (`common_labels`)."""
    order = np.sort(labels)
    a, b = (ranks(side.ravel(), order) for side in (warped, target))
    count_a, count_b, both = (np.bincount(side, minlength=len(order) + 1) for side in (a, b, a[a == b]))
    rows = [(both[i], count_a[i], count_b[i]) for i in np.searchsorted(order, labels)]
    return Overlap(
        labels=tuple(int(label) for label in labels),
        target_overlap=tuple(float(n / target) for n, _, target in rows),
        dice=tuple(float(2 * n / (moved + target)) for n, moved, target in rows),
    )


def common_labels(moving: Array, fixed: Array) -> Array:
    """The labels that two label images share, background excluded."""
    shared = np.intersect1d(labels_in(moving), labels_in(fixed))
    return shared[shared != 0]


def labels_in(values: Array) -> Array:
    """The labels of an image, sorted."""
    if values.dtype.kind in "iu" and values.size and values.min() >= 0 and values.max() < MOST_LISTED:
        return np.flatnonzero(np.bincount(values.ravel()))  # faster than to sort them
    return np.unique(values)


def ranks(values: Array, labels: Array) -> Array:
    """Which of the sorted labels every value is; what is none of them gets the rank after the last."""
    count = len(labels)
    if count and values.dtype.kind in "iu" and labels[0] >= 0 and labels[-1] < MOST_LISTED:
        if labels[0] == 0:
            values, labels = np.maximum(values.astype(np.int64), -1) + 1, labels.astype(np.int64) + 1
        table = np.full(int(labels[-1]) + 2, count, dtype=np.int32)
        table[labels] = np.arange(count)
        return table.take(values, mode="clip")  # no label is 0, which is where what is less goes
    place = np.searchsorted(labels, values)
    known = labels[place.clip(max=max(0, count - 1))] == values if count else np.zeros(values.shape, dtype=bool)
    return np.where(known, place, count)
