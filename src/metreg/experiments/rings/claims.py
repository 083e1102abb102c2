"""What the paper claims of the synthetic experiment, what we claim beside it, and whether it held here."""

from __future__ import annotations

from collections.abc import Sequence

from metreg.experiments.rings.batch import RingResult
from metreg.experiments.rings.converged import CONSTANT, GLOBAL
from metreg.experiments.rings.experiment import LEARNED, MAIN, SAID, Outcome, pooled, summarise, together

Claim = tuple[str, bool, str]
"""What is claimed, whether it held, and what was measured."""
REGIONS = ("disc", "ring")


def claims(outcomes: Sequence[Outcome]) -> list[Claim]:
    """All of them. Whose claim it is stands before it."""
    return [*_of_the_paper(outcomes), *_ours(outcomes)]


def _of_the_paper(outcomes: Sequence[Outcome]) -> list[Claim]:
    summary = summarise(outcomes)
    errors = summary["errors_px"]
    main = [name for name in MAIN if name in errors]
    learned = [name for name in errors if name.startswith("omt")]
    largest = max(errors[name][region] for name in learned for region in REGIONS)
    better = all(errors[name][region] < errors[GLOBAL][region] for name in main for region in REGIONS)
    correlations = [summary["sigma_correlation"][name] for name in main]
    contrasts = [summary["sigma_contrast"][name] for name in main]
    follows = min(correlations) >= 0.95 and min(contrasts) >= 0.01
    sigmas = [summary["sigma_mean"][name] for name in main]
    counts = [pooled(outcomes, name).before for name in learned]
    before = counts[0].and_of(counts[1:])
    maps = len(pooled(outcomes, learned[0]).errors["disc"]) * len(learned)
    return [
        (
            "The paper: median errors are below one pixel for all penalties",
            largest < 1,
            f"largest: {largest:.2f} px over {len(learned)} settings",
        ),
        (
            "The paper: better than the global metric",
            better,
            f"disc {_listed([errors[n]['disc'] for n in (*main, GLOBAL)])}; "
            f"ring {_listed([errors[n]['ring'] for n in (*main, GLOBAL)])} (the last is the global one)",
        ),
        (
            "The paper: sigma(x) follows the truth, large in background and disc, small in the ring",
            follows,
            f"correlation {_listed(correlations, 3)}; background minus ring {_listed(contrasts, 4)} "
            f"(true {summary['sigma_contrast_true']:.4f})",
        ),
        (
            "The paper: sigma(x) is stable and rises slightly with the OMT penalty",
            sigmas == sorted(sigmas),
            f"mean sigma {_listed(sigmas, 4)} for OMT {', '.join(name.removeprefix('omt') for name in main)}",
        ),
        ("The paper: no folds (here: before any repair)", before.voxels == 0, f"{before} of {maps} maps"),
    ]


def _ours(outcomes: Sequence[Outcome]) -> list[Claim]:
    """What the learned metric is worth beside converged controls."""
    errors = summarise(outcomes)["errors_px"]
    found = []
    if LEARNED in errors:
        shares = [errors[LEARNED][region] / errors[GLOBAL][region] for region in REGIONS]
        found.append(
            (
                "Ours, part 1: at most half the error of the global metric in as many iterations",
                max(shares) <= 0.5,
                f"shares of it: {_listed(shares)}",
            )
        )
    controls = [name for name in (CONSTANT, "constant_learned") if name in errors]
    for control in controls:
        medians = {name: errors[name] for name in (LEARNED, control)}
        found.append(_beats(f"Ours, part 1: better than {SAID[control]}", medians))
    if outcomes[0].converged:
        medians = _medians([outcome.converged for outcome in outcomes])
        found.append(_beats("Ours, part 2: better than the global metric and its own mean, converged", medians))
    for kind in outcomes[0].silent:
        parts = [{name: tuned.result for name, tuned in outcome.silent[kind].items()} for outcome in outcomes]
        found.append(_beats(f"Ours, part 3 ({kind}): better than the global metric and its own mean", _medians(parts)))
    return found


def _medians(parts: Sequence[dict[str, RingResult]]) -> dict[str, dict[str, float]]:
    """By method, the learned one first, over all seeds."""
    return {name: together([part[name] for part in parts]).medians() for name in (LEARNED, GLOBAL, CONSTANT)}


def _beats(claim: str, medians: dict[str, dict[str, float]]) -> Claim:
    """Whether the first method has the least error in disc and ring."""
    first, *others = medians.values()
    held = all(first[region] < other[region] for other in others for region in REGIONS)
    numbers = [f"{SAID[name]} {_listed([values[region] for region in REGIONS])}" for name, values in medians.items()]
    return claim, held, "; ".join(numbers)


def _listed(values: Sequence[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)
