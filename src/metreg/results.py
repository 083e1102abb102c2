"""What a registration gives its user: images and transforms in millimetres, and the folder they are written to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metreg.checks import MetregError
from metreg.config import Settings
from metreg.data.io import Image, to_nibabel, write_image
from metreg.data.pair import Pair
from metreg.data.transforms import Affine, Field, Transform, sample_at, write_transform
from metreg.data.whole import whole_folder
from metreg.evaluate.overlap import Overlap
from metreg.fields import jacobian_determinant
from metreg.flow.maps import Certificate, certify, compose, count_folds
from metreg.grid import Array, Grid, world_points
from metreg.interpolate import upsample
from metreg.report.page import Table, render
from metreg.report.plots import energy_curves, middle_slice, panel
from metreg.solve.register import make_metric, maps_of
from metreg.solve.result import Registration

NAMES = frozenset(
    [
        "warped.nii.gz",
        "warped_labels.nii.gz",
        "moving_to_fixed.h5",
        "fixed_to_moving.h5",
        "moving_affine.nii.gz",
        "sigma.nii.gz",
        "weights.nii.gz",
        "jacobian.nii.gz",
        "momentum.safetensors",
        "result.json",
        "settings.toml",
        "report.html",
    ]
)
"""Every file that `save` may write."""
FORMAT = "metreg-momentum-1"


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
    facts: dict[str, Any]
    """Versions, timings, device: whatever `result.json` says that cannot be derived."""
    moving_labels: Image | None = None
    overlaps: dict[str, Overlap] = field(default_factory=dict)
    """Before (affine) and after, where labels of both images came."""
    label_names: dict[int, str] = field(default_factory=dict)

    @cached_property
    def transform(self) -> Transform:
        """Brings the moving image onto the fixed grid: it maps fixed points to moving points."""
        return self.plain_transform.in_files_of(self.fixed, self.moving)

    @cached_property
    def inverse(self) -> Transform:
        """Maps moving points to fixed points."""
        back = (Affine(np.linalg.inv(self.affine)), make_field(self.registration.phi, self.registration.grid))
        return Transform(back).in_files_of(self.moving, self.fixed)

    @cached_property
    def plain_transform(self) -> Transform:
        return Transform((make_field(self.registration.phi_inv, self.registration.grid), Affine(self.affine)))

    @cached_property
    def warped(self) -> Any:
        """The moving image on the fixed grid, a nibabel image; interpolated once, from the moving image as it came."""
        return to_nibabel(self.plain_transform.resample(self.moving, self.fixed), self.fixed)

    @cached_property
    def warped_labels(self) -> Any:
        """The moving labels on the fixed grid, a nibabel image, or None."""
        if self.moving_labels is None:
            return None
        labels = self.plain_transform.resample(self.moving_labels, self.fixed, mode="nearest")
        return to_nibabel(labels, self.fixed)

    @cached_property
    def sigma(self) -> Any:
        """Local standard deviation of the metric in mm, a nibabel image on the grid of the map."""
        grid = self.registration.grid
        return to_nibabel(self.registration.metric.local_sigma()[0].cpu().numpy() * grid.length_mm, self._on(grid))

    @cached_property
    def jacobian(self) -> Array:
        """Determinant of the deformation alone on the fixed grid (*S)."""
        det = jacobian_determinant(upsample(self.registration.phi_inv, self.pair.grid), self.pair.grid)
        return self._on_fixed(det)

    @cached_property
    def written_map(self) -> torch.Tensor:
        """The map as the transform file holds it, (1, D, *S), in double precision."""
        return _map_of(self.plain_transform.parts[0], self.registration.grid)

    @cached_property
    def folds(self) -> int:
        """Voxels at which the map written to disk folds, by the strict test."""
        return int(count_folds(self.written_map, self.registration.grid))

    @cached_property
    def certificate(self) -> Certificate:
        return certify(self.written_map, self.registration.grid)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write every file of the result into `folder`, all at once or not at all."""
        with whole_folder(Path(folder), names=NAMES, overwrite=overwrite) as out:
            self.write_into(out)

    def write_into(self, out: Path) -> None:
        import nibabel as nib

        nib.save(self.warped, out / "warped.nii.gz")
        if self.warped_labels is not None:
            nib.save(self.warped_labels, out / "warped_labels.nii.gz")
        write_transform(out / "moving_to_fixed.h5", self.transform)
        write_transform(out / "fixed_to_moving.h5", self.inverse)
        aligned = Transform((Affine(self.affine),)).resample(self.moving, self.fixed)
        write_image(out / "moving_affine.nii.gz", aligned, self.fixed)
        nib.save(self.sigma, out / "sigma.nii.gz")
        weights = self.registration.metric.local_weights()[0].movedim(0, -1).cpu().numpy()
        write_image(out / "weights.nii.gz", weights, self._on(self.registration.grid))
        write_image(out / "jacobian.nii.gz", self.jacobian, self.fixed)
        write_momentum(out / "momentum.safetensors", self)
        (out / "settings.toml").write_text(self.settings.to_toml(), encoding="utf-8")
        (out / "result.json").write_text(json.dumps(self.summary(), indent=2), encoding="utf-8")
        (out / "report.html").write_text(self.report(), encoding="utf-8")

    def summary(self) -> dict[str, Any]:
        """What `result.json` holds."""
        percentiles = np.percentile(self.jacobian, [0, 1, 5, 50, 95, 99, 100])
        summary: dict[str, Any] = {
            "moving": self.moving.name,
            "fixed": self.fixed.name,
            "metric": self.metric,
            "metric_licence": "Apache-2.0",
            "energy": {**self.registration.energy, "total": sum(self.registration.energy.values())},
            "folds": self.folds,
            "certificate": {**asdict(self.certificate), "holds": self.certificate.holds},
            "inverse": self._inverse_facts(),
            "jacobian": dict(zip(("min", "p1", "p5", "p50", "p95", "p99", "max"), percentiles.tolist(), strict=True)),
            "affine": self.affine.tolist(),
            "seed": self.settings.seed,
            **self.facts,
            "configuration": self.settings.model_dump(),
            "history": [{"level": r.level, "iteration": r.iteration, **r.terms} for r in self.registration.history],
        }
        if self.overlaps:
            summary["overlap"] = {when: found.means() for when, found in self.overlaps.items()}
            summary["overlap_by_label"] = self._overlap_rows()
        return summary

    def report(self) -> str:
        """What `report.html` holds."""
        grid = self.registration.grid
        shift = _map_of(self.plain_transform.parts[0], grid) - grid.points(torch.empty(0, dtype=torch.float64))
        steps = torch.tensor(self.pair.grid.spacing, dtype=torch.float64).view(1, -1, *[1] * grid.dim)
        moved = upsample(shift / steps, self.pair.grid)[0].numpy()
        warped, aligned = (self._shown(f) for f in (self.registration.phi_inv, None))
        target = self.pair.target[0, 0].cpu().numpy()
        det = jacobian_determinant(upsample(self.registration.phi_inv, self.pair.grid), self.pair.grid)
        view = middle_slice(aligned, target, warped, det[0].cpu().numpy(), moved, self.pair.grid.affine)
        rows = [("folds in the written map", str(self.folds)), ("certificate", _say(self.certificate))]
        rows += [
            (f"mean {name} {when}", f"{value:.4f}")
            for when, o in self.overlaps.items()
            for name, value in o.means().items()
        ]
        rows += [(f"seconds, {name}", f"{value:.1f}") for name, value in self.facts.get("seconds", {}).items()]
        return render(
            "Registration report",
            f"{Path(self.moving.name).name} onto {Path(self.fixed.name).name}, metric {self.metric}.",
            figures={
                "The middle slice": panel(view),
                "Energy": energy_curves([(r.level, r.terms) for r in self.registration.history]),
            },
            tables=[Table("Result", ("what", "value"), rows)],
            settings=self.settings.to_toml(),
            version=str(self.facts.get("versions", {}).get("metreg", "")),
        )

    def _shown(self, phi_inv: torch.Tensor | None) -> Array:
        """The source on the domain, warped or as it is."""
        from metreg.interpolate import sample

        if phi_inv is None:
            return np.asarray(self.pair.source[0, 0].cpu().numpy())
        warped = sample(self.pair.source, upsample(phi_inv, self.pair.grid), self.pair.grid)
        return np.asarray(warped[0, 0].cpu().numpy())

    def _on(self, grid: Grid) -> Image:
        """A place for values on `grid`, in the space of the fixed image."""
        return Image(np.empty(grid.shape, dtype=np.uint8), grid.affine, "map", self.fixed.plane)

    def _on_fixed(self, f: torch.Tensor) -> Array:
        """Values (1, *S) on the domain at the voxels of the fixed image."""
        values = f.cpu().numpy()
        if self.pair.grid.shape == self.fixed.shape:
            return np.asarray(values[0])
        points = world_points(self.fixed.shape, self.fixed.affine)
        return sample_at(values, self.pair.grid.affine, points)[0].reshape(self.fixed.shape)

    def _inverse_facts(self) -> dict[str, Any]:
        grid = self.registration.grid
        back = _map_of(make_field(self.registration.phi, grid), grid)
        gap = compose(self.written_map, back, grid) - grid.points(back)
        size = torch.tensor(self.pair.grid.spacing, dtype=gap.dtype).view(1, -1, *[1] * grid.dim)
        error = (gap / size).norm(dim=1)
        return {
            "folds": int(count_folds(back, grid)),
            "error_voxels": {"mean": float(error.mean()), "max": float(error.max())},
        }

    def _overlap_rows(self) -> list[dict[str, Any]]:
        before, after = self.overlaps["before"], self.overlaps["after"]
        return [
            {
                "label": label,
                "name": self.label_names.get(label, ""),
                "target_overlap_before": before.target_overlap[i],
                "target_overlap_after": after.target_overlap[i],
                "dice_before": before.dice[i],
                "dice_after": after.dice[i],
            }
            for i, label in enumerate(after.labels)
        ]


def make_field(phi: torch.Tensor, grid: Grid) -> Field:
    """A map (1, D, *S) in reference lengths as a displacement field in world millimetres, float32."""
    shift = (phi - grid.points(phi))[0].double().cpu().numpy()
    u = np.einsum("ed,d...->e...", grid.local_to_world()[:-1, :-1], shift)
    return Field(u.astype(np.float32), grid.affine)


def _map_of(part: Affine | Field, grid: Grid) -> torch.Tensor:
    """The way back: a displacement field as a map (1, D, *S) in reference lengths, in double precision."""
    assert isinstance(part, Field)
    back = np.linalg.inv(grid.local_to_world()[:-1, :-1])
    shift = torch.from_numpy(np.einsum("de,e...->d...", back, part.displacement.astype(np.float64)))
    return grid.points(shift) + shift


def write_momentum(path: Path, result: Result) -> None:
    """The compact form: momentum, metric and geometry, from which the transform can be computed again."""
    from safetensors.torch import save_file

    registration = result.registration
    tensors = {"m": registration.m.cpu(), "affine": torch.from_numpy(result.affine)}
    tensors["grid_affine"] = torch.from_numpy(np.ascontiguousarray(registration.grid.affine))
    if registration.metric.w.dim() > 1:
        tensors["weights"] = registration.metric.w.cpu()
    grid = registration.grid
    geometry = {"shape": grid.shape, "spacing": grid.spacing, "length_mm": grid.length_mm}
    about = {"format": FORMAT, "grid": json.dumps(geometry), "settings": result.settings.model_dump_json()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=about)


def read_momentum(path: Path) -> tuple[Transform, Transform]:
    """The transform and its inverse, in the world of 2-D or 3-D points, computed again from the compact form."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise MetregError(f"momentum: no such file: {path}")
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise MetregError(f"momentum: damaged file ({error}): {path}") from None
    if about.get("format") != FORMAT:
        raise MetregError(f"momentum: wanted a file of format {FORMAT}, got {about.get('format')}: {path}")
    settings = Settings.model_validate_json(about["settings"])
    geometry = json.loads(about["grid"])
    grid = Grid(tuple(geometry["shape"]), tuple(geometry["spacing"]), geometry["length_mm"], tensors["grid_affine"].numpy())
    metric = make_metric(grid, settings.metric, like=tensors["m"], weights=tensors.get("weights"))
    phi_inv, phi = maps_of(tensors["m"], metric, grid, settings.flow)
    affine = tensors["affine"].numpy()
    there = Transform((make_field(phi_inv, grid), Affine(affine)))
    return there, Transform((Affine(np.linalg.inv(affine)), make_field(phi, grid)))


def _say(certificate: Certificate) -> str:
    if certificate.holds:
        return f"invertible everywhere; the determinant is at least {certificate.smallest:.3f}"
    if certificate.smallest > 0:
        return f"locally invertible, determinant at least {certificate.smallest:.3f}; the border moves"
    return f"none: the determinant may reach {certificate.smallest:.3f}"
