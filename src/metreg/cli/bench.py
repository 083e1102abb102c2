"""Verbs that measure speed and accuracy. They only parse and call; heavy imports happen inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from metreg.cli.options import (
    Affine,
    Changes,
    Config,
    Device,
    Json,
    Out,
    Overwrite,
    Preset,
    Quiet,
    Resume,
    Seed,
    with_options,
)
from metreg.cli.terminal import show_steps

bench = typer.Typer(name="bench", help="Measure speed and accuracy, side by side.", no_args_is_help=True)


@bench.command()
def peers(
    pairs: Annotated[Path, typer.Argument(metavar="PAIRS.csv", help="A table of pairs, with labels.", show_default=False)],
    out: Out,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="A metric of metreg: M or NAME=M. Again and again.", show_default="brain-t1 for heads in 3-D, else global"
        ),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Another tool: greedy, syn, syncc, fireants. Again and again.", show_default="all of them"),
    ] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores that every tool gets.", show_default="2")] = None,
    environment: Annotated[
        Path | None,
        typer.Option(
            envvar="METREG_PEERS",
            help="Where the other tools are installed; made when needed.",
            show_default="~/.cache/metreg/peers",
        ),
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
    seed: Seed = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Compare metreg with Greedy, ANTs and FireANTs on the same pairs: overlap, regularity, CPU seconds, memory.

    All start from the affine that metreg finds, given to each tool by its own option for that; labels are carried once,
    by the whole transform. Every registration is a process of its own on the same cores of the CPU; its costs are from
    start to end, without the affine. Masks of PAIRS.csv say where is measured; no tool gets them. A registration that
    fails counts as the affine alone and is named. The other tools are installed from PyPI.

    Example: metreg bench peers pairs.csv -o peers --metric global --peer greedy --peer syn
    """
    from metreg.io.atomic import check_output, clear_folder
    from metreg.io.tables import read_pairs
    from metreg.settings.model import make_settings

    more = with_options(changes, seed=seed, affine=affine)
    make_settings(preset, config=config, changes=more)  # what is wrong with them should not wait for the rest
    if not resume:
        check_output(out, overwrite=overwrite)
    files = read_pairs(pairs)
    from metreg.bench.environment import default_folder, open_environment, python_of, versions_in
    from metreg.bench.peers import NAMES, check_bench, measure_all, prepare, run_all
    from metreg.bench.tools import PEERS, tools_of
    from metreg.evaluation.methods import choose_methods

    metrics, settings = choose_methods(files, metric, preset=preset, config=config, changes=more)
    folder, wanted = environment or default_folder(), list(dict.fromkeys(peer or PEERS))
    tools = tools_of(wanted, metrics, python_of(folder), (out / "settings.toml").absolute())
    used = check_bench(files, cores)
    with show_steps(quiet, "measuring") as tell:
        python = open_environment(folder, tell)
        versions = versions_in(python, sorted({PEERS[name].package for name in wanted}))
        if not resume:
            clear_folder(out, NAMES)
        work = prepare(out, files, settings, used)
        run_all(work, tools, tell)
        summary = measure_all(work, tools, settings, versions=versions, frame=frame, label_names=label_names, tell=tell)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    for failure in summary["failures"]:
        typer.echo(f"{failure['method']} failed on pair {failure['pair']}: {failure['failed']}", err=True)
    if not quiet:
        typer.echo((out / "peers.md").read_text(encoding="utf-8"))
        typer.echo(f"See {out / 'report.html'}")


Size = Annotated[
    tuple[int, int, int] | None, typer.Option(help="Voxels of an image.", show_default="229 193 193, the paper's")
]
JsonFile = Annotated[Path | None, typer.Option("--out", "-o", help="Write the results there as JSON.", show_default=False)]


@bench.command()
def pair(
    size: Size = None,
    map_factor: Annotated[float, typer.Option(min=0.1, max=1.0, help="Points of the map per voxel and axis.")] = 0.4,
    steps: Annotated[int, typer.Option(min=1, help="RK4 steps of the flow.")] = 10,
    window: Annotated[int, typer.Option(min=3, help="Of the local correlation, odd.")] = 5,
    growth: Annotated[
        bool, typer.Option(help="Tables of how the cost grows with voxels, batch, Gaussians and steps.")
    ] = True,
    plain: Annotated[bool, typer.Option(help="Measure plain torch too.")] = True,
    repeats: Annotated[int, typer.Option(min=3, help="Runs of which the median is taken.")] = 20,
    device: Device = "auto",
    out: JsonFile = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Time one iteration, forward and backward to momentum and weights, and its parts.

    Images are smooth noise, weights vary from point to point, four Gaussians unless the table says otherwise. On a GPU an
    iteration is recorded once and replayed. Bandwidth is what the kernels must read and write, over the time, as a share of
    that of a plain copy measured in the same run.

    Example: metreg bench pair --size 160 192 160 --map-factor 0.5 -o pair.json
    """
    from metreg.bench.iteration import Case
    from metreg.bench.speed import bench_pair, pair_tables
    from metreg.errors import MetregError, pick_device

    _check_json(out, overwrite)
    if window % 2 == 0:
        raise MetregError(f"--window: must be odd, got {window}")
    here = pick_device(device)
    case = Case(shape=size or Case.shape, map_factor=map_factor, steps=steps, window=window)
    sizes = () if not growth else (64, 128, 192, 256) if here.type == "cuda" else (32, 48, 64, 96)
    with show_steps(quiet, "measuring") as tell:
        found = bench_pair(case, here, repeats=repeats, plain=plain, sizes=sizes, tell=tell)
    _give(found, pair_tables(found), out, as_json=as_json, quiet=quiet)


@bench.command()
def train(
    size: Size = None,
    pairs: Annotated[int, typer.Option(min=2, help="Pairs of the training set.")] = 132,
    epochs: Annotated[tuple[int, int], typer.Option(help="Epochs of the two stages that are run.")] = (1, 1),
    preset: Annotated[str, typer.Option(help="Whose protocol.")] = "paper3d",
    device: Device = "auto",
    out: JsonFile = None,
    quiet: Quiet = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Time the training of a metric on synthetic volumes.

    `--epochs 25 50` runs the paper's whole 3-D protocol; fewer epochs tell how long it would take.

    Example: metreg bench train --size 64 64 64 --pairs 6 --epochs 2 2
    """
    from metreg.bench.iteration import Case
    from metreg.bench.speed import bench_train
    from metreg.errors import pick_device

    _check_json(out, overwrite)
    with show_steps(quiet, "measuring") as tell:
        found = bench_train(size or Case.shape, pick_device(device), preset=preset, pairs=pairs, epochs=epochs, tell=tell)
    table = "| | stage 1 | stage 2 |\n|---|---|---|\n| ms per pair and step | " + " | ".join(
        f"{value:.3f}" for value in found["milliseconds_per_pair_and_step"]
    )
    whole = f"{found['protocol_epochs'][0]} + {found['protocol_epochs'][1]} epochs"
    _give(
        found, f"{table} |\n\n{whole}: {found['protocol_seconds_expected']} s expected", out, as_json=as_json, quiet=quiet
    )


def _check_json(out: Path | None, overwrite: bool) -> None:
    from metreg.errors import MetregError

    if out is not None and out.exists() and not overwrite:
        raise MetregError(f"--out: {out} is there already; use another name or --overwrite")


def _give(found: dict[str, Any], tables: str, out: Path | None, *, as_json: bool, quiet: bool) -> None:
    from metreg.io.atomic import atomic_write

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(found))
    elif not quiet:
        typer.echo(tables)
