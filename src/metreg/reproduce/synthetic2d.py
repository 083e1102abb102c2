"""The paper's synthetic experiment: learn from rings, register held-out rings, compare with the known maps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from metreg.config import Settings, changed
from metreg.data.whole import whole_file
from metreg.energy import Energy
from metreg.evaluate.rings import (
    RingBatch,
    RingResult,
    do_nothing,
    load_result,
    register_rings,
    save_result,
)
from metreg.learn.train import read_log, train
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, load_metric, save_metric
from metreg.solve.multiscale import map_grid_of
from metreg.synthetic import ring_pair


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    training_pairs: int = 300
    test_pairs: int = 100
    epochs: tuple[int, int] = (50, 100)
    batch: int = 100
    iterations: tuple[int, int] = (250, 500)
    variants: tuple[str, ...] = ("omt15", "omt50", "omt100")
    seeds: int = 1


MAIN = ("omt15", "omt50", "omt100")
VARIANTS: dict[str, dict[str, Any]] = {
    **{f"omt{omt}": {"learned.transport": float(omt)} for omt in (15, 50, 100)},
    **{
        f"omt{omt}_tv{tv}": {"learned.transport": float(omt), "learned.variation": tv}
        for omt in (15, 50, 100)
        for tv in (0.01, 0.25)
    },
    "constant_learned": {"learned.network.depth": 0},
    "no_omt": {"learned.transport": 0.0},
    "no_tv": {"learned.variation": 0.0},
    "softmax": {"learned.simplex": "softmax"},
    "joint": {},
    "momentum_input": {"learned.network.momentum_input": True},
}
"""What each learned metric changes; lambda_OMT is 50 and lambda_TV 0.1 where nothing is said."""

SAID = {
    "none": "no registration",
    "global": "global metric",
    "constant": "constant: mean of the learned weights (omt50)",
    "constant_learned": "constant: one mixture, learned",
    "true": "the true weights",
    **{f"omt{omt}": f"learned, OMT {omt}, TV 0.1" for omt in (15, 50, 100)},
    **{f"omt{omt}_tv{tv}": f"learned, OMT {omt}, TV {tv}" for omt in (15, 50, 100) for tv in (0.01, 0.25)},
    "no_omt": "learned, without OMT",
    "no_tv": "learned, without TV",
    "softmax": "learned, plain softmax",
    "joint": "learned, without the first stage",
    "momentum_input": "learned, momentum as further input",
}
"""How the methods are called in tables, in their order there."""

FULL = Plan(variants=tuple(VARIANTS), seeds=3)
QUICK = Plan(training_pairs=24, test_pairs=8, epochs=(20, 30), batch=24, iterations=(100, 150))


@dataclass
class Outcome:
    """All methods on the test pairs of one seed."""

    test: RingBatch
    results: dict[str, RingResult] = field(default_factory=dict)
    models: dict[str, LearnedMetric] = field(default_factory=dict)
    histories: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=dict)
    """Stage and mean energy by term of every epoch."""
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        return summarise([self])


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Medians over the test pairs of all seeds, of sigma(x) the mean over seeds."""
    names = [name for name in SAID if name in outcomes[0].results]
    learned = [name for name in names if name in outcomes[0].models]

    def mean(of: str, name: str) -> float:
        return sum(outcome.results[name].agreement[of] for outcome in outcomes) / len(outcomes)

    return {
        "errors_px": {name: pooled(outcomes, name).medians() for name in names},
        "sigma_correlation": {name: mean("correlation", name) for name in learned},
        "sigma_mean": {name: mean("mean", name) for name in learned},
        "sigma_contrast": {name: mean("contrast", name) for name in learned},
        "sigma_contrast_true": mean("true_contrast", learned[0]) if learned else None,
        "folds": sum(result.folds for outcome in outcomes for result in outcome.results.values()),
        "folds_by_method": {name: pooled(outcomes, name).folds for name in names},
        "folds_before_repair": {name: pooled(outcomes, name).before._asdict() for name in names},
        "seconds": {
            name: round(sum(outcome.seconds.get(name, 0.0) for outcome in outcomes), 1) for name in outcomes[0].seconds
        },
    }


def pooled(outcomes: Sequence[Outcome], name: str) -> RingResult:
    """One method on the test pairs of all seeds."""
    parts = [outcome.results[name] for outcome in outcomes]
    return replace(
        parts[0],
        errors={region: torch.cat([part.errors[region] for part in parts]) for region in parts[0].errors},
        folds=sum(part.folds for part in parts),
        before=parts[0].before.and_of([part.before for part in parts[1:]]),
    )


Tell = Callable[[str], None]


def make_rings(plan: Plan, seed: int) -> tuple[RingBatch, RingBatch]:
    """Training and test pairs, all from one seed."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [ring_pair(generator) for _ in range(plan.training_pairs + plan.test_pairs)]
    return RingBatch.of(pairs[: plan.training_pairs]), RingBatch.of(pairs[plan.training_pairs :])


def experiment(
    plan: Plan, settings: Settings, runs: Path, *, device: torch.device, tell: Tell = lambda line: None
) -> Outcome:
    """Learn every variant, register the test pairs with every method, all from the seed of the settings.

    Every part that is done is a file in `runs`, and is not done again.
    """
    training, test = make_rings(plan, settings.seed)
    settings = changed(settings, {"train.epochs": plan.epochs, "train.batch": plan.batch})
    work = _Work(Outcome(test), training, settings, runs, device, tell)
    runs.mkdir(parents=True, exist_ok=True)

    outcome, map_grid = work.outcome, map_grid_of(test.grid, settings.flow.map_factor)
    outcome.results["none"] = do_nothing(test)
    work.register("global", None, (sum(plan.iterations),))
    work.register("true", test.weights, plan.iterations)
    work.train("stage1", changed(settings, {"train.epochs": (plan.epochs[0], 0)}))
    for name in plan.variants:
        variant = changed(settings, VARIANTS[name])
        if name == "joint":
            model = work.train(name, changed(variant, {"train.epochs": (0, sum(plan.epochs))}))
        else:
            model = work.train(name, variant, after="stage1")
        outcome.models[name] = model
        found = work.register(name, model.weights_of(test.pairs.source.to(device), map_grid), plan.iterations)
        if name == "omt50":  # the control: the spatial mean of what was learned
            assert found.mean_weights is not None
            mean = found.mean_weights.view(1, -1, 1, 1).expand(len(test.pairs), -1, *map_grid.shape)
            work.register("constant", mean, plan.iterations)
    for path in runs.glob("*/momenta-*.npy"):
        path.unlink()
    return outcome


@dataclass(frozen=True)
class _Work:
    """The parts of the experiment."""

    outcome: Outcome
    training: RingBatch
    settings: Settings
    runs: Path
    device: torch.device
    tell: Tell

    def register(self, name: str, weights: Any, iterations: tuple[int, ...]) -> RingResult:
        """The test pairs with one method."""
        path = self.runs / f"{name}.safetensors"
        if not path.exists():
            changes = {"solve.iterations": iterations[:1], "solve.local_iterations": iterations[1:] or None}
            settings, test = changed(self.settings, changes), self.outcome.test
            start = time.perf_counter()
            found = register_rings(test, settings, self.device, weights=weights)
            save_result(path, found, seconds=time.perf_counter() - start)
        self.outcome.results[name], seconds = load_result(path)
        self._say(f"register {name}", seconds)
        return self.outcome.results[name]

    def train(self, name: str, settings: Settings, after: str | None = None) -> LearnedMetric:
        """A metric learned from the training pairs; the first stage may be that of another run."""
        run, seen = self.runs / name, map_grid_of(self.training.grid, settings.flow.map_factor)
        path = run / "metric.safetensors"
        if not path.exists():
            run.mkdir(exist_ok=True)
            first, resume = None if after is None else self.runs / after, (run / "checkpoint.safetensors").exists()
            model, progress = train(
                self.training.pairs, settings, run, device=self.device, first_stage=first, resume=resume
            )
            seconds = sum(record["seconds"] for record in progress.history)
            with whole_file(path, overwrite=False) as temporary:
                save_metric(
                    temporary,
                    MetricFile(model, seen.length_mm, seen.voxel_mm, unit_cube=True, summary={"seconds": seconds}),
                )
        found = load_metric(path)
        self._say(f"train {name}", found.summary["seconds"])
        epochs = [(r["stage"], {term: r[term] for term in Energy._fields}) for r in read_log(run)]
        self.outcome.histories[name] = [*self.outcome.histories.get(after or "", []), *epochs]
        return found.model.to(self.device)

    def _say(self, what: str, seconds: float) -> None:
        self.outcome.seconds[what] = round(seconds, 1)
        self.tell(f"{what}: {seconds:.1f} s")
