"""Images, labels and points: from files to arrays with a place in the world, and back. World is RAS, millimetres."""

from __future__ import annotations

import csv
import logging
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from metreg.checks import MetregError
from metreg.grid import Array, transform_points

log = logging.getLogger(__name__)
Frame = Literal["ras", "lps"]
NIFTI_ENDINGS = (".nii", ".nii.gz", ".hdr", ".img", ".mgz", ".mgh")


@dataclass(frozen=True, eq=False)
class Image:
    """An image (*S), 2-D or 3-D, or (*S, N) where channels are wanted, with its index-to-world `affine` (D+1, D+1).

    A single slice of a 3-D file is 2-D here; `plane` (4, 3) then takes its 2-D world to the 3-D world of the file.
    """

    values: Array
    affine: Array
    name: str = "image"
    plane: Array | None = None
    header: Any = None
    """The NIfTI header it came with, if any."""

    @property
    def dim(self) -> int:
        return len(self.affine) - 1

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape[: self.dim])

    def with_values(self, values: Array) -> Image:
        """Other values on the same voxels."""
        return replace(self, values=values)


def read_image(source: Any, role: str = "image") -> Image:
    """An image from a path, a nibabel image or an (array, affine) pair; its intensities must be finite and not constant."""
    image = _open(source, role)
    values = np.asarray(image.values, dtype=np.float32)
    if values.size == 0:
        raise MetregError(f"{role}: no voxels: {image.name}")
    if not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise MetregError(f"{role}: {bad} voxels are NaN or infinite; replace them first: {image.name}")
    if values.min() == values.max():
        raise MetregError(f"{role}: no finite intensity range (all {values.min():g}). Is this the right file? {image.name}")
    return replace(image, values=values)


def read_reference(source: Any, role: str = "reference") -> Image:
    """An image of which only the grid matters."""
    return _open(source, role)


def read_labels(source: Any, role: str = "labels") -> Image:
    """A label image: integers, whatever type they are stored in."""
    image = _open(source, role)
    values = np.asarray(image.values)
    rounded = np.rint(values)
    if not np.array_equal(rounded, values):
        raise MetregError(f"{role}: wanted integer labels, got values such as {_first_odd(values):g}: {image.name}")
    return replace(image, values=rounded.astype(np.int32))


def read_mask(source: Any, like: Image, role: str = "mask") -> Image:
    """A mask on the voxels of `like`: one where the file is not zero."""
    mask = _open(source, role)
    check_same_grid(mask, like, role)
    values = np.asarray(mask.values) != 0
    if not values.any():
        raise MetregError(f"{role}: empty, no voxel is set: {mask.name}")
    return replace(mask, values=values.astype(np.float32))


def read_weights(source: Any, like: Image, count: int, role: str = "weights") -> Image:
    """Local weights (*S, N) in the space of `like`, on a grid of their own: N of them, none negative, of sum one."""
    image = _open(source, role)
    values = np.asarray(image.values, dtype=np.float32)
    if image.dim != like.dim or values.shape[-1] != count:
        raise MetregError(
            f"{role}: wanted {like.dim}-D with {count} weights as last axis, got {values.shape}: {image.name}"
        )
    if not np.isfinite(values).all() or values.min() < 0 or np.abs(values.sum(-1) - 1).max() > 1e-2:
        raise MetregError(f"{role}: wanted numbers of 0 or more whose sum is one at every voxel: {image.name}")
    return replace(image, values=values)


def check_same_grid(image: Image, like: Image, role: str) -> None:
    """Refuse an image that does not lie voxel on voxel on another."""
    if image.shape != like.shape:
        raise MetregError(
            f"{role}: wanted the grid of {like.name}, {like.shape}, got {image.shape}: {image.name}; resample it first"
        )
    corners = np.array(np.meshgrid(*[(0, n - 1) for n in like.shape])).reshape(like.dim, -1).T.astype(float)
    gap = np.abs(transform_points(image.affine, corners) - transform_points(like.affine, corners)).max()
    if gap > 1e-2:
        raise MetregError(
            f"{role}: lies elsewhere than {like.name}, up to {gap:.3g} mm off: {image.name}; give it the same header"
        )


def write_image(path: Path, values: Array, like: Image) -> None:
    """Values (*S) or (*S, N) on the voxels of `like` as a NIfTI file."""
    import nibabel as nib

    nib.save(to_nibabel(values, like), path)


def to_nibabel(values: Array, like: Image) -> Any:
    """Values (*S) or (*S, N) on the voxels of `like` as a NIfTI image, with its header where it has one."""
    import nibabel as nib

    shape, extra = values.shape[: like.dim], values.shape[like.dim :]
    if like.header is not None:
        shape = like.header.get_data_shape()[:3]
    elif like.plane is not None or (extra and like.dim == 2):
        shape = (*shape, 1)
    affine = _file_affine(like)
    image = nib.Nifti1Image(values.reshape(*shape, *extra), affine, like.header, dtype=values.dtype)
    if like.header is None:
        image.set_qform(affine, code="aligned")
        image.set_sform(affine, code="aligned")
        image.header.set_xyzt_units("mm")
    image.header["cal_min"] = image.header["cal_max"] = 0
    return image


def read_points(path: Path, frame: Frame, dim: int) -> tuple[Array, list[str], list[list[str]]]:
    """Points (P, D) in RAS from the columns x, y(, z) of a CSV file; also its header and its rows as they are."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError) as error:
        raise MetregError(f"points: cannot read {path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    names = "xyz"[:dim]
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    if not all(name in header for name in names):
        raise MetregError(f"points: wanted a header line with the columns {', '.join(names)}: {path}")
    columns = [header.index(name) for name in names]
    points = np.empty((len(rows) - 1, dim))
    for number, row in enumerate(rows[1:]):
        try:
            points[number] = [float(row[c]) for c in columns]
        except (ValueError, IndexError):
            raise MetregError(f"points: line {number + 2} has no {dim} coordinates: {path}") from None
    if not np.isfinite(points).all():
        raise MetregError(f"points: coordinates must be finite numbers: {path}")
    return flip_frame(points, frame), rows[0], rows[1:]


def write_points(path: Path, points: Array, frame: Frame, header: list[str], rows: list[list[str]]) -> None:
    """The same table with new coordinates."""
    columns = [[cell.strip().lower() for cell in header].index(name) for name in "xyz"[: points.shape[1]]]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        for row, point in zip(rows, flip_frame(points, frame), strict=True):
            cells = list(row)
            for c, value in zip(columns, point, strict=True):
                cells[c] = f"{value:.6f}"
            writer.writerow(cells)


def flip_frame(points: Array, frame: Frame) -> Array:
    """Between RAS and `frame`, either way: LPS has the first two axes the other way round."""
    sign = np.ones(points.shape[-1])
    if frame == "lps":
        sign[:2] = -1
    return points * sign


def _open(source: Any, role: str) -> Image:
    """Any image, 2-D or 3-D, with no word yet on its values; a (*S, N) one only for the role `weights`."""
    import nibabel as nib

    if isinstance(source, Image):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), role)
    if isinstance(source, nib.spatialimages.SpatialImage):
        name = source.get_filename() or f"the {role} given"
        return _from_nibabel(source, role, str(name))
    if isinstance(source, tuple) and len(source) == 2:
        values, affine = (np.asarray(part) for part in source)
        return _place(values, np.asarray(affine, dtype=float), role, f"the {role} array given")
    raise MetregError(f"{role}: wanted a path, a nibabel image or (array, affine), got {type(source).__name__}")


def _open_file(path: Path, role: str) -> Image:
    import nibabel as nib

    if not path.exists():
        raise MetregError(f"{role}: no such file: {path}")
    if path.name.lower().endswith(NIFTI_ENDINGS):
        try:
            return _from_nibabel(nib.load(path), role, str(path))
        except (nib.filebasedimages.ImageFileError, OSError, EOFError, ValueError, zlib.error) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MetregError(f"{role}: not a readable NIfTI image ({reason}): {path}") from None
    return _from_itk(path, role)


def _from_nibabel(image: Any, role: str, name: str) -> Image:
    affine = image.affine
    if affine is None:
        raise MetregError(f"{role}: the header says nothing about where the image lies: {name}")
    header = image.header if hasattr(image.header, "get_xyzt_units") else None
    return _place(np.asanyarray(image.dataobj), np.asarray(affine, dtype=float), role, name, header)


def _from_itk(path: Path, role: str) -> Image:
    """NRRD, MetaImage, PNG, TIFF, ..., or a folder with a DICOM series."""
    import SimpleITK as sitk

    sitk.ProcessObject.SetGlobalWarningDisplay(False)
    try:
        if path.is_dir():
            series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
            if len(series) != 1:
                raise MetregError(f"{role}: wanted a folder with one DICOM series, got {len(series)}: {path}")
            image = sitk.ReadImage(sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0]))
        else:
            image = sitk.ReadImage(str(path))
    except RuntimeError:
        raise MetregError(f"{role}: not an image that nibabel or SimpleITK can read: {path}") from None
    values = sitk.GetArrayFromImage(image)
    if image.GetNumberOfComponentsPerPixel() in (3, 4) and role != "weights":
        log.warning("%s: colours are turned to grey: %s", role, path)
        values = values[..., :3] @ np.array([0.299, 0.587, 0.114])
    dim = image.GetDimension()
    values = values.transpose(*reversed(range(dim)), *range(dim, values.ndim))
    affine = np.eye(dim + 1)
    affine[:dim, :dim] = np.array(image.GetDirection()).reshape(dim, dim) * np.array(image.GetSpacing())
    affine[:dim, dim] = image.GetOrigin()
    affine[:2] *= -1  # LPS to RAS
    return _place(values, affine, role, str(path))


def _place(values: Array, affine: Array, role: str, name: str, header: Any = None) -> Image:
    """An array and its affine as an Image; one slice of three dimensions becomes 2-D."""
    if values.dtype.kind not in "biuf":
        raise MetregError(f"{role}: wanted numbers, got voxels of type {values.dtype}: {name}")
    channels = values.shape[-1:] if role == "weights" else ()
    shape = values.shape[:-1] if role == "weights" else values.shape
    shape = shape if len(shape) < 4 else (*shape[:3], *[n for n in shape[3:] if n != 1])
    if len(shape) not in (2, 3):
        raise MetregError(f"{role}: wanted a 2-D or 3-D image, got shape {values.shape}: {name}; pick one volume")
    if 0 in shape:
        raise MetregError(f"{role}: no voxels, shape {values.shape}: {name}")
    if affine.shape not in ((len(shape) + 1,) * 2, (4, 4)):
        raise MetregError(f"{role}: wanted an affine of {len(shape) + 1} x {len(shape) + 1}, got {affine.shape}: {name}")
    if not np.isfinite(affine).all() or abs(np.linalg.det(affine)) < 1e-12:
        raise MetregError(f"{role}: the header's affine is singular, so voxels have no place: {name}")
    values = values.reshape(*shape, *channels)
    if len(shape) == 2 and len(affine) == 4:
        affine = affine[np.ix_((0, 1, 3), (0, 1, 3))]
        if abs(np.linalg.det(affine)) < 1e-12:
            raise MetregError(f"{role}: a 2-D image that does not lie in the x-y plane: {name}; store it as one 3-D slice")
    if len(shape) == 2:
        return Image(values, affine, name, header=header)
    thin = [axis for axis, n in enumerate(shape) if n == 1]
    if not thin:
        return Image(values, affine, name, header=header)
    if len(thin) > 1:
        raise MetregError(f"{role}: wanted a 2-D or 3-D image, got shape {values.shape}: {name}")
    flat, plane = _flatten(affine, thin[0])
    return Image(values.squeeze(thin[0]), flat, name, plane, header)


def _flatten(affine: Array, slice_axis: int) -> tuple[Array, Array]:
    """The 2-D affine of a single slice, and the matrix (4, 3) that takes its 2-D world back to 3-D.

    2-D world coordinates are the two world axes the slice lies in, turned the short way round if it is oblique.
    """
    inside = [axis for axis in range(3) if axis != slice_axis]
    a, b = affine[:3, inside].T
    normal = np.cross(a, b) / np.linalg.norm(np.cross(a, b))
    dropped = int(np.abs(normal).argmax())
    axis = np.eye(3)[dropped] * np.sign(normal[dropped])
    cross, cosine = np.cross(axis, normal), float(axis @ normal)
    skew = np.array([[0, -cross[2], cross[1]], [cross[2], 0, -cross[0]], [-cross[1], cross[0], 0]])
    turn = np.eye(3) + skew + skew @ skew / (1 + cosine)  # takes the world axis to the slice's normal
    kept = [axis for axis in range(3) if axis != dropped]
    plane = np.zeros((4, 3))
    plane[:3, :2] = turn[:, kept]
    plane[:3, 2] = normal * float(normal @ affine[:3, 3])
    plane[3, 2] = 1
    flat = np.eye(3)
    flat[:2, :2] = plane[:3, :2].T @ affine[:3, inside]
    flat[:2, 2] = plane[:3, :2].T @ affine[:3, 3]
    return flat, plane


def _file_affine(image: Image) -> Array:
    """The 4 x 4 affine of the file that `image` came from, or would come from."""
    if image.header is not None:
        return np.asarray(image.header.get_best_affine(), dtype=float)
    affine = np.eye(4)
    if image.plane is not None:
        affine[:, (0, 1, 3)] = image.plane @ image.affine
        affine[:3, 2] = np.cross(*image.plane[:3, :2].T)
    elif image.dim == 2:
        affine[np.ix_((0, 1, 3), (0, 1, 3))] = image.affine
    else:
        affine = image.affine
    return affine


def _first_odd(values: Array) -> float:
    return float(values[np.rint(values) != values].flat[0])
