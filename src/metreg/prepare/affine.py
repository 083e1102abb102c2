"""Linear alignment: rigid, then affine, coarse to fine, from several starts around the centres of mass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from metreg.core.grid import Array, Grid, transform_points, voxel_size
from metreg.core.resample import covered, downsample, sample
from metreg.io.image import Image
from metreg.io.transforms import positions
from metreg.kernels import is_compiled
from metreg.kernels.replay import Replay
from metreg.prepare.pair import content_length
from metreg.settings.model import AffineSettings
from metreg.similarity.mi import mutual_information
from metreg.similarity.ncc import TINY, ncc

if TYPE_CHECKING:
    from metreg.kernels.cpu.affine import Compared

CPU = torch.device("cpu")
Similarity = Callable[..., Tensor]
TURN = 0.4
"""Radians by which the starts beside the straight one are turned, about every axis, either way."""
ROUGH, FINE = 1e-5, 1e-7
"""A descent ends where a step gains less than this: one among several starts, and all others."""
LEAST_OVERLAP = 0.3
"""An alignment under which the images share less than this, of the smaller of the two, counts as wrong."""


@dataclass(frozen=True)
class _Level:
    """Both images at one resolution. Points and matrices are in millimetres around the centres of mass."""

    target: Tensor
    points: Tensor
    """Of the target, (D, P)."""
    source: Tensor
    masks: tuple[Tensor | None, Tensor | None]
    """Of source and target; none: they are known wherever they are."""
    to_local: Tensor
    """Moving millimetres to local coordinates of the source's grid, (D, D+1)."""
    grid: Grid
    shareable: float
    """As many target points as the smaller of the two images could cover."""

    def compare(self, matrix: Tensor, similarity: Similarity) -> tuple[Tensor, Tensor]:
        """How unlike the images are under a matrix (D, D+1), and its derivative by that."""
        if similarity is ncc and is_compiled(self.source):
            return self._compare_compiled(matrix)
        matrix = matrix.requires_grad_()
        dim, turn = len(matrix), self.to_local[:, : len(matrix)]
        x = torch.addmm(turn @ matrix[:, dim:] + self.to_local[:, dim:], turn @ matrix[:, :dim], self.points).float()[None]
        warped = sample(self.source, x, self.grid, outside="zero")
        of_source, of_target = self.masks
        if of_source is None:
            mask = covered(x.detach(), self.grid).to(warped)
        else:
            mask = sample(of_source, x.detach(), self.grid, outside="zero")
        if of_target is not None:
            mask = mask * of_target
        unlike = similarity(warped, self.target, mask).sum()
        (slope,) = torch.autograd.grad(unlike, matrix)
        return self._unless_apart(mask.sum(), unlike.detach(), slope)

    def _unless_apart(self, shared: Tensor, unlike: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        overlap = shared / self.shareable
        apart = overlap < LEAST_OVERLAP
        return torch.where(apart, 2 - overlap, unlike), torch.where(apart, torch.zeros_like(slope), slope)

    def _compare_compiled(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        dim, to_index = len(matrix), self.to_local / self.grid.spacings(self.to_local).view(-1, 1)
        whole = to_index[:, :dim] @ matrix
        whole[:, dim:] += to_index[:, dim:]
        shared, unlike, slope = self._compared.under(whole.numpy(), TINY)
        by_matrix = to_index[:, :dim].T @ torch.from_numpy(slope)
        return self._unless_apart(matrix.new_tensor(shared), matrix.new_tensor(unlike), by_matrix)

    @cached_property
    def _compared(self) -> Compared:
        from metreg.kernels.cpu.affine import Compared

        return Compared(self.source, self.target, self.points, self.masks)


def align(
    moving: Image,
    fixed: Image,
    settings: AffineSettings,
    *,
    moving_mask: Image | None = None,
    fixed_mask: Image | None = None,
    length_mm: float | None = None,
    device: torch.device = CPU,
) -> Array:
    """The matrix (D+1, D+1) that takes fixed world points to moving world points.

    `length_mm` is the reference length, in which the settings count; without it, that of what the fixed image shows.
    Images are compared on `device`; the few parameters stay on the CPU.
    """
    dim = fixed.dim
    if settings.kind == "none":
        return np.eye(dim + 1)
    source, target = _prepare(moving, moving_mask, device), _prepare(fixed, fixed_mask, device)
    centre_moving, centre_fixed = _centre_of_mass(*source, moving), _centre_of_mass(*target, fixed)
    radius = float(np.linalg.norm(voxel_size(fixed.affine) * fixed.shape)) / 4
    similarity = mutual_information if settings.similarity == "mi" else ncc
    best = torch.zeros(dim * dim + dim, dtype=torch.float64)
    length = length_mm or content_length(fixed)
    for number, resolution in enumerate(settings.resolution):
        level = _make_level(source, target, moving, fixed, resolution * length, centre_moving, centre_fixed)
        cost = _Cost(level, similarity, radius)
        if number == 0:
            ends = [_descend(cost, start, settings.iterations, rigid=True, gain=ROUGH) for start in _starts(dim)]
            best = min(ends, key=lambda p: cost(p, rigid=True)[0])
        if settings.kind == "affine" or number > 0:
            best = _descend(cost, best, settings.iterations, rigid=settings.kind == "rigid")
    matrix = _matrix(best, dim, radius, settings.kind == "rigid").numpy()
    whole = np.eye(dim + 1)
    whole[:dim, :dim] = matrix[:, :dim]
    whole[:dim, dim] = matrix[:, dim] + centre_moving - matrix[:, :dim] @ centre_fixed
    return whole


def _prepare(image: Image, mask: Image | None, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Standardised values and mask, (1, 1, *S) each."""
    values = torch.from_numpy(image.scaled_in(mask)).to(device)[None, None]
    return values, None if mask is None else torch.from_numpy(mask.values).to(values)[None, None]


def _centre_of_mass(values: Tensor, mask: Tensor | None, image: Image) -> Array:
    mass = (values if mask is None else values * mask)[0, 0]
    axes = range(mass.dim())
    profiles = [mass.sum([other for other in axes if other != axis], dtype=torch.float64).cpu().numpy() for axis in axes]
    index = [float(profile @ np.arange(len(profile)) / profile.sum()) for profile in profiles]
    return transform_points(image.affine, np.array([index]))[0]


def _starts(dim: int) -> list[Tensor]:
    """No turn, and a turn about every axis either way."""
    straight = torch.zeros(dim * dim + dim, dtype=torch.float64)
    starts = [straight]
    for i in range(dim):
        for j in range(i):
            for angle in (-TURN, TURN):
                turned = straight.clone()
                turned[i * dim + j], turned[j * dim + i] = angle, -angle
                starts.append(turned)
    return starts


def _matrix(p: Tensor, dim: int, radius: float, rigid: bool) -> Tensor:
    """Parameters to (D, D+1): the exponential of a matrix (its skew part if rigid) beside a translation in mm."""
    generator = p[: dim * dim].view(dim, dim)
    if rigid:
        generator = (generator - generator.T) / 2
    return torch.cat([torch.linalg.matrix_exp(generator), radius * p[dim * dim :, None]], dim=1)


class _Cost:
    """What parameters cost at a level: the images are compared on their device, by one recorded piece of work."""

    def __init__(self, level: _Level, similarity: Similarity, radius: float) -> None:
        self.radius = radius
        dim, device = len(level.points), level.points.device
        self.matrix = matrix = torch.zeros(dim, dim + 1, dtype=torch.float64, device=device)
        self.found = found = torch.zeros(1 + dim * (dim + 1), dtype=torch.float64, device=device)

        def compare() -> None:
            value, slope = level.compare(matrix.clone(), similarity)
            found.copy_(torch.cat([value[None].double(), slope.flatten()]))

        self.again = Replay(compare, device)

    def __call__(self, p: Tensor, *, rigid: bool) -> tuple[float, Tensor]:
        """The cost, and its derivative by the parameters."""
        p = p.detach().requires_grad_()
        matrix = _matrix(p, len(self.matrix), self.radius, rigid)
        self.matrix.copy_(matrix.detach())
        self.again()
        found = self.found.cpu()
        (slope,) = torch.autograd.grad((matrix * found[1:].view_as(matrix)).sum(), p)  # given forces, torch imports sympy
        return float(found[0]), slope


def _descend(cost: _Cost, start: Tensor, iterations: int, *, rigid: bool, gain: float = FINE) -> Tensor:
    """By scipy: torch's own L-BFGS takes a second to be imported."""
    from scipy.optimize import minimize

    def with_slope(x: Array) -> tuple[float, Array]:
        value, slope = cost(torch.from_numpy(x), rigid=rigid)
        return value, slope.numpy()

    stop = {"maxiter": iterations, "maxcor": 20, "ftol": gain, "gtol": gain}
    found = minimize(with_slope, start.numpy(), jac=True, method="L-BFGS-B", options=stop)
    end = torch.from_numpy(found.x)
    return end if cost(end, rigid=rigid)[0] <= cost(start, rigid=rigid)[0] else start


def _make_level(
    source: tuple[Tensor, Tensor | None],
    target: tuple[Tensor, Tensor | None],
    moving: Image,
    fixed: Image,
    resolution: float,
    centre_moving: Array,
    centre_fixed: Array,
) -> _Level:
    grid, fixed_grid = grid_at(moving, resolution), grid_at(fixed, resolution)
    around = fixed_grid.affine.copy()
    around[:-1, -1] -= centre_fixed
    ((_, points),) = positions(around, fixed_grid.shape, source[0].device, at_a_time=math.prod(fixed_grid.shape))
    to_local = np.linalg.inv(grid.local_to_world())[:-1]
    to_local[:, -1] += to_local[:, :-1] @ centre_moving
    (of_source, there), (of_target, here) = _known(source[1], grid), _known(target[1], fixed_grid)
    voxel_ratio = abs(np.linalg.det(grid.affine) / np.linalg.det(fixed_grid.affine))
    return _Level(
        target=downsample(target[0], fixed_grid).flatten(2),
        points=points.flatten(1),
        source=downsample(source[0], grid),
        masks=(of_source, None if of_target is None else of_target.flatten(2)),
        to_local=torch.from_numpy(to_local).to(points),
        grid=grid,
        shareable=min(here, there * voxel_ratio),
    )


def _known(mask: Tensor | None, grid: Grid) -> tuple[Tensor | None, float]:
    """A mask at another resolution, and how many points it covers; none covers all."""
    coarse = None if mask is None else downsample(mask, grid)
    return coarse, math.prod(grid.shape) if coarse is None else float(coarse.sum())


def grid_at(image: Image, resolution: float) -> Grid:
    """The box of an image with voxels of about `resolution` millimetres, not smaller than they are. Shear is welcome."""
    sizes = zip(image.shape, voxel_size(image.affine), strict=True)
    shape = tuple(max(min(n, 8), round((n - 1) * min(1, s / resolution)) + 1) for n, s in sizes)
    return Grid(image.shape, (1.0,) * image.dim, affine=image.affine).with_shape(shape)
