"""The curriculum, read top to bottom: momenta alone with the global metric, then momenta and network together."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.checks import MetregError
from metreg.config import Settings
from metreg.energy import Energy, Objective, Point, Scene
from metreg.grid import Grid
from metreg.interpolate import downsample
from metreg.kernels.replay import Replay
from metreg.learn.checkpoint import Progress, load_checkpoint, named, read_checkpoint, save_checkpoint, under
from metreg.learn.momenta import Home, Momenta, choose_home
from metreg.metric.gaussian import make_gaussians
from metreg.metric.learned import LearnedMetric
from metreg.metric.multi_gaussian import MultiGaussian, border_window
from metreg.similarity import Similarity
from metreg.solve.multiscale import map_grid_of
from metreg.solve.optimise import clip_each, nesterov_step
from metreg.solve.timesteps import TimeSteps

GLOBAL, LOCAL = 0, 1
"""The two stages."""
LOG = "log.jsonl"
"""A line of JSON for every epoch."""
BINS = 20
"""Of the histograms of weights, from 0 to 1."""


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """Images (I, 1, *S) on one grid, and which of them make pairs: `index` (P, 2), source and target.

    `masks` (I, 1, *S) say where an image counts; a pair is compared where both do.
    """

    images: Tensor
    index: Tensor
    grid: Grid
    masks: Tensor | None = None

    @classmethod
    def of(cls, source: Tensor, target: Tensor, grid: Grid) -> TrainingPairs:
        """Pairs whose images are all different ones, source and target (P, 1, *S)."""
        if source.shape != target.shape or tuple(source.shape[2:]) != grid.shape:
            raise MetregError(
                f"training pairs: wanted images of one size, {grid.shape}, "
                f"got {tuple(source.shape[2:])} and {tuple(target.shape[2:])}"
            )
        first = torch.arange(len(source))
        return cls(torch.cat([source, target]), torch.stack([first, first + len(source)], dim=1), grid)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def source(self) -> Tensor:
        return self.images[self.index[:, 0]]

    @property
    def target(self) -> Tensor:
        return self.images[self.index[:, 1]]

    def on(self, device: torch.device) -> TrainingPairs:
        """The same, the images on the device if they take at most a quarter of what is free there."""
        parts = [part for part in (self.images, self.masks) if part is not None]
        need = sum(part.numel() * part.element_size() for part in parts)
        if device.type != "cuda" or need > torch.cuda.mem_get_info(device)[0] / 4:
            return self
        masks = None if self.masks is None else self.masks.to(device)
        return TrainingPairs(self.images.to(device), self.index, self.grid, masks)

    def scene(self, pairs: Tensor, map_grid: Grid, device: torch.device) -> Scene:
        """Some of the pairs, on the device."""

        def pick(parts: Tensor, which: int) -> Tensor:
            return parts[self.index[pairs, which].to(parts.device)].to(device, non_blocking=True)

        mask = None if self.masks is None else pick(self.masks, 0) * pick(self.masks, 1)
        return Scene(pick(self.images, 0), pick(self.images, 1), self.grid, map_grid, mask)


def train(
    pairs: TrainingPairs,
    settings: Settings,
    run: Path,
    *,
    device: torch.device,
    resume: bool = False,
    home: Home | None = None,
    first_stage: Path | None = None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> tuple[LearnedMetric, Progress]:
    """Learn a metric from pairs. `run` holds the checkpoint, the momenta and the log; the network kept is the best one.

    `first_stage`, the folder of a run on the same pairs, gives the momenta with which the second stage begins.
    """
    with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
        return _train(_Training(pairs, settings, run, device, home), resume, first_stage, on_epoch)


def read_log(run: Path) -> list[dict[str, Any]]:
    """What was written of every epoch: mean energy by term, learning rate, time."""
    return [json.loads(line) for line in (run / LOG).read_text(encoding="utf-8").splitlines()]


def _train(
    training: _Training, resume: bool, first_stage: Path | None, on_epoch: Callable[[dict[str, Any]], None]
) -> tuple[LearnedMetric, Progress]:
    if resume:
        training.load()
    elif first_stage is not None:
        training.begin_after(first_stage)
    for stage in (GLOBAL, LOCAL):
        if training.progress.stage > stage:
            continue
        while training.progress.epoch < training.settings.train.epochs[stage]:
            record = training.epoch(stage)
            training.save(record)
            on_epoch(record)
        if stage == GLOBAL:
            training.progress.next_stage()
            training.momenta.reset_buffers()
    training.model.network.load_state_dict(training.best)
    return training.model.eval(), training.progress


class _Training:
    """The state of a training, and one epoch of it."""

    def __init__(
        self, pairs: TrainingPairs, settings: Settings, run: Path, device: torch.device, home: Home | None
    ) -> None:
        self.pairs, self.settings, self.run, self.device = pairs.on(device), settings, run, device
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.map_grid = map_grid_of(pairs.grid, settings.flow.map_factor)
        self.model = LearnedMetric(pairs.grid.dim, settings.metric, settings.learned, self.generator).to(device)
        self.buffers = {name: torch.zeros_like(p) for name, p in self.model.network.named_parameters()}
        self.best = self._network_copy()
        self.progress = Progress()
        self.work: dict[tuple[int, int], _Work] = {}
        count, shape = len(pairs), (pairs.grid.dim, *self.map_grid.shape)
        home = home or choose_home(count, shape, device, settings.train.memory_gb)
        self.momenta = Momenta(run, count, shape, home=home, device=device)
        like = torch.empty(0, device=device)
        sigma = torch.tensor(settings.metric.sigma, device=device)
        self.gaussians = make_gaussians(self.map_grid, sigma, settings.metric.realisation)
        self.tau = border_window(self.map_grid, settings.metric.window, like) if settings.metric.window else None
        similarity = Similarity(settings.similarity)
        self.objective = Objective(similarity, settings.flow, settings.solve)
        self.time_steps = TimeSteps(settings.flow, like)
        self.rate_scale, self.sums = torch.ones((), device=device), torch.zeros(len(Energy._fields), device=device)

    def epoch(self, stage: int) -> dict[str, Any]:
        """Every pair once: random batches, a few steps on each. The mean energy by term, and how long it took."""
        start = time.perf_counter()
        self.rate_scale.fill_(self.progress.rate_scale)
        self.sums.zero_()
        self.model.train(stage == LOCAL)
        for batch in self._batches():
            last = self._descend(stage, batch)
        means = self.sums / (len(self.pairs) * self.settings.train.steps)
        record: dict[str, Any] = dict(zip(Energy._fields, means.tolist(), strict=True))
        if stage == LOCAL:
            record["weights"] = self._histograms(last)
        seconds = time.perf_counter() - start
        return {
            "stage": stage + 1,
            "epoch": self.progress.epoch + 1,
            **record,
            "total": float(means.sum()),
            "rate_scale": self.progress.rate_scale,
            "seconds": seconds,
            "pairs_per_second": len(self.pairs) / seconds,
        }

    @torch.no_grad()
    def _histograms(self, work: _Work) -> list[list[float]]:
        """For every Gaussian the share of points in each of the BINS, over the sources of a batch."""
        self.model.eval()
        w = self.model.weights(work.small, self.map_grid, work.m).w
        shares = torch.stack([torch.histc(part, BINS, 0, 1) for part in w.unbind(1)]) / w[:, 0].numel()
        return [[round(share, 5) for share in row] for row in shares.tolist()]

    def _descend(self, stage: int, batch: Tensor) -> _Work:
        """A few steps on a batch; all over again if the flow turned out to be too fast for its time steps."""
        while True:
            work = self._work_for(stage, len(batch))
            work.begin(self.pairs.scene(batch, self.map_grid, self.device), *self.momenta.take(batch))
            before = [tensor.clone() for tensor in self._shared()]
            for _ in range(self.settings.train.steps):
                work.step()
            if not self.time_steps.were_too_few():
                self.momenta.put(batch, work.m, work.buffer)
                return work
            self.work.clear()
            for tensor, kept in zip(self._shared(), before, strict=True):
                tensor.copy_(kept)

    def _shared(self) -> list[Tensor]:
        """What a step changes beside the momenta."""
        return [*self._network_state().values(), *self.buffers.values(), self.sums]

    def _work_for(self, stage: int, size: int) -> _Work:
        """The tensors on which batches of one size are worked, and one step on them."""
        if (stage, size) not in self.work:
            work = _Work(self.pairs, self.map_grid, self.model, size, self.device)
            work.step = Replay(partial(self._step, stage, work), self.device)
            self.work[stage, size] = work
        return self.work[stage, size]

    def _step(self, stage: int, work: _Work) -> None:
        """Move the momenta, each clipped for itself, and in the second stage the network, clipped as a whole."""
        train, network = self.settings.train, dict(self.model.network.named_parameters())
        terms, speed = self._energy(stage, work)
        moving = [work.m] if stage == GLOBAL else [work.m, *network.values()]
        gradient, *shared = torch.autograd.grad(terms.total().sum(), moving)
        self.time_steps.see(speed)
        with torch.no_grad():
            self.sums.add_(torch.stack(tuple(terms)).sum(1))
            clip_each(gradient, train.clip)
            rate = train.momentum_rate * self.rate_scale
            nesterov_step(work.m, work.buffer, gradient, rate=rate, momentum=train.momentum)
            if stage == GLOBAL:
                return
            norm = torch.stack([part.norm() for part in shared]).norm()
            shorten = (train.clip / norm.clamp(min=1e-30)).clamp(max=1)
            rate = train.network_rate * self.rate_scale
            for (name, p), part in zip(network.items(), shared, strict=True):
                decayed = shorten * part + train.weight_decay * p
                nesterov_step(p, self.buffers[name], decayed, rate=rate, momentum=train.momentum)

    def _energy(self, stage: int, work: _Work) -> Point:
        steps = self.time_steps.count
        if stage == GLOBAL:
            metric = MultiGaussian(self.gaussians, self.model.set_point, self.tau)
            return self.objective.at(work.m, metric, work.scene, steps=steps)
        weights = self.model.weights(work.small, self.map_grid, work.m.detach())
        metric = MultiGaussian(self.gaussians, weights.w, self.tau)
        penalties = self.model.penalties(weights, work.gamma, self.map_grid)
        return self.objective.at(work.m, metric, work.scene, penalties, steps=steps)

    def save(self, record: dict[str, Any]) -> None:
        """After an epoch: the schedule, the best network, the log, the momenta, and last of all the checkpoint."""
        progress, train = self.progress, self.settings.train
        if not torch.isfinite(torch.tensor(record["total"])):
            raise MetregError("training: the energy is not finite; lower train.momentum_rate or train.network_rate")
        progress.epoch += 1
        progress.time_steps = self.time_steps.count
        progress.history.append(record)
        progress.plateau(record["total"], factor=train.plateau_factor, patience=train.plateau_patience)
        if record["stage"] == LOCAL + 1 and record["total"] < progress.best_energy:
            progress.best_energy, self.best = record["total"], self._network_copy()
        progress.generation = self.momenta.finish_epoch()
        lines = "".join(json.dumps(line) + "\n" for line in progress.history)
        (self.run / LOG).write_text(lines, encoding="utf-8")
        tensors = {
            **named("network", self.model.network.state_dict()),
            **named("best", self.best),
            **named("buffer", self.buffers),
            "generator": self.generator.get_state(),
        }
        save_checkpoint(self.run / "checkpoint.safetensors", progress, tensors, self.settings)

    def begin_after(self, first_stage: Path) -> None:
        """Skip the first stage: another run did it."""
        for path in first_stage.glob("momenta-*.npy"):
            shutil.copy(path, self.run / path.name)
        progress, _ = read_checkpoint(first_stage / "checkpoint.safetensors")
        self.momenta.load(progress.generation)
        self.momenta.reset_buffers()
        self.progress.generation = progress.generation
        self.time_steps.count = progress.time_steps or self.time_steps.count
        self.progress.next_stage()

    def load(self) -> None:
        self.progress, tensors = load_checkpoint(self.run / "checkpoint.safetensors", self.settings)
        self.model.network.load_state_dict(under("network", tensors))
        self.best = {name: tensor.to(self.device) for name, tensor in under("best", tensors).items()}
        for name, tensor in under("buffer", tensors).items():
            self.buffers[name].copy_(tensor)
        self.generator.set_state(tensors["generator"])
        self.time_steps.count = self.progress.time_steps or self.time_steps.count
        self.momenta.load(self.progress.generation)

    def _batches(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.pairs), generator=self.generator)
        yield from order.split(self.settings.train.batch)

    def _network_state(self) -> dict[str, Tensor]:
        return self.model.network.state_dict()

    def _network_copy(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._network_state().items()}


class _Work:
    """The tensors of one batch. Batches of one size take turns in them, so that a step on them can be replayed."""

    step: Replay

    def __init__(self, pairs: TrainingPairs, map_grid: Grid, model: LearnedMetric, size: int, device: torch.device) -> None:
        self.model = model
        self.scene = pairs.scene(torch.zeros(size, dtype=torch.long), map_grid, device)
        self.small = downsample(self.scene.source, map_grid)
        self.gamma = model.edges(self.small, map_grid)
        self.m = torch.zeros(size, map_grid.dim, *map_grid.shape, device=device, requires_grad=True)
        self.buffer = torch.zeros_like(self.m, requires_grad=False)

    @torch.no_grad()
    def begin(self, scene: Scene, m: Tensor, buffer: Tensor) -> None:
        """Take in a batch."""
        for mine, given in ((self.scene.source, scene.source), (self.scene.target, scene.target)):
            mine.copy_(given)
        if self.scene.mask is not None and scene.mask is not None:
            self.scene.mask.copy_(scene.mask)
        self.small.copy_(downsample(scene.source, scene.map_grid))
        self.gamma.copy_(self.model.edges(self.small, scene.map_grid))
        self.m.copy_(m)
        self.buffer.copy_(buffer)
