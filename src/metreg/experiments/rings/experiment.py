"""The paper's synthetic experiment: learn from rings, register held-out rings, compare with the known maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from metreg.experiments.rings.batch import RingBatch, RingResult, do_nothing
from metreg.experiments.rings.converged import (
    CONSTANT,
    GLOBAL,
    KINDS,
    NONE,
    TRUE,
    Methods,
    Tuned,
    register_converged,
    register_silent,
)
from metreg.experiments.rings.draw import ring_pair
from metreg.experiments.rings.runs import History, RingRuns
from metreg.metric.learned import LearnedMetric
from metreg.settings.model import Settings, changed


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
    converged: int = 300
    """Iterations of L-BFGS after which nothing changes any more."""
    silent_pairs: tuple[int, int] = (40, 100)
    """Pairs without texture: those on which lambda is chosen, and those that are measured."""
    regularities: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 30.0, 300.0, 1000.0, 3000.0, 10000.0)
    """Lambdas to choose from where images are silent."""
    kinds: tuple[str, ...] = tuple(KINDS)
    truth: bool = True
    """Whether the true weights are a method too."""


LEARNED = "omt50"
"""The one that is compared in all three parts."""
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
QUICK = Plan(
    training_pairs=24,
    test_pairs=8,
    epochs=(20, 30),
    batch=24,
    iterations=(100, 150),
    converged=150,
    silent_pairs=(8, 16),
    regularities=(1.0, 30.0, 300.0),
)


@dataclass
class Outcome:
    """All methods on the test pairs of one seed."""

    test: RingBatch
    results: dict[str, RingResult] = field(default_factory=dict)
    """By the paper's protocol: stochastic gradient descent, so many iterations."""
    converged: dict[str, RingResult] = field(default_factory=dict)
    """The same pairs, the same energy, minimised to the end."""
    silent: dict[str, dict[str, Tuned]] = field(default_factory=dict)
    """By kind of image that says little, to the end, each method with the lambda that suits it."""
    models: dict[str, LearnedMetric] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
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
        "converged": [{name: _facts(result) for name, result in outcome.converged.items()} for outcome in outcomes],
        "silent": [
            {
                kind: {name: {"lambda": tuned.regularity, **_facts(tuned.result)} for name, tuned in methods.items()}
                for kind, methods in outcome.silent.items()
            }
            for outcome in outcomes
        ],
        "seconds": {
            name: round(sum(outcome.seconds.get(name, 0.0) for outcome in outcomes), 1) for name in outcomes[0].seconds
        },
    }


def _facts(result: RingResult) -> dict[str, Any]:
    return {**result.medians(), "energy": result.energy, "folds_before_repair": result.before._asdict()}


def pooled(outcomes: Sequence[Outcome], name: str) -> RingResult:
    """One method on the test pairs of all seeds."""
    return together([outcome.results[name] for outcome in outcomes])


def together(parts: Sequence[RingResult]) -> RingResult:
    """What was found on several batches."""
    return replace(
        parts[0],
        errors={region: torch.cat([part.errors[region] for part in parts]) for region in parts[0].errors},
        folds=sum(part.folds for part in parts),
        before=parts[0].before.and_of([part.before for part in parts[1:]]),
        energy=sum(part.energy for part in parts) / len(parts),
    )


Tell = Callable[[str], None]


def make_rings(plan: Plan, seed: int) -> tuple[RingBatch, RingBatch]:
    """Training and test pairs, all from one seed."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [ring_pair(generator) for _ in range(plan.training_pairs + plan.test_pairs)]
    return RingBatch.of(pairs[: plan.training_pairs]), RingBatch.of(pairs[plan.training_pairs :])


def experiment(
    plan: Plan, settings: Settings, folder: Path, *, device: torch.device, tell: Tell = lambda line: None
) -> Outcome:
    """Learn every variant, register the test pairs with every method, all from the seed of the settings; then the same
    metrics where the search goes to the end, and where the images say little.

    Every part that is done is a file in `folder`, and is not done again.
    """
    training, test = make_rings(plan, settings.seed)
    settings = changed(settings, {"train.epochs": plan.epochs, "train.batch": plan.batch})
    runs = RingRuns(training, settings, folder, device, tell)
    folder.mkdir(parents=True, exist_ok=True)
    local = {"solve.iterations": plan.iterations[:1], "solve.local_iterations": plan.iterations[1:]}
    at_once = {"solve.iterations": [sum(plan.iterations)], "solve.local_iterations": None}

    outcome = Outcome(test, histories=runs.histories, seconds=runs.seconds)
    results = outcome.results
    results[NONE] = do_nothing(test)
    results[GLOBAL] = runs.register(GLOBAL, test, None, at_once)
    if plan.truth:
        results[TRUE] = runs.register(TRUE, test, test.weights, local)
    runs.train("stage1", changed(settings, {"train.epochs": (plan.epochs[0], 0)}))
    for name in plan.variants:
        variant = changed(settings, VARIANTS[name])
        if name == "joint":
            model = runs.train(name, changed(variant, {"train.epochs": (0, sum(plan.epochs))}))
        else:
            model = runs.train(name, variant, after="stage1")
        outcome.models[name] = model
        results[name] = runs.register(name, test, runs.weights_of(model, test), local)
    if LEARNED in outcome.models:
        _compare_at_the_end(plan, runs, outcome, local)
    for path in folder.glob("*/momenta-*.npy"):
        path.unlink()
    return outcome


def _compare_at_the_end(plan: Plan, runs: RingRuns, outcome: Outcome, local: dict[str, Any]) -> None:
    """One learned metric beside the mean of its weights and the global metric, in three ways."""
    mean = outcome.results[LEARNED].mean_weights
    assert mean is not None
    test = outcome.test
    outcome.results[CONSTANT] = runs.register(CONSTANT, test, runs.mean_of(mean, test), local)
    model = outcome.models[LEARNED]
    methods = Methods(runs, model, mean, LEARNED, truth=plan.truth)
    outcome.converged = register_converged(methods, test, iterations=plan.converged)
    for kind in plan.kinds:
        outcome.silent[kind] = register_silent(
            methods,
            kind,
            pairs=plan.silent_pairs,
            regularities=plan.regularities,
            iterations=plan.converged,
        )
