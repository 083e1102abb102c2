"""Maps as maps: compose, invert, and say whether they fold. A map is (B, D, *S), absolute positions on its grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from metreg.core.fields import determinant
from metreg.core.grid import Grid
from metreg.core.resample import sample
from metreg.kernels import is_compiled, is_fast

SLAB = 16
"""Cells along the first axis that are certified together."""
LEAST, SMOOTHING, ROUNDS, PATIENCE = 0.01, 0.25, 50, 10
"""How folds of an inverse go: from which determinant on it is smoothed, how much at a time, and how often at most; and how
often without success."""


def compose(outer: Tensor, inner: Tensor, grid: Grid) -> Tensor:
    """outer o inner: first `inner`, then `outer`, the latter's displacement interpolated linearly."""
    x = grid.points(outer)
    return inner + sample(outer - x, inner, grid)


def invert(
    phi: Tensor, grid: Grid, *, start: Tensor | None = None, iterations: int = 30, tolerance: float = 1e-3
) -> Tensor:
    """The inverse psi of a map at the grid's points, phi(psi(x)) = x, by damped Newton iteration from `start`.

    A point never takes a step that makes its mismatch larger. `tolerance` is in voxels.
    """
    starts = 2 * grid.points(phi) - phi if start is None else start
    pairs = zip(phi.split(1), starts.split(1), strict=True)
    return torch.cat([_invert(one, grid, near, iterations, tolerance) for one, near in pairs])


def _invert(phi: Tensor, grid: Grid, start: Tensor, iterations: int, tolerance: float) -> Tensor:
    """The same for one map. Points are left alone as soon as they are well within the tolerance: most are so at once."""
    x, h = grid.points(phi), grid.spacings(phi).flatten(2)
    shift = phi - x
    x, found = x.flatten(2), start.flatten(2).clone()
    psi, mismatch = found, found + sample(shift, found, grid) - x
    rate, left = torch.ones_like(mismatch[:, :1]), torch.arange(x.shape[2], device=x.device)
    for _ in range(iterations):
        away = (mismatch / h).abs().amax((0, 1))
        if float(away.max()) < tolerance:
            break
        stay = (~(away <= tolerance / 10)).nonzero()[:, 0]  # what is not a number stays too
        left = left[stay]
        x, psi, mismatch, rate = (f[..., stay] for f in (x, psi, mismatch, rate))
        newton = torch.linalg.solve_ex(_jacobian_at(psi, shift, grid), mismatch.movedim(1, -1)).result.movedim(-1, 1)
        trial = psi - rate * torch.where(newton.isfinite().all(1, keepdim=True), newton, mismatch)
        trial_mismatch = trial + sample(shift, trial, grid) - x
        better = (trial_mismatch / h).square().sum(1, keepdim=True) < (mismatch / h).square().sum(1, keepdim=True)
        psi = torch.where(better, trial, psi)
        mismatch = torch.where(better, trial_mismatch, mismatch)
        rate = torch.where(better, (2 * rate).clamp(max=1), rate / 2)
        found[..., left] = psi
    return found.view_as(phi)


def smooth_out_folds(phi: Tensor, grid: Grid) -> Tensor:
    """Maps (B, D, *S) whose shifts are smoothed, a little at a time, where they fold, until that is nowhere.

    An inverse that is exact at the points of its grid may fold between them, where it is stretched most. The border stays,
    so what folds because of it does too.
    """
    counts: list[int] = []
    inside = grid.constant("inside", phi, lambda: F.pad(phi.new_ones([n - 2 for n in grid.shape]), (1, 1) * grid.dim))
    largest, average = (F.max_pool2d, F.avg_pool2d) if grid.dim == 2 else (F.max_pool3d, F.avg_pool3d)
    for _ in range(ROUNDS):
        low = _lowest(phi, grid) < LEAST
        counts.append(int(low.sum()))
        if counts[-1] == 0 or counts[-1] >= min(counts[:-PATIENCE], default=math.inf):
            break
        corners = largest(F.pad(low.to(phi)[:, None], (1, 1) * grid.dim), 2, 1)
        shift = phi - grid.points(phi)
        around = average(F.pad(shift, (1, 1) * grid.dim, mode="replicate"), 3, 1)
        phi = phi + SMOOTHING * inside * corners * (around - shift)
    return phi


def _jacobian_at(x: Tensor, shift: Tensor, grid: Grid) -> Tensor:
    """Of the map x + shift as it is interpolated, (B, P, D, D) at points x (B, D, P).

    Smoother derivatives would be wrong where the map bends sharply, and Newton's method would not get on there.
    """
    rows = torch.eye(grid.dim, dtype=x.dtype, device=x.device).expand(x.shape[0], x.shape[2], -1, -1).clone()
    for d, (h, n) in enumerate(zip(grid.spacing, grid.shape, strict=True)):
        low, high = x.clone(), x.clone()
        low[:, d] = (x[:, d] / h).floor().clamp(0, n - 2) * h
        high[:, d] = low[:, d] + h
        rows[..., d] += ((sample(shift, high, grid) - sample(shift, low, grid)) / h).movedim(1, -1)
    return rows


def count_folds(phi: Tensor, grid: Grid) -> Tensor:
    """Voxels at which any combination of one-sided differences has a non-positive determinant, border included.  (B,)

    Central differences skip the middle voxel and miss folds; these are the determinants at the corners of all cells.
    """
    folded = torch.zeros_like(phi[:, 0], dtype=torch.bool)
    for corner in product((0, 1), repeat=grid.dim):
        edges = torch.stack([_edge(phi, d, corner) / h for d, h in enumerate(grid.spacing)], dim=2)
        here = tuple(slice(c, n - 1 + c) for c, n in zip(corner, grid.shape, strict=True))
        folded[:, *here] |= determinant(edges) <= 0
    return folded.flatten(1).sum(1)


def folding(phi: Tensor, grid: Grid, least: float) -> Tensor:
    """The integral of (1 - det / least)+^2, the mean over the corners of every cell.  (B, D, *S) -> (B,)."""
    scale = grid.cell_volume / (2**grid.dim * least**2)
    if is_compiled(phi):
        from metreg.kernels.cpu.folding import FoldingOnCpu

        lack: Tensor = FoldingOnCpu.apply(phi, grid, least)  # type: ignore[no-untyped-call]
        return scale * lack
    if is_fast(phi):
        from metreg.kernels.triton.folding import FoldingOnGpu

        lack = FoldingOnGpu.apply(phi, grid, least)  # type: ignore[no-untyped-call]
        return scale * lack
    return scale * plain_folding(phi, grid, least)


def plain_folding(phi: Tensor, grid: Grid, least: float) -> Tensor:
    """The sum over all corners of all cells of (least - det)+^2."""
    total = phi.new_zeros(len(phi))
    for corner in product((0, 1), repeat=grid.dim):
        edges = torch.stack([_edge(phi, d, corner) / h for d, h in enumerate(grid.spacing)], dim=2)
        total = total + (least - determinant(edges)).clamp(min=0).square().flatten(1).sum(1)
    return total


@dataclass(frozen=True)
class Certificate:
    """What is proven of a map between its grid's points. `holds`: it is invertible everywhere, not only at voxels."""

    smallest: float
    """Smallest Bernstein coefficient of the determinant over all cells: a lower bound of it everywhere."""
    border_fixed: bool
    """Whether every point of the border stays where it is, so that the box maps onto itself."""

    @property
    def holds(self) -> bool:
        return self.smallest > 0 and self.border_fixed


def certify(phi: Tensor, grid: Grid) -> Certificate:
    """The certificate of one map (1, D, *S), interpolated multilinearly between its grid's points."""
    u = phi - grid.points(phi)
    border = max(float(u.narrow(d + 2, i, 1).abs().max()) for d, n in enumerate(grid.shape) for i in (0, n - 1))
    return Certificate(float(_lowest(phi, grid).min()), border <= 1e-6 * max(grid.extent))


def _lowest(phi: Tensor, grid: Grid) -> Tensor:
    """`bernstein_minimum`, slab by slab: the coefficients take much memory."""
    slabs = (phi[:, :, start : start + SLAB + 1] for start in range(0, grid.shape[0] - 1, SLAB))
    return torch.cat([bernstein_minimum(slab, grid) for slab in slabs], dim=1)


def bernstein_minimum(phi: Tensor, grid: Grid) -> Tensor:
    """The smallest of the `bernstein_coefficients`: the determinant is nowhere below it.  (B, D, *S) -> (B, *(S-1))."""
    if is_compiled(phi) and grid.dim == 3:
        from metreg.kernels.cpu.bernstein import bernstein_minimum_3d

        return bernstein_minimum_3d(phi, grid)
    return bernstein_coefficients(phi, grid).amin(0)


def bernstein_coefficients(phi: Tensor, grid: Grid) -> Tensor:
    """The Bernstein coefficients of det D phi in every cell of a multilinear map.  (B, D, *S) -> (J, B, *(S-1)).

    Along axis d the derivative is linear in every other coordinate, with the cell's 2^(D-1) edges in that direction as
    coefficients. The determinant has degree D-1 in each coordinate; its coefficient J is the average of the determinants
    of all choices of one edge per direction whose ends add up to J.
    """
    dim = grid.dim
    corners = [[c for c in product((0, 1), repeat=dim) if c[d] == 0] for d in range(dim)]
    edges = [{c: _edge(phi, d, c) / grid.spacing[d] for c in corners[d]} for d in range(dim)]
    normals: dict[tuple[tuple[int, ...], ...], Tensor]
    if dim == 2:  # a . (b turned by a right angle) is the determinant
        normals = {(c,): torch.stack([b[:, 1], -b[:, 0]], dim=1) for c, b in edges[1].items()}
    else:  # a . (b x c) is
        normals = {(c, e): torch.linalg.cross(f, g, dim=1) for c, f in edges[1].items() for e, g in edges[2].items()}
    sums: dict[tuple[int, ...], Tensor] = {}
    for first, edge in edges[0].items():
        for others, normal in normals.items():
            degree = tuple(sum(corner[e] for corner in (first, *others)) for e in range(dim))
            det = (edge * normal).sum(1)
            sums[degree] = sums[degree] + det if degree in sums else det
    return torch.stack([total / math.prod(math.comb(dim - 1, j) for j in degree) for degree, total in sums.items()])


def _edge(phi: Tensor, axis: int, corner: tuple[int, ...]) -> Tensor:
    """For every cell: the step along `axis` on the edge that passes through `corner` (0 or 1 per axis)."""
    shape = phi.shape[2:]
    start = tuple(slice(c, n - 1 + c) for c, n in zip(corner, shape, strict=True))
    low = tuple(slice(0, n - 1) if d == axis else s for d, (s, n) in enumerate(zip(start, shape, strict=True)))
    high = tuple(slice(1, n) if d == axis else s for d, (s, n) in enumerate(zip(start, shape, strict=True)))
    return phi[:, :, *high] - phi[:, :, *low]
