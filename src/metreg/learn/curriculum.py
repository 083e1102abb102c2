"""The curriculum, read top to bottom: momenta alone with the global metric, then momenta and network together."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.errors import MetregError
from metreg.kernels.heavy import heavy_work
from metreg.learn.checkpoint import Progress, load_checkpoint, named, read_checkpoint, save_checkpoint, under
from metreg.learn.momenta import Home, Momenta, choose_home
from metreg.learn.pairs import TrainingPairs
from metreg.learn.step import BatchStep, Common
from metreg.metric.learned import LearnedMetric
from metreg.settings.model import Settings
from metreg.solve.energy import Energy
from metreg.solve.pyramid import map_grid_of

GLOBAL, LOCAL = 0, 1
"""The two stages."""
LOG = "log.jsonl"
"""A line of JSON for every epoch."""
BINS = 20
"""Of the histograms of weights, from 0 to 1."""


@heavy_work()
def train(
    pairs: TrainingPairs,
    settings: Settings,
    run: Path,
    *,
    device: torch.device,
    resume: bool = False,
    home: Home | None = None,
    first_stage: Path | None = None,
    on_begin: Callable[[], None] = lambda: None,
    on_epoch: Callable[[dict[str, Any]], None] = lambda record: None,
) -> tuple[LearnedMetric, Progress]:
    """Learn a metric from pairs. `run` holds the checkpoint, the momenta and the log.

    `first_stage`, the folder of a run on the same pairs, gives the momenta with which the second stage begins. `on_begin`
    is called once nothing can be refused any more: until then a run that is to go on is left as it is.
    """
    with torch.backends.cudnn.flags(deterministic=True, allow_tf32=False):
        return _train(_Training(pairs, settings, run, device, home), resume, first_stage, on_begin, on_epoch)


def read_log(run: Path) -> list[dict[str, Any]]:
    """What was written of every epoch: mean energy by term, learning rate, time."""
    return [json.loads(line) for line in (run / LOG).read_text(encoding="utf-8").splitlines()]


def _train(
    training: _Training,
    resume: bool,
    first_stage: Path | None,
    on_begin: Callable[[], None],
    on_epoch: Callable[[dict[str, Any]], None],
) -> tuple[LearnedMetric, Progress]:
    if resume:
        training.load()
    elif first_stage is not None:
        training.begin_after(first_stage)
    on_begin()
    try:
        for stage in (GLOBAL, LOCAL):
            if training.progress.stage > stage:
                continue
            while training.progress.epoch < training.settings.train.epochs[stage]:
                record = training.epoch(stage)
                training.save(record)
                on_epoch(record)
            if stage == GLOBAL:
                training.progress.next_stage()
                if training.settings.train.optimiser == "sgd":
                    training.momenta.reset_buffers()
    finally:
        training.finish_writing()
    if training.settings.train.keep == "best":
        training.model.network.load_state_dict(training.best)
    return training.model.eval(), training.progress


class _Training:
    """The state of a training, and one epoch of it."""

    def __init__(
        self, pairs: TrainingPairs, settings: Settings, run: Path, device: torch.device, home: Home | None
    ) -> None:
        if settings.train.optimiser == "lbfgs" and settings.solve.shrink[-1] != 1:
            raise MetregError(
                f"solve.shrink: to learn a metric the last level must be 1, all of the image, got {settings.solve.shrink}"
            )
        self.pairs, self.settings, self.run, self.device = pairs.on(device), settings, run, device
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.map_grid = map_grid_of(pairs.grid, settings.flow.map_factor)
        self.common = Common.of(settings, self.map_grid, device, self.generator)
        self.model, self.buffers = self.common.model, self.common.buffers
        self.best = self._network_copy()
        self.progress = Progress()
        self.writer = ThreadPoolExecutor(1)
        self.writing: Future[None] | None = None
        self.steps: dict[tuple[int, int], BatchStep] = {}
        count, shape = len(pairs), (pairs.grid.dim, *self.map_grid.shape)
        home = home or choose_home(count, shape, device)
        self.momenta = Momenta(run, count, shape, home=home, device=device)

    def epoch(self, stage: int) -> dict[str, Any]:
        """Every pair once: random batches, a few steps on each. The mean energy by term, and how long it took."""
        start = time.perf_counter()
        self.common.rate_scale.fill_(self.progress.rate_scale)
        self.common.sums.zero_()
        self.model.train(stage == LOCAL)
        for batch in self._batches():
            last = self._descend(stage, batch)
        means = self.common.sums / (len(self.pairs) * self.common.counted)
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
    def _histograms(self, step: BatchStep) -> list[list[float]]:
        """For every Gaussian the share of points in each of the BINS, over the sources of a batch."""
        self.model.eval()
        w = self.model.weights(step.small, self.map_grid, step.m).w
        shares = torch.stack([torch.histc(part, BINS, 0, 1) for part in w.unbind(1)]) / w[:, 0].numel()
        return [[round(share, 5) for share in row] for row in shares.tolist()]

    def _descend(self, stage: int, batch: Tensor) -> BatchStep:
        """Work on a batch; all over again if the flow turned out to be too fast for its time steps."""
        while True:
            step = self._step_for(stage, len(batch))
            step.begin(self.pairs.scene(batch, self.map_grid, self.device), *self.momenta.take(batch))
            before = [tensor.clone() for tensor in self._shared()]
            if step.run():
                self.momenta.put(batch, step.m, step.buffer)
                return step
            self.steps.clear()
            for tensor, kept in zip(self._shared(), before, strict=True):
                tensor.copy_(kept)

    def _shared(self) -> list[Tensor]:
        """What a step changes beside the momenta."""
        return [*self._network_state().values(), *self.buffers.values(), self.common.sums]

    def _step_for(self, stage: int, size: int) -> BatchStep:
        """The tensors on which batches of one size are worked."""
        if (stage, size) not in self.steps:
            scene = self.pairs.scene(torch.zeros(size, dtype=torch.long), self.map_grid, self.device)
            self.steps[stage, size] = BatchStep(self.common, scene, local=stage == LOCAL)
        return self.steps[stage, size]

    def save(self, record: dict[str, Any]) -> None:
        """After an epoch: the schedule, the best network, the log, the momenta, and last of all the checkpoint."""
        progress = self.progress
        if not torch.isfinite(torch.tensor(record["total"])):
            raise MetregError("training: the energy is not finite; lower train.momentum_rate or train.network_rate")
        progress.epoch += 1
        progress.time_steps = self.common.time_steps.count
        progress.history.append(record)
        progress.see_energy(record["total"])
        if record["stage"] == LOCAL + 1 and record["total"] < progress.best_energy:
            progress.best_energy, self.best = record["total"], self._network_copy()
        self.finish_writing()
        progress.generation, write_momenta = self.momenta.finish_epoch()
        lines = "".join(json.dumps(line) + "\n" for line in progress.history)
        (self.run / LOG).write_text(lines, encoding="utf-8")
        state = {
            **named("network", self.model.network.state_dict()),
            **named("best", self.best),
            **named("buffer", self.buffers),
            "generator": self.generator.get_state(),
        }
        tensors, then = {name: tensor.cpu().clone() for name, tensor in state.items()}, deepcopy(progress)

        def write() -> None:
            write_momenta()
            save_checkpoint(self.run / "checkpoint.safetensors", then, tensors, self.settings)

        if self.device.type == "cuda":  # it does not wait for the disk
            self.writing = self.writer.submit(write)
        else:
            write()

    def finish_writing(self) -> None:
        """Wait until the last checkpoint is whole."""
        if self.writing is not None:
            self.writing.result()
        self.writing = None

    def begin_after(self, first_stage: Path) -> None:
        """Skip the first stage: another run did it."""
        for path in first_stage.glob("momenta-*.npy"):
            shutil.copy(path, self.run / path.name)
        progress, _ = read_checkpoint(first_stage / "checkpoint.safetensors")
        self.momenta.load(progress.generation)
        if self.settings.train.optimiser == "sgd":
            self.momenta.reset_buffers()
        self.progress.generation = progress.generation
        self.common.time_steps.count = progress.time_steps or self.common.time_steps.count
        self.progress.next_stage()

    def load(self) -> None:
        self.progress, tensors = load_checkpoint(self.run / "checkpoint.safetensors", self.settings)
        self.model.network.load_state_dict(under("network", tensors))
        self.best = {name: tensor.to(self.device) for name, tensor in under("best", tensors).items()}
        for name, tensor in under("buffer", tensors).items():
            self.buffers[name].copy_(tensor)
        self.generator.set_state(tensors["generator"])
        self.common.time_steps.count = self.progress.time_steps or self.common.time_steps.count
        self.momenta.load(self.progress.generation)

    def _batches(self) -> Iterator[Tensor]:
        order = torch.randperm(len(self.pairs), generator=self.generator)
        yield from order.split(self.settings.train.batch)

    def _network_state(self) -> dict[str, Tensor]:
        return self.model.network.state_dict()

    def _network_copy(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._network_state().items()}
