"""Box plots over many pairs."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from metreg.core.grid import Array
from metreg.report.plots import RED


def error_boxes(errors: dict[str, dict[str, Array]]) -> Figure:
    """Displacement errors in pixels over pairs: a box for every method, a panel for every region."""
    regions = list(next(iter(errors.values())))
    figure = Figure(figsize=(4 + 3.6 * len(regions), 1.2 + 0.32 * len(errors)), layout="constrained")
    axes = figure.subplots(1, len(regions), sharey=True, squeeze=False)[0]
    for axis, region in zip(axes, regions, strict=True):
        boxes = [found[region] for found in errors.values()]
        axis.boxplot(boxes, tick_labels=list(errors), widths=0.6, orientation="horizontal", flierprops={"markersize": 3})
        axis.set_title(region)
        axis.set_xlabel("displacement error (px)")
        axis.set_xlim(left=0)
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
    axes[0].invert_yaxis()
    return figure


def method_boxes(values: dict[str, Array], best: str) -> Figure:
    """Mean target overlap over pairs, a box for every method; the best is red, the dashed line its median."""
    figure = Figure(figsize=(2.4 + 0.75 * len(values), 4.2), layout="constrained")
    axis = figure.subplots()
    boxes = axis.boxplot(list(values.values()), tick_labels=list(values), widths=0.6, flierprops={"markersize": 3})
    axis.axhline(float(np.median(values[best])), color=RED, linewidth=0.9, linestyle="--")
    number = list(values).index(best)
    for part in (boxes["boxes"][number], *boxes["whiskers"][2 * number : 2 * number + 2], boxes["medians"][number]):
        part.set_color(RED)
    axis.set_ylabel("mean target overlap")
    axis.grid(axis="y", color="0.9")
    axis.set_axisbelow(True)
    axis.tick_params(axis="x", rotation=45 if len(values) > 4 else 0)
    return figure
