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


def middle_slice(source: Array, target: Array, warped: Array, jacobian: Array, *, shift: Array, affine: Array) -> Slice:
    """The middle axial slice of 3-D arrays (*S), or 2-D arrays whole, turned to the radiological view.

    `shift` (D, *S) is the displacement of the map in voxels along the array's axes.
    """
    import nibabel as nib

    dim = source.ndim
    here = nib.io_orientation(affine)
    turn = nib.orientations.ornt_transform(here, np.array([[0, -1], [1, -1], [2, 1]][:dim], dtype=float))

    def view(f: Array) -> Array:
        turned = nib.orientations.apply_orientation(f, turn)
        return (turned if dim == 2 else turned[:, :, turned.shape[2] // 2]).T

    axes = [int(np.flatnonzero(turn[:, 0] == world)[0]) for world in (1, 0)]  # rows run along y, columns along x
    moved = [view(shift[axis]) * turn[axis, 1] for axis in axes]
    index = np.indices(moved[0].shape)
    return Slice(view(source), view(target), view(warped), view(jacobian), np.stack(moved) + index)


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
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def sigma_maps(source: Array, maps: dict[str, Array], unit: str) -> Figure:
    """A source and sigma(x) on it, one map for each name, each with its own scale."""
    figure = Figure(figsize=(3.2 * (len(maps) + 1), 3.4), layout="constrained")
    axes = figure.subplots(1, len(maps) + 1)
    axes[0].imshow(source, cmap="gray", vmin=0, vmax=1)
    axes[0].set_title("source")
    for axis, (name, sigma) in zip(axes[1:], maps.items(), strict=True):
        shown = axis.imshow(sigma, cmap="viridis")
        axis.set_title(name)
        figure.colorbar(shown, ax=axis, shrink=0.85, label=f"sigma ({unit})")
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
    return figure


def error_boxes(errors: dict[str, dict[str, Array]]) -> Figure:
    """Displacement errors in pixels over pairs: a box for every method, a panel for every region."""
    regions = list(next(iter(errors.values())))
    figure = Figure(figsize=(2 + 1.1 * len(errors) * len(regions), 3.6), layout="constrained")
    axes = figure.subplots(1, len(regions), sharey=True)
    for axis, region in zip(axes, regions, strict=True):
        axis.boxplot([found[region] for found in errors.values()], tick_labels=list(errors), widths=0.6)
        axis.set_title(region)
        axis.set_ylabel("displacement error (px)")
        axis.tick_params(axis="x", rotation=30)
    axes[0].set_ylim(bottom=0)
    return figure


def _draw_grid(axis: Any, positions: Array) -> None:
    """The source's straight grid lines as the map bends them: level sets of the rows and columns points come from."""
    rows, columns = positions[0].shape
    step = max(2, min(rows, columns) // 32)
    for coordinate, count in zip(positions, (rows, columns), strict=True):
        axis.contour(coordinate, levels=np.arange(0, count, step), colors="#0072B2", linewidths=0.6)


def energy_curves(history: Sequence[tuple[int, dict[str, float]]]) -> Figure:
    """Energy by term over iterations; levels of the pyramid are set apart. `history` holds (level, terms)."""
    figure = Figure(figsize=(9, 3), layout="constrained")
    axis = figure.subplots()
    names = [name for name in (history[0][1] if history else ()) if any(terms[name] for _, terms in history)]
    for name, colour in zip(names, ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"), strict=False):
        axis.plot([terms[name] for _, terms in history], label=name, color=colour)
    for i in range(1, len(history)):
        if history[i][0] != history[i - 1][0]:
            axis.axvline(i - 0.5, color="0.6", linewidth=0.8, linestyle="--")
    axis.set_xlabel("iteration")
    axis.set_ylabel("energy")
    axis.set_yscale("symlog", linthresh=0.1)
    axis.set_ylim(bottom=0)
    axis.margins(y=0.1)
    if names:
        axis.legend()
    return figure
