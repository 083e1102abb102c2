"""What a learned metric is worth when the search ends at a minimum: on the paper's rings, and where images are silent.

The paper's gradient descent leaves the global metric far from the minimum of its own energy. Here L-BFGS goes there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metreg.experiments.rings.batch import RingBatch, RingResult, do_nothing
from metreg.experiments.rings.draw import TEXTURE, ring_pair
from metreg.experiments.rings.runs import RingRuns
from metreg.metric.learned import LearnedMetric
from metreg.solve.register import WeightsOf

NONE, GLOBAL, CONSTANT, TRUE = "none", "global", "constant", "true"
"""Methods beside the learned ones."""
FRESH = 1_000_000
"""Added to the seed for the pairs of other images: none of them was drawn before."""


class Kind(NamedTuple):
    """What rings look like."""

    said: str
    texture: float = TEXTURE
    noise: float = 0.0


KINDS = {
    "silent": Kind("no texture: only borders say where points went", texture=0.0),
    "noise": Kind("no texture, noise of 0.1 in each image", texture=0.0, noise=0.1),
}


@dataclass(frozen=True, eq=False)
class Tuned:
    """A method with the lambda that suits it best, chosen on pairs of its own."""

    regularity: float
    result: RingResult
    batch: RingBatch
    """The pairs that were measured."""


def draw(seed: int, count: int, kind: str) -> RingBatch:
    """Pairs of one kind, all from one seed."""
    generator = torch.Generator().manual_seed(seed)
    _, texture, noise = KINDS[kind]
    return RingBatch.of([ring_pair(generator, texture=texture, noise=noise) for _ in range(count)])


def search_to_the_end(iterations: int, regularity: float) -> dict[str, Any]:
    """Settings under which a registration ends at a minimum of the paper's energy."""
    return {
        "solve.optimiser": "lbfgs",
        "solve.iterations": [iterations],
        "solve.local_iterations": None,
        "solve.tolerance": 0.0,
        "solve.regularity": regularity,
    }


@dataclass(frozen=True, eq=False)
class Methods:
    """What is compared: the global metric, a learned one, the mean of its weights, perhaps the true weights."""

    runs: RingRuns
    model: LearnedMetric
    mean: Tensor
    """Of the learned weights, (N,)."""
    learned: str
    """How the learned metric is called."""
    truth: bool = True

    def on(self, batch: RingBatch) -> dict[str, Tensor | WeightsOf | None]:
        """Weights by method."""
        weights: dict[str, Tensor | WeightsOf | None] = {GLOBAL: None}
        weights[CONSTANT] = self.runs.mean_of(self.mean, batch)
        weights[self.learned] = self.runs.weights_of(self.model, batch)
        if self.truth:
            weights[TRUE] = batch.weights
        return weights


def register_converged(methods: Methods, test: RingBatch, *, iterations: int) -> dict[str, RingResult]:
    """The test pairs of the paper's protocol, its energy minimised to the end."""
    runs = methods.runs
    changes = search_to_the_end(iterations, runs.settings.solve.regularity)
    found = {NONE: do_nothing(test)}
    for name, weights in methods.on(test).items():
        found[name] = runs.register(f"converged_{name}", test, weights, changes)
    return found


def register_silent(
    methods: Methods, kind: str, *, pairs: tuple[int, int], regularities: tuple[float, ...], iterations: int
) -> dict[str, Tuned]:
    """Fresh pairs of another kind. Each method has the lambda with the least error on the first of the two numbers of
    pairs; the errors are those of the others.
    """
    runs = methods.runs
    both = draw(runs.settings.seed + FRESH, sum(pairs), kind)
    test = both.part(pairs[0], sum(pairs))
    best = dict.fromkeys(methods.on(test), regularities[0])
    if len(regularities) > 1:
        best = _choose_regularities(methods, kind, both.part(0, pairs[0]), regularities, iterations)
    found = {NONE: Tuned(0.0, do_nothing(test), test)}
    for name, weights in methods.on(test).items():
        changes = search_to_the_end(iterations, best[name])
        found[name] = Tuned(best[name], runs.register(f"{kind}_{name}", test, weights, changes), test)
    return found


def _choose_regularities(
    methods: Methods, kind: str, validation: RingBatch, regularities: tuple[float, ...], iterations: int
) -> dict[str, float]:
    """By method, the lambda with the least sum of the median errors in disc and ring."""
    best = {}
    for name, weights in methods.on(validation).items():
        errors: dict[float, float] = {}
        for regularity in regularities:
            changes = search_to_the_end(iterations, regularity)
            tried = methods.runs.register(f"{kind}_{name}_{regularity:g}", validation, weights, changes)
            errors[regularity] = sum(tried.medians().values())
        best[name] = min(errors, key=lambda regularity: errors[regularity])
    return best
