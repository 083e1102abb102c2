"""Figures of a result: one function each, each returns the figure. `metreg.plots.panel(result)` in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from metreg.core.grid import Array
from metreg.measure.overlap import Overlap
from metreg.report.planes import Plane, Shown
from metreg.report.sheet import Sheet

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
    sigmas = [plane.sigma for plane in planes if plane.sigma is not None]
    sheet = Sheet.of(planes, [*titles, "sigma(x) in mm"] if sigmas else titles)
    spread = max(0.1, *[float(np.abs(np.log2(plane.jacobian.clip(0.06, 16))).max()) for plane in planes])
    low, high = _ends(sigmas)
    for row, plane in enumerate(planes):
        for column, image in enumerate((plane.fixed, plane.before, plane.after)):
            sheet.show((row, column), image)
        show_grid(sheet, (row, 3), plane)
        sheet.show((row, 4), np.log2(plane.jacobian.clip(2**-spread, 2**spread)), "PuOr", -spread, spread)
        if plane.sigma is not None:
            sheet.show((row, 5), plane.sigma, "viridis", low, high)
        sheet.letters((row, 0), plane.cut)
        sheet.name(row, plane.cut.name)
    sheet.scale(4, "PuOr", -spread, spread)
    if sigmas:
        sheet.scale(5, "viridis", low, high)
    return sheet.figure


def metric_maps(result: Shown, titles: Sequence[str] = ()) -> Figure:
    """For every plane sigma(x) and the weights of the Gaussians, over the source; every column has its own scale."""
    planes = [plane for plane in result.planes if plane.sigma is not None and plane.weights is not None]
    layers = [np.concatenate([np.asarray(plane.sigma)[None], np.asarray(plane.weights)]) for plane in planes]
    columns = len(layers[0])
    sheet = Sheet.of(planes, ["sigma(x) in mm", *(titles or [f"weight {i}" for i in range(1, columns)])])
    for i in range(columns):
        low, high = _ends([layer[i] for layer in layers])
        for row, (plane, layer) in enumerate(zip(planes, layers, strict=True)):
            sheet.show((row, i), plane.before)
            sheet.show((row, i), layer[i], "viridis", low, high, alpha=0.6)
        sheet.scale(i, "viridis", low, high, alpha=0.6)
    for row, plane in enumerate(planes):
        sheet.letters((row, 0), plane.cut)
        sheet.name(row, plane.cut.name)
    return sheet.figure


def _ends(layers: Sequence[Array]) -> tuple[float, float]:
    """The least and the largest value of all; not the same, so that rounding is not drawn as if it were something."""
    low = min([float(layer.min()) for layer in layers], default=0.0)
    return low, max([float(layer.max()) for layer in layers] + [low + 1e-3])


def jacobian_histogram(result: Registered) -> Figure:
    """How often which Jacobian determinant occurs inside the brain, on a logarithmic scale."""
    det = result.brain_jacobian
    figure, axis = _plot(2.8)
    log = np.log2(det.clip(2.0**-6, 2.0**6))
    edge = max(0.25, float(np.abs(log).max()))
    axis.stairs(*np.histogram(log, bins=120, range=(-edge, edge)), fill=True, color=BLUE)
    axis.axvline(0, color="0.4", linewidth=0.8)
    for share, at in zip(("1 %", "99 %"), np.percentile(log, (1, 99)), strict=True):
        axis.axvline(at, color=RED, linewidth=0.9, linestyle="--")
        axis.annotate(share, (at, 0.9), xycoords=("data", "axes fraction"), color=RED, ha="left" if at > 0 else "right")
    axis.set_xlabel("log2 of the determinant, fixed to moving points: at 1, moving tissue is pressed into half its volume")
    axis.set_ylabel("voxels")
    return figure


def _plot(height: float) -> tuple[Figure, Axes]:
    """A figure, so many inches high, with room for numbers and names at its axes."""
    figure = Figure(figsize=(9, height))
    return figure, figure.add_axes((0.09, 0.5 / height, 0.9, 1 - 0.7 / height))


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
        axis.hlines(rows, 0, [after.target_overlap[i] for i in part], color=BLUE, linewidth=8, label="after")
        axis.scatter([before.target_overlap[i] for i in part], rows, color=RED, s=10, zorder=3, label="before (affine)")
        axis.set_yticks([])
        for row, name in enumerate(names):  # ticks and bars of their own, one by one, take long to draw
            axis.text(-0.02, row, name, ha="right", va="center", fontsize=8)
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
    figure, axis = _plot(3.0)
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
    titles = ["source", "target", "warped source", "warped grid", "sigma(x), learned"]
    titles += [] if truth is None else ["sigma(x), true (own scale)"]
    sheet = Sheet.of(list(rows.values()), titles)
    low, high = _ends(list(sigma.values()))
    for row, (name, plane) in enumerate(rows.items()):
        for column, image in enumerate((plane.before, plane.fixed, plane.after)):
            sheet.show((row, column), image)
        show_grid(sheet, (row, 3), plane)
        sheet.show((row, 4), sigma[name], "viridis", low, high)
        if truth is not None:
            sheet.show((row, 5), truth, "viridis", *_ends([truth]))
        sheet.name(row, name)
    sheet.scale(4, "viridis", low, high, unit=unit)
    if truth is not None:
        sheet.scale(5, "viridis", *_ends([truth]), unit=unit)
    return sheet.figure


def weight_maps(rows: dict[str, Array], titles: Sequence[str]) -> Figure:
    """The weights (N, rows, columns) of every name side by side, on one scale from 0 to 1."""
    sheet = Sheet([weights.shape[1:] for weights in rows.values()], titles)
    for row, (name, weights) in enumerate(rows.items()):
        for column, weight in enumerate(weights):
            sheet.show((row, column), weight, "viridis")
        sheet.name(row, name)
    for column in range(len(titles)):
        sheet.scale(column, "viridis", 0, 1)
    return sheet.figure


def show_grid(sheet: Sheet, at: tuple[int, int], plane: Plane) -> None:
    """The source's straight grid lines as the map bends them: level sets of the rows and columns points come from."""
    sheet.show(at, plane.after, alpha=0.4)
    rows, columns = plane.after.shape
    step = max(2, min(rows, columns) // 32)
    for coordinate, count in zip(plane.positions, (rows, columns), strict=True):
        sheet.lines(at, coordinate, np.arange(0, count, step), BLUE)
