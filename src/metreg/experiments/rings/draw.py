"""The paper's rings: pairs of textured images whose true map and true weights are known. 2-D, unit square."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from metreg.core.fields import gradient
from metreg.core.grid import Grid
from metreg.core.resample import sample
from metreg.deformation.maps import count_folds
from metreg.deformation.stationary import flow
from metreg.errors import MetregError
from metreg.metric.gaussian import FourierGaussians
from metreg.metric.multi_gaussian import MultiGaussian

SIGMA = (0.01, 0.05, 0.1, 0.2)
RADII = (0.1, 0.2)
JITTER = 0.0125
STIFF = (0.0, 0.0, 0.0, 1.0)
"""True weights of disc and background."""
SOFT = (0.05, 0.55, 0.3, 0.1)
"""True weights of the ring."""
SECTORS = 10
AMPLITUDE = 2.0
TEXTURE = 0.15
STEPS = 40
DISC, RING = 1, 2


@dataclass(frozen=True)
class RingPair:
    """A pair with its truth. Images (1, 1, *S) in [0, 1], texture aside; labels 1 in the disc, 2 in the ring."""

    source: Tensor
    target: Tensor
    source_labels: Tensor
    target_labels: Tensor
    phi_inv: Tensor
    """Target point to source point (1, D, *S)."""
    weights: Tensor
    """The source's weights (1, N, *S)."""
    grid: Grid


def ring_pair(generator: torch.Generator, size: int = 128, *, texture: float = TEXTURE, noise: float = 0.0) -> RingPair:
    """One pair, drawn again until neither of its two flows folds.

    Without `texture` nothing but the borders of the rings says where a point went. `noise` is the standard deviation of
    what each image has on its own.
    """
    for _ in range(100):
        pair = _draw(generator, Grid.unit_cube((size, size)), texture, noise)
        if pair is not None:
            return pair
    raise MetregError(f"rings: every one of 100 pairs of {size} x {size} folds; use a larger size")


def _draw(generator: torch.Generator, grid: Grid, texture: float, noise: float) -> RingPair | None:
    x = grid.points(torch.empty(0))
    centred = x - 0.5
    radius = centred.norm(dim=1, keepdim=True)
    inner, outer = (r + JITTER * (2 * _uniform(generator, ()) - 1) for r in RADII)
    labels = DISC * (radius < inner) + RING * ((radius >= inner) & (radius < outer))
    rings = torch.tensor([0.0, 0.5, 1.0])[labels]
    textured = rings + texture * _texture(generator, grid)
    weights = _weights_of(labels, grid)

    # the source: everything deformed once
    first = _random_flow(generator, radius, labels, weights, grid)
    if first is None:
        return None
    source = sample(textured, first, grid)
    source_labels = sample(labels.float(), first, grid, mode="nearest").long()
    source_radius = sample(radius, first, grid)
    w = sample(weights, first, grid).clamp(min=0)
    w = w / w.sum(1, keepdim=True)

    # the target: the source deformed once more
    second = _random_flow(generator, source_radius, source_labels, w, grid)
    if second is None:
        return None
    target = sample(source, second, grid)
    target_labels = sample(source_labels.float(), second, grid, mode="nearest").long()
    if noise:
        source = source + noise * torch.randn(source.shape, generator=generator)
        target = target + noise * torch.randn(target.shape, generator=generator)
    return RingPair(source, target, source_labels, target_labels, second, w, grid)


def _random_flow(generator: torch.Generator, radius: Tensor, labels: Tensor, weights: Tensor, grid: Grid) -> Tensor | None:
    """phi_inv of a momentum on the borders of the labels, across them, in sectors of one sign; None if it folds."""
    ahead = gradient(radius, grid)[:, 0]
    ahead = ahead / ahead.norm(dim=1, keepdim=True).clamp(min=1e-6)
    centred = grid.points(radius) - 0.5
    angle = torch.atan2(centred[:, 1], centred[:, 0])[:, None] + math.pi
    m = torch.zeros_like(ahead)
    # the disc's border is where "in the disc" changes, the ring's where "in disc or ring" does
    for inside in (labels == DISC, labels > 0):
        edge = gradient(inside.float(), grid).abs().sum(2) > 0
        cuts = (2 * math.pi * _uniform(generator, (SECTORS,))).sort().values
        sign = torch.where(_uniform(generator, (SECTORS,)) < 0.5, -1.0, 1.0)
        sector = torch.bucketize(angle, cuts) % SECTORS  # the last one wraps round
        magnitude = AMPLITUDE * _uniform(generator, tuple(radius.shape))
        m = torch.where(edge, sign[sector] * magnitude * ahead, m)
    m = _smooth(m, grid, 0.05)
    metric = MultiGaussian(FourierGaussians(grid, torch.tensor(SIGMA)), weights)
    phi_inv = flow(metric.sharp(m), grid, steps=STEPS)
    return None if int(count_folds(phi_inv, grid)) else phi_inv


def _weights_of(labels: Tensor, grid: Grid) -> Tensor:
    """True weights (1, N, *S) of a label image, smoothed across its borders."""
    table = torch.tensor([STIFF, STIFF, SOFT])
    w = _smooth(table[labels[:, 0]].movedim(-1, 1), grid, 0.02).clamp(min=0)
    return w / w.sum(1, keepdim=True)


def _texture(generator: torch.Generator, grid: Grid) -> Tensor:
    """Smooth noise whose largest value is one."""
    noise = _smooth(_uniform(generator, (1, 1, *grid.shape)) - 0.5, grid, 0.02)
    return noise / noise.max()


def _smooth(f: Tensor, grid: Grid, std: float) -> Tensor:
    return FourierGaussians(grid, torch.tensor([std])).each(f[:, None])[:, 0]


def _uniform(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return torch.rand(shape, generator=generator)
