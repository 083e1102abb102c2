"""The command line: a function per verb; it only parses and calls. Heavy imports happen inside the verbs."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import typer

from metreg.checks import MetregError
from metreg.options import Affine, Changes, Config, Device, Json, Out, Overwrite, Preset, Quiet, Resume, Seed, with_options
from metreg.terminal import show_epochs, show_iterations, show_steps, summary_lines

app = typer.Typer(
    name="metreg",
    help="Register medical images with a learned, spatially varying metric.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

USAGE_ERROR: type[Any] = typer.BadParameter.__mro__[1]
"""Typer's UsageError, which it has no public name for."""


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"metreg {version('metreg')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def register(
    moving: Annotated[Path, typer.Argument(help="The image to be moved.", show_default=False)],
    fixed: Annotated[Path, typer.Argument(help="The image it is brought onto.", show_default=False)],
    out: Out,
    metric: Annotated[str, typer.Option(help="The regulariser: global, or a metric file.")] = "global",
    weights: Annotated[
        Path | None, typer.Option(help="Local weights, a 4-D image in the space of MOVING.", show_default=False)
    ] = None,
    preset: Preset = None,
    model: Annotated[str | None, typer.Option(help="vsvf.", show_default="vsvf")] = None,
    moving_mask: Annotated[Path | None, typer.Option(help="Where MOVING counts.", show_default=False)] = None,
    fixed_mask: Annotated[Path | None, typer.Option(help="Where FIXED counts.", show_default=False)] = None,
    moving_labels: Annotated[Path | None, typer.Option(help="Labels of MOVING, carried along.", show_default=False)] = None,
    fixed_labels: Annotated[
        Path | None, typer.Option(help="Labels of FIXED, to measure overlap.", show_default=False)
    ] = None,
    label_names: Annotated[Path | None, typer.Option(help="CSV: label number, name.", show_default=False)] = None,
    affine: Affine = None,
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
    from metreg.config import make_settings
    from metreg.data.whole import check_output

    settings = make_settings(preset, config=config, changes=with_options(changes, seed=seed, model=model, affine=affine))
    check_output(out, overwrite=overwrite)
    from metreg import pipeline
    from metreg.results import NAMES

    given = (moving, fixed, moving_mask, fixed_mask, moving_labels, fixed_labels, weights)
    for path in given:
        if path is not None and path.name in NAMES and path.resolve().parent == out.resolve():
            raise MetregError(f"output: {path} is an input and would be replaced; choose another folder")
    with show_iterations(quiet, settings.solve.iterations) as on_iteration:
        result = pipeline.register(
            moving,
            fixed,
            metric=metric,
            settings=settings,
            weights=weights,
            moving_mask=moving_mask,
            fixed_mask=fixed_mask,
            moving_labels=moving_labels,
            fixed_labels=fixed_labels,
            label_names=label_names,
            device=device,
            on_iteration=on_iteration,
        )
        result.save(out, overwrite=overwrite)
    told = (out / "result.json").read_text(encoding="utf-8")
    if as_json:
        typer.echo(told)
    elif not quiet:
        for line in summary_lines(json.loads(told), out):
            typer.echo(line)


@app.command()
def apply(
    transform: Annotated[Path, typer.Argument(help="An ITK transform file, or momentum.safetensors.", show_default=False)],
    image: Annotated[Path, typer.Argument(metavar="IMAGE|POINTS.csv", help="What to transform.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.", show_default=False)],
    reference: Annotated[
        Path | None, typer.Option("--reference", "-r", help="The image whose grid is used.", show_default=False)
    ] = None,
    labels: Annotated[bool, typer.Option("--labels", help="IMAGE holds labels: take the nearest one.")] = False,
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
    from metreg.apply import apply_to_image, apply_to_points
    from metreg.checks import pick_device
    from metreg.config import make_settings

    make_settings(config=config, changes=with_options(changes, seed=seed))  # nothing of it matters here, but wrong is wrong
    pick_device(device)
    if image.suffix.lower() == ".csv":
        if frame is None:
            raise MetregError("--frame: say whether the points are in ras or lps millimetres")
        apply_to_points(transform, image, out, frame=frame, overwrite=overwrite)
    else:
        if reference is None:
            raise MetregError("--reference: an image needs the grid it is brought onto; say -r FIXED")
        apply_to_image(transform, image, reference, out, labels=labels, overwrite=overwrite)
    if not quiet:
        typer.echo(f"wrote {out}")


@app.command()
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
    licence: Annotated[str, typer.Option(help="What the metric file says of its licence.")] = "not stated",
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
    from metreg.checks import pick_device
    from metreg.config import make_settings
    from metreg.data.datasets import find_pairs
    from metreg.data.whole import check_output

    settings = make_settings(preset, config=config, changes=with_options(changes, seed=seed, affine=affine))
    if not resume:
        check_output(out, overwrite=overwrite)
    files = find_pairs(pairs_or_folder, choose=pairs, seed=settings.seed)
    on_device = pick_device(device)
    from metreg.training import train_metric

    with show_epochs(quiet, settings.train.epochs) as (tell, on_epoch):
        metric = train_metric(
            files,
            out,
            settings,
            device=on_device,
            template=template,
            licence=licence,
            resume=resume,
            overwrite=overwrite,
            tell=tell,
            on_epoch=on_epoch,
        )
    if as_json:
        typer.echo(json.dumps(metric.summary))
    elif not quiet:
        terms = ", ".join(f"{name} {value:.4g}" for name, value in metric.summary["energy"].items() if value)
        typer.echo(f"mean energy: {terms}")
        typer.echo(
            f"{metric.summary['seconds']:.0f} s. The metric is {out / 'metric.safetensors'}, see {out / 'report.html'}"
        )


@app.command()
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


@app.command()
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


@app.command()
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


def main() -> None:
    """Run; bad input gives one line on stderr and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
    except USAGE_ERROR as error:
        _fail(f"{error.format_message()} Try --help.")
    except MetregError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("metreg: interrupted; no results were written (train and reproduce go on with --resume)\n")
        sys.exit(130)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"metreg: {' '.join(message.split())}\n")
    sys.exit(2)
