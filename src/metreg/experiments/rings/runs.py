"""Parts of the synthetic experiment that are done once: a metric learned, test pairs registered. Each is a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.experiments.rings.batch import RingBatch, RingResult, load_result, register_rings, save_result
from metreg.io.atomic import atomic_file
from metreg.learn.curriculum import read_log, train
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, load_metric, save_metric
from metreg.settings.model import Settings, changed
from metreg.solve.energy import Energy
from metreg.solve.pyramid import map_grid_of
from metreg.solve.register import WeightsOf

History = list[tuple[int, dict[str, float]]]
"""Stage and mean energy by term of every epoch."""


@dataclass(frozen=True)
class RingRuns:
    """What is done of one seed, in `folder`, and not done again."""

    training: RingBatch
    settings: Settings
    folder: Path
    device: torch.device
    tell: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)

    def register(
        self, name: str, batch: RingBatch, weights: Tensor | WeightsOf | None, changes: Mapping[str, Any]
    ) -> RingResult:
        """A batch with one method."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            start = time.perf_counter()
            found = register_rings(batch, changed(self.settings, changes), self.device, weights=weights)
            save_result(path, found, seconds=time.perf_counter() - start)
        result, seconds = load_result(path)
        self._say(f"register {name}", seconds)
        return result

    def train(self, name: str, settings: Settings, after: str | None = None) -> LearnedMetric:
        """A metric learned from the training pairs; the first stage may be that of another run."""
        run, seen = self.folder / name, map_grid_of(self.training.grid, settings.flow.map_factor)
        path = run / "metric.safetensors"
        if not path.exists():
            run.mkdir(exist_ok=True)
            first, resume = None if after is None else self.folder / after, (run / "checkpoint.safetensors").exists()
            model, progress = train(
                self.training.pairs, settings, run, device=self.device, first_stage=first, resume=resume
            )
            seconds = sum(record["seconds"] for record in progress.history)
            with atomic_file(path, overwrite=False) as temporary:
                save_metric(
                    temporary,
                    MetricFile(model, seen.length_mm, seen.voxel_mm, unit_cube=True, summary={"seconds": seconds}),
                )
        found = load_metric(path)
        self._say(f"train {name}", found.summary["seconds"])
        epochs = [(r["stage"], {term: r[term] for term in Energy._fields}) for r in read_log(run)]
        self.histories[name] = [*self.histories.get(after or "", []), *epochs]
        return found.model.to(self.device)

    def weights_of(self, model: LearnedMetric, batch: RingBatch) -> Tensor | WeightsOf:
        """What a learned metric says of a batch."""
        map_grid = map_grid_of(batch.grid, self.settings.flow.map_factor)
        return model.weights_of(batch.pairs.source.to(self.device), map_grid)

    def mean_of(self, weights: Tensor, batch: RingBatch) -> Tensor:
        """Weights (N,) everywhere on the maps of a batch."""
        map_grid = map_grid_of(batch.grid, self.settings.flow.map_factor)
        return weights.view(1, -1, 1, 1).expand(len(batch.pairs), -1, *map_grid.shape)

    def _say(self, what: str, seconds: float) -> None:
        self.seconds[what] = round(seconds, 1)
        self.tell(f"{what}: {seconds:.1f} s")
