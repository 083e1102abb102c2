"""What experiments on images find: facts of every method, a table of them, and whether claims held."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from metreg.evaluation.methods import AFFINE
from metreg.evaluation.run import Rows
from metreg.measure.regularity import FoldCount
from metreg.report.evaluation import BEFORE_REPAIR
from metreg.report.tables import Table

Claim = tuple[str, bool, str]
"""What is claimed, whether it held, and what was measured."""
GLOBAL, LONG, CONSTANT = "global", "global long", "constant"
"""Methods beside the learned ones."""
COLUMNS = (
    "method",
    "target overlap",
    "std",
    "Dice",
    "determinant, 1%",
    "determinant, 99%",
    "spread of its log",
    BEFORE_REPAIR,
    "folds",
)


@dataclass(frozen=True)
class Facts:
    """Of one method, means over pairs; folds are a sum."""

    overlap: float | None
    spread: float
    """Standard deviation of the determinant's logarithm."""
    folds: int
    before: FoldCount | None = None
    """Folds before any repair, where metreg registered."""
    weights: tuple[float, ...] = ()
    sigma_mm: tuple[float, float] | None = None
    """Mean of sigma(x) over the ventricles, and over the other labels."""


def facts_of(rows: Rows, ventricles: frozenset[int] = frozenset()) -> dict[str, Facts]:
    """By method, from the rows of an evaluation."""
    found = {}
    for name in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == name]
        weights = [row["mean_weights"] for row in own if "mean_weights" in row]
        found[name] = Facts(
            overlap=_mean([row.get("target_overlap") for row in own]),
            spread=float(np.mean([row["jacobian_log_std"] for row in own])),
            folds=sum(row["folds"] for row in own),
            before=FoldCount.of_rows(own),
            weights=tuple(np.mean(weights, axis=0).tolist()) if weights else (),
            sigma_mm=_inside_and_outside([row.get("sigma_mm_by_label", {}) for row in own], ventricles),
        )
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _inside_and_outside(by_label: Sequence[Mapping[str, float]], labels: frozenset[int]) -> tuple[float, float] | None:
    inside = [sigma for pair in by_label for label, sigma in pair.items() if int(label) in labels]
    outside = [sigma for pair in by_label for label, sigma in pair.items() if int(label) not in labels]
    return (float(np.mean(inside)), float(np.mean(outside))) if inside and outside else None


def ventricles_among(names: Mapping[int, str]) -> frozenset[int]:
    return frozenset(label for label, name in names.items() if re.search("ventricle", name, re.IGNORECASE))


def result_table(title: str, rows: Rows, sigma: Sequence[float]) -> Table:
    """A row for every method: overlap, regularity, folds, and the mean weight of every Gaussian."""
    header = (*COLUMNS, *[f"weight of {width:g}" for width in sigma])
    lines = []
    for name, facts in facts_of(rows).items():
        own = [row for row in rows if row["method"] == name]
        overlaps = ["", "", ""]
        if facts.overlap is not None:
            values = [row["target_overlap"] for row in own]
            overlaps = [f"{facts.overlap:.3f}", f"{np.std(values):.3f}", f"{np.mean([row['dice'] for row in own]):.3f}"]
        ends = [f"{np.mean([row[f'jacobian_{share}'] for row in own]):.2f}" for share in ("p1", "p99")]
        weights = [f"{w:.3f}" for w in facts.weights] or [""] * len(sigma)
        lines.append((name, *overlaps, *ends, f"{facts.spread:.3f}", str(facts.before or ""), str(facts.folds), *weights))
    return Table(title, header, lines)


def fold_claim(where: str, found: Mapping[str, Facts]) -> Claim:
    """Of the maps as they were found, before any repair."""
    counts = [facts.before for facts in found.values() if facts.before is not None]
    before = FoldCount().and_of(counts)
    return (f"{where}: no folds before any repair", before.voxels == 0, f"{before} of the maps of {len(counts)} methods")


def overlap_claims(where: str, found: Mapping[str, Facts], learned: Sequence[str], reference: str) -> list[Claim]:
    """That learned metrics beat the global one, and that the reference beats its own mean; needs labels."""
    overlaps = {name: facts.overlap for name, facts in found.items() if facts.overlap is not None}
    if len(overlaps) < len(found):
        return []
    bar = max(overlaps[name] for name in (GLOBAL, LONG) if name in overlaps)
    globally = ", ".join(f"{name} {overlaps[name]:.3f}" for name in (GLOBAL, LONG) if name in overlaps)
    return [
        (
            f"{where}: every learned metric beats the global one, also with as many iterations",
            all(overlaps[name] > bar for name in learned),
            f"{', '.join(f'{name} {overlaps[name]:.3f}' for name in learned)}; {globally}; affine {overlaps[AFFINE]:.3f}",
        ),
        (
            f"{where}: {reference} beats the mean of its own weights, the same everywhere",
            overlaps[reference] > overlaps[CONSTANT],
            f"{overlaps[reference]:.3f} and {overlaps[CONSTANT]:.3f}",
        ),
    ]
