"""What a learned metric is worth when the search ends at a minimum: on the paper's rings, and where images are silent.

The paper's gradient descent leaves the global metric far from the minimum of its own energy. Here L-BFGS goes there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metreg.evaluate.rings import RingBatch, RingResult, do_nothing
from metreg.metric.learned import LearnedMetric
from metreg.reproduce.ring_runs import RingRuns
from metreg.synthetic import TEXTURE, ring_pair

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


def register_converged(
    runs: RingRuns, test: RingBatch, model: LearnedMetric, mean: Tensor, learned: str, *, iterations: int
) -> dict[str, RingResult]:
    """The test pairs of the paper's protocol, its energy minimised to the end."""
    changes = search_to_the_end(iterations, runs.settings.solve.regularity)
    found = {NONE: do_nothing(test)}
    for name, weights in _methods(runs, test, model, mean, learned).items():
        found[name] = runs.register(f"converged_{name}", test, weights, changes)
    return found


def register_silent(
    runs: RingRuns,
    kind: str,
    model: LearnedMetric,
    mean: Tensor,
    learned: str,
    *,
    pairs: tuple[int, int],
    regularities: tuple[float, ...],
    iterations: int,
) -> dict[str, Tuned]:
    """Fresh pairs of another kind. Each method has the lambda with the least error on the first of the two numbers of
    pairs; the errors are those of the others.
    """
    seed = runs.settings.seed + FRESH
    both = draw(seed, sum(pairs), kind)
    validation, test = both.part(0, pairs[0]), both.part(pairs[0], sum(pairs))
    of_test = _methods(runs, test, model, mean, learned)
    found = {NONE: Tuned(0.0, do_nothing(test))}
    for name, weights in _methods(runs, validation, model, mean, learned).items():
        errors: dict[float, float] = {}
        for regularity in regularities:
            changes = search_to_the_end(iterations, regularity)
            tried = runs.register(f"{kind}_{name}_{regularity:g}", validation, weights, changes)
            errors[regularity] = sum(tried.medians().values())
        best = min(errors, key=lambda regularity: errors[regularity])
        changes = search_to_the_end(iterations, best)
        found[name] = Tuned(best, runs.register(f"{kind}_{name}", test, of_test[name], changes))
    return found


def _methods(runs: RingRuns, batch: RingBatch, model: LearnedMetric, mean: Tensor, learned: str) -> Mapping[str, Any]:
    """Weights by method."""
    return {
        GLOBAL: None,
        CONSTANT: runs.mean_of(mean, batch),
        learned: runs.weights_of(model, batch),
        TRUE: batch.weights,
    }
