"""What was published on CUMC12: the paper's tables, and the overlaps of other methods pair by pair."""

from __future__ import annotations

import csv
from importlib.resources import files
from pathlib import Path

import numpy as np

from metreg.core.grid import Array
from metreg.errors import MetregError
from metreg.report.evaluation import Published

FILE = "CUMC_results.mat"
NAMES = {"QP": "Quicksilver", "QPC": "Quicksilver, corrected"}
"""Of those that are abbreviated in the file."""
OWN = "global", "local"
"""How the rows of the paper's own method end."""
NOTE = (
    "Rows marked as published are the paper's own, tests against its c/c local included; x/c is learned on x (c CUMC12, "
    "m MGH10, i IBSR18, * all others) and tested on CUMC12, VM is VoxelMorph."
)
PER_PAIR = "The other methods' overlaps are those published pair by pair (Klein et al. 2009; Yang et al. 2017)."


def published_table(name: str) -> list[list[str]]:
    """The rows of one of the paper's tables, `overlap_cumc12` or `jacobian_cumc12`."""
    text = files("metreg.experiments").joinpath(f"published/{name}.csv").read_text(encoding="utf-8")
    return list(csv.reader(text.splitlines()))[1:]


def read_results(folder: Path) -> dict[str, Array]:
    """By method the mean target overlap of all ordered pairs of CUMC12, the moving image in the outer loop."""
    from scipy.io import loadmat

    path = folder / FILE
    try:
        content = loadmat(path, squeeze_me=True)
        values, names = np.asarray(content["results"], dtype=float), [str(name) for name in content["direc_name"]]
    except (OSError, KeyError, TypeError, ValueError, NotImplementedError) as error:
        reason = getattr(error, "strerror", "") or "not a MATLAB file with results and direc_name"
        raise MetregError(f"--published: cannot read {path}: {reason}") from None
    if values.ndim != 2 or values.shape[1] != len(names):
        raise MetregError(
            f"--published: wanted a column of results for each of {len(names)} names, got {values.shape}: {path}"
        )
    return {NAMES.get(name, name): values[:, i] for i, name in enumerate(names)}


def published(folder: Path | None, chosen: list[int], count: int) -> Published:
    """The paper's rows; with a folder of results, those of the `chosen` ones of `count` pairs in the place of theirs."""
    overlaps = {} if folder is None else read_results(folder)
    for name, values in overlaps.items():
        if len(values) != count:
            raise MetregError(f"--published: {name} has {len(values)} pairs, there are {count} here: {folder}")
    rows = [row for row in published_table("overlap_cumc12") if row[0] not in overlaps]
    return Published(
        overlaps={name: values[chosen] for name, values in overlaps.items()},
        overlap_rows=[(f"{row[0]} (published)", *row[1:]) for row in rows],
        jacobian_rows=[(f"c/c {row[0]} (published)", *row[1:]) for row in published_table("jacobian_cumc12")],
        note=f"{NOTE} {PER_PAIR}" if overlaps else NOTE,
    )
