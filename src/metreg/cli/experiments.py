"""Verbs that make their own data, or the paper's. They only parse and call; heavy imports happen inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metreg.cli.options import Changes, Config, Device, Jobs, Json, Out, Overwrite, Quiet, Resume, Seed, with_options
from metreg.cli.terminal import show_steps


def reproduce(
    experiment: Annotated[
        Literal["synthetic2d", "slices2d", "klein3d"], typer.Argument(help="Which experiment.", show_default=False)
    ],
    out: Out,
    data: Annotated[Path | None, typer.Option(help="Folder of images (slices2d, klein3d).", show_default=False)] = None,
    subjects: Annotated[
        Path | None, typer.Option(help="CSV: id, subject, part (train or test).", show_default="DIR/subjects.csv")
    ] = None,
    published: Annotated[
        Path | None, typer.Option(help="Folder with CUMC_results.mat (klein3d).", show_default="DIR/klein2009")
    ] = None,
    label_names: Annotated[Path | None, typer.Option(help="CSV: label number, name.", show_default=False)] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Settings to begin with.", show_default="the paper's; for klein3d with other data, default"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A reduced run, for two CPU cores.")] = False,
    pairs: Annotated[
        int | None,
        typer.Option(min=2, help="Most pairs to learn from (slices2d, klein3d).", show_default="300 slices, 150 of a set"),
    ] = None,
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
    """Run an experiment of the paper: its figures, its tables, and which of its claims held. In full it wants a GPU.

    synthetic2d learns metrics from rings whose true maps are known. slices2d learns from axial slices of brains, with
    three OMT penalties. klein3d learns on CUMC12, MGH10 and IBSR18 and tests on CUMC12, beside published results.

    --data DIR has images in DIR/img and labels in DIR/label (of volumes, slices2d takes the middle axial slice); for
    klein3d also DIR/CUMC12/Brains and DIR/CUMC12/Atlases and so on, as distributed with Klein et al. 2009. A subjects.csv
    in DIR says whose an image is and whether it is there to train or to test; otherwise seven subjects in ten train.
    """
    from metreg.errors import MetregError, pick_device
    from metreg.io.atomic import check_output, clear_folder
    from metreg.settings.model import make_settings

    if experiment != "synthetic2d" and data is None:
        raise MetregError(f"--data: wanted for {experiment}, a folder of images; see metreg reproduce --help")
    given: dict[str, object] = {"--data": data, "--subjects": subjects, "--label-names": label_names}
    given |= {"--published": published, "--jobs": None if jobs == 1 else jobs, "--pairs": pairs}
    for name, value in given.items():
        if value is not None and (experiment == "synthetic2d" or (name == "--published" and experiment == "slices2d")):
            raise MetregError(f"{name}: {experiment} has no use for it; leave it out")
    if not resume:
        check_output(out, overwrite=overwrite)
    on_device = pick_device(device)
    from metreg.experiments.klein3d import NAMES as KLEIN_NAMES
    from metreg.experiments.klein3d import is_klein
    from metreg.experiments.klein3d import reproduce as run_klein
    from metreg.experiments.rings.report import NAMES as RINGS_NAMES
    from metreg.experiments.rings.report import reproduce as run_rings
    from metreg.experiments.slices2d import NAMES as SLICES_NAMES
    from metreg.experiments.slices2d import reproduce as run_slices

    usual = "paper2d"
    if experiment == "klein3d" and data is not None:
        usual = "paper3d" if is_klein(data) else "default"
    settings = make_settings(preset or (None if config else usual), config=config, changes=with_options(changes, seed=seed))
    if not resume:
        clear_folder(out, {"synthetic2d": RINGS_NAMES, "slices2d": SLICES_NAMES, "klein3d": KLEIN_NAMES}[experiment])
    with show_steps(quiet, f"reproducing {experiment}") as tell:
        how: dict[str, Any] = {"quick": quick, "device": on_device, "resume": resume, "tell": tell}
        about: dict[str, Any] = {"subjects": subjects, "label_names": label_names, "pairs": pairs, "jobs": jobs}
        if data is None:
            summary = run_rings(out, settings, **how)
        elif experiment == "slices2d":
            summary = run_slices(data, out, settings, **about, **how)
        else:
            summary = run_klein(data, out, settings, results=published, **about, **how)
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
    from metreg.errors import pick_device
    from metreg.settings.model import make_settings

    settings = make_settings(config=config, changes=with_options(changes, seed=seed))
    pick_device(device)
    from metreg.experiments.rings.write import write_rings

    with show_steps(quiet, "drawing") as tell:
        write_rings(
            out,
            pairs=pairs,
            seed=settings.seed,
            overwrite=overwrite,
            tell=lambda done: tell(f"{done} of {pairs}") if done % 10 == 0 else None,
        )
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
    from metreg.errors import pick_device
    from metreg.io.atomic import check_output
    from metreg.settings.model import make_settings

    settings = make_settings(None if config else "paper2d", config=config, changes=with_options(changes, seed=seed))
    check_output(out, overwrite=overwrite)
    from metreg.experiments.demo import run_demo

    with show_steps(quiet, "learning and registering") as tell:
        result = run_demo(out, settings, device=pick_device(device), overwrite=overwrite, tell=tell)
    if as_json:
        typer.echo(json.dumps({"errors_px": result.errors, "folds": result.folds, "seconds": result.seconds}))
    elif not quiet:
        typer.echo(f"displacement error, median over pairs (px){'':9}disc   ring")
        for part, errors in result.errors.items():
            typer.echo(part)
            for name, row in errors.items():
                typer.echo(f"  {name:<46}{row['disc']:>6.2f} {row['ring']:>6.2f}")
        typer.echo(f"{result.folds} folds, nothing repaired; {result.seconds:.0f} s. See {out / 'report.html'}")
