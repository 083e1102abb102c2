"""Two images on the grid on which they are registered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from metreg.config import Settings
from metreg.data.intensity import standardise
from metreg.data.io import Image
from metreg.data.transforms import Affine, Transform, sample_at
from metreg.grid import Array, Grid, is_orthogonal, transform_points, voxel_size, world_points

BACKGROUND = 0.02
"""A fixed image whose border is darker than this, on average, ends before its border: it needs no margin."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Source (the moving image after the affine) and target (the fixed image), in [0, 1], on one orthonormal grid.

    The masks say where an image is known and asked for; None is everywhere. The source's moves with it.
    """

    source: Tensor
    target: Tensor
    grid: Grid
    source_mask: Tensor | None
    target_mask: Tensor | None
    weights: Tensor | None = None


def make_pair(
    moving: Image,
    fixed: Image,
    affine: Array,
    settings: Settings,
    *,
    device: torch.device,
    moving_mask: Image | None = None,
    fixed_mask: Image | None = None,
    weights: Image | None = None,
) -> Pair:
    """Both images on the domain of the fixed one. `affine` takes fixed world points to moving world points."""
    margin = margin_voxels(fixed, settings)
    shape, domain = domain_of(fixed, margin)
    grid = Grid.unit_cube(shape, domain) if settings.unit_cube else Grid.of_image(shape, domain, settings.length_mm)
    here = Image(np.empty(shape, dtype=np.uint8), domain, "domain")

    def bring(image: Image, values: Array, matrix: Array) -> Tensor:
        found = Transform((Affine(matrix),)).resample(image.with_values(values), here)
        return torch.from_numpy(found)[None, None].to(device)

    def bring_mask(image: Image, mask: Image | None, matrix: Array) -> Tensor | None:
        known = np.ones(image.shape, dtype=np.float32) if mask is None else mask.values
        brought = bring(image, known, matrix)
        return None if bool((brought == 1).all()) else brought

    identity = np.eye(fixed.dim + 1)
    return Pair(
        source=bring(moving, standardise(moving.values), affine),
        target=bring(fixed, standardise(fixed.values), identity),
        grid=grid,
        source_mask=bring_mask(moving, moving_mask, affine),
        target_mask=bring_mask(fixed, fixed_mask, identity),
        weights=None if weights is None else _bring_weights(weights, here, affine, device),
    )


def margin_voxels(fixed: Image, settings: Settings) -> int:
    """Voxels added around the fixed image so that the window lies outside it: none where the border is background."""
    values = standardise(fixed.values)
    faces = [values.take(i, axis) for axis in range(fixed.dim) for i in (0, -1)]
    if max(float(face.mean()) for face in faces) < BACKGROUND:
        return 0
    return int(np.ceil(settings.metric.window / settings.flow.map_factor))


def domain_of(fixed: Image, margin: int) -> tuple[tuple[int, ...], Array]:
    """Shape and affine of the orthonormal grid that covers the fixed image and a margin: its own voxels if it can be."""
    if is_orthogonal(fixed.affine):
        shift = np.eye(fixed.dim + 1)
        shift[:-1, -1] = -margin
        return tuple(n + 2 * margin for n in fixed.shape), fixed.affine @ shift
    # sheared: the rotation nearest to its axes, and a box around its corners
    axes = fixed.affine[:-1, :-1]
    left, _, right = np.linalg.svd(axes / voxel_size(fixed.affine))
    rotation, size = left @ right, voxel_size(fixed.affine)
    corners = np.array(np.meshgrid(*[(-0.5, n - 0.5) for n in fixed.shape])).reshape(fixed.dim, -1).T
    inside = transform_points(fixed.affine, corners) @ rotation / size
    low, high = np.floor(inside.min(0)) - margin, np.ceil(inside.max(0)) + margin
    affine = np.eye(fixed.dim + 1)
    affine[:-1, :-1] = rotation * size
    affine[:-1, -1] = rotation @ (low * size)
    return tuple(int(n) for n in high - low + 1), affine


def _bring_weights(weights: Image, here: Image, affine: Array, device: torch.device) -> Tensor:
    """Weights (*S, N), given where the moving image is, on the domain; the outermost ones go on beyond their border."""
    points = transform_points(affine, world_points(here.shape, here.affine))
    index = transform_points(np.linalg.inv(weights.affine), points).clip(0, np.array(weights.shape) - 1)
    values = np.moveaxis(weights.values, -1, 0).astype(np.float32)
    found = sample_at(values, np.eye(len(affine)), index)
    return torch.from_numpy(found.reshape(-1, *here.shape))[None].to(device)
