"""Minimise an energy over the momenta of a batch of pairs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from metreg.deformation.stationary import FASTEST
from metreg.errors import MetregError
from metreg.kernels.replay import Replay
from metreg.settings.model import SolveSettings
from metreg.solve.energy import Energy, Problem
from metreg.solve.lbfgs import PATIENCE as STUCK
from metreg.solve.lbfgs import Lbfgs
from metreg.solve.sgd import Plateau, clip_each, nesterov_step
from metreg.solve.timesteps import TimeSteps

log = logging.getLogger(__name__)

STIFFER = "a larger solve.regularity keeps maps from that"
PATIENCE = 10
"""Iterations over which the stop rule looks back."""
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
    m = m.detach().clone()
    descend = _pairwise_sgd if settings.optimiser == "sgd" else _lbfgs
    totals: list[float] = []
    for values in descend(problem, m, settings, iterations):
        for terms in values.tolist():
            totals.append(sum(terms))
            if not math.isfinite(totals[-1]):
                advice = "lower solve.learning_rate" if settings.optimiser == "sgd" else "raise solve.regularity"
                raise MetregError(f"the energy is not finite in iteration {len(totals)}: {advice}")
            on_iteration(len(totals), dict(zip(Energy._fields, terms, strict=True)))
        if has_stalled(totals, settings.tolerance):
            break
    return m


def has_stalled(totals: list[float], tolerance: float) -> bool:
    """Whether the last ten iterations lowered the energy by less than the fraction `tolerance`."""
    if tolerance == 0 or len(totals) <= PATIENCE:
        return False
    before, now = min(totals[:-PATIENCE]), min(totals[-PATIENCE:])
    return before - now < tolerance * abs(before)


def _pairwise_sgd(problem: Problem, m: Tensor, settings: SolveSettings, iterations: int) -> Iterator[Tensor]:
    """The paper's SGD with its plateau schedule, a learning rate for every pair: no pair depends on its batch.

    Yields the energies by term of the iterations done since the last time, (iterations, terms). If the flow turned out to
    be too fast for its time steps, these iterations are done again with more of them.
    """
    plateau = Plateau(m.new_empty(len(m)))
    buffer = torch.zeros_like(m)
    values = m.new_zeros(iterations, len(Energy._fields))
    done = torch.zeros((), dtype=torch.long, device=m.device)
    steps = TimeSteps(problem.flow, m)

    def iterate() -> None:
        found = problem.slope(m, steps.count)
        total, gradient = found.energy.total(), found.gradient
        steps.see(found.speed)
        if settings.clip is not None:
            clip_each(gradient, settings.clip)
        rate = settings.learning_rate * plateau.scale
        nesterov_step(m, buffer, gradient, rate=rate.view(-1, *[1] * (m.dim() - 1)))
        plateau.see(total)
        values.index_copy_(0, done[None], torch.stack(tuple(found.energy)).sum(1)[None])
        done.add_(1)

    state = (m, buffer, *plateau.state, done)
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


def _lbfgs(problem: Problem, m: Tensor, settings: SolveSettings, iterations: int) -> Iterator[Tensor]:
    """The energies by term of the best momenta so far, (iterations, terms), a few iterations at a time."""
    steps = TimeSteps(problem.flow, m)
    _slow_down(problem, m)
    steps.begin_at(problem.metric.motion(m).speed)
    search = Lbfgs(problem, m, steps)
    values = m.new_zeros(iterations, len(Energy._fields))
    done = torch.zeros((), dtype=torch.long, device=m.device)

    def iterate() -> None:
        search.iterate()
        values.index_copy_(0, done[None], search.terms.sum(1)[None])
        done.add_(1)

    again = Replay(iterate, m.device)
    at_a_time = AT_A_TIME if m.is_cuda else 1
    for first in range(0, iterations, at_a_time):
        last = min(first + at_a_time, iterations)
        for _ in range(first, last):
            again()
        if steps.were_too_few():  # such trial points were refused
            again = Replay(iterate, m.device)
        m.copy_(search.m)
        yield values[first:last]
    stuck = int((search.beyond & (search.refused >= STUCK)).sum())
    if stuck:
        log.warning("the search of %d pairs kept leading too far; the best map before is taken; %s", stuck, STIFFER)


@torch.no_grad()
def _slow_down(problem: Problem, m: Tensor) -> None:
    """Shorten, in place, momenta of a coarser level whose velocity would be too fast on the finer grid."""
    speeds = problem.metric.motion(m).speed
    too_fast = ~(speeds < FASTEST)
    if not bool(too_fast.any()):
        return
    log.warning("%d velocities of a coarser level were too fast, and were shortened; %s", int(too_fast.sum()), STIFFER)
    factor = torch.where(too_fast, 0.5 * FASTEST / speeds, 1.0)
    factor = torch.where(factor.isfinite(), factor, 0.0)
    m.mul_(factor.view(-1, *[1] * (m.dim() - 1))).nan_to_num_(0.0, 0.0, 0.0)
