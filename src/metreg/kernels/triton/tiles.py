"""Which points a Triton program takes: a tile, or a few planes of a column. In 2-D n0 = 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import triton
import triton.language as tl


def blocks_of(shape: Sequence[int], tile: Sequence[int]) -> int:
    """How many tiles there are."""
    return math.prod(triton.cdiv(n, t) for n, t in zip(shape, tile, strict=True))


@triton.jit
def place(n0, n1, n2, T0: tl.constexpr, T1: tl.constexpr, T2: tl.constexpr):
    """Indices along three axes of the points of this program's tile, where they lie in memory, and which there are."""
    blocks1, blocks2 = tl.cdiv(n1, T1), tl.cdiv(n2, T2)
    block = tl.program_id(0)
    lane = tl.arange(0, T0 * T1 * T2)
    i = block // (blocks1 * blocks2) * T0 + lane // (T1 * T2)
    j = block // blocks2 % blocks1 * T1 + lane // T2 % T1
    k = block % blocks2 * T2 + lane % T2
    return i, j, k, (i * n1 + j) * n2 + k, (i < n0) & (j < n1) & (k < n2)


@triton.jit
def columns(n0, n1, n2, BLOCK: tl.constexpr, SLAB: tl.constexpr):
    """Points of a plane: indices along two axes, where they lie, which there are; then the first plane, and how many.

    The tile is (SLAB, BLOCK) of (n0, n1 n2): points lie side by side, planes come one after the other.
    """
    blocks = tl.cdiv(n1 * n2, BLOCK)
    at = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    start = tl.program_id(0) // blocks * SLAB
    return at // n2, at % n2, at, at < n1 * n2, start, tl.minimum(SLAB, n0 - start)
