"""The curriculum, read top to bottom: momenta alone with the global metric, then momenta and network together."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.checks import MetregError
from metreg.config import Settings
from metreg.energy import Energy, Objective, Scene
from metreg.grid import Grid
from metreg.interpolate import downsample
from metreg.learn.checkpoint import Progress, load_checkpoint, named, read_checkpoint, save_checkpoint, under
from metreg.learn.momenta import Home, Momenta, choose_home
from metreg.metric.gaussian import make_gaussians
from metreg.metric.learned import LearnedMetric
from metreg.metric.multi_gaussian import MultiGaussian, border_window
from metreg.similarity import make_similarity
from metreg.solve.multiscale import map_grid_of
from metreg.solve.optimise import clip_each, nesterov_step

GLOBAL, LOCAL = 0, 1
"""The two stages."""


@dataclass(frozen=True, eq=False)
class TrainingPairs:
    """Images (P, 1, *S) on one grid, in host memory."""

    source: Tensor
    target: Tensor
    grid: Grid
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        if self.source.shape != self.target.shape or tuple(self.source.shape[2:]) != self.grid.shape:
            raise MetregError(
                f"training pairs: wanted images of one size, {self.grid.shape}, "
                f"got {tuple(self.source.shape[2:])} and {tuple(self.target.shape[2:])}"
            )

    def scene(self, pairs: Tensor, map_grid: Grid, device: torch.device) -> Scene:
        """Some of the pairs, on the device."""
        parts = [
            None if f is None else f[pairs].to(device, non_blocking=True) for f in (self.source, self.target, self.mask)
        ]
        assert parts[0] is not None and parts[1] is not None
        return Scene(parts[0], parts[1], self.grid, map_grid, parts[2])


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
    training = _Training(pairs, settings, run, device, home)
    if resume:
        training.load()
    elif first_stage is not None:
        training.begin_after(first_stage)
    for stage in (GLOBAL, LOCAL):
        if training.progress.stage > stage:
            continue
        while training.progress.epoch < settings.train.epochs[stage]:
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
        self.pairs, self.settings, self.run, self.device = pairs, settings, run, device
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.map_grid = map_grid_of(pairs.grid, settings.flow.map_factor)
        self.model = LearnedMetric(pairs.grid.dim, settings.metric, settings.learned, self.generator).to(device)
        self.buffers = {name: torch.zeros_like(p) for name, p in self.model.network.named_parameters()}
        self.best = self._network_copy()
        self.progress = Progress()
        count, shape = len(pairs.source), (pairs.grid.dim, *self.map_grid.shape)
        home = home or choose_home(count, shape, device, settings.train.memory_gb)
        self.momenta = Momenta(run, count, shape, home=home, device=device)
        like = torch.empty(0, device=device)
        sigma = torch.tensor(settings.metric.sigma, device=device)
        self.gaussians = make_gaussians(self.map_grid, sigma, settings.metric.realisation)
        self.tau = border_window(self.map_grid, settings.metric.window, like) if settings.metric.window else None
        similarity = make_similarity(settings.similarity)
        self.objective = Objective(similarity, settings.flow, settings.solve.regularity)

    def epoch(self, stage: int) -> dict[str, Any]:
        """Every pair once: random batches, a few steps on each. The mean energy by term, and how long it took."""
        start = time.perf_counter()
        sums: list[Tensor] = []
        self.model.train(stage == LOCAL)
        for batch in self._batches():
            m, buffer = self.momenta.take(batch)
            scene = self.pairs.scene(batch, self.map_grid, self.device)
            small = downsample(scene.source, self.map_grid)
            gamma = self.model.edges(small, self.map_grid)
            for _ in range(self.settings.train.steps):
                m.requires_grad_()
                terms = self._energy(stage, m, scene, small, gamma)
                terms.total().sum().backward()
                self._step(stage, m, buffer)
                sums.append(torch.stack(tuple(terms)).detach().sum(1))
                m = m.detach()
            self.momenta.put(batch, m, buffer)
        means = torch.stack(sums).sum(0) / (len(self.pairs.source) * self.settings.train.steps)
        record: dict[str, Any] = dict(zip(Energy._fields, means.tolist(), strict=True))
        seconds = time.perf_counter() - start
        return {
            "stage": stage + 1,
            "epoch": self.progress.epoch + 1,
            **record,
            "total": float(means.sum()),
            "rate_scale": self.progress.rate_scale,
            "seconds": seconds,
            "pairs_per_second": len(self.pairs.source) / seconds,
        }

    def _energy(self, stage: int, m: Tensor, scene: Scene, small: Tensor, gamma: Tensor) -> Energy:
        if stage == GLOBAL:
            metric = MultiGaussian(self.gaussians, self.model.set_point, self.tau)  # type: ignore[arg-type]
            return self.objective(m, metric, scene)
        weights = self.model.weights(small, self.map_grid, m.detach())
        metric = MultiGaussian(self.gaussians, weights.w, self.tau)
        return self.objective(m, metric, scene, self.model.penalties(weights, gamma, self.map_grid))

    def _step(self, stage: int, m: Tensor, buffer: Tensor) -> None:
        """Move the momenta, each clipped for itself, and in the second stage the network, clipped as a whole."""
        train = self.settings.train
        assert m.grad is not None
        clip_each(m.grad, train.clip)
        rate = train.momentum_rate * self.progress.rate_scale
        nesterov_step(m, buffer, m.grad, rate=rate, momentum=train.momentum)
        if stage == GLOBAL:
            return
        torch.nn.utils.clip_grad_norm_(self.model.network.parameters(), train.clip)
        rate = train.network_rate * self.progress.rate_scale
        for name, p in self.model.network.named_parameters():
            assert p.grad is not None
            gradient = p.grad + train.weight_decay * p.detach()
            nesterov_step(p, self.buffers[name], gradient, rate=rate, momentum=train.momentum)
            p.grad = None

    def save(self, record: dict[str, Any]) -> None:
        """After an epoch: the schedule, the best network, the log, the momenta, and last of all the checkpoint."""
        progress, train = self.progress, self.settings.train
        if not torch.isfinite(torch.tensor(record["total"])):
            raise MetregError("training: the energy is not finite; lower train.momentum_rate or train.network_rate")
        progress.epoch += 1
        progress.history.append(record)
        progress.plateau(record["total"], factor=train.plateau_factor, patience=train.plateau_patience)
        if record["stage"] == LOCAL + 1 and record["total"] < progress.best_energy:
            progress.best_energy, self.best = record["total"], self._network_copy()
        progress.generation = self.momenta.finish_epoch()
        lines = "".join(json.dumps(line) + "\n" for line in progress.history)
        (self.run / "log.jsonl").write_text(lines, encoding="utf-8")
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
        self.progress.next_stage()

    def load(self) -> None:
        self.progress, tensors = load_checkpoint(self.run / "checkpoint.safetensors", self.settings)
        self.model.network.load_state_dict(under("network", tensors))
        self.best = {name: tensor.to(self.device) for name, tensor in under("best", tensors).items()}
        for name, tensor in under("buffer", tensors).items():
            self.buffers[name].copy_(tensor)
        self.generator.set_state(tensors["generator"])
        self.momenta.load(self.progress.generation)

    def _batches(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.pairs.source), generator=self.generator)
        yield from order.split(self.settings.train.batch)

    def _network_copy(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.model.network.state_dict().items()}
