"""What voxels pull at the map, summed onto the map's points along two axes, in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

from metreg.kernels.triton.dependent_launch import wait
from metreg.kernels.triton.sampling import first


@triton.jit
def gather(
    part,
    out,
    n0,
    n1,
    n2,
    c0,
    c1,
    c2,
    r0,
    r1,
    r2,
    slabs,
    SPAN1: tl.constexpr,
    SPAN2: tl.constexpr,
    BLOCK: tl.constexpr,
    CELLS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """out (F, c0, c1, c2) from part (F, slabs, CELLS + 1, n1, n2): the sum over voxels along the last two axes."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.minimum(at, c1 * c2 - 1)
    i = tl.program_id(1)
    field = tl.program_id(2).to(tl.int64)
    j, k = place // c2, place % c2
    slab, row = i // CELLS, i % CELLS
    part += field * slabs * (CELLS + 1) * n1 * n2
    total = tl.zeros((BLOCK,), tl.float32)
    wait(DEPENDENT)
    if slab < slabs:
        total += _gathered(part + (slab * (CELLS + 1) + row) * n1 * n2, j, k, n1, n2, r1, r2, SPAN1, SPAN2)
    if (row == 0) & (slab > 0):  # the slab before has a share in the first plane of this one
        total += _gathered(part + (slab * (CELLS + 1) - 1) * n1 * n2, j, k, n1, n2, r1, r2, SPAN1, SPAN2)
    tl.store(out + (field * c0 + i) * c1 * c2 + at, total, mask=at < c1 * c2)


@triton.jit
def _gathered(plane, j, k, n1, n2, r1, r2, SPAN1: tl.constexpr, SPAN2: tl.constexpr):
    """The sum over voxels of a plane around point (j, k) of the map."""
    total = tl.zeros_like(j).to(tl.float32)
    first1, first2 = first(j, r1), first(k, r2)
    weights = ()
    for step2 in tl.static_range(SPAN2):
        weights += (_share(first2 + step2, k, n2, r2),)  # type: ignore[assignment]
    for step1 in range(SPAN1):
        row = tl.minimum(first1 + step1, n1 - 1) * n2 + first2
        along = tl.zeros_like(total)
        for step2 in tl.static_range(SPAN2):
            along += weights[step2] * tl.load(plane + row + step2, mask=weights[step2] > 0, other=0.0)
        total += _share(first1 + step1, j, n1, r1) * along
    return total


@triton.jit
def _share(voxel, point, count, ratio):
    """How much of a voxel goes to a point of the map along one axis."""
    weight = 1 - tl.abs(voxel.to(tl.float32) * ratio - point.to(tl.float32))
    return tl.where(voxel < count, tl.maximum(weight, 0.0), 0.0)
