"""Minimise an energy over the momenta of a batch of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from metreg.checks import MetregError
from metreg.config import SolveSettings
from metreg.energy import Energy

PATIENCE = 10
"""Iterations over which the stop rule looks back."""
THRESHOLD = 1e-4
"""The fraction by which an energy must fall to count as progress for the plateau schedule."""


def minimise(
    energy: Callable[[Tensor], Energy],
    m: Tensor,
    settings: SolveSettings,
    *,
    iterations: int,
    on_iteration: Callable[[int, dict[str, float]], None],
) -> Tensor:
    """The momenta after at most `iterations`; `on_iteration` hears each one's energy by term, summed over the batch."""
    m = m.detach().clone().requires_grad_()
    step = _pairwise_sgd(m, settings) if settings.optimiser == "sgd" else _torch_optimiser(m, settings)

    def evaluate() -> Energy:
        m.grad = None
        terms = energy(m)
        terms.total().sum().backward()
        if settings.clip is not None:
            assert m.grad is not None
            clip_each(m.grad, settings.clip)
        return Energy(*[term.detach() for term in terms])

    totals: list[float] = []
    for i in range(iterations):
        terms = {name: float(value.sum()) for name, value in step(evaluate)._asdict().items()}
        totals.append(sum(terms.values()))
        if not math.isfinite(totals[-1]):
            raise MetregError(f"the energy is not finite in iteration {i + 1}: lower solve.learning_rate")
        on_iteration(i + 1, terms)
        if has_stalled(totals, settings.tolerance):
            break
    return m.detach()


def has_stalled(totals: list[float], tolerance: float) -> bool:
    """Whether the last ten iterations lowered the energy by less than the fraction `tolerance`."""
    if tolerance == 0 or len(totals) <= PATIENCE:
        return False
    before, now = min(totals[:-PATIENCE]), min(totals[-PATIENCE:])
    return before - now < tolerance * abs(before)


def clip_each(gradient: Tensor, limit: float) -> None:
    """Shorten the gradient of every pair to the norm `limit`, pair by pair: no pair depends on its batch."""
    norm = gradient.flatten(1).norm(dim=1).view(-1, *[1] * (gradient.dim() - 1))
    gradient.mul_((limit / norm.clamp(min=1e-30)).clamp(max=1))


@torch.no_grad()
def nesterov_step(m: Tensor, buffer: Tensor, gradient: Tensor, *, rate: Tensor | float, momentum: float) -> None:
    """One step of SGD with Nesterov momentum, in place. `buffer` starts at zero."""
    buffer.mul_(momentum).add_(gradient)
    m.sub_(rate * (gradient + momentum * buffer))


Step = Callable[[Callable[[], Energy]], Energy]
"""One iteration: it evaluates the energy and its gradient, moves the momenta, and tells the energy it started from."""


def _pairwise_sgd(m: Tensor, settings: SolveSettings) -> Step:
    """The paper's SGD with its plateau schedule, a learning rate for every pair: no pair depends on its batch."""
    buffer = torch.zeros_like(m)
    rate = torch.full((len(m),), settings.learning_rate, dtype=m.dtype, device=m.device)
    best, waited = torch.full_like(rate, math.inf), torch.zeros_like(rate)

    def step(evaluate: Callable[[], Energy]) -> Energy:
        terms = evaluate()
        assert m.grad is not None
        nesterov_step(m, buffer, m.grad, rate=rate.view(-1, *[1] * (m.dim() - 1)), momentum=settings.momentum)
        total = terms.total()
        better = total < best * (1 - THRESHOLD)
        torch.where(better, total, best, out=best)
        torch.where(better, torch.zeros_like(waited), waited + 1, out=waited)
        stuck = waited > settings.plateau_patience
        rate.mul_(torch.where(stuck, settings.plateau_factor, 1.0))
        waited.mul_(~stuck)
        return terms

    return step


def _torch_optimiser(m: Tensor, settings: SolveSettings) -> Step:
    """Adam with the plateau schedule, or L-BFGS, on the sum over the batch."""
    optimiser: torch.optim.Optimizer = torch.optim.Adam([m], settings.learning_rate)
    if settings.optimiser == "lbfgs":
        optimiser = torch.optim.LBFGS(
            [m], settings.learning_rate, max_iter=1, max_eval=10, history_size=10, line_search_fn="strong_wolfe"
        )
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, factor=settings.plateau_factor, patience=settings.plateau_patience
    )
    known: list[tuple[Tensor, Tensor, Energy]] = []  # the last point, its gradient and its energy

    def step(evaluate: Callable[[], Energy]) -> Energy:
        seen: list[Energy] = []

        def closure() -> Tensor:
            if known and torch.equal(known[0][0], m):  # L-BFGS asks again for the point at which its line search ended
                m.grad = known[0][1].clone()
                seen.append(known[0][2])
            else:
                seen.append(evaluate())
                assert m.grad is not None
                known[:] = [(m.detach().clone(), m.grad.clone(), seen[-1])]
            return seen[-1].total().sum()

        optimiser.step(closure)  # type: ignore[arg-type]
        if settings.optimiser == "adam":
            plateau.step(float(seen[0].total().sum()))
        return seen[0]

    return step
