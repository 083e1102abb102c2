"""How many time steps a flow takes while its velocity is sought."""

from __future__ import annotations

import torch
from torch import Tensor

from metreg.config import FlowSettings
from metreg.flow.stationary import needed_steps, reach


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
        self.see(speeds)
        self.were_too_few()

    def were_too_few(self) -> bool:
        """Whether a speed seen since the last call was too fast. If so there are more steps now."""
        if self.count is None:
            return False
        fastest = float(self.fastest)
        self.fastest.zero_()
        few = not fastest <= reach(self.count, self.integrator)
        if few:
            spare = 1.25 if self.integrator == "rk4" else 1.0
            self.count = needed_steps(spare * fastest, self.integrator)
        return few
