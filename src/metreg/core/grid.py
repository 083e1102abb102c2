"""The one object that owns geometry."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from metreg.errors import MetregError

Array = NDArray[Any]
T = TypeVar("T")
ALIKE = 1.2
"""Sides of voxels whose ratio is no larger are the same."""


@dataclass(frozen=True, eq=False)
class Grid:
    """A regular grid. `spacing` in reference lengths, ordered like the tensor's axes, slowest first.

    A point has two addresses. *Local*: index times spacing, what all the mathematics uses. *World*: millimetres, RAS,
    what files use; `affine` (D+1, D+1) takes an index there. `length_mm` is the reference length.
    """

    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    length_mm: float = 1.0
    affine: Array = field(default_factory=lambda: np.zeros((0, 0)))
    _constants: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.spacing) or min(self.shape) < 2:
            raise MetregError(f"grid: wanted two points or more and a spacing per axis, got {self.shape}, {self.spacing}")
        if not all(h > 0 for h in (*self.spacing, self.length_mm)):
            raise MetregError(f"grid: spacing {self.spacing} and length_mm {self.length_mm} must be positive")
        if self.affine.size == 0:
            scale = [h * self.length_mm for h in self.spacing]
            object.__setattr__(self, "affine", np.diag([*scale, 1.0]))

    @classmethod
    def unit_cube(cls, shape: tuple[int, ...], affine: Array | None = None) -> Grid:
        """The paper's grid: point i of n sits at i/(n-1) on every axis, whatever the voxel size."""
        spacing = tuple(1.0 / (n - 1) for n in shape)
        if affine is None:
            return cls(shape, spacing)
        extents = voxel_size(affine) * (np.array(shape) - 1)
        return cls(shape, spacing, float(np.prod(extents) ** (1 / len(shape))), affine)

    @classmethod
    def of_image(cls, shape: tuple[int, ...], affine: Array, length_mm: float) -> Grid:
        """The grid of an image with voxels along orthogonal axes: the same unit on every axis."""
        return cls(shape, tuple(float(s) / length_mm for s in voxel_size(affine)), length_mm, affine)

    @property
    def dim(self) -> int:
        return len(self.shape)

    @property
    def extent(self) -> tuple[float, ...]:
        """The local coordinates of the last point."""
        return tuple(h * (n - 1) for h, n in zip(self.spacing, self.shape, strict=True))

    @property
    def voxel_mm(self) -> tuple[float, ...]:
        """The spacing in millimetres."""
        return tuple(h * self.length_mm for h in self.spacing)

    @property
    def cell_volume(self) -> float:
        return math.prod(self.spacing)

    def constant(self, name: Hashable, like: Tensor, make: Callable[[], T]) -> T:
        """What `make` gives, made once for this grid, dtype and device. It lives as long as the grid does."""
        key = (name, like.dtype, like.device)
        if key not in self._constants:
            self._constants[key] = make()
        found: T = self._constants[key]
        return found

    def points(self, like: Tensor) -> Tensor:
        """The identity map (1, D, *S), in the dtype and on the device of `like`."""
        axes = [
            torch.arange(n, dtype=like.dtype, device=like.device) * h for n, h in zip(self.shape, self.spacing, strict=True)
        ]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"))[None]

    def spacings(self, like: Tensor) -> Tensor:
        """The spacing as a tensor (1, D, 1, ...) that divides fields, in the dtype and on the device of `like`."""
        return self.constant("spacings", like, lambda: self._per_axis(self.spacing, like))

    def extents(self, like: Tensor) -> Tensor:
        """The extent likewise."""
        return self.constant("extents", like, lambda: self._per_axis(self.extent, like))

    def _per_axis(self, values: tuple[float, ...], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(1, -1, *[1] * self.dim)

    def coarsen(self, factor: float | Sequence[float], at_least: int = 2) -> Grid:
        """The same box with ceil(factor * n) points per axis, corners on corners, `at_least` points where there are."""
        factors = [factor] * self.dim if isinstance(factor, (int, float)) else factor
        counts = zip(self.shape, factors, strict=True)
        return self.with_shape(tuple(max(min(n, at_least), math.ceil(share * n - 1e-9)) for n, share in counts))

    def shares(self, factor: float) -> tuple[float, ...]:
        """What each axis keeps of its points where voxels are to grow by 1 / `factor`: see `towards_cubes`.

        Axes of the unit cube have units of their own, so they all keep the same.
        """
        is_unit_cube = all(abs(length - 1) < 1e-9 for length in self.extent)
        return (factor,) * self.dim if is_unit_cube else towards_cubes(self.spacing, factor)

    def with_shape(self, shape: tuple[int, ...]) -> Grid:
        """The same box with another number of points, corners on corners."""
        ratio = [(n - 1) / (k - 1) for n, k in zip(self.shape, shape, strict=True)]
        spacing = tuple(h * r for h, r in zip(self.spacing, ratio, strict=True))
        return replace(self, shape=shape, spacing=spacing, affine=self.affine @ np.diag([*ratio, 1.0]))

    def local_to_world(self) -> Array:
        """The matrix (D+1, D+1) that takes local coordinates to world millimetres."""
        return np.asarray(self.affine @ np.diag([*(1 / np.array(self.spacing)), 1.0]))


def voxel_size(affine: Array) -> Array:
    """Length in millimetres of one step along each axis (D,)."""
    return np.linalg.norm(affine[:-1, :-1], axis=0)


def towards_cubes(size: Iterable[float], factor: float) -> tuple[float, ...]:
    """The share of its points that each axis keeps: `factor` where voxels are thinnest, more where they are thick already.

    So slices that are far apart are not taken still farther apart before the voxels in them are as large.
    """
    sides = list(size)
    ratios = [round(h / min(sides), 3) for h in sides]  # headers have few digits
    return tuple(min(1.0, factor * (ratio if ratio > ALIKE else 1.0)) for ratio in ratios)


def is_orthogonal(affine: Array, tolerance: float = 1e-4) -> bool:
    """Whether the axes of an index-to-world affine stand at right angles: no shear."""
    axes = affine[:-1, :-1] / voxel_size(affine)
    return bool(np.abs(axes.T @ axes - np.eye(len(axes))).max() < tolerance)


def world_points(shape: tuple[int, ...], affine: Array) -> Array:
    """World positions (prod(S), D) of all voxels of an image, in the order of its array."""
    points = np.broadcast_to(affine[:-1, -1], (*shape, len(affine) - 1)).copy()
    for axis, n in enumerate(shape):
        points += (np.arange(n)[:, None] * affine[:-1, axis]).reshape(n, *[1] * (len(shape) - 1 - axis), -1)
    return points.reshape(-1, len(affine) - 1)


def transform_points(matrix: Array, points: Array) -> Array:
    """A homogeneous matrix (E+1, D+1) on points (P, D) -> (P, E)."""
    turned = points @ np.ascontiguousarray(matrix[:-1, :-1].T)  # a strided matrix would take the slow way through numpy
    turned += matrix[:-1, -1]
    return np.asarray(turned)


def some_of(chosen: Array, most: int) -> Array:
    """Indices (P, D) of chosen voxels, booleans (*S), evenly spread; about `most` of them where there are more."""
    places = np.flatnonzero(chosen)
    places = places[:: max(1, len(places) // most)]
    return np.stack(np.unravel_index(places, chosen.shape), axis=1)
