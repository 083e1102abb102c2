"""How many time steps a flow takes while its velocity is sought."""

from __future__ import annotations

import torch
from torch import Tensor

from metreg.deformation.stationary import FASTEST, needed_steps, reach
from metreg.settings.model import FlowSettings


class TimeSteps:
    """The number of time steps of a flow. On a CPU every flow finds its own (None).

    On a GPU that would mean to read a value back: there the number is fixed, and raised after a velocity was too fast.
    """

    def __init__(self, flow: FlowSettings, like: Tensor) -> None:
        self.integrator = flow.integrator
        self.count = flow.steps if like.is_cuda else None
        self.fastest = torch.zeros((), dtype=like.dtype, device=like.device)

    def see(self, speeds: Tensor) -> None:
        """Take note of speeds (B,), without reading them."""
        torch.maximum(self.fastest, speeds.max(), out=self.fastest)

    def begin_at(self, speeds: Tensor) -> None:
        """Take as many steps as these speeds need."""
        if self.count is not None:
            self.count = max(self.count, self._needed(float(speeds.max())))

    def were_too_few(self) -> bool:
        """Whether a speed seen since the last call was too fast. If so there are more steps now.

        At most twice as many: one trial that led far should not make all later ones expensive.
        """
        if self.count is None:
            return False
        fastest = float(self.fastest)
        self.fastest.zero_()
        few = not fastest <= reach(self.count, self.integrator)
        if few:
            self.count = min(self._needed(fastest), 2 * self.count)
        return few

    def _needed(self, fastest: float) -> int:
        spare = 1.25 if self.integrator == "rk4" else 1.0
        least = needed_steps(fastest, self.integrator)
        return max(least, needed_steps(min(spare * fastest, 0.99 * FASTEST), self.integrator))
