"""Image similarities: smaller is better, never negative."""

from __future__ import annotations

from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import warp
from metreg.kernels import is_fast
from metreg.settings.model import SimilaritySettings
from metreg.similarity.lncc import Lncc
from metreg.similarity.mi import mutual_information
from metreg.similarity.ncc import TINY, ncc
from metreg.similarity.ssd import ssd

WEIGHT = 100.0
"""The factor of every similarity: 1 / sigma^2 with the paper's sigma of 0.1."""


class Similarity:
    """The dissimilarity that the settings name, times WEIGHT."""

    def __init__(self, settings: SimilaritySettings) -> None:
        self.settings = settings
        self.local: dict[int, Lncc] = {}

    def __call__(self, warped: Tensor, target: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """Of each pair.  warped, target (B, C, *S) on `grid`, mask (B, 1, *S) of weights in [0, 1] -> (B,)."""
        match self.settings.name:
            case "ssd":
                value = ssd(warped, target, mask)
            case "ncc":
                value = ncc(warped, target, mask)
            case "lncc":
                value = self._local_on(grid)(warped, target, mask)
            case "mi":
                value = mutual_information(warped, target, mask)
        return WEIGHT * value

    def of_map(self, source: Tensor, phi_inv: Tensor, target: Tensor, grid: Grid, mask: Tensor | None = None) -> Tensor:
        """Of I0 o phi_inv and the target on `grid`; the map (B, D, *C) may live on a coarser grid of the same box."""
        if self.settings.name == "ncc" and is_fast(phi_inv) and source.shape[1] == 1 and not source.requires_grad:
            from metreg.kernels.triton.ncc import WarpedNcc

            value: Tensor = WarpedNcc.apply(source, phi_inv, target, mask, grid, TINY)  # type: ignore[no-untyped-call]
            return WEIGHT * value
        return self(warp(source, phi_inv, grid), target, grid, mask)

    def _local_on(self, grid: Grid) -> Lncc:
        """One for every window, which remembers its target."""
        window = window_on(grid, self.settings.window)
        if window not in self.local:
            self.local[window] = Lncc(window, self.settings.noise)
        return self.local[window]


def window_on(grid: Grid, width: float) -> int:
    """The odd number of voxels nearest to a width in reference lengths, but at least five; 1 or more are voxels already."""
    if width >= 1:
        return int(width)
    voxels = width / grid.cell_volume ** (1 / grid.dim)
    return max(5, 2 * round((voxels - 1) / 2) + 1)
