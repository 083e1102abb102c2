"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from metreg.settings.presets import PRESETS

SETTINGS, RUN = "Settings", "Run"
"""Panels of the help."""

Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.", show_default=False)]
Preset = Annotated[
    str | None,
    typer.Option(help=f"{', '.join(PRESETS)}.", show_default="the metric's, or default", rich_help_panel=SETTINGS),
]
Affine = Annotated[
    bool | None,
    typer.Option("--affine/--no-affine", help="Align linearly first.", show_default="affine", rich_help_panel=SETTINGS),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.", rich_help_panel=RUN)]
Config = Annotated[
    Path | None, typer.Option("--config", help="Settings as a TOML file.", show_default=False, rich_help_panel=SETTINGS)
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change one setting, e.g. solve.regularity=100.", rich_help_panel=SETTINGS
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.", rich_help_panel=RUN)]
Jobs = Annotated[int, typer.Option(min=1, help="Pairs that are tested side by side.", rich_help_panel=RUN)]
Seed = Annotated[int | None, typer.Option(help="Seed of everything random.", show_default="0", rich_help_panel=SETTINGS)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no summary.", rich_help_panel=RUN)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run wrote.", rich_help_panel=RUN)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=RUN)]


def with_options(changes: list[str] | None, *, seed: int | None, affine: bool | None = None) -> list[str]:
    """The --set strings, and what the plain options say."""
    more = [*(changes or [])]
    if seed is not None:
        more.append(f"seed={seed}")
    if affine is not None:
        more.append(f"affine.kind={'affine' if affine else 'none'}")
    return more
