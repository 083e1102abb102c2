"""Does a head still have its skull? A hint, not a skull stripper."""

from __future__ import annotations

import logging

import numpy as np

from metreg.core.grid import Array, some_of, transform_points
from metreg.io.image import Image
from metreg.io.transforms import sample_at
from metreg.prepare.intensity import BACKGROUND

log = logging.getLogger(__name__)

HEAD_MM = (110.0, 320.0)
"""What is shown of a head or a brain is so wide from back to front."""
BRAIN_CENTRE_MM = 75.0
"""How far below the top of what is shown the rays start."""
RAYS = 300
TISSUE, DARK = 0.22, 0.12
"""Standardised intensities: above the one is tissue, below the other bone, fluid or air."""
SCALP_MM, GAP_MM = 14.0, 3.0
"""The outermost layer is at most so thick, and at least so much of darkness lies below it."""
SHARE = 0.3
"""Of the rays that must cross such a layer. On skull-stripped T1 brains it is next to none."""


def hint_at_skull(image: Image, mask: Image | None, role: str) -> None:
    """Say so where an image seems to show a skull and nobody said where the brain is."""
    if mask is None and seems_to_have_skull(image):
        log.warning("%s: it seems to show the skull; metrics and tissue want brains: give a mask: %s", role, image.name)


def seems_to_have_skull(image: Image) -> bool:
    """Whether most rays from the middle of the head outwards meet brain, a dark gap, and one more thin layer."""
    if image.dim != 3:
        return False
    seen = image.scaled
    places = transform_points(image.affine, some_of(seen > BACKGROUND, 20_000).astype(float))
    low, high = np.percentile(places, (1, 99), axis=0)
    if not HEAD_MM[0] < high[1] - low[1] < HEAD_MM[1]:
        return False
    centre = np.array([*(low + high)[:2] / 2, high[2] - BRAIN_CENTRE_MM])
    return crossing_share(seen, image.affine, centre) > SHARE


def crossing_share(seen: Array, affine: Array, centre: Array) -> float:
    """The share of rays upwards and sideways from a point that leave through a thin layer over a dark gap."""
    golden = np.arange(RAYS) * np.pi * (3 - np.sqrt(5))
    up = (np.arange(RAYS) + 0.5) / RAYS  # half a sphere, evenly
    flat = np.sqrt(1 - up**2)
    directions = np.stack([flat * np.cos(golden), flat * np.sin(golden), up], axis=1)
    steps = np.arange(0.0, 150.0)
    points = centre + directions[:, None] * steps[:, None]
    values = sample_at(seen[None], affine, points.reshape(-1, 3)).reshape(RAYS, len(steps))
    return float(np.mean([_crosses(ray) for ray in values]))


def _crosses(ray: Array) -> bool:
    """Along one ray, outwards, a millimetre a step: tissue, a dark gap, a thin layer, nothing."""
    tissue = np.flatnonzero(ray > TISSUE)
    if not len(tissue):
        return False
    dark = np.flatnonzero(ray[: tissue[-1]] < DARK)
    if not len(dark) or tissue[-1] - dark[-1] > SCALP_MM:
        return False
    gap = ray[: dark[-1] + 1] < DARK
    thick = len(gap) if gap.all() else int(np.argmax(~gap[::-1]))
    return bool(thick >= GAP_MM and (ray[: dark[-1] - thick + 1] > TISSUE).any())
