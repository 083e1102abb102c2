"""What is done with one batch of pairs: the paper's descent of all together, or velocity and weights taking turns.

By turns the energy is minimised as a function of velocity v and weights w, E = R(v) + lambda <v, K_w^-1 v> + penalties(w):
L-BFGS for v under fixed weights; then a step of the network under fixed v, with K_w m = v, so dE/dw = -lambda <m, dK m>.

A network that looks at the momentum too is learned exactly by the descent of all together: the gradient by the momenta goes
through the weights. By turns it sees the momenta as they were when its turn began, as if they were a further image: each
turn goes down a slope of its own, from which is left out how the weights change with the momenta.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from metreg.core.grid import Grid
from metreg.core.resample import downsample
from metreg.kernels.replay import Replay
from metreg.metric.gaussian import Gaussians, make_gaussians
from metreg.metric.learned import LearnedMetric
from metreg.metric.multi_gaussian import MultiGaussian, border_window
from metreg.settings.model import Settings
from metreg.similarity import Similarity
from metreg.solve.energy import Energy, Objective, Point, Problem, Scene
from metreg.solve.lbfgs import Lbfgs
from metreg.solve.register import register_tensors
from metreg.solve.sgd import clip_each, clip_together, nesterov_step
from metreg.solve.timesteps import TimeSteps

CONJUGATE = 8
"""Iterations that carry a velocity over to other weights."""


@dataclass(frozen=True)
class Common:
    """What all batches share. Tensors are changed in place."""

    settings: Settings
    map_grid: Grid
    model: LearnedMetric
    buffers: dict[str, Tensor]
    """The momentum of the network's optimiser."""
    objective: Objective
    gaussians: Gaussians
    tau: Tensor | None
    time_steps: TimeSteps
    rate_scale: Tensor
    """What the schedule left of the learning rates."""
    sums: Tensor
    """Energies by term, summed over the epoch."""

    @classmethod
    def of(cls, settings: Settings, map_grid: Grid, device: torch.device, generator: torch.Generator) -> Common:
        model = LearnedMetric(map_grid.dim, settings.metric, settings.learned, generator).to(device)
        like = torch.empty(0, device=device)
        return cls(
            settings,
            map_grid,
            model,
            {name: torch.zeros_like(p) for name, p in model.network.named_parameters()},
            Objective(Similarity(settings.similarity), settings.flow, settings.solve),
            make_gaussians(map_grid, torch.tensor(settings.metric.sigma, device=device), settings.metric.realisation),
            border_window(map_grid, settings.metric.window, like) if settings.metric.window else None,
            TimeSteps(settings.flow, like),
            torch.ones((), device=device),
            torch.zeros(len(Energy._fields), device=device),
        )

    @property
    def counted(self) -> int:
        """How often the energy of a pair goes into the sums of an epoch."""
        return self.settings.train.steps if self.settings.train.optimiser == "sgd" else 1

    def metric(self, w: Tensor) -> MultiGaussian:
        return MultiGaussian(self.gaussians, w, self.tau)


class BatchStep:
    """The tensors of one batch. Batches of one size take turns in them, so that what is done on them can be replayed."""

    def __init__(self, common: Common, scene: Scene, *, local: bool) -> None:
        self.common, self.scene, self.local = common, scene, local
        model, grid = common.model, common.map_grid
        self.small = downsample(scene.source, grid)
        self.prices = model.prices(self.small, grid)
        size, device = len(scene.source), scene.source.device
        self.m = torch.zeros(size, grid.dim, *grid.shape, device=device, requires_grad=True)
        self.buffer = torch.zeros_like(self.m, requires_grad=False)
        self.w = torch.zeros(size, len(common.settings.metric.sigma), *grid.shape, device=device)
        self.descend, self.teach = Replay(self._descend, device), Replay(self._teach, device)
        self.found = torch.zeros(len(Energy._fields), size, device=device)
        self.search: Lbfgs | None = None

    @torch.no_grad()
    def begin(self, scene: Scene, m: Tensor, buffer: Tensor) -> None:
        """Take in a batch. The buffer is the optimiser's momentum or, by turns, the velocity."""
        for mine, given in ((self.scene.source, scene.source), (self.scene.target, scene.target)):
            mine.copy_(given)
        if self.scene.mask is not None and scene.mask is not None:
            self.scene.mask.copy_(scene.mask)
        self.small.copy_(downsample(scene.source, scene.map_grid))
        for mine, given in zip(self.prices, self.common.model.prices(self.small, scene.map_grid), strict=True):
            mine.copy_(given)
        self.m.copy_(m)
        self.buffer.copy_(buffer)

    def run(self) -> bool:
        """What an epoch does with a batch. False if the flow was too fast for its time steps: then it does not count."""
        train = self.common.settings.train
        if train.optimiser == "sgd":
            for _ in range(train.steps):
                self.descend()
            return not self.common.time_steps.were_too_few()
        if self.local:
            self._settle()
            self.teach()
        else:
            self._register()
        return True

    def _descend(self) -> None:
        """Move the momenta, and with a local metric the network, whose gradient is clipped as a whole."""
        train, network = self.common.settings.train, list(self.common.model.network.parameters())
        terms, speeds = self._energy(self.m)
        gradient, *shared = torch.autograd.grad(terms.total().sum(), [self.m, *network] if self.local else [self.m])
        self._note(terms, speeds)
        with torch.no_grad():
            if train.clip_over == "pair":
                clip_each(gradient, train.clip)
            else:
                (gradient,) = clip_together([gradient], train.clip)
            rate = train.momentum_rate * self.common.rate_scale
            nesterov_step(self.m, self.buffer, gradient, rate=rate)
            if self.local:
                self._move_network(shared)

    def _teach(self) -> None:
        """Move the network under the velocities as they are."""
        common, m = self.common, self.m.detach()
        weights = common.model.weights(self.small, common.map_grid, m)
        norm = common.metric(weights.w).motion(m).norm
        penalties = common.model.penalties(weights, self.prices, common.map_grid)
        stored = common.settings.solve.regularity * norm
        loss = torch.stack(tuple(penalties)).sum() - stored.sum()
        gradients = torch.autograd.grad(loss, list(common.model.network.parameters()))
        with torch.no_grad():
            self.found[2:5] = torch.stack(tuple(penalties))
            common.sums.add_(self.found.sum(1))
            self._move_network(list(gradients))

    @torch.no_grad()
    def _settle(self) -> None:
        """Momenta that give the velocities under the weights as they are now, then a few iterations of L-BFGS."""
        common, m = self.common, self.m.detach()
        self.w.copy_(common.model.weights(self.small, common.map_grid, m).w)
        metric, steps = common.metric(self.w), common.time_steps
        m.copy_(solve_for_momentum(metric.sharp, self.buffer, m))
        before = steps.count
        steps.begin_at(metric.motion(m).speed)
        if self.search is None or steps.count != before:
            self.search = Lbfgs(Problem(common.objective, metric, self.scene), m, steps)
            self.iterate = Replay(self.search.iterate, m.device)
        self.search.begin_at(m)
        for _ in range(common.settings.train.steps):
            self.iterate()
        m.copy_(self.search.m)
        self.buffer.copy_(self.search.v)
        self.found.copy_(self.search.terms)
        if steps.were_too_few():  # such steps were refused
            self.search = None

    def _register(self) -> None:
        """The momenta of a whole registration with the global metric."""
        scene = self.scene
        found = register_tensors(scene.source, scene.target, scene.grid, self.common.settings, mask=scene.mask)
        self.m.detach().copy_(found.m)
        self.buffer.copy_(found.metric.sharp(found.m))
        self.common.sums.add_(torch.tensor([found.energy[term] for term in Energy._fields]).to(self.common.sums))

    def _energy(self, m: Tensor) -> Point:
        common, steps = self.common, self.common.time_steps.count
        if not self.local:
            metric = common.metric(common.model.set_point)  # type: ignore[arg-type]
            return common.objective.at(m, metric, self.scene, steps=steps)
        weights = common.model.weights(self.small, common.map_grid, m)  # with a gradient, if the network looks at it
        penalties = common.model.penalties(weights, self.prices, common.map_grid)
        return common.objective.at(m, common.metric(weights.w), self.scene, penalties, steps=steps)

    @torch.no_grad()
    def _note(self, terms: Energy, speeds: Tensor) -> None:
        self.common.time_steps.see(speeds)
        self.common.sums.add_(torch.stack(tuple(terms)).sum(1))

    def _move_network(self, gradients: list[Tensor]) -> None:
        common, train = self.common, self.common.settings.train
        rate = train.network_rate * common.rate_scale
        clipped = clip_together(gradients, train.clip)
        for (name, p), part in zip(common.model.network.named_parameters(), clipped, strict=True):
            decayed = part + train.weight_decay * p
            nesterov_step(p, common.buffers[name], decayed, rate=rate)


def solve_for_momentum(sharp: Callable[[Tensor], Tensor], v: Tensor, m: Tensor) -> Tensor:
    """Momenta nearer to K m = v than the given ones, by conjugate gradients, each pair for itself."""

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1).view(-1, *[1] * (a.dim() - 1))

    residual = v - sharp(m)
    direction, size = residual, dot(residual, residual)
    for _ in range(CONJUGATE):
        smooth = sharp(direction)
        length = size / dot(direction, smooth).clamp(min=1e-30)
        m, residual = m + length * direction, residual - length * smooth
        before, size = size, dot(residual, residual)
        direction = residual + size / before.clamp(min=1e-30) * direction
    return m
