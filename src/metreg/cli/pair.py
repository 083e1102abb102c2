"""Verbs about one pair of images. They only parse and call; heavy imports happen inside."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from metreg.cli.options import Affine, Changes, Config, Device, Json, Out, Overwrite, Preset, Quiet, Seed, with_options
from metreg.cli.terminal import say_what_is_chosen, show_iterations, show_table, summary_table
from metreg.errors import MetregError

FILL = "the background of {}: what most of its outermost layer is, e.g. -1024 in a CT, or 0"


def register(
    moving: Annotated[Path, typer.Argument(metavar="MOVING", help="The image to be moved.", show_default=False)],
    fixed: Annotated[Path, typer.Argument(metavar="FIXED", help="The image it is brought onto.", show_default=False)],
    out: Out,
    metric: Annotated[
        str | None,
        typer.Option(
            help="The regulariser: global, brain-t1 or a metric file.",
            show_default="brain-t1 for T1 brains without skulls, else global",
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Local weights, a 4-D image in the space of MOVING.", show_default=False)
    ] = None,
    preset: Preset = None,
    moving_mask: Annotated[
        Path | None, typer.Option(help="Where MOVING counts.", show_default=False, rich_help_panel="Masks and labels")
    ] = None,
    fixed_mask: Annotated[
        Path | None, typer.Option(help="Where FIXED counts.", show_default=False, rich_help_panel="Masks and labels")
    ] = None,
    moving_labels: Annotated[
        Path | None,
        typer.Option(help="Labels of MOVING, carried along.", show_default=False, rich_help_panel="Masks and labels"),
    ] = None,
    fixed_labels: Annotated[
        Path | None,
        typer.Option(help="Labels of FIXED, to measure overlap.", show_default=False, rich_help_panel="Masks and labels"),
    ] = None,
    label_names: Annotated[
        Path | None, typer.Option(help="CSV: label number, name.", show_default=False, rich_help_panel="Masks and labels")
    ] = None,
    affine: Affine = None,
    fill: Annotated[
        float | None,
        typer.Option(help="Value of the warped image where MOVING does not reach.", show_default=FILL.format("MOVING")),
    ] = None,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Bring MOVING onto FIXED by a diffeomorphism.

    Example: metreg register subject.nii.gz template.nii.gz -o out
    """
    from metreg.io.atomic import check_output
    from metreg.settings.model import make_settings

    more = with_options(changes, seed=seed, affine=affine)
    make_settings(preset, config=config, changes=more)  # what is wrong with them should not wait for the rest
    check_output(out, overwrite=overwrite)
    gc.disable()  # libraries make a million objects that stay: they need not be looked through, nor often
    try:
        from metreg.pipeline import register as pipeline
        from metreg.result.folder import NAMES
    finally:
        gc.freeze()
        gc.set_threshold(100_000)
        gc.enable()
    given = (moving, fixed, moving_mask, fixed_mask, moving_labels, fixed_labels, weights)
    for path in given:
        if path is not None and path.name in NAMES and path.resolve().parent == out.resolve():
            raise MetregError(f"output: {path} is an input and would be replaced; choose another folder")
    say_what_is_chosen(quiet)
    with show_iterations(quiet) as on_iteration:
        result = pipeline.register(
            moving,
            fixed,
            metric=metric,
            preset=preset,
            config=config,
            changes=more,
            weights=weights,
            moving_mask=moving_mask,
            fixed_mask=fixed_mask,
            moving_labels=moving_labels,
            fixed_labels=fixed_labels,
            label_names=label_names,
            fill=fill,
            device=device,
            on_iteration=on_iteration,
        )
        result.save(out, overwrite=overwrite)
    if as_json:
        typer.echo(json.dumps(result.summary, indent=2))
    elif not quiet:
        show_table(summary_table(result.summary, out))


def apply(
    transform: Annotated[Path, typer.Argument(help="An ITK transform file, or momentum.safetensors.", show_default=False)],
    image: Annotated[Path, typer.Argument(metavar="IMAGE|POINTS.csv", help="What to transform.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)],
    reference: Annotated[
        Path | None, typer.Option("--reference", "-r", help="The image whose grid is used.", show_default=False)
    ] = None,
    labels: Annotated[bool, typer.Option("--labels", help="IMAGE holds labels: take the nearest one.")] = False,
    fill: Annotated[
        float | None,
        typer.Option(help="Value where IMAGE does not reach.", show_default=FILL.format("IMAGE")),
    ] = None,
    frame: Annotated[
        Literal["ras", "lps"] | None, typer.Option(help="Frame of the points in mm, in and out.", show_default=False)
    ] = None,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
) -> None:
    """Apply a transform to an image, to labels, or to the points of a CSV file (columns x, y, z).

    moving_to_fixed.h5 brings the moving image onto the fixed grid; on points it goes from fixed to moving.
    """
    from metreg.errors import pick_device
    from metreg.pipeline.apply import apply as apply_to_image
    from metreg.pipeline.apply import apply_to_points
    from metreg.settings.model import make_settings

    make_settings(config=config, changes=with_options(changes, seed=seed))  # nothing of it matters here, but wrong is wrong
    pick_device(device)
    if image.suffix.lower() == ".csv":
        if frame is None:
            raise MetregError("--frame: say whether the points are in ras or lps millimetres")
        apply_to_points(transform, image, out, frame=frame, overwrite=overwrite)
    else:
        if reference is None:
            raise MetregError("--reference: an image needs the grid it is brought onto; say -r FIXED")
        apply_to_image(transform, image, reference, out=out, labels=labels, fill=fill, overwrite=overwrite)
    if not quiet:
        typer.echo(f"wrote {out}")


def inspect(
    what: Annotated[
        Path,
        typer.Argument(metavar="METRIC|OUT", help="A metric, or a folder that register wrote.", show_default=False),
    ],
    image: Annotated[
        Path | None, typer.Option(help="Show the metric over this image.", show_default="the mean of its training images")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a page about a metric, .html.")] = None,
    config: Config = None,
    changes: Changes = None,
    device: Device = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Say what a metric has learned, or what a registration gave.

    Example: metreg inspect run/metric.safetensors --image subject.nii.gz -o metric.html
    """
    from metreg.errors import pick_device
    from metreg.settings.model import make_settings

    make_settings(config=config, changes=with_options(changes, seed=seed))
    pick_device(device)
    from metreg.metric.store import shipped_names

    if not what.exists() and str(what) not in shipped_names():
        raise MetregError(f"inspect: no such file or folder: {what}; wanted a metric file or a folder that register wrote")
    from metreg.pipeline.inspect import inspect_metric, inspect_result, result_tables
    from metreg.report.metric import card_table, class_table, metric_page

    if what.is_dir():
        if image is not None or out is not None:
            raise MetregError(f"inspect: --image and -o are for metric files; {what} has a report.html already")
        facts = inspect_result(what)
        tables = [summary_table(facts, what), *result_tables(facts)]
    else:
        view = inspect_metric(what, image)
        facts = view.facts
        tables = [*([class_table(facts)] if view.planes else []), card_table(facts)]
        if out is not None:
            from metreg.io.atomic import atomic_write, check_output
            from metreg.pipeline.register import version_of

            check_output(out, overwrite=overwrite, folder=False)
            atomic_write(out, metric_page(view, version_of("metreg")))
    if as_json:
        typer.echo(json.dumps(facts))
    elif not quiet:
        for table in tables:
            show_table(table)
