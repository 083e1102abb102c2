"""How methods compare over many pairs: by person, as pairs share people on both sides; and as in the paper, by pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from metreg.core.grid import Array

PERCENTILES = (1, 5, 50, 95, 99)
LEVEL = 0.05
"""Below this p a difference is called significant."""
MOST_FLIPS = 20_000
"""Sign flips are all tried where they are no more, else so many random ones."""
DRAWS = 2000
"""Bootstrap samples of people."""
CHUNK = 100
"""Samples whose weights are in memory at once."""
CONFIDENCE = 0.95
FEW_PEOPLE = 6
"""With fewer a p by person cannot be small."""
Subjects = Sequence[tuple[str, str]]
"""Of every pair whose the moving and the fixed image are."""


def describe(values: Array) -> dict[str, float]:
    """Mean, standard deviation and percentiles."""
    percentiles = np.percentile(values, PERCENTILES)
    named = {f"p{share}": float(value) for share, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": float(np.mean(values)), "std": float(np.std(values)), **named}


@dataclass(frozen=True)
class Comparison:
    """Of a reference with another method; every p is of the reference being no better."""

    difference: float
    """Mean over pairs of the reference less the other."""
    low: float | None
    high: float | None
    """Ends of the 95 % interval of the difference, by person; none for fewer than three people."""
    person_p: float
    """Of flipping the sign of every person's share in the difference."""
    people: int
    """Those who can be left out, with pairs left."""
    smallest_p: float
    """What `person_p` is at best with so many people."""
    paper_u: float
    """Mann-Whitney's U of the reference: unpaired, pairs counted as independent, as in the paper."""
    paper_p: float
    """Of that test, adjusted over all methods by Benjamini and Hochberg."""
    wilcoxon_p: float
    """Of Wilcoxon's signed ranks of the differences: paired, pairs counted as independent."""

    @property
    def significant(self) -> bool:
        """By person."""
        return self.person_p < LEVEL

    @property
    def paper_significant(self) -> bool:
        return self.paper_p < LEVEL


def compare(reference: Array, others: Mapping[str, Array], subjects: Subjects, seed: int = 0) -> dict[str, Comparison]:
    """The reference's values (P,) against those of every other method, on the same pairs of `subjects`."""
    from scipy import stats

    if not others:
        return {}
    tests = {name: stats.mannwhitneyu(reference, values, alternative="greater") for name, values in others.items()}
    adjusted = stats.false_discovery_control([float(test.pvalue) for test in tests.values()], method="bh")
    differences = np.stack([reference - values for values in others.values()], axis=1)
    lows, highs = person_intervals(differences, subjects, seed)
    people = len(shares_of_people(differences, subjects))
    found = {}
    for i, (name, test) in enumerate(tests.items()):
        found[name] = Comparison(
            difference=float(np.mean(differences[:, i])),
            low=float(lows[i]) if np.isfinite(lows[i]) else None,
            high=float(highs[i]) if np.isfinite(highs[i]) else None,
            person_p=permutation_p(differences[:, i], subjects, seed),
            people=people,
            smallest_p=smallest_p(people),
            paper_u=float(test.statistic),
            paper_p=float(adjusted[i]),
            wilcoxon_p=_wilcoxon(differences[:, i]),
        )
    return found


def _wilcoxon(differences: Array) -> float:
    from scipy import stats

    if not differences.any():
        return 1.0
    return float(stats.wilcoxon(differences, alternative="greater").pvalue)


def person_intervals(differences: Array, subjects: Subjects, seed: int = 0) -> tuple[Array, Array]:
    """Ends (M,) of the 95 % intervals of the means of M columns of differences (P, M), by a bootstrap of people.

    Their standard error is that of the resampled means, corrected by n / (n - 1); quantiles are Student's with n - 1
    degrees of freedom. With few people the percentiles of the resampled means would lie too close together.
    Not finite for fewer than three people.
    """
    from scipy import stats

    mean = differences.mean(0)
    people = len(shares_of_people(differences, subjects))
    if people < 3:
        unknown = np.full(mean.shape, np.nan)
        return unknown, unknown
    error = resampled_means(differences, subjects, seed).std(0, ddof=1) * np.sqrt(people / (people - 1))
    half = stats.t.ppf((1 + CONFIDENCE) / 2, people - 1) * error
    return mean - half, mean + half


def resampled_means(differences: Array, subjects: Subjects, seed: int = 0) -> Array:
    """Means (draws, M) of columns of differences (P, M), where people are drawn with replacement.

    A pair counts as often as it can be made of those drawn: by the product of how often its two people were, and by how
    often its one person was where both images are of the same. Draws without any pair are left out.
    """
    names, index = _people_of(subjects)
    moving, fixed = index.T
    same = moving == fixed
    generator = np.random.default_rng(seed)
    means = []
    for _ in range(DRAWS // CHUNK):
        drawn = generator.multinomial(len(names), np.full(len(names), 1 / len(names)), size=CHUNK)
        weights = np.where(same, drawn[:, moving], drawn[:, moving] * drawn[:, fixed]).astype(float)
        total = weights.sum(1)
        some = total > 0
        means.append((weights[some] @ differences) / total[some, None])
    return np.concatenate(means)


def permutation_p(differences: Array, subjects: Subjects, seed: int = 0) -> float:
    """How often the mean over people is at least the one seen, when the sign of every person's share is flipped at random.

    The unflipped one counts. All pairs of a person, moving and fixed, are in one share. Flips of all pairs of one fixed
    image together (and then of one moving image) would take what the moving people have in common for certain: where
    people matter on both sides, they call one difference in seven significant that is none, at a level of 5 %.
    """
    shares = shares_of_people(differences[:, None], subjects)[:, 0]
    if not len(shares):
        return 1.0
    if 2 ** len(shares) <= MOST_FLIPS:
        signs = np.array(list(product((1, -1), repeat=len(shares))))
    else:
        signs = np.random.default_rng(seed).choice((1, -1), size=(MOST_FLIPS, len(shares)))
        signs[0] = 1
    sums = signs @ shares
    return float(np.mean(sums >= sums[0] - 1e-12 * np.abs(shares).sum()))


def smallest_p(people: int) -> float:
    """What `permutation_p` gives at best."""
    return max(0.5**people, 1 / MOST_FLIPS)


def shares_of_people(differences: Array, subjects: Subjects) -> Array:
    """Everybody's share (people, M) in the means of columns of differences (P, M): jackknife pseudo-values,
    n mean - (n - 1) (mean without that person's pairs).

    Whoever is in all pairs, such as an atlas, has none and is left out.
    """
    names, index = _people_of(subjects)
    total = differences.sum(0)
    without = []  # means over the pairs without a person
    for person in range(len(names)):
        own = (index == person).any(1)
        if not own.all():
            without.append((total - differences[own].sum(0)) / (~own).sum())
    count = len(without)
    return count * differences.mean(0) - (count - 1) * np.array(without).reshape(count, differences.shape[1])


def _people_of(subjects: Subjects) -> tuple[list[str], Array]:
    """All names in order, and the places of every pair's two (P, 2) among them."""
    names = sorted({name for pair in subjects for name in pair})
    places = {name: place for place, name in enumerate(names)}
    return names, np.array([[places[moving], places[fixed]] for moving, fixed in subjects])
