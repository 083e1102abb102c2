"""Draw how the cost of an iteration grows, from what `metreg bench pair -o RESULT.json` wrote:

python benchmarks/plot.py FIGURE.png RESULT.json ...
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from metreg.report.page import png
from metreg.report.plots import COLOURS

WHAT = {"voxels": "voxels of an image", "batch": "pairs at once", "gaussians": "Gaussians", "steps": "RK4 steps"}


def draw(results: list[dict[str, Any]]) -> Figure:
    """One panel for each thing that is varied, medians with quartiles; dotted: in proportion to the largest."""
    figure = Figure(figsize=(14, 3.8), layout="constrained")
    for axis, (what, title) in zip(figure.subplots(1, len(WHAT), sharey=True), WHAT.items(), strict=True):
        for result, colour in zip(results, COLOURS, strict=False):
            rows = result["growth"][what]
            x, y = [row[what] for row in rows], [row["median"] for row in rows]
            spread = [[row["median"] - row["low"] for row in rows], [row["high"] - row["median"] for row in rows]]
            axis.errorbar(x, y, spread, marker="o", color=colour, capsize=3, label=name_of(result))
            axis.plot(x, [y[-1] * each / x[-1] for each in x], color=colour, linestyle=":")
        axis.set(xscale="log", yscale="log", xlabel=title)
        ticks = sorted({row[what] for result in results for row in result["growth"][what]})
        axis.set_xticks(ticks, [f"{tick:g}" if tick < 1000 else f"{tick ** (1 / 3):.0f}³" for tick in ticks])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
        axis.grid(color="0.9")
    figure.axes[0].set_ylabel("milliseconds for one iteration")
    figure.axes[-1].legend(loc="lower right")
    return figure


def name_of(result: dict[str, Any]) -> str:
    return result["machine"] if result["device"] == "cuda" else f"CPU, {result['threads']} threads"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", type=Path)
    parser.add_argument("results", type=Path, nargs="+")
    given = parser.parse_args()
    given.figure.write_bytes(png(draw([json.loads(path.read_text(encoding="utf-8")) for path in given.results])))
