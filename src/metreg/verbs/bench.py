"""Verbs that measure speed and accuracy. They only parse and call; heavy imports happen inside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from metreg.options import Affine, Changes, Config, Json, Out, Overwrite, Preset, Quiet, Resume, Seed, with_options
from metreg.terminal import show_steps

bench = typer.Typer(name="bench", help="Measure speed and accuracy, side by side.", no_args_is_help=True)


@bench.command()
def peers(
    pairs: Annotated[Path, typer.Argument(metavar="PAIRS.csv", help="A table of pairs, with labels.", show_default=False)],
    out: Out,
    metric: Annotated[
        list[str] | None, typer.Option(help="A metric of metreg: M or NAME=M. Again and again.", show_default="global")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Another tool: greedy, syn, syncc. Again and again.", show_default="all of them"),
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
    """Compare metreg with Greedy and ANTs on the same pairs: overlap, regularity, CPU seconds, memory.

    All start from the affine that metreg finds, given to each tool by its own option for that; labels are carried once,
    by the whole transform. Every registration is a process of its own on the same cores of the CPU; its costs are from
    start to end, without the affine. Masks of PAIRS.csv say where is measured; no tool gets them. A registration that
    fails counts as the affine alone and is named. The other tools are installed from PyPI.

    Example: metreg bench peers pairs.csv -o peers --metric global --peer greedy --peer syn
    """
    from metreg.config import make_settings
    from metreg.data.datasets import read_pairs
    from metreg.data.whole import check_output, clear_folder

    settings = make_settings(preset, config=config, changes=with_options(changes, seed=seed, affine=affine))
    if not resume:
        check_output(out, overwrite=overwrite)
    files = read_pairs(pairs)
    from metreg.bench.environment import default_folder, open_environment, python_of, versions_in
    from metreg.bench.peers import NAMES, check_bench, measure_all, prepare, run_all
    from metreg.bench.tools import PEERS, tools_of

    folder, wanted = environment or default_folder(), list(dict.fromkeys(peer or PEERS))
    tools = tools_of(wanted, metric or ["global"], python_of(folder), (out / "settings.toml").absolute())
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
