"""The command line: which verbs there are, and what becomes of errors."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any, NoReturn

import typer

from metreg.cli.bench import bench
from metreg.cli.experiments import demo, reproduce, synth
from metreg.cli.many import evaluate, train
from metreg.cli.pair import apply, inspect, register
from metreg.errors import MetregError
from metreg.many.processes import Terminated, ending_in_order
from metreg.settings.process import own_process

app = typer.Typer(
    name="metreg",
    help="Register medical images with a learned, spatially varying metric.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERRUPTED = 130
IN_ORDER = "nothing is half written (train, evaluate and reproduce go on with --resume)"
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


for verb, group in (
    (register, "One pair"),
    (apply, "One pair"),
    (inspect, "One pair"),
    (train, "Many pairs"),
    (evaluate, "Many pairs"),
    (reproduce, "Experiments"),
    (synth, "Experiments"),
    (demo, "Experiments"),
):
    app.command(rich_help_panel=group)(verb)
app.add_typer(bench, rich_help_panel="Experiments")


def main() -> None:
    """Run; bad input gives one line on stderr and exit code 2. A SIGTERM ends it in order."""
    own_process()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        with ending_in_order():
            code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
        if code == INTERRUPTED:  # typer makes that of Ctrl-C
            raise KeyboardInterrupt
    except USAGE_ERROR as error:
        _fail(f"{error.format_message()} Try --help.")
    except MetregError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write(f"metreg: interrupted; {IN_ORDER}\n")
        sys.exit(INTERRUPTED)
    except Terminated as end:
        sys.stderr.write(f"metreg: terminated; {IN_ORDER}\n")
        sys.exit(end.code)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"metreg: {' '.join(message.split())}\n")
    sys.exit(2)
