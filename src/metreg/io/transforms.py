"""Spatial transforms, and the ITK files in which they travel. Array are RAS millimetres here, LPS in the files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from metreg.core.grid import Array, Grid, transform_points, voxel_size, world_points
from metreg.core.resample import sample
from metreg.errors import MetregError
from metreg.io.formats import is_singular
from metreg.io.image import Image
from metreg.io.integrity import (
    SEAL_BYTES,
    DamagedFileError,
    check_hdf5,
    check_itk_text,
    check_matlab,
    check_xfm,
    seal_hdf5,
)
from metreg.io.quiet import quiet_itk

Mode = Literal["linear", "nearest"]
CPU = torch.device("cpu")
FAR = 0.1
"""Share of a field's size."""


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> matrix x, homogeneous (D+1, D+1)."""

    matrix: Array

    def apply(self, points: Array) -> Array:
        return transform_points(self.matrix, points)


@dataclass(frozen=True, eq=False)
class Field:
    """x -> x + u(x), u (D, *S) interpolated linearly between the points of a grid, zero outside it."""

    displacement: Array
    affine: Array
    """Index to world, (D+1, D+1), axes at right angles."""

    def apply(self, points: Array) -> Array:
        return points + sample_at(self.displacement, self.affine, points).T


@dataclass(frozen=True, eq=False)
class Transform:
    """Parts that are applied to a point one after the other, first to last."""

    parts: tuple[Affine | Field, ...]

    @property
    def dim(self) -> int:
        first = self.parts[0]
        return len(first.matrix if isinstance(first, Affine) else first.affine) - 1

    def apply(self, points: Array) -> Array:
        """Where points (P, D), RAS millimetres, go."""
        points = np.asarray(points, dtype=float)
        if points.ndim != 2 or points.shape[1] != self.dim:
            raise MetregError(f"points: wanted shape (P, {self.dim}), got {points.shape}")
        for part in self.parts:
            points = part.apply(points)
        return points

    def far_outside(self, points: Array) -> Array:
        """Which points (P, D) come so far outside a field, by a tenth of its size, that they were hardly meant for it."""
        far = np.zeros(len(points), dtype=bool)
        for part in self.parts:
            if isinstance(part, Field):
                index = transform_points(np.linalg.inv(part.affine), points)
                shape = np.array(part.displacement.shape[1:])
                margin = np.maximum(FAR * shape, 0.5)
                far |= ((index < -margin) | (index > shape - 1 + margin)).any(1)
            points = part.apply(points)
        return far

    def resample(self, image: Image, reference: Image, mode: Mode = "linear", *, fill: float = 0.0) -> Array:
        """The image on the voxels of the reference: its value at T(x) for every voxel x, `fill` outside it.  (*S)

        As in ITK a point that lies on a voxel of the image is interpolated, up to half a voxel beyond the centres of the
        outermost ones, without a share of what lies outside.
        """
        return self.resample_all([(image, mode, fill)], reference)[0]

    def resample_all(
        self, images: Sequence[tuple[Image, Mode, float]], reference: Image, device: torch.device = CPU
    ) -> list[Array]:
        """The same for several images of one space, a few planes at a time. Positions are kept in double precision."""
        if self.dim < reference.dim:
            raise MetregError(f"transform: it is {self.dim}-D, the reference {reference.dim}-D: {reference.name}")
        if self.dim > reference.dim:
            points = self.at_voxels(reference, images[0][0])
            found = [sample_at(_to_sample(f, mode)[None], f.affine, points, mode, fill)[0] for f, mode, fill in images]
            return [values.reshape(reference.shape) for values in found]
        # what is sampled is zero outside, so the fill is taken off before and added after
        tensors = [_tensor(_to_sample(image, mode)[None], device) - fill for image, mode, fill in images]
        out = [np.empty(reference.shape, dtype=_to_sample(image, mode).dtype) for image, mode, _ in images]
        for planes, x in self._from_voxels(reference, device):
            for f, (image, mode, fill), into in zip(tensors, images, out, strict=True):
                values = sample_tensor(f, linear(np.linalg.inv(image.affine), x), mode)[0, 0] + fill
                into[planes] = values.cpu().numpy()
        return out

    def at_voxels(self, reference: Image, image: Image) -> Array:
        """Where every voxel of the reference goes (P, D), in the world of the image; between slices, in their planes."""
        if self.dim == reference.dim:
            parts = [x.flatten(1).T.numpy() for _, x in self._from_voxels(reference, CPU)]
            return np.concatenate(parts)
        points = world_points(reference.shape, reference.affine)
        if self.dim > reference.dim and reference.plane is not None and image.plane is not None:
            return np.asarray(self.apply(transform_points(reference.plane, points)) @ image.plane[:3, :2])
        return self.apply(points)

    def _from_voxels(self, reference: Image, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
        """Where the voxels of some planes go, in world millimetres: which planes, and (D, planes, ...)."""
        fields = [_tensor(part.displacement, device) if isinstance(part, Field) else None for part in self.parts]
        for planes, x in positions(reference.affine, reference.shape, device):
            for part, u in zip(self.parts, fields, strict=True):
                if isinstance(part, Affine):
                    x = linear(part.matrix, x)
                else:
                    assert u is not None
                    x = x + sample_tensor(u, linear(np.linalg.inv(part.affine), x), "linear")[0]
            yield planes, x

    def between_planes(self, start: Array | None, end: Array | None) -> Transform:
        """The same transform between the worlds of two files: 3-D where both are single slices, in planes (4, 3)."""
        if start is None or end is None:
            return self
        here = _lift(start)
        lifted: list[Affine | Field] = []
        for part in self.parts:
            if isinstance(part, Affine):  # the one affine part takes the plane `start` to the plane `end`
                there = _lift(end)
                lifted.append(Affine(there @ _embed(part.matrix) @ np.linalg.inv(here)))
                here = there
            else:
                u = np.einsum("ed,d...->e...", here[:3, :2], part.displacement)[..., None]
                lifted.append(Field(u.astype(np.float32), here @ _embed(part.affine)))
        return Transform(tuple(lifted))


def field_of_map(phi: torch.Tensor, grid: Grid) -> Field:
    """A map (1, D, *S) in reference lengths as a displacement field in world millimetres, float32."""
    shift = (phi - grid.points(phi))[0].double().cpu().numpy()
    u = np.einsum("ed,d...->e...", grid.local_to_world()[:-1, :-1], shift)
    return Field(u.astype(np.float32), grid.affine)


def map_of_field(field: Field, grid: Grid) -> torch.Tensor:
    """The way back: a displacement field as a map (1, D, *S) in reference lengths, in double precision."""
    back = np.linalg.inv(grid.local_to_world()[:-1, :-1])
    shift = torch.from_numpy(np.einsum("de,e...->d...", back, field.displacement.astype(np.float64)))
    return grid.points(shift) + shift


def sample_at(values: Array, affine: Array, points: Array, mode: Mode = "linear", fill: float = 0.0) -> Array:
    """Values (C, *S) of a grid at world points (P, D), `fill` outside -> (C, P). Positions are kept in double precision."""
    index = transform_points(np.linalg.inv(affine), points)
    chunk, out = 2_000_000, np.empty((len(values), len(points)), dtype=values.dtype)
    f = _tensor(values, CPU) - fill
    for start in range(0, len(points), chunk):
        x = torch.from_numpy(index[start : start + chunk].T.copy())
        out[:, start : start + chunk] = (sample_tensor(f, x, mode)[0] + fill).numpy()
    return out


def sample_tensor(f: torch.Tensor, x: torch.Tensor, mode: Mode) -> torch.Tensor:
    """f (1, C, *S) at indices x (D, *T), zero outside -> (1, C, *T)."""
    shape = f.shape[2:]
    if 1 in shape:  # a slice: a grid wants two points per axis, so the second repeats the first; half a voxel thick
        axis = shape.index(1)
        thick = sample_tensor(f.repeat_interleave(2, dim=2 + axis), x, mode)
        return torch.where(x[axis].abs() <= 0.5, thick, torch.zeros((), dtype=thick.dtype, device=thick.device))
    return sample(f, x[None], Grid(tuple(shape), (1.0,) * len(shape)), mode=mode, outside="zero")


def positions(
    matrix: Array, shape: tuple[int, ...], device: torch.device, at_a_time: int = 2_000_000
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Where a matrix takes the indices of an array, some planes after others: which, and (D, planes, ...) in double."""
    lines = []  # what each axis adds, (D, 1, .., n, .., 1)
    for axis, n in enumerate(shape):
        along = torch.arange(n, dtype=torch.float64)[None] * torch.from_numpy(matrix[:-1, axis])[:, None]
        lines.append(along.view(-1, *[n if a == axis else 1 for a in range(len(shape))]).to(device))
    lines[0] += torch.from_numpy(matrix[:-1, -1].copy()).to(device).view(-1, *[1] * len(shape))
    rest = sum(lines[1:])
    planes = max(1, at_a_time // math.prod(shape[1:]))
    for start in range(0, shape[0], planes):
        part = slice(start, min(start + planes, shape[0]))
        yield part, lines[0][:, part] + rest


def linear(matrix: Array, x: torch.Tensor) -> torch.Tensor:
    """A homogeneous matrix (E+1, D+1) on points (D, *T) -> (E, *T)."""
    turn, shift = (torch.from_numpy(np.ascontiguousarray(part)).to(x) for part in (matrix[:-1, :-1], matrix[:-1, -1]))
    return torch.addmm(shift[:, None], turn, x.flatten(1)).view(len(turn), *x.shape[1:])


def _to_sample(image: Image, mode: Mode) -> Array:
    return image.values if mode == "nearest" else image.values.astype(np.float32, copy=False)


def _tensor(values: Array, device: torch.device) -> torch.Tensor:
    """(C, *S) -> (1, C, *S) in double precision, which positions are rounded to as well."""
    return torch.from_numpy(np.ascontiguousarray(values).astype(np.float64)).to(device)[None]


def write_transform(path: Path, transform: Transform) -> None:
    """An ITK composite transform (HDF5): parts in double precision, fields in float32, compressed; sealed by a checksum."""
    import h5py

    dim = transform.dim
    with h5py.File(path, "w", userblock_size=SEAL_BYTES) as file:
        text = h5py.string_dtype("ascii")
        for name, value in (("ITKVersion", "5.4.0"), ("HDFVersion", h5py.version.hdf5_version), ("OSName", "any")):
            file.create_dataset(name, data=[value], dtype=text)
        group = file.create_group("TransformGroup")
        group.create_dataset("0/TransformType", data=[f"CompositeTransform_double_{dim}_{dim}"], dtype=text)
        # ITK applies the last part of its queue first
        for number, part in enumerate(reversed(transform.parts), start=1):
            kind, fixed, parameters = _itk_affine(part) if isinstance(part, Affine) else _itk_field(part)
            group.create_dataset(f"{number}/TransformType", data=[f"{kind}_double_{dim}_{dim}"], dtype=text)
            # what is compressed carries a checksum anyway; the little that is not gets one too
            group.create_dataset(f"{number}/TransformFixedParameters", data=fixed, fletcher32=True)
            packing: dict[str, Any] = {"fletcher32": True}
            if parameters.size > 100:
                packing = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
            group.create_dataset(f"{number}/TransformParameters", data=parameters, **packing)
    seal_hdf5(path)


@quiet_itk()
def read_transform(path: str | Path) -> Transform:
    """A transform from any file of ITK's: matrices, displacement fields and composites of them."""
    import h5py
    import SimpleITK as sitk

    path = Path(path)
    if not path.is_file():
        raise MetregError(f"transform: no such file: {path}")
    try:
        if path.suffix in (".h5", ".hdf5"):  # ITK prints pages about a damaged file; h5py just says so
            check_hdf5(path)
            with h5py.File(path) as file:
                file.visititems(lambda name, item: item[()] if isinstance(item, h5py.Dataset) else None)
        if path.suffix == ".mat":
            check_matlab(path.read_bytes())
        parts = _flat(sitk.ReadTransform(str(path)))
        if path.suffix in (".tfm", ".txt"):
            counts = [(part.GetNumberOfParameters(), part.GetNumberOfFixedParameters()) for part in parts]
            check_itk_text(path.read_text(encoding="utf-8"), counts)
        if path.suffix == ".xfm":
            check_xfm(path.read_text(encoding="utf-8"), len(parts))
    except DamagedFileError as error:
        raise MetregError(f"transform: damaged ({error}): {path}") from None
    except (RuntimeError, OSError, KeyError, TypeError, ValueError):
        raise MetregError(f"transform: not an ITK transform file, or damaged: {path}") from None
    if not parts:
        raise MetregError(f"transform: it has no parts: {path}")
    transform = Transform(tuple(_from_itk(part, path) for part in parts))
    check_transform(transform, str(path))
    return transform


def check_transform(transform: Transform, name: str) -> None:
    """Refuse numbers that take points nowhere, and a matrix that has no inverse."""
    for part in transform.parts:
        if isinstance(part, Field) and not np.isfinite(part.displacement).all():
            bad = int((~np.isfinite(part.displacement)).any(0).sum())
            raise MetregError(f"transform: its field is NaN or infinite at {bad} points; make it anew: {name}")
        matrix = part.matrix if isinstance(part, Affine) else part.affine
        if not np.isfinite(matrix).all():
            raise MetregError(f"transform: its matrix is not finite; make it anew: {name}")
        if is_singular(matrix):
            raise MetregError(f"transform: its matrix is singular, so it has no inverse; make it anew: {name}")


def _flat(transform: Any) -> list[Any]:
    """The parts of an ITK transform in the order in which they are applied."""
    if transform.GetName() != "CompositeTransform":
        return [transform.Downcast()]
    composite = transform.Downcast()
    parts = [composite.GetNthTransform(i) for i in range(composite.GetNumberOfTransforms())]
    return [leaf for part in reversed(parts) for leaf in _flat(part)]


def _from_itk(part: Any, path: Path) -> Affine | Field:
    dim = part.GetDimension()
    flip = _flip(dim)
    if part.IsLinear():
        matrix = np.eye(dim + 1)
        offset = np.array(part.TransformPoint([0.0] * dim))
        matrix[:dim, dim] = offset
        with np.errstate(invalid="ignore"):  # what is not finite is refused later
            matrix[:dim, :dim] = np.array([part.TransformPoint(list(e)) for e in np.eye(dim)]).T - offset[:, None]
            return Affine(flip @ matrix @ flip)
    if part.GetName() != "DisplacementFieldTransform":
        raise MetregError(f"transform: a {part.GetName()} cannot be read; wanted affine parts and fields: {path}")
    import SimpleITK as sitk

    field = part.GetDisplacementField()
    u = sitk.GetArrayFromImage(field).astype(np.float32)  # (..., z, y, x, D)
    u = u.transpose(dim, *reversed(range(dim))) * np.diag(flip)[:dim].reshape(-1, *[1] * dim)
    affine = np.eye(dim + 1)
    affine[:dim, :dim] = np.array(field.GetDirection()).reshape(dim, dim) * np.array(field.GetSpacing())
    affine[:dim, dim] = field.GetOrigin()
    return Field(u.astype(np.float32), flip @ affine)


def _itk_affine(part: Affine) -> tuple[str, Array, Array]:
    dim = len(part.matrix) - 1
    lps = _flip(dim) @ part.matrix @ _flip(dim)
    return "AffineTransform", np.zeros(dim), np.concatenate([lps[:dim, :dim].ravel(), lps[:dim, dim]])


def _itk_field(part: Field) -> tuple[str, Array, Array]:
    dim, shape = len(part.displacement), part.displacement.shape[1:]
    lps = _flip(dim) @ part.affine
    spacing = voxel_size(lps)
    direction = lps[:dim, :dim] / spacing
    sign = np.diag(_flip(dim))[:dim].reshape(-1, *[1] * dim)
    u = (part.displacement * sign).astype(np.float32).transpose(*reversed(range(1, dim + 1)), 0)
    return "DisplacementFieldTransform", np.concatenate([shape, lps[:dim, dim], spacing, direction.ravel()]), u.ravel()


def _flip(dim: int) -> Array:
    """Between RAS and LPS, homogeneous."""
    return np.diag([-1.0, -1.0, *[1.0] * (dim - 1)])


def _lift(plane: Array) -> Array:
    """A plane's 2-D world to the 3-D world, (4, 3), as an invertible (4, 4): the third coordinate is along the normal."""
    full = np.eye(4)
    full[:, (0, 1, 3)] = plane
    full[:3, 2] = np.cross(*plane[:3, :2].T)
    return full


def _embed(matrix: Array) -> Array:
    """A 2-D homogeneous matrix as a 3-D one that leaves the third coordinate alone."""
    full = np.eye(4)
    full[np.ix_((0, 1, 3), (0, 1, 3))] = matrix
    return full
