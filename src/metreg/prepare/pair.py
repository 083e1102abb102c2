"""Two images on the grid on which they are registered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metreg.core.grid import ALIKE, Array, Grid, is_orthogonal, towards_cubes, transform_points, voxel_size, world_points
from metreg.core.resample import covered, fill_unknown
from metreg.core.splines import coefficients, sample_splines
from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.io.transforms import positions, sample_at, sample_tensor
from metreg.prepare.intensity import BACKGROUND, match
from metreg.settings.model import Settings

AT_A_TIME = 500_000
"""Points, so that all that is needed for them is little memory."""
LONGEST_SHARP, MOST_WORK = 2048, 2**36
"""Images with more voxels along an axis, or in all times those along all axes, are interpolated linearly: to find their
splines would take many seconds."""

ONE_VOXEL = 12**-0.5
"""Standard deviation, in voxels, of the average over one."""

Box = tuple[Array, Array]
"""First and last index along each axis, (D,) both."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Source (the moving image after the affine) and target (the fixed image), in [0, 1], on one orthonormal grid.

    The mask says where both are known and asked for, the moving image's mask carried by the affine; None is everywhere.
    """

    source: Tensor
    target: Tensor
    grid: Grid
    mask: Tensor | None
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
    standard: Sequence[float] = (),
) -> Pair:
    """Both images on the domain of the fixed one. `affine` takes fixed world points to moving world points.

    `standard` is the quantile function to which intensities are matched; without one, each image by its own range.
    """
    shown = None
    if moving_mask is None and fixed_mask is None:  # what is dark beside something masked out may be tissue
        shown = shown_by(moving, np.linalg.inv(fixed.affine) @ np.linalg.inv(affine))
    grid = domain_of(fixed, settings, shown)
    with ThreadPoolExecutor() as pool:
        brought = [
            pool.submit(bring, image, mask, matrix, grid, device, standard)
            for image, mask, matrix in ((moving, moving_mask, affine), (fixed, fixed_mask, np.eye(fixed.dim + 1)))
        ]
    (source, source_known), (target, target_known) = (work.result() for work in brought)
    mask = source_known * target_known
    if not bool(mask.any()):
        raise MetregError(f"images do not overlap after the alignment: {moving.name}, {fixed.name}; check their headers")
    return Pair(
        source=source,
        target=target,
        grid=grid,
        mask=None if bool((mask == 1).all()) else mask,
        weights=None if weights is None else _bring_weights(weights, grid, affine, device),
    )


def bring(
    image: Image, mask: Image | None, matrix: Array, grid: Grid, device: torch.device, standard: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """An image on the grid, standardised and carried on beyond what is known of it, and where that is, (1, 1, *S) both.

    `matrix` takes world points of the grid to world points of the image.
    """
    seen = None if mask is None else mask.values
    known = np.ones(image.shape, dtype=np.float32) if seen is None else seen.astype(np.float32)
    values = image.scaled_in(mask)
    if len(standard):
        values = match(values, standard, seen)
    to_index = np.linalg.inv(image.affine) @ matrix @ grid.affine
    f, k = (torch.from_numpy(np.ascontiguousarray(part))[None, None].to(device).float() for part in (values, known))
    if mask is not None and min(image.shape) > 1:  # splines look far, and what a mask leaves out is not to be seen
        f = fill_unknown(f, k, Grid(image.shape, (1.0,) * image.dim))
    f = average_over_voxels(f, to_index)
    f, k = carry(f, to_index, grid.shape, sharply=True), carry(k.double(), to_index, grid.shape).float()
    return fill_unknown(f, k, grid), k


def average_over_voxels(f: Tensor, matrix: Array) -> Tensor:
    """f (1, C, *S), smoothed as far as voxels of another grid are wider than its own; `matrix` takes indices there to its.

    Its values at single points of a coarser grid would say little of what lies between them.
    """
    for axis, row in enumerate(matrix[:-1, :-1]):
        wide = float(np.linalg.norm(row))  # a voxel there spans so many here, whichever way it is turned
        if wide > ALIKE:
            f = _smooth_along(f, axis + 2, ONE_VOXEL * math.sqrt(wide**2 - 1))
    return f


def _smooth_along(f: Tensor, axis: int, std: float) -> Tensor:
    """By a Gaussian of `std` voxels, the outermost values going on beyond the border."""
    reach = math.ceil(3 * std)
    shares = [math.exp(-0.5 * (step / std) ** 2) for step in range(-reach, reach + 1)]
    beyond = [0] * (2 * (f.dim() - 2))
    beyond[2 * (f.dim() - 1 - axis)] = beyond[2 * (f.dim() - 1 - axis) + 1] = reach  # F.pad begins with the last axis
    padded, smooth = F.pad(f, beyond, mode="replicate"), torch.zeros_like(f)
    for first, share in enumerate(shares):
        smooth.add_(padded.narrow(axis, first, f.shape[axis]), alpha=share / sum(shares))
    return smooth


def carry(f: Tensor, matrix: Array, shape: tuple[int, ...], *, sharply: bool = False) -> Tensor:
    """f (1, C, *S) on another grid, zero outside; `matrix` takes its indices to those of f.  -> (1, C, *shape)

    Where that is a shift by whole voxels the values stay as they are. Elsewhere linear interpolation blurs them; `sharply`
    has cubic splines instead, which hardly do, and nothing beyond the range of f.
    """
    whole = np.eye(len(matrix))
    whole[:-1, -1] = matrix[:-1, -1].round()
    if np.abs(matrix - whole).max() < 1e-9 * max(*f.shape, *shape):
        first, out = [int(t) for t in whole[:-1, -1]], f.new_zeros(1, f.shape[1], *shape)
        both = [(max(0, -t), min(n, m - t)) for t, n, m in zip(first, shape, f.shape[2:], strict=True)]
        if all(low < high for low, high in both):
            here = tuple(slice(low, high) for low, high in both)
            there = tuple(slice(low + t, high + t) for t, (low, high) in zip(first, both, strict=True))
            out[:, :, *here] = f[:, :, *there]
        return out
    read, out = _reader(f, sharply=sharply), f.new_empty(1, f.shape[1], *shape)
    for planes, x in positions(matrix, shape, f.device, AT_A_TIME):
        out[:, :, planes] = read(x)
    return out


def _reader(f: Tensor, *, sharply: bool) -> Callable[[Tensor], Tensor]:
    """What gives f (1, C, *S) at indices x (D, *T), zero outside."""
    shape = f.shape[2:]
    if not sharply or min(shape) == 1 or max(shape) > LONGEST_SHARP or f.numel() * sum(shape) > MOST_WORK:
        return lambda x: sample_tensor(f, x, "linear")
    voxels, splines, (low, high) = Grid(tuple(shape), (1.0,) * len(shape)), coefficients(f), f.aminmax()
    return lambda x: sample_splines(splines, x[None]).clamp_(low, high) * covered(x[None], voxels)


def content_box(image: Image) -> Box:
    """First and last index along each axis (D,) at which the image is not background."""
    seen = image.scaled > BACKGROUND
    axes = range(image.dim)
    along = [np.flatnonzero(seen.any(tuple(other for other in axes if other != axis))) for axis in axes]
    return np.array([where[0] for where in along]), np.array([where[-1] for where in along])


def content_length(image: Image) -> float:
    """The longest side, in millimetres, of what the image shows."""
    first, last = content_box(image)
    return float(((last - first + 1) * voxel_size(image.affine)).max())


def shown_by(image: Image, matrix: Array) -> Box:
    """Between which indices of a grid lies what an image shows; `matrix` takes world points there."""
    corners = np.array(np.meshgrid(*zip(*content_box(image), strict=True))).reshape(image.dim, -1).T
    index = transform_points(matrix @ image.affine, corners).round(6)
    return np.floor(index.min(0)).astype(int), np.ceil(index.max(0)).astype(int)


def domain_of(fixed: Image, settings: Settings, moving: Box | None = None) -> Grid:
    """The grid on which images are registered to the fixed one: wide enough for the border window to lie on background.

    Background is left out where the `moving` image, in indices of the fixed one, shows nothing either.
    """
    window, factor = settings.metric.window, settings.flow.map_factor
    if settings.unit_cube:
        return Grid.unit_cube(*domain_box(fixed, np.full(fixed.dim, math.ceil(window / factor))))
    width = np.array([math.ceil(window / share) for share in towards_cubes(voxel_size(fixed.affine), factor)])
    shape, affine = domain_box(fixed, width, moving if window else None)
    return Grid.of_image(shape, affine, settings.length_mm or content_length(fixed))


def domain_box(fixed: Image, width: Array, moving: Box | None = None) -> tuple[tuple[int, ...], Array]:
    """Shape and affine of an orthonormal grid over the fixed image, its own voxels if it can be.

    Voxels are added where fewer than `width` (D,) of background lie between what the image shows and its border. Those
    further than that from what it shows, and from where the `moving` image shows something, are left out.
    """
    first, last = content_box(fixed)
    low, high = (width - first).clip(min=0), (width - (np.array(fixed.shape) - 1 - last)).clip(min=0)
    affine = np.eye(fixed.dim + 1)
    if is_orthogonal(fixed.affine):
        if moving is not None:
            low -= (np.minimum(first, moving[0]) - width).clip(min=0)
            high -= (np.array(fixed.shape) - 1 - np.maximum(last, moving[1]) - width).clip(min=0)
        affine[:-1, -1] = -low
        return tuple(int(n) for n in fixed.shape + low + high), fixed.affine @ affine
    # sheared: the rotation nearest to its axes, and a box around its corners
    size = voxel_size(fixed.affine)
    left, _, right = np.linalg.svd(fixed.affine[:-1, :-1] / size)
    rotation = left @ right
    corners = np.array(np.meshgrid(*[(-0.5, n - 0.5) for n in fixed.shape])).reshape(fixed.dim, -1).T
    inside = transform_points(fixed.affine, corners) @ rotation / size
    first, last = np.floor(inside.min(0)) - low, np.ceil(inside.max(0)) + high
    affine[:-1, :-1] = rotation * size
    affine[:-1, -1] = rotation @ (first * size)
    return tuple(int(n) for n in last - first + 1), affine


def _bring_weights(weights: Image, grid: Grid, affine: Array, device: torch.device) -> Tensor:
    """Weights (*S, N), given where the moving image is, on the domain; the outermost ones go on beyond their border."""
    points = transform_points(affine, world_points(grid.shape, grid.affine))
    index = transform_points(np.linalg.inv(weights.affine), points).clip(0, np.array(weights.shape) - 1)
    values = np.moveaxis(weights.values, -1, 0).astype(np.float32)
    found = sample_at(values, np.eye(len(affine)), index)
    return torch.from_numpy(found.reshape(-1, *grid.shape))[None].to(device)
