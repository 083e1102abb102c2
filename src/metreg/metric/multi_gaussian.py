"""The multi-Gaussian metric: one mixture everywhere (global), or a mixture of its own at every point (local)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from metreg.core.fields import inner, speed
from metreg.core.grid import Grid
from metreg.kernels import is_fast
from metreg.metric.base import Motion, Penalties, Weighting
from metreg.metric.gaussian import Gaussians, SeparableGaussians


def default_weights(sigma: Tensor) -> Tensor:
    """w_i = sigma_i^2 / sum_j sigma_j^2, the set point of the paper.  (N,)"""
    return sigma**2 / (sigma**2).sum()


class MultiGaussian:
    """v = tau K (tau m), K m = sum_i sqrt(w_i) G_i * (sqrt(w_i) m): symmetric and positive for any weights w >= 0.

    `w` is (N,) for the global metric, (B, N, *S) for the local one, or a function of the momentum that gives such weights
    and what they cost; `tau` (*S) is the border window, None for no window. `penalties` are what weights cost that were
    found from a momentum: other weights cost the same whatever the momentum, and are not asked for it.
    """

    def __init__(
        self,
        gaussians: Gaussians,
        w: Tensor | Callable[[Tensor], Weighting],
        tau: Tensor | None = None,
        penalties: Penalties | None = None,
    ) -> None:
        self.gaussians, self.weights, self.tau = gaussians, w, tau
        self.penalties = penalties

    @property
    def looks_at_momentum(self) -> bool:
        """Whether the weights depend on the momentum."""
        return not isinstance(self.weights, Tensor)

    @property
    def w(self) -> Tensor:
        assert isinstance(self.weights, Tensor), "these weights depend on the momentum: ask `at(m)`"
        return self.weights

    def at(self, m: Tensor) -> MultiGaussian:
        """The metric with the weights that it has at momentum m. Where m wants a gradient, it flows through the weights."""
        if isinstance(self.weights, Tensor):
            return self
        with torch.set_grad_enabled(torch.is_grad_enabled() and m.requires_grad):
            w, penalties = self.weights(m)
        return MultiGaussian(self.gaussians, w, self.tau, penalties)

    def sharp(self, m: Tensor) -> Tensor:
        w = self.at(m).w
        return self._fast(m, w).v if self._is_fast(m, w) else self._plain(m, w)

    def motion(self, m: Tensor) -> Motion:
        w, grid = self.at(m).w, self.gaussians.grid
        if self._is_fast(m, w):
            return self._fast(m, w)
        v = self._plain(m, w)
        return Motion(v, inner(m, v, grid), speed(v, grid))

    def _is_fast(self, m: Tensor, w: Tensor) -> bool:
        return is_fast(m) and (w.dim() > 1 or isinstance(self.gaussians, SeparableGaussians))

    def _fast(self, m: Tensor, w: Tensor) -> Motion:
        from metreg.kernels.triton.smooth import Sharp

        gaussians = self.gaussians
        return Motion(*Sharp.apply(m, w, self.tau, gaussians.matrices, gaussians.grid.spacing))  # type: ignore[no-untyped-call]

    def _plain(self, m: Tensor, w: Tensor) -> Tensor:
        windowed = m if self.tau is None else self.tau * m
        v = self.gaussians.mixed(windowed, w) if w.dim() == 1 else self.gaussians.local(windowed, w)
        return v if self.tau is None else self.tau * v

    def local_sigma(self) -> Tensor:
        w = self.local_weights()
        return torch.einsum("bn...,n->b...", w, self.gaussians.sigma**2).sqrt()

    def local_weights(self) -> Tensor:
        """The weights at every point, (B, N, *S), whichever kind they are."""
        if self.w.dim() > 1:
            return self.w
        shape = self.gaussians.grid.shape
        return self.w.view(1, -1, *[1] * len(shape)).expand(1, -1, *shape)


def border_window(grid: Grid, voxels: int, like: Tensor, finest: Grid | None = None) -> Tensor:
    """tau (*S): one inside, falling smoothly to exactly zero at the border over the outermost `voxels` steps.

    They are those of the `finest` grid of a pyramid: a window that is wider at coarse levels would lie on what is to move.
    """
    tau = torch.ones(grid.shape, dtype=like.dtype, device=like.device)
    for d, n in enumerate(grid.shape):
        i = torch.arange(n, dtype=like.dtype, device=like.device)
        wide = voxels * (finest or grid).spacing[d] / grid.spacing[d]
        t = (torch.minimum(i, n - 1 - i) / wide).clamp(max=1)
        tau = tau * (t**2 * (3 - 2 * t)).view([-1 if axis == d else 1 for axis in range(grid.dim)])
    return tau
