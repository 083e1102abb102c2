"""How far a map is from the true one."""

from __future__ import annotations

from torch import Tensor

from metreg.core.grid import Grid


def displacement_error(phi_inv: Tensor, truth: Tensor, region: Tensor, grid: Grid) -> Tensor:
    """Mean over a region of |phi_inv - truth| in voxels.  Maps (B, D, *S), region (B, *S) of booleans -> (B,)."""
    distance = ((phi_inv - truth) / grid.spacings(phi_inv)).norm(dim=1)
    return (distance * region).flatten(1).sum(1) / region.flatten(1).sum(1)
