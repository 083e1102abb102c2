"""How methods compare over many pairs: the paper's statistics, and two that respect that pairs belong together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from metreg.grid import Array

PERCENTILES = (1, 5, 50, 95, 99)
LEVEL = 0.05
"""Below this p a difference is called significant."""
MOST_FLIPS = 20_000


def describe(values: Array) -> dict[str, float]:
    """Mean, standard deviation and percentiles."""
    percentiles = np.percentile(values, PERCENTILES)
    named = {f"p{share}": float(value) for share, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": float(np.mean(values)), "std": float(np.std(values)), **named}


@dataclass(frozen=True)
class Comparison:
    """Of a reference with another method; every p is of the reference being no better."""

    u: float
    """Mann-Whitney's U of the reference; the test does not know which pairs belong together."""
    p: float
    """Of that test, adjusted over all methods by Benjamini and Hochberg."""
    wilcoxon_p: float
    """Of Wilcoxon's signed ranks of the differences, pair by pair."""
    subject_p: float
    """Of flipping the signs of all pairs that share a subject together."""
    difference: float
    """Mean over pairs of the reference less the other."""

    @property
    def significant(self) -> bool:
        return self.p < LEVEL


def compare(
    reference: Array, others: Mapping[str, Array], subjects: Sequence[tuple[str, str]], seed: int = 0
) -> dict[str, Comparison]:
    """The reference's values (P,) against those of every other method, on the same pairs of `subjects`."""
    from scipy import stats

    if not others:
        return {}
    tests = {name: stats.mannwhitneyu(reference, values, alternative="greater") for name, values in others.items()}
    adjusted = stats.false_discovery_control([float(test.pvalue) for test in tests.values()], method="bh")
    return {
        name: Comparison(
            u=float(test.statistic),
            p=float(p),
            wilcoxon_p=_wilcoxon(reference - others[name]),
            subject_p=permutation_p(reference - others[name], subjects, seed),
            difference=float(np.mean(reference - others[name])),
        )
        for (name, test), p in zip(tests.items(), adjusted, strict=True)
    }


def _wilcoxon(differences: Array) -> float:
    from scipy import stats

    if not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences, alternative="greater").pvalue)


def permutation_p(differences: Array, subjects: Sequence[tuple[str, str]], seed: int = 0) -> float:
    """The share of sign flips, subject by subject, whose sum is at least the one seen; the unflipped one counts.

    All pairs of one fixed subject are flipped together, and then all of one moving subject: the larger share counts.
    """
    return max(_flip_share(differences, [pair[side] for pair in subjects], seed) for side in (0, 1))


def _flip_share(differences: Array, owners: Sequence[str], seed: int) -> float:
    """Of all flips where they are few enough, else of many random ones."""
    names = sorted(set(owners))
    shares = np.zeros(len(names))
    np.add.at(shares, [names.index(owner) for owner in owners], differences)
    if 2 ** len(names) <= MOST_FLIPS:
        signs = np.array(list(product((1, -1), repeat=len(names))))
    else:
        signs = np.random.default_rng(seed).choice((1, -1), size=(MOST_FLIPS, len(names)))
        signs[0] = 1
    sums = signs @ shares
    return float(np.mean(sums >= sums[0] - 1e-12 * np.abs(shares).sum()))
