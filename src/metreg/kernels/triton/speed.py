"""How fast a field is at its fastest, on a GPU in Triton."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


def fastest(v: Tensor, steps: Sequence[float]) -> Tensor:
    """The largest sum_d |v_d| / step_d of each pair (B,); infinite where it is not a number.  v (B, D, *S)."""
    v = v.contiguous()
    batch, axes = v.shape[:2]
    size = v[0, 0].numel()
    found = torch.empty(batch, triton.cdiv(size, BLOCK), device=v.device)
    inverse = [1 / step for step in steps] + [0.0] * (3 - axes)
    _fastest[found.shape[1], batch](v, found, *inverse, size, AXES=axes, BLOCK=BLOCK)
    return found.amax(1)


@triton.jit
def _fastest(v, found, s0, s1, s2, size, AXES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.program_id(1).to(tl.int64)
    here = v + pair * AXES * size + at
    total = s0 * tl.abs(tl.load(here, mask=at < size, other=0.0))
    total += s1 * tl.abs(tl.load(here + size, mask=at < size, other=0.0))
    if AXES == 3:
        total += s2 * tl.abs(tl.load(here + 2 * size, mask=at < size, other=0.0))
    total = tl.where(total == total, total, float("inf"))  # maxima take no notice of what is not a number
    tl.store(found + pair * tl.num_programs(0) + tl.program_id(0), tl.max(total, axis=0))
