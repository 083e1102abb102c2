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


def minimise(
    energy: Callable[[Tensor], Energy],
    m: Tensor,
    settings: SolveSettings,
    *,
    iterations: int,
    on_iteration: Callable[[int, dict[str, float]], None],
) -> Tensor:
    """The momenta after at most `iterations`; `on_iteration` hears the energy of each, by term, summed over the batch."""
    m = m.detach().clone().requires_grad_()
    optimiser = _make_optimiser(m, settings)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, factor=settings.plateau_factor, patience=settings.plateau_patience
    )
    last: list[tuple[Tensor, Energy]] = []

    def closure() -> Tensor:
        if last and torch.equal(last[-1][0], m):  # L-BFGS asks again for the point at which its line search ended
            return last[-1][1].total().sum()
        optimiser.zero_grad()
        terms = energy(m)
        terms.total().sum().backward()
        if settings.clip is not None:
            clip_each(m, settings.clip)
        last.append((m.detach().clone(), Energy(*[term.detach() for term in terms])))
        return last[-1][1].total().sum()

    totals: list[float] = []
    for i in range(iterations):
        optimiser.step(closure)  # type: ignore[arg-type]
        terms = {name: float(value.sum()) for name, value in last[0][1]._asdict().items()}
        del last[:-1]
        totals.append(sum(terms.values()))
        if not math.isfinite(totals[-1]):
            raise MetregError(f"the energy is not finite in iteration {i + 1}: lower solve.learning_rate")
        on_iteration(i + 1, terms)
        if settings.optimiser != "lbfgs":
            plateau.step(totals[-1])
            last.clear()
        if has_stalled(totals, settings.tolerance):
            break
    return m.detach()


def has_stalled(totals: list[float], tolerance: float) -> bool:
    """Whether the last ten iterations lowered the energy by less than the fraction `tolerance`."""
    if tolerance == 0 or len(totals) <= PATIENCE:
        return False
    before, now = min(totals[:-PATIENCE]), min(totals[-PATIENCE:])
    return before - now < tolerance * abs(before)


def clip_each(m: Tensor, limit: float) -> None:
    """Shorten the gradient of every pair to the norm `limit`, pair by pair: no pair depends on its batch."""
    assert m.grad is not None
    norm = m.grad.flatten(1).norm(dim=1).view(-1, *[1] * (m.dim() - 1))
    m.grad.mul_((limit / norm.clamp(min=1e-30)).clamp(max=1))


def _make_optimiser(m: Tensor, settings: SolveSettings) -> torch.optim.Optimizer:
    match settings.optimiser:
        case "sgd":
            return torch.optim.SGD([m], settings.learning_rate, momentum=settings.momentum, nesterov=settings.momentum > 0)
        case "adam":
            return torch.optim.Adam([m], settings.learning_rate)
        case "lbfgs":
            return torch.optim.LBFGS(
                [m], settings.learning_rate, max_iter=1, max_eval=10, history_size=10, line_search_fn="strong_wolfe"
            )
