"""The compact form of a result: momentum, metric and geometry, from which the transform can be computed again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from metreg.core.grid import Array, Grid
from metreg.errors import MetregError
from metreg.io.formats import is_singular
from metreg.io.tensors import read_tensors, write_tensors
from metreg.io.transforms import Affine, Transform, field_of_map
from metreg.settings.model import Settings
from metreg.solve.register import make_metric, maps_of
from metreg.solve.registration import Registration

FORMAT = "metreg-momentum-1"


def write_momentum(
    path: Path, registration: Registration, affine: Array, settings: Settings, planes: dict[str, Array | None]
) -> None:
    """Momentum, geometry and, for a local metric, its weights; the settings in the header.

    `planes` are those of the fixed and the moving image where they are single slices of 3-D files.
    """
    grid = registration.grid
    tensors = {"m": registration.m, "affine": torch.from_numpy(affine), "grid_affine": torch.from_numpy(grid.affine)}
    tensors |= {f"{name}_plane": torch.from_numpy(plane) for name, plane in planes.items() if plane is not None}
    if registration.metric.w.dim() > 1:
        tensors["weights"] = registration.metric.w
    geometry = {"shape": grid.shape, "spacing": grid.spacing, "length_mm": grid.length_mm}
    header = {"grid": json.dumps(geometry), "settings": settings.model_dump_json()}
    write_tensors(path, tensors, form=FORMAT, header=header)


def read_momentum(path: str | Path) -> tuple[Transform, Transform]:
    """The transform and its inverse, computed again from the compact form."""
    path = Path(path)
    tensors, about = read_tensors(path, form=FORMAT, role="momentum")
    try:
        settings, geometry = Settings.model_validate_json(about["settings"]), json.loads(about["grid"])
        shape, spacing = tuple(geometry["shape"]), tuple(geometry["spacing"])
        grid = Grid(shape, spacing, geometry["length_mm"], tensors["grid_affine"].numpy())
        affine = tensors["affine"].numpy()
        m = tensors["m"]
    except (KeyError, TypeError, ValueError):
        raise MetregError(f"momentum: damaged, its header makes no sense: {path}") from None
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise MetregError(f"momentum: {name} is NaN or infinite; register anew: {path}")
    if is_singular(affine) or is_singular(grid.affine):
        raise MetregError(f"momentum: its matrix is singular, so it has no inverse; register anew: {path}")
    metric = make_metric(grid, settings.metric, like=m, weights=tensors.get("weights"))
    phi_inv, phi = maps_of(m, metric, grid, settings.flow)
    planes = [tensors[name].numpy() if name in tensors else None for name in ("fixed_plane", "moving_plane")]
    there = Transform((field_of_map(phi_inv, grid), Affine(affine)))
    back = Transform((Affine(np.linalg.inv(affine)), field_of_map(phi, grid)))
    return there.between_planes(*planes), back.between_planes(*reversed(planes))
