"""Settings side by side on labelled pairs that are aligned already: overlap and regularity. See README.md beside this file.

python benchmarks/settings.py pairs.csv "now:" "wide: similarity.window=15" "mean: metric=mean:brain-t1"
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from metreg.core.grid import Array
from metreg.io.image import Image
from metreg.io.images import read_image, read_labels
from metreg.io.tables import PairFiles, read_pairs
from metreg.measure.regularity import jacobian_facts
from metreg.pipeline.register import register

open_scan, open_labels = cache(read_image), cache(read_labels)


def measured(pair: PairFiles, metric: str, preset: str, changes: list[str]) -> list[float]:
    """Of a pair: overlap, Dice, the determinant's 1st percentile and its logarithm's spread, folds before a repair
    and after, certified or not.
    """
    assert pair.moving_labels and pair.fixed_labels, "pairs want labels"
    fixed: Image = open_scan(pair.fixed)
    result = register(
        open_scan(pair.moving),
        fixed,
        metric=metric,
        preset=preset,
        changes=changes,
        moving_labels=open_labels(pair.moving_labels),
        fixed_labels=open_labels(pair.fixed_labels),
        alignment=np.eye(fixed.dim + 1),
    )
    overlap, found = result.overlaps["after"].means(), jacobian_facts(result.brain_jacobian)
    certified = result.certificate.holds and result.inverse_facts["certificate"]["holds"]
    before = result.before_repair["folds"]
    return [overlap["target_overlap"], overlap["dice"], found["p1"], found["log_std"], before, result.folds, certified]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, help="a table of pairs with labels, as metreg evaluate takes it")
    parser.add_argument("variants", nargs="+", help="NAME: CHANGES, the first is what the others are compared with")
    parser.add_argument("--preset", default="brain")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--out", type=Path, help="overlaps of all pairs as JSON")
    given = parser.parse_args()
    pairs, found = read_pairs(given.pairs), {}
    with ProcessPoolExecutor(given.jobs, initializer=torch.set_num_threads, initargs=[1]) as pool:
        for variant in given.variants:
            name, _, text = variant.partition(":")
            changes = dict(word.split("=", 1) for word in text.split())
            metric, start = changes.pop("metric", "brain-t1"), time.perf_counter()
            settings = [f"{key}={value}" for key, value in changes.items()]
            work = partial(measured, metric=metric, preset=given.preset, changes=settings)
            rows: list[list[float]] = []
            for row in pool.map(work, pairs):
                rows.append(row)
                found[name] = [overlap for overlap, *_ in rows]
                if given.out is not None:
                    given.out.write_text(json.dumps(found), encoding="utf-8")
            line = told(name, np.array(rows), np.array(next(iter(found.values()))))
            print(f"{line}; {time.perf_counter() - start:.0f} s", flush=True)  # noqa: T201


def told(name: str, rows: Array, first: Array) -> str:
    """A line on one variant, beside the overlaps of the first."""
    gain = rows[:, 0] - first
    ratio = gain.mean() / max(gain.std(ddof=1) / len(gain) ** 0.5, 1e-12) if len(gain) > 1 else 0.0
    overlap, dice, low, spread = rows[:, :4].mean(0)
    return (
        f"{name}: overlap {overlap:.4f} ({gain.mean():+.4f}, {ratio:+.1f} standard errors), Dice {dice:.4f}, determinant, "
        f"1 %: {low:.3f}, std of its logarithm {spread:.3f}, {rows[:, 4].sum():.0f} folds before a "
        f"repair, {rows[:, 5].sum():.0f} after, {rows[:, 6].sum():.0f} of {len(rows)} certified"
    )


if __name__ == "__main__":
    main()
