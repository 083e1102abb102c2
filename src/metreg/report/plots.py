"""Figures of a result: one function each, each returns the figure. `metreg.plots.panel(result)` in a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from metreg.evaluate.overlap import Overlap
from metreg.grid import Array
from metreg.report.planes import Cut, Plane, Shown

BLUE, RED, GREEN, PINK, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, RED, GREEN, PINK, ORANGE, SKY)
"""Told apart by colour-blind readers too."""
LETTER, LETTERS = 0.07, 36
"""Inches that a letter of a label's name takes, and the most that are shown of one."""


class Registered(Shown, Protocol):
    """What the figures below want of a result."""

    @property
    def brain_jacobian(self) -> Array: ...
    @property
    def overlaps(self) -> dict[str, Overlap]: ...
    @property
    def label_names(self) -> dict[int, str]: ...


def panel(result: Shown) -> Figure:
    """For every plane: fixed, moving before and after, the warped grid, the Jacobian determinant, and sigma(x)."""
    planes = result.planes
    titles = ["fixed", "moving, before", "moving, after", "warped grid", "log2 of the determinant"]
    local = all(plane.sigma is not None for plane in planes)
    titles += ["sigma(x) in mm"] if local else []
    figure, grid = _figure(planes, len(titles))
    spread = max(0.1, *[float(np.abs(np.log2(plane.jacobian.clip(0.06, 16))).max()) for plane in planes])
    sigmas = [plane.sigma for plane in planes if plane.sigma is not None]
    low, high = (_least(sigmas), _most(sigmas)) if local else (0.0, 1.0)
    for axes, plane in zip(grid, planes, strict=True):
        for axis, image in zip(axes, (plane.fixed, plane.before, plane.after), strict=False):
            show_image(axis, image, plane)
        show_grid(axes[3], plane)
        log = np.log2(plane.jacobian.clip(2**-spread, 2**spread))
        shown = axes[4].imshow(log, cmap="PuOr", vmin=-spread, vmax=spread, aspect=plane.aspect)
        figure.colorbar(shown, ax=axes[4], shrink=0.85)
        if plane.sigma is not None and local:
            shown = axes[5].imshow(plane.sigma, cmap="viridis", vmin=low, vmax=high, aspect=plane.aspect)
            figure.colorbar(shown, ax=axes[5], shrink=0.85, label="mm")
        for axis in axes:
            mark_sides(axis, plane.cut)
        name_row(axes[0], plane.cut.name)
    for axis, title in zip(grid[0], titles, strict=True):
        axis.set_title(title)
    return figure


def metric_maps(result: Shown, titles: Sequence[str] = ()) -> Figure:
    """For every plane sigma(x) and the weights of the Gaussians, over the source; every column has its own scale."""
    planes = [plane for plane in result.planes if plane.sigma is not None and plane.weights is not None]
    layers = [np.concatenate([np.asarray(plane.sigma)[None], np.asarray(plane.weights)]) for plane in planes]
    columns = len(layers[0])
    figure, grid = _figure(planes, columns)
    low, high = (np.array([ends([layer[i] for layer in layers]) for i in range(columns)]) for ends in (_least, _most))
    high = np.maximum(high, low + 1e-3)
    for row, (axes, plane, layer) in enumerate(zip(grid, planes, layers, strict=True)):
        for i, axis in enumerate(axes):
            show_image(axis, plane.before, plane)
            shown = axis.imshow(layer[i], cmap="viridis", vmin=low[i], vmax=high[i], alpha=0.6, aspect=plane.aspect)
            mark_sides(axis, plane.cut)
            if row == 0:
                unit = "mm" if i == 0 else "weight"
                figure.colorbar(shown, ax=grid[:, i], shrink=0.6, location="bottom", ticks=MaxNLocator(3), label=unit)
        name_row(axes[0], plane.cut.name)
    for axis, title in zip(
        grid[0], ["sigma(x) in mm", *(titles or [f"weight {i}" for i in range(1, columns)])], strict=True
    ):
        axis.set_title(title)
    return figure


def _least(layers: Sequence[Array]) -> float:
    return min(float(layer.min()) for layer in layers)


def _most(layers: Sequence[Array]) -> float:
    return max(float(layer.max()) for layer in layers)


def jacobian_histogram(result: Registered) -> Figure:
    """How often which Jacobian determinant occurs inside the brain, on a logarithmic scale."""
    det = result.brain_jacobian
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    axis = figure.subplots()
    log = np.log2(det.clip(2.0**-6, 2.0**6))
    edge = max(0.25, float(np.abs(log).max()))
    axis.hist(log, bins=np.linspace(-edge, edge, 121).tolist(), color=BLUE)
    axis.axvline(0, color="0.4", linewidth=0.8)
    for share, at in zip(("1 %", "99 %"), np.percentile(log, (1, 99)), strict=True):
        axis.axvline(at, color=RED, linewidth=0.9, linestyle="--")
        axis.annotate(share, (at, 0.9), xycoords=("data", "axes fraction"), color=RED, ha="left" if at > 0 else "right")
    axis.set_xlabel("log2 of the determinant, fixed to moving points: at 1, moving tissue is pressed into half its volume")
    axis.set_ylabel("voxels")
    return figure


def overlap_bars(result: Registered, column: int = 45) -> Figure:
    """Target overlap of every structure before and after, the best first, in columns of so many."""
    before, after = result.overlaps["before"], result.overlaps["after"]
    order = np.argsort(after.target_overlap)[::-1]
    parts = np.array_split(order, max(1, -(-len(order) // column)))
    width, height = max(9, 5.4 * len(parts)), 0.9 + 0.17 * len(parts[0])
    figure = Figure(figsize=(width, height))
    names_of = [[_short(result.label_names.get(after.labels[i]) or str(after.labels[i])) for i in part] for part in parts]
    beside = 0.3 + LETTER * max(len(name) for names in names_of for name in names)  # inches, to the left of each column
    place = {"left": beside / width, "right": 1 - 0.15 / width, "bottom": 0.55 / height, "top": 1 - 0.1 / height}
    figure.subplots_adjust(**place, wspace=(beside + 0.1) / max(1.0, (width - beside) / len(parts) - beside))
    for axis, part, names in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, names_of, strict=True):
        rows = np.arange(len(part))
        axis.barh(rows, [after.target_overlap[i] for i in part], color=BLUE, height=0.75, label="after")
        axis.scatter([before.target_overlap[i] for i in part], rows, color=RED, s=10, zorder=3, label="before (affine)")
        axis.set_yticks(rows, names, fontsize=8)
        axis.set_ylim(len(parts[0]) - 0.3, -0.7)
        axis.set_xlim(0, 1)
        axis.set_xlabel("target overlap")
        axis.grid(axis="x", color="0.9")
        axis.set_axisbelow(True)
    axis.legend(loc="lower right")
    return figure


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"


def energy_curves(history: Sequence[tuple[int, dict[str, float]]], unit: str = "iteration") -> Figure:
    """Energy by term over iterations, or another `unit`; levels or stages are set apart. `history` holds (level, terms)."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axis = figure.subplots()
    names = [name for name in (history[0][1] if history else ()) if any(terms[name] for _, terms in history)]
    for name, colour in zip(names, COLOURS, strict=False):
        axis.plot([terms[name] for _, terms in history], label=name, color=colour)
    for i in range(1, len(history)):
        if history[i][0] != history[i - 1][0]:
            axis.axvline(i - 0.5, color="0.6", linewidth=0.8, linestyle="--")
    axis.set_xlabel(unit)
    axis.set_ylabel("energy")
    axis.set_yscale("symlog", linthresh=0.1)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    axis.margins(y=0.1)
    if names:
        axis.legend(loc="upper right")  # the best place takes long to find
    return figure


def metric_panels(rows: dict[str, Plane], sigma: dict[str, Array], unit: str, *, truth: Array | None = None) -> Figure:
    """For each name a row: source, target, warped, grid and sigma(x), on one scale of sigma; the true one beside it."""
    count = 5 if truth is None else 6
    figure = Figure(figsize=(2.9 * count, 2.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), count, squeeze=False)
    low, high = min(float(f.min()) for f in sigma.values()), max(float(f.max()) for f in sigma.values())
    for axes, (name, plane) in zip(grid, rows.items(), strict=True):
        images = ((plane.before, "source"), (plane.fixed, "target"), (plane.after, "warped source"))
        for axis, (image, title) in zip(axes, images, strict=False):
            show_image(axis, image, plane)
            axis.set_title(title)
        name_row(axes[0], name)
        show_grid(axes[3], plane)
        axes[3].set_title("warped grid")
        shown = axes[4].imshow(sigma[name], cmap="viridis", vmin=low, vmax=high, aspect=plane.aspect)
        axes[4].set_title("sigma(x), learned")
        figure.colorbar(shown, ax=axes[4], shrink=0.8, label=unit)
        if truth is not None:
            shown = axes[5].imshow(truth, cmap="viridis", aspect=plane.aspect)
            axes[5].set_title("sigma(x), true (own scale)")
            figure.colorbar(shown, ax=axes[5], shrink=0.8, label=unit)
    _without_axes(grid.flat)
    return figure


def weight_maps(rows: dict[str, Array], titles: Sequence[str]) -> Figure:
    """The weights (N, rows, columns) of every name side by side, on one scale from 0 to 1."""
    figure = Figure(figsize=(2.5 * len(titles) + 1, 2.4 * len(rows) + 0.4), layout="constrained")
    grid = figure.subplots(len(rows), len(titles), squeeze=False)
    for axes, (name, weights) in zip(grid, rows.items(), strict=True):
        for axis, weight in zip(axes, weights, strict=True):
            shown = axis.imshow(weight, cmap="viridis", vmin=0, vmax=1)
        name_row(axes[0], name)
    for axis, title in zip(grid[0], titles, strict=True):
        axis.set_title(title)
    figure.colorbar(shown, ax=grid, shrink=0.6, label="weight")
    _without_axes(grid.flat)
    return figure


def show_image(axis: Any, image: Array, plane: Plane, alpha: float = 1.0) -> None:
    axis.imshow(image, cmap="gray", vmin=0, vmax=1, alpha=alpha, aspect=plane.aspect)


def show_grid(axis: Any, plane: Plane) -> None:
    """The source's straight grid lines as the map bends them: level sets of the rows and columns points come from."""
    show_image(axis, plane.after, plane, alpha=0.4)
    rows, columns = plane.after.shape
    step = max(2, min(rows, columns) // 32)
    for coordinate, count in zip(plane.positions, (rows, columns), strict=True):
        axis.contour(coordinate, levels=np.arange(0, count, step), colors=BLUE, linewidths=0.6)


def mark_sides(axis: Any, cut: Cut) -> None:
    """The letters of the patient's sides at the picture's edges."""
    places = [(0.02, 0.5, "left", "center"), (0.98, 0.5, "right", "center")]
    places += [(0.5, 0.98, "center", "top"), (0.5, 0.02, "center", "bottom")]
    for letter, (x, y, across, along) in zip(cut.letters, places, strict=True):
        text = axis.text(x, y, letter, transform=axis.transAxes, ha=across, va=along, color="white", fontsize=8)
        text.set_bbox({"facecolor": "black", "alpha": 0.5, "pad": 0.8, "edgecolor": "none"})
        text.set_visible(bool(letter))
        text.set_in_layout(False)  # it lies inside


def _figure(planes: Sequence[Plane], columns: int) -> tuple[Figure, Array]:
    """A row for every plane, as high as its picture wants to be, and `columns` columns."""
    shapes = [(plane.fixed.shape[0] * plane.pixel_mm[0], plane.fixed.shape[1] * plane.pixel_mm[1]) for plane in planes]
    heights = [min(1.6, max(0.5, high / wide)) for high, wide in shapes] or [1.0]
    width = 15 / max(columns, 4)
    figure = Figure(figsize=(width * columns, 0.9 * width * sum(heights) + 0.5), layout="constrained")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    _without_axes(grid.flat)
    return figure, grid


def name_row(axis: Any, name: str) -> None:
    """To the left of a row of pictures."""
    axis.text(-0.03, 0.5, name, transform=axis.transAxes, rotation=90, ha="right", va="center")


def _without_axes(axes: Iterable[Any]) -> None:
    """Pictures need none, and they take long to draw."""
    for axis in axes:
        axis.set_axis_off()
