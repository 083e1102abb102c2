"""What is written of an evaluation: one row per pair and method, tables shaped like the paper's, a box plot, a page."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from metreg.core.grid import Array
from metreg.io.atomic import atomic_file, atomic_write
from metreg.measure.regularity import FoldCount
from metreg.measure.statistics import Comparison, compare, describe
from metreg.report.boxes import method_boxes
from metreg.report.page import Card, Section, png, render
from metreg.report.tables import SHARES, Table, jacobian_table, overlap_table, published_row
from metreg.settings.model import Settings

NAMES = frozenset(
    [
        "results.csv",
        "overlap.csv",
        "overlap.md",
        "overlap.tex",
        "jacobian.md",
        "jacobian.tex",
        "cost.md",
        "boxes.png",
        "summary.json",
        "settings.toml",
        "report.html",
        "runs",
        "pages",
    ]
)
"""What an evaluation writes into its folder."""
COLUMNS = (
    *("pair", "moving", "fixed", "method", "labels", "target_overlap", "dice", "landmarks_mm", "folds", "certified"),
    *("folds_before_repair", "smallest_before_repair", "repaired"),
    *("smallest", "jacobian_mean", *[f"jacobian_{share}" for share in SHARES], "jacobian_log_std"),
    *("inverse_mean_mm", "inverse_max_mm", "seconds", "cpu_seconds", "peak_memory_mb", "peak_gpu_memory_mb"),
)
BEFORE_REPAIR = "folds before repair"
"""The column of what `FoldCount` says."""
Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Published:
    """What others found on the same data."""

    overlaps: Mapping[str, Array] = field(default_factory=dict)
    """By method the mean target overlap of the same pairs, in the same order: they are tested and drawn too."""
    overlap_rows: Sequence[Sequence[str]] = ()
    jacobian_rows: Sequence[Sequence[str]] = ()
    """Rows of their tables as they stand there, in the columns of the paper's."""
    note: str = ""


def write_evaluation(
    out: Path,
    rows: Rows,
    settings: Settings,
    *,
    command: str,
    versions: dict[str, str],
    reference: str | None = None,
    published: Published | None = None,
) -> dict[str, Any]:
    """All files of an evaluation but the rows' own. `reference` is tested against the others; by default the best."""
    published = published or Published()
    by_method = _by_method(rows)
    found = compare_overlaps(rows, reference, published) if all("target_overlap" in row for row in rows) else None
    values, compared = (found.values, found.compared) if found else ({}, {})
    best = found.best if found else reference or list(by_method)[-1]
    jacobian = jacobian_table("Jacobian determinant inside the brain, mean(std) over pairs", _jacobians(by_method))
    tables = [_extended(jacobian, published.jacobian_rows), _cost_table(by_method)]
    if found:
        tables.insert(0, found.table)
    summary = {
        "methods": {name: _summary_of(found) for name, found in by_method.items()},
        "reference": best,
        "comparisons": {name: test.__dict__ | {"significant": test.significant} for name, test in compared.items()},
        "pairs": len(by_method[best]),
        "versions": versions,
        "command": command,
        "settings": settings.model_dump(mode="json"),
    }
    _write_rows(out, rows)
    for name, table in zip(("overlap", "jacobian", "cost") if values else ("jacobian", "cost"), tables, strict=True):
        atomic_write(out / f"{name}.md", table.markdown())
        if name != "cost":
            atomic_write(out / f"{name}.tex", table.latex())
    atomic_write(out / "settings.toml", settings.to_toml())
    atomic_write(out / "summary.json", json.dumps(summary, indent=2) + "\n")
    sections = [Section("Regularity and cost", tables[-2:])]
    if values:
        figure = method_boxes(values, best)
        atomic_write(out / "boxes.png", png(figure))
        note = f"{tables[0].note} {published.note}".strip()
        sections.insert(0, Section("Target overlap", [figure, tables[0]], note))
    sections.append(Section(f"The worst pairs of {best}", [_worst_table(out, by_method[best])], "Each leads to its page."))
    page = render(
        "Evaluation",
        f"{len(by_method)} methods on {len(by_method[best])} pairs.",
        sections,
        cards=_cards(by_method, values, best, compared),
        settings=settings.to_toml(),
        command=command,
        versions=versions,
    )
    atomic_write(out / "report.html", page)
    return summary


@dataclass(frozen=True)
class Overlaps:
    """The mean target overlap of every pair by method, the tests of the best (or a reference), and the table of it all."""

    values: dict[str, Array]
    best: str
    compared: dict[str, Comparison]
    table: Table


def compare_overlaps(rows: Rows, reference: str | None = None, published: Published | None = None) -> Overlaps:
    """Of rows that have overlaps, with what others published."""
    published = published or Published()
    by_method = _by_method(rows)
    values = {name: np.array([row["target_overlap"] for row in found]) for name, found in by_method.items()}
    best = reference or max(values, key=lambda name: float(values[name].mean()))
    subjects = [tuple(row["subjects"]) for row in by_method[best]]
    values |= published.overlaps
    others = {name: found for name, found in values.items() if name != best}
    compared = compare(values[best], others, subjects) if len(subjects) > 1 else {}
    own = overlap_table("Mean target overlap of every pair", values, compared, best)
    table = _extended(own, [published_row(row) for row in published.overlap_rows])
    return Overlaps(values, best, compared, table)


def _by_method(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    return {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(row["method"] for row in rows)}


def _extended(table: Table, rows: Sequence[Sequence[str]]) -> Table:
    """The table with further rows, whose last columns may be wanting."""
    filled = [(*row, *["-"] * (len(table.header) - len(row))) for row in rows]
    return replace(table, rows=[*table.rows, *filled])


def _write_rows(out: Path, rows: Rows) -> None:
    with atomic_file(out / "results.csv", overwrite=True) as path, path.open("w", newline="", encoding="utf-8") as file:
        present = [name for name in COLUMNS if any(name in row for row in rows)]
        writer = csv.DictWriter(file, present, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    with atomic_file(out / "overlap.csv", overwrite=True) as path, path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["pair", "method", "label", "name", "target_overlap", "dice"])
        for row in rows:
            lines.writerows([row["pair"], row["method"], *label.values()] for label in row["by_label"])


def _jacobians(by_method: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, float]]]:
    keys = ("mean", *SHARES, "log_std")
    return {name: [{key: row[f"jacobian_{key}"] for key in keys} for row in rows] for name, rows in by_method.items()}


def _summary_of(rows: Rows) -> dict[str, Any]:
    counted = ("certified", "folds", "folds_before_repair", "repaired")
    numbers = [name for name in COLUMNS[4:] if name not in counted and all(name in row for row in rows)]
    before = FoldCount.of_rows(rows)
    return {
        **{name: describe(np.array([row[name] for row in rows], dtype=float)) for name in numbers},
        "folds": sum(row["folds"] for row in rows),
        **({} if before is None else {"before_repair": before._asdict()}),
        "certified": sum(bool(row["certified"]) for row in rows),
    }


def _cost_table(by_method: dict[str, list[dict[str, Any]]]) -> Table:
    columns = {
        "dice": ("Dice", ".3f"),
        "landmarks_mm": ("landmarks (mm)", ".3f"),
        "inverse_mean_mm": ("inverse error (mm)", ".4f"),
        "seconds": ("seconds", ".1f"),
        "cpu_seconds": ("CPU seconds", ".1f"),
        "peak_memory_mb": ("memory (MiB)", ".0f"),
        "peak_gpu_memory_mb": ("GPU memory (MiB)", ".0f"),
    }
    present = [name for name in columns if any(name in row for rows in by_method.values() for row in rows)]
    header = ["method", BEFORE_REPAIR, "folds", "certified pairs", *[columns[name][0] for name in present]]
    with_intensities = any("intensities" in row for rows in by_method.values() for row in rows)
    if with_intensities:
        header.append("intensities")
    lines = []
    for name, rows in by_method.items():
        cells = [
            name,
            str(FoldCount.of_rows(rows) or ""),
            str(sum(row["folds"] for row in rows)),
            f"{sum(bool(row['certified']) for row in rows)} of {len(rows)}",
        ]
        for column in present:
            found = [row[column] for row in rows if column in row]
            cells.append(format(float(np.mean(found)), columns[column][1]) if found else "")
        if with_intensities:
            cells.append(", ".join(dict.fromkeys(row["intensities"] for row in rows if "intensities" in row)))
        lines.append(cells)
    title = "Folds by the strict test in all pairs (before repair: voxels, pairs, smallest determinant); means over pairs"
    return Table(title, header, lines)


def _worst_table(out: Path, rows: Rows, count: int = 5) -> Table:
    ranked = sorted(rows, key=badness)[:count]
    lines, links = [], {}
    for row in ranked:
        name = f"{row['pair']}: {Path(row['moving']).name} to {Path(row['fixed']).name}"
        page = Path("pages") / row["method"] / f"{row['pair']:04d}.html"
        if (out / page).is_file():
            links[name] = page.as_posix()
        overlap = f"{row['target_overlap']:.3f}" if "target_overlap" in row else ""
        lines.append((name, overlap, f"{row['jacobian_p1']:.2f}", f"{row['jacobian_p99']:.2f}", str(row["folds"])))
    header = ("pair", "target overlap", "determinant, 1%", "determinant, 99%", "folds")
    return Table("", header, lines, links=links)


def _cards(
    by_method: dict[str, list[dict[str, Any]]], values: dict[str, Array], best: str, compared: Mapping[str, Comparison]
) -> list[Card]:
    rows = by_method[best]
    folds = sum(row["folds"] for row in rows)
    before = FoldCount.of_rows(rows)
    said = str(folds) if before is None else f"{folds}, {before.voxels} before repair"
    cards = [Card("pairs", str(len(rows))), Card(f"folds of {best}", said, folds == 0)]
    if values:
        cards.insert(1, Card(f"mean target overlap of {best}", f"{values[best].mean():.3f}"))
    if compared:
        next_best = max(compared, key=lambda name: float(values[name].mean()))
        test = compared[next_best]
        interval = "" if test.low is None or test.high is None else f" ({test.low:+.3f} to {test.high:+.3f} by person)"
        cards.insert(2, Card(f"{best} less {next_best}", f"{test.difference:+.3f}{interval}"))
    return cards


def badness(row: dict[str, Any]) -> float:
    """Worst first when sorted by it: the overlap, or without labels how uneven the determinants are."""
    return float(row.get("target_overlap", -row["jacobian_log_std"]))
