"""Points as CSV files, in a frame that is said explicitly."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Literal

import numpy as np

from metreg.core.grid import Array
from metreg.errors import MetregError

Frame = Literal["ras", "lps"]


def read_points(path: Path, frame: Frame, dim: int) -> tuple[Array, list[str], list[list[str]]]:
    """Points (P, D) in RAS from the columns x, y(, z) of a CSV file; also its header and its rows as they are."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MetregError(f"points: cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    names, rows = "xyz"[:dim], [row for _, row in lines]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    if not all(name in header for name in names):
        raise MetregError(f"points: wanted a header line with the columns {', '.join(names)}: {path}")
    columns = [header.index(name) for name in names]
    points = np.empty((len(rows) - 1, dim))
    for i, (number, row) in enumerate(lines[1:]):
        try:
            points[i] = [float(row[c]) for c in columns]
        except (ValueError, IndexError):
            raise MetregError(f"points: line {number} has no {dim} coordinates: {path}") from None
    if not np.isfinite(points).all():
        raise MetregError(f"points: coordinates must be finite numbers: {path}")
    return flip_frame(points, frame), rows[0], rows[1:]


def write_points(path: Path, points: Array, frame: Frame, header: list[str], rows: list[list[str]]) -> None:
    """The same table with new coordinates."""
    columns = [[cell.strip().lower() for cell in header].index(name) for name in "xyz"[: points.shape[1]]]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row, point in zip(rows, flip_frame(points, frame), strict=True):
            cells = list(row)
            for c, value in zip(columns, point, strict=True):
                cells[c] = f"{value:.6f}"
            writer.writerow(cells)


def flip_frame(points: Array, frame: Frame) -> Array:
    """Between RAS and `frame`, either way: LPS has the first two axes the other way round."""
    sign = np.ones(points.shape[-1])
    if frame == "lps":
        sign[:2] = -1
    return points * sign
