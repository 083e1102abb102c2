"""Minimise an energy over the momenta of a batch of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from metreg.checks import MetregError
from metreg.config import FlowSettings, SolveSettings
from metreg.energy import Energy, Problem
from metreg.flow.stationary import needed_steps, reach
from metreg.kernels.replay import Replay

PATIENCE = 10
"""Iterations over which the stop rule looks back."""
THRESHOLD = 1e-4
"""The fraction by which an energy must fall to count as progress for the plateau schedule."""
AT_A_TIME = 10
"""Iterations on a GPU before their values are read."""


def minimise(
    problem: Problem,
    m: Tensor,
    settings: SolveSettings,
    *,
    iterations: int,
    on_iteration: Callable[[int, dict[str, float]], None],
) -> Tensor:
    """The momenta after at most `iterations`; `on_iteration` hears each one's energy by term, summed over the batch."""
    m = m.detach().clone().requires_grad_()
    descend = _pairwise_sgd if settings.optimiser == "sgd" else _torch_optimiser
    totals: list[float] = []
    for values in descend(problem, m, settings, iterations):
        for terms in values.tolist():
            totals.append(sum(terms))
            if not math.isfinite(totals[-1]):
                raise MetregError(f"the energy is not finite in iteration {len(totals)}: lower solve.learning_rate")
            on_iteration(len(totals), dict(zip(Energy._fields, terms, strict=True)))
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


class TimeSteps:
    """The number of time steps of a flow. On a CPU every flow finds its own (None).

    On a GPU that would mean to read a value back: there the number is fixed, and raised after a velocity was too fast.
    """

    def __init__(self, flow: FlowSettings, like: Tensor) -> None:
        self.integrator = flow.integrator
        self.count = flow.steps if like.is_cuda else None
        self.fastest = torch.zeros((), dtype=like.dtype, device=like.device)

    def see(self, speed: Tensor) -> None:
        """Take note of a speed, without reading it."""
        torch.maximum(self.fastest, speed, out=self.fastest)

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


def _pairwise_sgd(problem: Problem, m: Tensor, settings: SolveSettings, iterations: int) -> Iterator[Tensor]:
    """The paper's SGD with its plateau schedule, a learning rate for every pair: no pair depends on its batch.

    Yields the energies by term of the iterations done since the last time, (iterations, terms). If the flow turned out to
    be too fast for its time steps, these iterations are done again with more of them.
    """
    rate = torch.full((len(m),), settings.learning_rate, dtype=m.dtype, device=m.device)
    best, waited, buffer = torch.full_like(rate, math.inf), torch.zeros_like(rate), torch.zeros_like(m)
    values = m.new_zeros(iterations, len(Energy._fields))
    done = torch.zeros((), dtype=torch.long, device=m.device)
    steps = TimeSteps(problem.flow, m)

    def iterate() -> None:
        terms, speed = problem.at(m, steps.count)
        total = terms.total()
        (gradient,) = torch.autograd.grad(total.sum(), m)
        steps.see(speed)
        with torch.no_grad():
            if settings.clip is not None:
                clip_each(gradient, settings.clip)
            nesterov_step(m, buffer, gradient, rate=rate.view(-1, *[1] * (m.dim() - 1)), momentum=settings.momentum)
            better = total < best * (1 - THRESHOLD)
            best.copy_(torch.where(better, total, best))
            waited.copy_(torch.where(better, 0, waited + 1))
            stuck = waited > settings.plateau_patience
            rate.mul_(torch.where(stuck, settings.plateau_factor, 1.0))
            waited.mul_(~stuck)
            values.index_copy_(0, done[None], torch.stack(tuple(terms)).sum(1)[None])
            done.add_(1)

    state = (m.detach(), buffer, rate, best, waited, done)
    at_a_time = AT_A_TIME if m.is_cuda else 1
    again = Replay(iterate, m.device)
    first = 0
    while first < iterations:
        last = min(first + at_a_time, iterations)
        before = [tensor.clone() for tensor in state]
        for _ in range(first, last):
            again()
        if steps.were_too_few():
            for tensor, kept in zip(state, before, strict=True):
                tensor.copy_(kept)
            again = Replay(iterate, m.device)
            continue
        yield values[first:last]
        first = last


def _torch_optimiser(problem: Problem, m: Tensor, settings: SolveSettings, iterations: int) -> Iterator[Tensor]:
    """Adam with the plateau schedule, or L-BFGS, on the sum over the batch. Yields the energies by term, (1, terms)."""
    optimiser: torch.optim.Optimizer = torch.optim.Adam([m], settings.learning_rate)
    if settings.optimiser == "lbfgs":
        optimiser = torch.optim.LBFGS(
            [m], settings.learning_rate, max_iter=1, max_eval=10, history_size=10, line_search_fn="strong_wolfe"
        )
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, factor=settings.plateau_factor, patience=settings.plateau_patience
    )
    evaluate = _Evaluation(problem, m, settings.clip)
    known: list[tuple[Tensor, Tensor, Tensor]] = []  # the last point, its gradient and its energy
    seen: list[Tensor] = []

    def closure() -> Tensor:
        if known and torch.equal(known[0][0], m):  # L-BFGS asks again for the point at which its line search ended
            m.grad = known[0][1].clone()
        else:
            m.grad, terms = evaluate()
            known[:] = [(m.detach().clone(), m.grad.clone(), terms)]
        seen.append(known[0][2])
        return seen[-1].sum()

    for _ in range(iterations):
        seen.clear()
        optimiser.step(closure)  # type: ignore[arg-type]
        if settings.optimiser == "adam":
            plateau.step(float(seen[0].sum()))
        yield seen[0][None]


class _Evaluation:
    """Gradient and energy by term, summed over the batch, at the momenta as they are when it is called."""

    def __init__(self, problem: Problem, m: Tensor, clip: float | None) -> None:
        self.problem, self.m, self.clip = problem, m, clip
        self.steps = TimeSteps(problem.flow, m)
        self.gradient, self.terms = torch.zeros_like(m), m.new_zeros(len(Energy._fields))
        self.again = Replay(self._work, m.device)

    def __call__(self) -> tuple[Tensor, Tensor]:
        self.again()
        while self.steps.were_too_few():
            self.again = Replay(self._work, self.m.device)
            self.again()
        return self.gradient.detach().clone(), self.terms.clone()

    def _work(self) -> None:
        terms, speed = self.problem.at(self.m, self.steps.count)
        (gradient,) = torch.autograd.grad(terms.total().sum(), self.m)
        self.steps.see(speed)
        if self.clip is not None:
            clip_each(gradient, self.clip)
        with torch.no_grad():
            self.gradient.copy_(gradient)
            self.terms.copy_(torch.stack(tuple(terms)).sum(1))
