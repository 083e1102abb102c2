"""Verbs that make their own data, or the paper's. They only parse and call; heavy imports happen inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from metreg.options import Changes, Config, Device, Json, Out, Overwrite, Quiet, Resume, Seed, with_options
from metreg.terminal import show_steps


def reproduce(
    experiment: Annotated[Literal["synthetic2d"], typer.Argument(help="Which experiment.", show_default=False)],
    out: Out,
    quick: Annotated[bool, typer.Option("--quick", help="A reduced run, for two CPU cores.")] = False,
    resume: Resume = False,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Run an experiment of the paper: its figures, its tables, and which of its claims held.

    synthetic2d learns metrics from rings whose true maps are known. In full, three seeds, it wants a GPU.
    """
    from metreg.checks import pick_device
    from metreg.config import make_settings
    from metreg.data.whole import check_output, clear_folder

    settings = make_settings(None if config else "paper2d", config=config, changes=with_options(changes, seed=seed))
    if not resume:
        check_output(out, overwrite=overwrite)
    on_device = pick_device(device)
    from metreg.reproduce.rings_report import NAMES
    from metreg.reproduce.rings_report import reproduce as run

    if not resume:
        clear_folder(out, NAMES)
    with show_steps(quiet, f"reproducing {experiment}") as tell:
        summary = run(out, settings, quick=quick, device=on_device, resume=resume, tell=tell)
    if as_json:
        typer.echo(json.dumps(summary))
    elif not quiet:
        typer.echo((out / "table.md").read_text(encoding="utf-8"))
        for claim, held in summary["claims"].items():
            typer.echo(f"{'held' if held else 'DID NOT HOLD':<13}{claim}")
        typer.echo(f"See {out / 'report.html'}")


def synth(
    out: Annotated[Path, typer.Argument(help="Folder for the pairs.", show_default=False)],
    pairs: Annotated[int, typer.Option(min=1, help="How many.")] = 10,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
) -> None:
    """Make synthetic pairs of rings with their true maps and weights, and a pairs.csv that names the files."""
    from metreg.checks import pick_device
    from metreg.config import make_settings

    settings = make_settings(config=config, changes=with_options(changes, seed=seed))
    pick_device(device)
    from metreg.synth import write_rings

    with show_steps(quiet, "drawing") as tell:
        write_rings(out, pairs=pairs, seed=settings.seed, overwrite=overwrite, tell=lambda done: tell(f"{done}/{pairs}"))
    if not quiet:
        typer.echo(f"wrote {pairs} pairs, see {out / 'pairs.csv'}")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")] = Path("demo"),
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn a metric from synthetic pairs, and register others, whose true maps are known, with and without it."""
    from metreg.checks import pick_device
    from metreg.config import make_settings
    from metreg.data.whole import check_output

    settings = make_settings(None if config else "paper2d", config=config, changes=with_options(changes, seed=seed))
    check_output(out, overwrite=overwrite)
    from metreg.demo import run_demo

    with show_steps(quiet, "learning and registering") as tell:
        result = run_demo(out, settings, device=pick_device(device), overwrite=overwrite, tell=tell)
    if as_json:
        typer.echo(json.dumps({"errors_px": result.errors, "folds": result.folds, "seconds": result.seconds}))
    elif not quiet:
        typer.echo(f"displacement error, median over pairs (px){'':9}disc   ring")
        for name, row in result.errors.items():
            typer.echo(f"  {name:<46}{row['disc']:>6.2f} {row['ring']:>6.2f}")
        typer.echo(f"{result.folds} folds, {result.seconds:.0f} s. See {out / 'report.html'}")
