"""Pictures in rows and columns, on one pair of axes in inches: to make and to draw axes for every picture takes long."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from metreg.core.grid import Array
from metreg.report.planes import Cut, Plane

WIDTH, FEWEST = 15.0, 4
"""Inches across, and the least number of columns that share them."""
GAP, NAME, TITLE, SCALE = 0.07, 0.3, 0.34, 0.42
"""Inches: between pictures, left of them for the names of rows, above them for titles, below them for scales."""


class Sheet:
    """A figure with a row of pictures for each of `sizes`, height and width of those in it, in any unit."""

    def __init__(self, sizes: Sequence[tuple[float, float]], titles: Sequence[str]) -> None:
        self.sizes = sizes
        self.width = WIDTH / max(len(titles), FEWEST) - GAP
        self.heights = [self.width * min(1.6, max(0.5, high / wide)) for high, wide in sizes]
        across = NAME + len(titles) * (self.width + GAP)
        self.bottom = TITLE + sum(self.heights) + GAP * len(sizes)
        down = self.bottom + SCALE
        self.figure = Figure(figsize=(across, down))
        self.axes = self.figure.add_axes((0, 0, 1, 1))
        self.axes.set_axis_off()
        self.axes.set(xlim=(0, across), ylim=(down, 0), autoscale_on=False)
        for column, title in enumerate(titles):
            self.axes.text(
                self._left(column) + self.width / 2,
                TITLE - 0.08,
                title,
                ha="center",
                va="bottom",
                fontsize=12,
                parse_math=False,
            )

    @classmethod
    def of(cls, planes: Sequence[Plane], titles: Sequence[str]) -> Sheet:
        """A row for every plane."""
        pixels = [(plane.fixed.shape, plane.pixel_mm) for plane in planes]
        return cls([(n[0] * size[0], n[1] * size[1]) for n, size in pixels], titles)

    def name(self, row: int, name: str) -> None:
        """Of a row, on its left."""
        middle = self._top(row) + self.heights[row] / 2
        self.axes.text(NAME - 0.08, middle, name, rotation=90, ha="right", va="center", parse_math=False)

    def show(
        self, at: tuple[int, int], values: Array, colours: str = "gray", low: float = 0, high: float = 1, alpha: float = 1
    ) -> None:
        """A picture (rows, columns) in a row and a column, over what is there already."""
        x, y, wide, tall = self._box(at)
        extent = (x, x + wide, y + tall, y)
        self.axes.imshow(values, cmap=colours, vmin=low, vmax=high, alpha=alpha, extent=extent, aspect="auto")

    def lines(self, at: tuple[int, int], values: Array, levels: Array, colour: str) -> None:
        """Where the values (rows, columns) have certain levels."""
        x, y, wide, high = self._box(at)
        rows, columns = values.shape
        along, down = x + wide * (np.arange(columns) + 0.5) / columns, y + high * (np.arange(rows) + 0.5) / rows
        self.axes.contour(along, down, values, levels=levels, colors=colour, linewidths=0.6)

    def letters(self, at: tuple[int, int], cut: Cut) -> None:
        """Those of the patient's sides, at the picture's edges."""
        x, y, wide, high = self._box(at)
        places = [(0.02, 0.5, "left", "center"), (0.98, 0.5, "right", "center")]
        places += [(0.5, 0.02, "center", "top"), (0.5, 0.98, "center", "bottom")]
        back = {"facecolor": "black", "alpha": 0.5, "pad": 0.8, "edgecolor": "none"}
        for letter, (a, b, across, along) in zip(cut.letters, places, strict=True):
            if letter:
                place = (x + a * wide, y + b * high)
                self.axes.text(*place, letter, ha=across, va=along, color="white", fontsize=8, bbox=back)

    def scale(self, column: int, colours: str, low: float, high: float, alpha: float = 1, unit: str = "") -> None:
        """What the colours of a column mean, below it."""
        x, wide = self._left(column) + 0.15 * self.width, 0.7 * self.width
        shades = np.linspace(0, 1, 256)[None]
        extent = (x, x + wide, self.bottom + 0.14, self.bottom + 0.02)
        self.axes.imshow(shades, cmap=colours, vmin=0, vmax=1, alpha=alpha, extent=extent, aspect="auto")
        self.axes.text(x - 0.05, self.bottom + 0.08, unit, ha="right", va="center", fontsize=8)
        for tick in MaxNLocator(3).tick_values(low, high):
            if low <= tick <= high:
                place = x + wide * (tick - low) / max(high - low, 1e-30)
                self.axes.text(place, self.bottom + 0.17, f"{tick:g}", ha="center", va="top", fontsize=9)

    def _left(self, column: int) -> float:
        return NAME + column * (self.width + GAP)

    def _top(self, row: int) -> float:
        return TITLE + sum(self.heights[:row]) + GAP * row

    def _box(self, at: tuple[int, int]) -> tuple[float, float, float, float]:
        """Left, top, width and height of a picture: as large as its cell lets it be."""
        row, column = at
        high, wide = self.sizes[row]
        scale = min(self.width / wide, self.heights[row] / high)
        wide, high = scale * wide, scale * high
        return self._left(column) + (self.width - wide) / 2, self._top(row) + (self.heights[row] - high) / 2, wide, high
