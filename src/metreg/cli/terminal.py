"""What the command line shows: progress while it works, a summary at the end."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from metreg.report.tables import Table
    from metreg.solve.registration import Record


def say_what_is_chosen(quiet: bool) -> None:
    """Let what is decided for the user be said, in a line on stderr, unless nothing is to be said."""
    logging.getLogger("metreg").setLevel(logging.WARNING if quiet else logging.INFO)


@contextmanager
def show_iterations(quiet: bool) -> Iterator[Callable[[Record], None]]:
    """A progress bar with level, iteration and each energy term."""
    if quiet or not sys.stderr.isatty():
        yield lambda record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        *(TextColumn("{task.description}"), BarColumn(10), TextColumn("{task.fields[energy]}")),
        *(TimeElapsedColumn(), TextColumn("left at this level:"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading, aligning", total=None, energy="")

        def show(record: Record) -> None:
            if record.iteration == 1:
                progress.reset(task, total=record.iterations)
            terms = "  ".join(f"{name} {value:.4g}" for name, value in record.terms.items() if value)
            progress.update(
                task,
                description=f"level {record.level + 1}/{record.levels}, iteration {record.iteration}",
                completed=record.iteration,
                total=record.iterations,
                energy=terms,
            )

        yield show


@contextmanager
def show_steps(quiet: bool, doing: str) -> Iterator[Callable[[str], None]]:
    """A spinner, and a line for every step that is done; in a log, lines alone."""
    if quiet:
        yield lambda line: None
        return
    if not sys.stderr.isatty():
        yield lambda line: typer.echo(line, err=True)
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(doing):
        yield lambda line: console.print(f"  {line}", highlight=False)


@contextmanager
def show_epochs(
    quiet: bool, epochs: tuple[int, int]
) -> Iterator[tuple[Callable[[str], None], Callable[[dict[str, Any]], None]]]:
    """A bar over the epochs of both stages, with energy by term, pairs per second and time left; in a log, lines."""
    if quiet:
        yield lambda line: None, lambda record: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    from metreg.solve.energy import Energy

    def line_of(record: dict[str, Any]) -> str:
        left = _seconds_left(record, epochs)
        terms = "  ".join(f"{name} {record[name]:.4g}" for name in Energy._fields if record[name])
        return f"{terms}  {record['pairs_per_second']:.3g} pairs/s  {left // 60:.0f}:{left % 60:02.0f} left"

    if not sys.stderr.isatty():

        def log_epoch(record: dict[str, Any]) -> None:
            where = f"stage {record['stage']}, epoch {record['epoch']}/{epochs[record['stage'] - 1]}"
            typer.echo(f"{where}: {line_of(record)}", err=True)

        yield lambda line: None, log_epoch
        return
    columns = (TextColumn("{task.description}"), BarColumn(10), TextColumn("{task.fields[energy]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=sum(epochs), energy="")

        def show_epoch(record: dict[str, Any]) -> None:
            stage, epoch = record["stage"], record["epoch"]
            where = f"stage {stage}, epoch {epoch}/{epochs[stage - 1]}"
            done = epoch + (epochs[0] if stage == 2 else 0)
            progress.update(task, description=where, completed=done, energy=line_of(record))

        yield lambda line: progress.update(task, description=line), show_epoch


def _seconds_left(record: dict[str, Any], epochs: tuple[int, int]) -> float:
    """By the last epoch; an epoch of the second stage takes about twice as long as one of the first."""
    left = epochs[record["stage"] - 1] - record["epoch"]
    return float(record["seconds"] * (left + (2 * epochs[1] if record["stage"] == 1 else 0)))


def summary_table(summary: dict[str, Any], out: Path) -> Table:
    """What a registration gave, in a few lines, and where it lies."""
    from metreg.report.tables import Table

    terms = ", ".join(f"{name} {value:.4g}" for name, value in summary["energy"].items() if value)
    rows = [("energy", terms)]
    if "overlap" in summary:
        before, after = (summary["overlap"][when]["target_overlap"] for when in ("before", "after"))
        rows.append(("target overlap", f"{before:.4f} before (affine), {after:.4f} after"))
    if "folds" in summary:
        rows.append(("folds", say_folds(summary)))
    if "jacobian" in summary:
        jacobian = summary["jacobian"]
        rows.append(("determinant", f"{jacobian['p1']:.2f} to {jacobian['p99']:.2f} (1 % to 99 %)"))
    for part, reason in summary.get("not_measured", {}).items():
        rows.append((part, f"not measured: {reason}"))
    rows += [
        ("metric", f"{summary['metric']} (licence: {summary['metric_licence']})"),
        ("time", f"{sum(summary['seconds'].values()):.1f} s, {summary['peak_memory_mb'] / 1024:.1f} GiB"),
        ("results", str(out)),
    ]
    if (out / "report.html").is_file():
        rows.append(("look at", str(out / "report.html")))
    return Table("", ("", ""), rows)


def say_folds(summary: dict[str, Any]) -> str:
    """Folds as written, and before a repair."""
    certified = "certified invertible" if summary["certificate"]["holds"] else "not certified invertible"
    before = summary.get("before_repair", {})
    if not before.get("repaired"):
        return f"{summary['folds']}, {certified}"
    repaired = f"repaired: {before['folds']} before, determinant {before['smallest']:.2g}"
    return f"{summary['folds']}, {certified} ({repaired})"


def show_table(table: Table) -> None:
    """On a terminal as a drawn table, elsewhere in plain columns."""
    if sys.stdout.isatty():
        import rich.box
        import rich.table
        from rich.console import Console
        from rich.text import Text

        named = any(table.header)
        drawn = rich.table.Table(box=rich.box.SIMPLE, show_header=named, title=table.title or None, title_justify="left")
        for i, name in enumerate(table.header):
            drawn.add_column(name, style="bold" if i == 0 else None, overflow="fold")
        for r, row in enumerate(table.rows):
            drawn.add_row(*[Text(cell, style="green" if (r, c) in table.best else "") for c, cell in enumerate(row)])
        Console(highlight=False).print(drawn)
        return
    lines = [table.header, *table.rows] if any(table.header) else table.rows
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    if table.title:
        typer.echo(table.title)
    for line in lines:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
