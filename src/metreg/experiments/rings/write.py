"""Ring pairs as files: images, labels, true maps and true weights, and a table of the pairs."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from metreg.core.grid import Grid
from metreg.experiments.rings.draw import RingPair, ring_pair
from metreg.io.atomic import atomic_folder
from metreg.io.image import Image
from metreg.io.images import write_image
from metreg.io.transforms import Transform, field_of_map, write_transform

COLUMNS = ("moving", "fixed", "moving_labels", "fixed_labels", "true_map", "true_weights")


def write_rings(
    out: Path, *, pairs: int, seed: int, overwrite: bool, tell: Callable[[int], None] = lambda done: None
) -> None:
    """`pairs.csv` and six files for every pair, all from one seed. A pixel is 1 mm."""
    generator = torch.Generator().manual_seed(seed)
    width = len(str(pairs - 1))
    with atomic_folder(out, names=frozenset({"pairs.csv", "pairs"}), overwrite=overwrite) as work:
        (work / "pairs").mkdir()
        with (work / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            for number in range(pairs):
                names = {column: f"pairs/{number:0{width}d}_{column}" for column in COLUMNS}
                names = {c: name + (".h5" if c == "true_map" else ".nii.gz") for c, name in names.items()}
                _write_pair(work, ring_pair(generator), names)
                table.writerow(names)
                tell(number + 1)


def _write_pair(work: Path, pair: RingPair, names: dict[str, str]) -> None:
    grid = Grid.unit_cube(pair.grid.shape, np.eye(3))
    place = Image(np.empty(grid.shape, dtype=np.uint8), grid.affine)
    for column, values in (("moving", pair.source), ("fixed", pair.target)):
        write_image(work / names[column], values[0, 0].numpy(), place)
    for column, values in (("moving_labels", pair.source_labels), ("fixed_labels", pair.target_labels)):
        write_image(work / names[column], values[0, 0].numpy().astype(np.uint8), place)
    write_image(work / names["true_weights"], pair.weights[0].movedim(0, -1).numpy(), place)
    write_transform(work / names["true_map"], Transform((field_of_map(pair.phi_inv, grid),)))
