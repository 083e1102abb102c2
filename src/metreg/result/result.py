"""What a registration gives its user: images and transforms in millimetres, and the folder they are written to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metreg.core.fields import jacobian_determinant
from metreg.core.grid import Array, Grid, voxel_size
from metreg.core.resample import upsample
from metreg.deformation.maps import Certificate, certify, compose, count_folds
from metreg.io.atomic import atomic_folder
from metreg.io.image import Image
from metreg.io.images import to_nibabel
from metreg.io.transforms import (
    Affine,
    Field,
    Mode,
    Transform,
    field_of_map,
    map_of_field,
)
from metreg.measure.overlap import Overlap, common_labels, overlap
from metreg.measure.regions import Region, regions_of
from metreg.measure.regularity import FoldCount, round_trip
from metreg.prepare.intensity import BACKGROUND
from metreg.prepare.pair import Pair, carry
from metreg.report.layers import image_layers, label_layer, metric_layers, shown_range
from metreg.report.planes import Plane, pair_planes
from metreg.report.viewer import Layer, viewer_html
from metreg.result.folder import NAMES, summarise, write_files
from metreg.settings.model import Settings
from metreg.solve.registration import Record, Registration


@dataclass(frozen=True, eq=False)
class Result:
    """Two images, registered."""

    moving: Image
    fixed: Image
    affine: Array
    """Fixed world points to moving world points."""
    pair: Pair
    registration: Registration
    settings: Settings
    metric: str
    metric_licence: str
    facts: dict[str, Any]
    """Versions, timings, device: whatever `result.json` says that cannot be derived."""
    moving_labels: Image | None = None
    fixed_labels: Image | None = None
    label_names: dict[int, str] = field(default_factory=dict)
    fill: float = 0.0
    """What the warped image is where the moving image does not reach."""

    @cached_property
    def transform(self) -> Transform:
        """Brings the moving image onto the fixed grid. It maps fixed points to moving points."""
        return Transform((self._field, Affine(self.affine))).between_planes(self.fixed.plane, self.moving.plane)

    @cached_property
    def inverse(self) -> Transform:
        """Maps moving points to fixed points."""
        back = (Affine(np.linalg.inv(self.affine)), field_of_map(self.registration.phi, self.registration.grid))
        return Transform(back).between_planes(self.moving.plane, self.fixed.plane)

    @cached_property
    def _field(self) -> Field:
        """The deformation as it is written."""
        return field_of_map(self.registration.phi_inv, self.registration.grid)

    @cached_property
    def aligned(self) -> list[Array]:
        """The moving image, and its labels where they came, after the affine alone (*S)."""
        return self._carried(Transform((Affine(self.affine),)))

    @cached_property
    def carried(self) -> list[Array]:
        """The same after the deformation. It is interpolated once, from the moving image as it came."""
        return self._carried(Transform((self._field, Affine(self.affine))))

    def _carried(self, transform: Transform) -> list[Array]:
        parts: list[tuple[Image, Mode, float]] = [(self.moving, "linear", self.fill)]
        if self.moving_labels is not None:
            parts.append((self.moving_labels, "nearest", 0.0))
        return transform.resample_all(parts, self.fixed, self._device)

    @property
    def _device(self) -> torch.device:
        return self.pair.source.device

    @cached_property
    def warped(self) -> Any:
        """The moving image on the fixed grid, a nibabel image."""
        return to_nibabel(self.carried[0], self.fixed)

    @cached_property
    def warped_labels(self) -> Any:
        """The moving labels on the fixed grid, a nibabel image, or None."""
        return None if self.moving_labels is None else to_nibabel(self.carried[1], self.fixed)

    @cached_property
    def overlaps(self) -> dict[str, Overlap]:
        """Overlap before (affine) and after, where labels of both images came."""
        if self.moving_labels is None or self.fixed_labels is None:
            return {}
        target = self.fixed_labels.values
        labels = common_labels(self.moving_labels.values, target)
        before, after = self.aligned[1], self.carried[1]
        return {"before": overlap(before, target, labels), "after": overlap(after, target, labels)}

    @cached_property
    def sigma(self) -> Any:
        """Local standard deviation of the metric in mm, a nibabel image on the grid of the map."""
        grid = self.registration.grid
        return to_nibabel(self.registration.metric.local_sigma()[0].cpu().numpy() * grid.length_mm, self.place_on(grid))

    @cached_property
    def jacobian(self) -> Array:
        """Determinant of the deformation alone on the fixed grid (*S)."""
        det = jacobian_determinant(upsample(self.registration.phi_inv, self.pair.grid), self.pair.grid)
        return np.asarray(self._on_fixed(det[None], outside=1.0)[0])

    @cached_property
    def written_map(self) -> torch.Tensor:
        """The map as the transform file holds it, (1, D, *S), in double precision."""
        return map_of_field(self._field, self.registration.grid).to(self._device)

    @cached_property
    def folds(self) -> int:
        """Voxels at which the map written to disk folds."""
        return _count_folds(self.certificate, self.written_map, self.registration.grid)

    @cached_property
    def certificate(self) -> Certificate:
        """What is proven of the map written to disk, between its points too."""
        return certify(self.written_map, self.registration.grid)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write every file of the result into `folder`, all at once or not at all."""
        with atomic_folder(Path(folder), names=NAMES, overwrite=overwrite) as out:
            self.write_into(out)

    def write_into(self, out: Path) -> None:
        """The same, into a folder that is there."""
        write_files(self, out)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What `result.json` holds."""
        return summarise(self)

    @property
    def before_repair(self) -> dict[str, Any]:
        """Folds of the map with which the search ended, and whether it was repaired."""
        count = FoldCount.of(self.registration.repair)
        return {"folds": count.voxels, "smallest": count.smallest, "repaired": bool(count.repaired)}

    def report(self, *, viewer: bool = True) -> str:
        """What `report.html` holds; without the `viewer` it is small."""
        from metreg.report.pair import pair_page

        return pair_page(self, viewer=viewer)

    @cached_property
    def planes(self) -> tuple[Plane, ...]:
        """The slices through the middle of what the fixed image shows, for pictures."""
        grid = self.registration.grid
        metric = None
        if self.registration.metric.w.dim() > 1:  # a constant one makes no picture
            sigma = np.asarray(self.sigma.dataobj).reshape(1, *grid.shape)
            metric = Image(np.concatenate([sigma, self.weights]), grid.affine, "metric")
        return pair_planes(self.fixed, self.moving, self.affine, self._field, self.jacobian, metric)

    @cached_property
    def brain_jacobian(self) -> Array:
        """The determinant at the voxels (P,) that the fixed image shows, background aside."""
        return np.asarray(self.jacobian[self.fixed.scaled > BACKGROUND])

    @property
    def history(self) -> list[Record]:
        return self.registration.history

    @cached_property
    def regions(self) -> list[Region]:
        """Regularity by label of the moving image, where its labels came."""
        if self.moving_labels is None:
            return []
        grid = self.registration.grid
        sigma_mm = self.registration.metric.local_sigma()[0] * grid.length_mm
        length = torch.from_numpy(np.linalg.norm(self._field.displacement, axis=0)).to(sigma_mm)
        facts = upsample(torch.stack([sigma_mm, length])[None], self.pair.grid)
        sigma, displacement = self._on_fixed(facts, outside=facts[:, :, *[slice(1)] * grid.dim])  # as in a corner
        return regions_of(
            self.aligned[1],
            self.carried[1],
            sigma=sigma,
            displacement=displacement,
            jacobian=self.jacobian,
            voxel_ml=float(voxel_size(self.fixed.affine).prod()) / 1000,
            names=self.label_names,
        )

    @cached_property
    def viewer(self) -> str | None:
        """The viewer of a 3-D pair as a piece of HTML, where its script is installed."""
        return viewer_html(self._layers()) if self.fixed.dim == 3 else None

    def _layers(self) -> list[Layer]:
        before, after, sigma = self.aligned[0], self.carried[0], np.asarray(self.sigma.dataobj)
        grid = self.registration.grid
        jacobian = jacobian_determinant(self.registration.phi_inv, grid)[0].cpu().numpy()
        labels = {"fixed labels": None if self.fixed_labels is None else self.fixed_labels.values}
        labels["moving labels, after"] = None if self.moving_labels is None else self.carried[1]
        return [
            *image_layers(self.fixed, {"before": before, "after": after}, window=shown_range(self.moving.values)),
            *metric_layers(sigma, jacobian, grid.affine),
            *[label_layer(name, values, self.fixed.affine) for name, values in labels.items() if values is not None],
        ]

    @cached_property
    def weights(self) -> Array:
        """Of the metric, (N, *S) on the grid of the map."""
        return np.asarray(self.registration.metric.local_weights()[0].cpu().numpy())

    def place_on(self, grid: Grid) -> Image:
        """A place for values on `grid`, in the space of the fixed image."""
        return Image(np.empty(grid.shape, dtype=np.uint8), grid.affine, "map", self.fixed.plane)

    def _on_fixed(self, f: torch.Tensor, *, outside: torch.Tensor | float) -> Array:
        """Values (1, C, *S) on the domain at the voxels of the fixed image (C, *S), and what they are `outside`."""
        matrix = np.linalg.inv(self.pair.grid.affine) @ self.fixed.affine
        return np.asarray((carry(f - outside, matrix, self.fixed.shape) + outside)[0].cpu().numpy())

    @cached_property
    def inverse_facts(self) -> dict[str, Any]:
        """How well the transform that goes back does so."""
        grid = self.registration.grid
        back = map_of_field(field_of_map(self.registration.phi, grid), grid).to(self._device)
        gap = compose(self.written_map, back, grid) - grid.points(back)
        error = (gap / self.pair.grid.spacings(gap)).norm(dim=1)
        home = round_trip(self.transform, self.inverse, self.fixed, self.fixed.scaled > BACKGROUND)
        certificate = certify(back, grid)
        return {
            "folds": _count_folds(certificate, back, grid),
            "certificate": {**asdict(certificate), "holds": certificate.holds},
            "error_voxels": {"mean": float(error.mean()), "max": float(error.max())},
            "round_trip_mm": {"mean": float(home.mean()), "max": float(home.max())},
        }


def _count_folds(certificate: Certificate, phi: torch.Tensor, grid: Grid) -> int:
    """By the strict test, whose determinants the certificate has too."""
    return 0 if certificate.smallest > 0 else int(count_folds(phi, grid))
