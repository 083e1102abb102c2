"""Settings side by side on labelled pairs that are aligned already: overlap and regularity. See README.md beside this file.

python benchmarks/settings.py pairs.csv "now:" "wide: similarity.window=15" "mean: metric=mean:brain-t1"
"""

from __future__ import annotations

import argparse
import json
import time
from functools import cache
from pathlib import Path

import numpy as np

from metreg.data.datasets import PairFiles, read_pairs
from metreg.data.formats import Image
from metreg.data.io import read_image, read_labels
from metreg.evaluate.regularity import jacobian_facts
from metreg.pipeline import register

open_scan, open_labels = cache(read_image), cache(read_labels)


def measured(pair: PairFiles, metric: str, preset: str, changes: list[str]) -> tuple[float, float, float]:
    """Target overlap, 1st percentile of the determinant and standard deviation of its logarithm of one pair."""
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
    found = jacobian_facts(result.brain_jacobian)
    return result.overlaps["after"].means()["target_overlap"], found["p1"], found["log_std"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path, help="a table of pairs with labels, as metreg evaluate takes it")
    parser.add_argument("variants", nargs="+", help="NAME: CHANGES, the first is what the others are compared with")
    parser.add_argument("--preset", default="brain")
    parser.add_argument("--out", type=Path, help="overlaps of all pairs as JSON")
    given = parser.parse_args()
    pairs, found = read_pairs(given.pairs), {}
    for variant in given.variants:
        name, _, text = variant.partition(":")
        changes = dict(word.split("=", 1) for word in text.split())
        metric, start = changes.pop("metric", "brain-t1"), time.perf_counter()
        settings = [f"{key}={value}" for key, value in changes.items()]
        rows = np.array([measured(pair, metric, given.preset, settings) for pair in pairs])
        found[name] = rows[:, 0].tolist()
        gain = rows[:, 0] - np.array(next(iter(found.values())))
        ratio = gain.mean() / max(gain.std(ddof=1) / len(gain) ** 0.5, 1e-12) if len(gain) > 1 else 0.0
        overlap, low, spread = rows.mean(0)
        print(  # noqa: T201
            f"{name}: overlap {overlap:.4f} ({gain.mean():+.4f}, {ratio:+.1f} standard errors), determinant, 1 %: "
            f"{low:.3f}, std of its logarithm {spread:.3f}; {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        if given.out is not None:
            given.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
