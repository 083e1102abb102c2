"""Parts of the paper's stochastic gradient descent: Nesterov steps, clipping, and a plateau schedule (section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOMENTUM = 0.9
"""Of Nesterov."""
FACTOR = 0.5
"""By this factor a learning rate falls ..."""
PATIENCE = 10
"""... after so many energies without progress."""
PROGRESS = 1e-4
"""The fraction by which an energy must fall to count as progress."""


class Plateau:
    """ReduceLROnPlateau for many learning rates at once. State is tensors (B,), changed in place: it can be recorded."""

    def __init__(self, like: Tensor) -> None:
        self.scale = torch.ones_like(like)
        """What is left of the learning rates."""
        self.best = torch.full_like(like, torch.inf)
        self.waited = torch.zeros_like(like)

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.scale, self.best, self.waited

    def see(self, energy: Tensor) -> None:
        """The next energies (B,)."""
        better = energy < self.best * (1 - PROGRESS)
        self.best.copy_(torch.where(better, energy, self.best))
        self.waited.copy_(torch.where(better, 0, self.waited + 1))
        stuck = self.waited > PATIENCE
        self.scale.mul_(torch.where(stuck, FACTOR, 1.0))
        self.waited.mul_(~stuck)


def clip_each(gradient: Tensor, limit: float) -> None:
    """Shorten the gradient of every pair to the norm `limit`, pair by pair: no pair depends on its batch."""
    norm = gradient.flatten(1).norm(dim=1).view(-1, *[1] * (gradient.dim() - 1))
    gradient.mul_((limit / norm.clamp(min=1e-30)).clamp(max=1))


def clip_together(gradients: Sequence[Tensor], limit: float) -> list[Tensor]:
    """The same gradients, all shortened alike so that together they have at most the norm `limit`."""
    norm = torch.stack([part.norm() for part in gradients]).norm()
    shorten = (limit / norm.clamp(min=1e-30)).clamp(max=1)
    return [shorten * part for part in gradients]


@torch.no_grad()
def nesterov_step(m: Tensor, buffer: Tensor, gradient: Tensor, *, rate: Tensor | float) -> None:
    """One step of SGD with Nesterov momentum, in place. `buffer` starts at zero."""
    buffer.mul_(MOMENTUM).add_(gradient)
    m.sub_(rate * (gradient + MOMENTUM * buffer))
