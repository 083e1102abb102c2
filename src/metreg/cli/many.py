"""Verbs about many pairs. They only parse and call; heavy imports happen inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from metreg.cli.options import (
    Affine,
    Changes,
    Config,
    Device,
    Jobs,
    Json,
    Out,
    Overwrite,
    Preset,
    Quiet,
    Resume,
    Seed,
    with_options,
)
from metreg.cli.terminal import say_what_is_chosen, show_epochs, show_steps


def train(
    pairs_or_folder: Annotated[
        Path, typer.Argument(metavar="PAIRS.csv|FOLDER", help="A table of pairs, or images.", show_default=False)
    ],
    out: Out,
    pairs: Annotated[
        str | None, typer.Option(help="Of a FOLDER: all ordered pairs, or random:N.", show_default="all")
    ] = None,
    template: Annotated[
        Path | None, typer.Option(help="What images are aligned to.", show_default="the first fixed image")
    ] = None,
    preset: Preset = None,
    affine: Affine = None,
    licence: Annotated[
        str | None, typer.Option(help="What the metric file says of its licence.", show_default="not stated")
    ] = None,
    credit: Annotated[str | None, typer.Option(help="To whom the images are owed, for the metric file.")] = None,
    resume: Resume = False,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Learn a metric from pairs of images: OUT/metric.safetensors.

    PAIRS.csv has the columns moving and fixed, and perhaps moving_mask and fixed_mask; paths are relative to it.

    Example: metreg train pairs.csv -o run && metreg register a.nii.gz b.nii.gz --metric run/metric.safetensors -o out
    """
    from metreg.settings.model import make_settings

    settings = make_settings(preset, config=config, changes=with_options(changes, seed=seed, affine=affine))
    from metreg.learn.run import train as train_from

    with show_epochs(quiet, settings.train.epochs) as (tell, on_epoch):
        metric = train_from(
            pairs_or_folder,
            out,
            choose=pairs,
            template=template,
            settings=settings,
            licence=licence,
            credit=credit,
            resume=resume,
            overwrite=overwrite,
            device=device,
            tell=tell,
            on_epoch=on_epoch,
        )
    if as_json:
        typer.echo(json.dumps(metric.summary))
    elif not quiet:
        terms = ", ".join(f"{name} {value:.4g}" for name, value in metric.summary["energy"].items() if value)
        typer.echo(f"mean energy: {terms or 'none, there was no epoch'}")
        see = f", see {out / 'report.html'}" if (out / "report.html").is_file() else ""
        typer.echo(f"{metric.summary['seconds']:.0f} s. The metric is {out / 'metric.safetensors'}{see}")


def evaluate(
    pairs: Annotated[Path, typer.Argument(metavar="PAIRS.csv", help="A table of pairs, with labels.", show_default=False)],
    out: Out,
    metric: Annotated[
        list[str] | None,
        typer.Option(help="A metric to register with: M or NAME=M; mean:FILE is the mean of its weights. May be repeated."),
    ] = None,
    transforms: Annotated[
        list[str] | None, typer.Option(help="Transforms of another tool, NAME=FOLDER. May be repeated.", show_default=False)
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The method tested against the others.", show_default="the best")
    ] = None,
    label_names: Annotated[Path | None, typer.Option(help="CSV: label number, name.", show_default=False)] = None,
    frame: Annotated[
        Literal["ras", "lps"] | None, typer.Option(help="Frame of the landmarks in mm.", show_default=False)
    ] = None,
    preset: Preset = None,
    affine: Affine = None,
    resume: Resume = False,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    jobs: Jobs = 1,
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare methods on many pairs: overlap, folds, Jacobians, costs; tables, box plot and statistics.

    PAIRS.csv has the columns moving, fixed, moving_labels, fixed_labels, and perhaps masks, moving_points, fixed_points
    (landmarks) and moving_subject, fixed_subject. A transform of another tool is FOLDER/MOVING_to_FIXED.h5, or 0001.h5
    for the first pair: an ITK file that maps fixed points to moving points.

    Example: metreg evaluate pairs.csv -o table --metric global --metric run/metric.safetensors --transforms syn=syn_out
    """
    from metreg.evaluation.run import evaluate as evaluate_pairs

    say_what_is_chosen(quiet)
    with show_steps(quiet, "evaluating") as tell:
        summary = evaluate_pairs(
            pairs,
            out,
            metrics=metric,
            transforms=transforms or (),
            reference=reference,
            label_names=label_names,
            frame=frame,
            preset=preset,
            config=config,
            changes=with_options(changes, seed=seed, affine=affine),
            resume=resume,
            overwrite=overwrite,
            device=device,
            jobs=jobs,
            tell=tell,
        )
    if as_json:
        typer.echo(json.dumps(summary))
    elif not quiet:
        for name in ("overlap.md", "jacobian.md", "cost.md"):
            if (out / name).is_file():
                typer.echo((out / name).read_text(encoding="utf-8"))
        typer.echo(f"See {out / 'report.html'}")
