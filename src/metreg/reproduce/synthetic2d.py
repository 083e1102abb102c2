"""The paper's synthetic experiment: learn from rings, register held-out rings, compare with the known maps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metreg.config import Settings
from metreg.energy import Energy
from metreg.evaluate.rings import (
    RingBatch,
    RingResult,
    do_nothing,
    learned_weights,
    register_rings,
    sigma_agreement,
)
from metreg.learn.checkpoint import Progress
from metreg.learn.train import train
from metreg.metric.learned import LearnedMetric
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


FULL = Plan(
    variants=(
        *("omt15", "omt50", "omt100", "tv0.01", "tv0.25"),
        *("constant_learned", "no_omt", "no_tv", "softmax", "joint"),
    )
)
QUICK = Plan(training_pairs=24, test_pairs=8, epochs=(20, 30), batch=24, iterations=(100, 150))

VARIANTS: dict[str, dict[str, Any]] = {
    "omt15": {"learned.transport": 15.0},
    "omt50": {"learned.transport": 50.0},
    "omt100": {"learned.transport": 100.0},
    "tv0.01": {"learned.variation": 0.01},
    "tv0.25": {"learned.variation": 0.25},
    "constant_learned": {"learned.network.depth": 0},
    "no_omt": {"learned.transport": 0.0},
    "no_tv": {"learned.variation": 0.0},
    "softmax": {"learned.simplex": "softmax"},
    "joint": {},
}
"""What each learned metric changes; lambda_OMT is 50 and lambda_TV 0.1 where nothing is said."""


@dataclass
class Outcome:
    """All methods on the test pairs."""

    results: dict[str, RingResult] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    agreement: dict[str, dict[str, float]] = field(default_factory=dict)
    models: dict[str, LearnedMetric] = field(default_factory=dict)
    histories: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=dict)
    """Stage and mean energy by term of every epoch."""
    seconds: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        return {
            "errors_px": {name: result.medians() for name, result in self.results.items()},
            "sigma_correlation": {name: found["correlation"] for name, found in self.agreement.items()},
            "sigma_contrast": {name: found["contrast"] for name, found in self.agreement.items()},
            "sigma_contrast_true": next((found["true_contrast"] for found in self.agreement.values()), None),
            "folds": sum(result.folds for result in self.results.values()),
            "folds_by_method": {name: result.folds for name, result in self.results.items()},
            "seconds": self.seconds,
        }


Tell = Callable[[str], None]


def make_rings(plan: Plan, seed: int) -> tuple[RingBatch, RingBatch]:
    """Training and test pairs, all from one seed."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [ring_pair(generator) for _ in range(plan.training_pairs + plan.test_pairs)]
    return RingBatch.of(pairs[: plan.training_pairs]), RingBatch.of(pairs[plan.training_pairs :])


def experiment(
    plan: Plan, settings: Settings, runs: Path, *, device: torch.device, tell: Tell = lambda line: None
) -> Outcome:
    """Learn every variant, register the test pairs with every method."""
    outcome = Outcome()
    training, test = make_rings(plan, settings.seed)
    settings = _changed(settings, {"train.epochs": plan.epochs, "train.batch": plan.batch})

    def timed(name: str, run: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        found = run()
        outcome.seconds[name] = round(time.perf_counter() - start, 1)
        tell(f"{name}: {outcome.seconds[name]} s")
        return found

    def registered(name: str, weights: Tensor | None, iterations: tuple[int, ...]) -> None:
        changes = {"solve.iterations": iterations[:1], "solve.local_iterations": iterations[1:] or None}
        outcome.results[name] = timed(
            f"register {name}", lambda: register_rings(test, _changed(settings, changes), device, weights=weights)
        )

    def remember(name: str, progress: Progress, before: str | None = None) -> None:
        epochs = [(r["stage"], {term: r[term] for term in Energy._fields}) for r in progress.history]
        outcome.histories[name] = [*outcome.histories.get(before or "", []), *epochs]

    def learn(name: str) -> LearnedMetric:
        variant = _changed(settings, VARIANTS[name])
        if name == "joint":
            variant = _changed(variant, {"train.epochs": (0, sum(plan.epochs))})
        (runs / name).mkdir(parents=True)
        first = None if name == "joint" else runs / "stage1"
        model, progress = train(training.pairs, variant, runs / name, device=device, first_stage=first)
        remember(name, progress, before=None if name == "joint" else "stage1")
        return model

    outcome.results["none"] = do_nothing(test)
    registered("global", None, (sum(plan.iterations),))
    (runs / "stage1").mkdir(parents=True)
    stage1 = _changed(settings, {"train.epochs": (plan.epochs[0], 0)})
    _, progress = timed("train stage 1", lambda: train(training.pairs, stage1, runs / "stage1", device=device))
    remember("stage1", progress)
    for name in plan.variants:
        model: LearnedMetric = timed(f"train {name}", partial(learn, name))
        weights = learned_weights(model, test, settings)
        outcome.models[name], outcome.weights[name] = model, weights.cpu()
        outcome.agreement[name] = sigma_agreement(weights, test, settings.metric.sigma)
        registered(name, weights, plan.iterations)
        if name == "omt50":  # the control: the spatial mean of what was learned
            mean = weights.mean((0, 2, 3), keepdim=True).expand_as(weights)
            registered("constant", mean, plan.iterations)
    return outcome


def _changed(settings: Settings, changes: dict[str, Any]) -> Settings:
    nested = settings.model_dump()
    for key, value in changes.items():
        *path, last = key.split(".")
        place = nested
        for part in path:
            place = place[part]
        place[last] = value
    return Settings.model_validate(nested)
