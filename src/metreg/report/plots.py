"""Figures: one function each, each returns the figure. Radiological view: the patient's right is on the left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from metreg.grid import Array

matplotlib.use("Agg")


@dataclass(frozen=True, eq=False)
class Slice:
    """What the panel shows: 2-D arrays that share voxels, rows down the page."""

    source: Array
    target: Array
    warped: Array
    jacobian: Array
    positions: Array
    """The map in voxels of the slice, (2, rows, columns): row and column from which each voxel was taken."""


def radiological(f: Array, affine: Array) -> Array:
    """The middle axial slice of a 3-D array (*S), or a 2-D array whole, seen from the feet: the patient's right is left."""
    import nibabel as nib

    turned = nib.orientations.apply_orientation(f, _turn(f.ndim, affine))
    return np.asarray((turned if f.ndim == 2 else turned[:, :, turned.shape[2] // 2]).T)


def _turn(dim: int, affine: Array) -> Array:
    """nibabel's orientation from the array's axes to the view's: x to the patient's left, y to the back, z up."""
    import nibabel as nib

    wanted = np.array([[0, -1], [1, -1], [2, 1]][:dim], dtype=float)
    return np.asarray(nib.orientations.ornt_transform(nib.io_orientation(affine), wanted))


def middle_slice(source: Array, target: Array, warped: Array, jacobian: Array, *, shift: Array, affine: Array) -> Slice:
    """What the panel shows of 2-D or 3-D arrays (*S). `shift` (D, *S) is the map's displacement in voxels of the array."""
    turn = _turn(source.ndim, affine)
    axes = [int(np.flatnonzero(turn[:, 0] == world)[0]) for world in (1, 0)]  # rows run along y, columns along x
    moved = np.stack([radiological(shift[axis], affine) * turn[axis, 1] for axis in axes])
    views = {"source": source, "target": target, "warped": warped, "jacobian": jacobian}
    return Slice(
        **{name: radiological(f, affine) for name, f in views.items()}, positions=moved + np.indices(moved[0].shape)
    )


def panel(slices: Slice) -> Figure:
    """Source, target, warped, deformed grid and Jacobian determinant side by side."""
    figure = Figure(figsize=(15, 3.6), layout="constrained")
    axes = figure.subplots(1, 5)
    images = ((slices.source, "source (moving)"), (slices.target, "target (fixed)"), (slices.warped, "warped"))
    for axis, (image, name) in zip(axes, images, strict=False):
        axis.imshow(image, cmap="gray", vmin=0, vmax=1)
        axis.set_title(name)
    axes[3].imshow(slices.warped, cmap="gray", vmin=0, vmax=1, alpha=0.4)
    _draw_grid(axes[3], slices.positions)
    axes[3].set_title("the source's grid, warped")
    spread = max(0.1, float(np.abs(np.log2(slices.jacobian.clip(0.06, 16))).max()))
    shown = axes[4].imshow(np.log2(slices.jacobian.clip(2**-spread, 2**spread)), cmap="PuOr", vmin=-spread, vmax=spread)
    axes[4].set_title("log2 of the Jacobian determinant")
    figure.colorbar(shown, ax=axes[4], shrink=0.85)
    _without_ticks(axes)
    return figure


def metric_panels(rows: dict[str, Slice], sigma: dict[str, Array], unit: str, *, truth: Array | None = None) -> Figure:
    """For each name a row: source, target, warped, grid and sigma(x), on one scale of sigma; the true one beside it."""
    count = 5 if truth is None else 6
    figure = Figure(figsize=(2.9 * count, 2.9 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), count, squeeze=False)
    low, high = min(float(f.min()) for f in sigma.values()), max(float(f.max()) for f in sigma.values())
    for axes, (name, slices) in zip(grid, rows.items(), strict=True):
        images = ((slices.source, "source"), (slices.target, "target"), (slices.warped, "warped source"))
        for axis, (image, title) in zip(axes, images, strict=False):
            axis.imshow(image, cmap="gray", vmin=0, vmax=1)
            axis.set_title(title)
        axes[0].set_ylabel(name)
        axes[3].imshow(slices.warped, cmap="gray", vmin=0, vmax=1, alpha=0.4)
        _draw_grid(axes[3], slices.positions)
        axes[3].set_title("warped grid")
        shown = axes[4].imshow(sigma[name], cmap="viridis", vmin=low, vmax=high)
        axes[4].set_title("sigma(x), learned")
        figure.colorbar(shown, ax=axes[4], shrink=0.8, label=unit)
        if truth is not None:
            shown = axes[5].imshow(truth, cmap="viridis")
            axes[5].set_title("sigma(x), true")
            figure.colorbar(shown, ax=axes[5], shrink=0.8, label=unit)
    _without_ticks(grid.flat)
    return figure


def weight_maps(rows: dict[str, Array], titles: Sequence[str]) -> Figure:
    """The weights (N, rows, columns) of every name side by side, on one scale from 0 to 1."""
    figure = Figure(figsize=(2.5 * len(titles) + 1, 2.4 * len(rows) + 0.4), layout="constrained")
    grid = figure.subplots(len(rows), len(titles), squeeze=False)
    for axes, (name, weights) in zip(grid, rows.items(), strict=True):
        for axis, weight in zip(axes, weights, strict=True):
            shown = axis.imshow(weight, cmap="viridis", vmin=0, vmax=1)
        axes[0].set_ylabel(name)
    for axis, title in zip(grid[0], titles, strict=True):
        axis.set_title(title)
    figure.colorbar(shown, ax=grid, shrink=0.6, label="weight")
    _without_ticks(grid.flat)
    return figure


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


def _without_ticks(axes: Any) -> None:
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])


def _draw_grid(axis: Any, positions: Array) -> None:
    """The source's straight grid lines as the map bends them: level sets of the rows and columns points come from."""
    rows, columns = positions[0].shape
    step = max(2, min(rows, columns) // 32)
    for coordinate, count in zip(positions, (rows, columns), strict=True):
        axis.contour(coordinate, levels=np.arange(0, count, step), colors="#0072B2", linewidths=0.6)


def energy_curves(history: Sequence[tuple[int, dict[str, float]]], unit: str = "iteration") -> Figure:
    """Energy by term over iterations, or another `unit`; levels or stages are set apart. `history` holds (level, terms)."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axis = figure.subplots()
    names = [name for name in (history[0][1] if history else ()) if any(terms[name] for _, terms in history)]
    for name, colour in zip(names, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"), strict=False):
        axis.plot([terms[name] for _, terms in history], label=name, color=colour)
    for i in range(1, len(history)):
        if history[i][0] != history[i - 1][0]:
            axis.axvline(i - 0.5, color="0.6", linewidth=0.8, linestyle="--")
    axis.set_xlabel(unit)
    axis.set_ylabel("energy")
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_ylim(bottom=0)
    axis.margins(y=0.1)
    if names:
        axis.legend()
    return figure
