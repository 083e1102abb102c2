"""From files of many formats to arrays with a place in the world. World is RAS, millimetres."""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from metreg.core.grid import Array, transform_points, voxel_size
from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.io.integrity import check_length, check_pixels, unpack
from metreg.io.quiet import quiet_itk, quiet_nibabel

log = logging.getLogger(__name__)
NIFTI_ENDINGS = (".nii", ".nii.gz", ".hdr", ".hdr.gz", ".img", ".img.gz", ".mgz", ".mgh")


def import_formats() -> None:
    """Import what reads files, in one thread: others may then read side by side."""
    import nibabel  # noqa: F401
    import SimpleITK  # noqa: F401


def open_image(source: Any, role: str, *, unpacked: bool = True) -> Image:
    """Any image, 2-D or 3-D, with no word yet on its values; a (*S, N) one only for the role `weights`.

    Those of a NIfTI file that is not `unpacked` are zeros: what its header says is quickly read.
    """
    import nibabel as nib

    if isinstance(source, Image):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), role, unpacked)
    if isinstance(source, nib.spatialimages.SpatialImage):
        name = source.get_filename() or f"the {role} given"
        return _from_nibabel(lambda: source, role, str(name), unpacked)
    if isinstance(source, tuple) and len(source) == 2:
        values, affine = (np.asarray(part) for part in source)
        return _place(values, np.asarray(affine, dtype=float), role, f"the {role} array given")
    raise MetregError(f"{role}: wanted a path, a nibabel image or (array, affine), got {type(source).__name__}")


def _open_file(path: Path, role: str, unpacked: bool) -> Image:
    import nibabel as nib

    if not path.exists():
        raise MetregError(f"{role}: no such file: {path}")
    if path.name.lower().endswith(NIFTI_ENDINGS):
        return _from_nibabel(lambda: nib.load(path), role, str(path), unpacked)
    return _from_itk(path, role)


def _from_nibabel(load: Callable[[], Any], role: str, name: str, unpacked: bool) -> Image:
    import nibabel as nib

    unreadable = (
        *(nib.filebasedimages.ImageFileError, nib.spatialimages.HeaderDataError, nib.spatialimages.HeaderTypeError),
        *(OSError, EOFError, ValueError, zlib.error, MemoryError, OverflowError),
    )
    try:
        with quiet_nibabel():
            image = load()
            values = _values_of(image) if unpacked else np.broadcast_to(np.zeros((), np.uint8), image.shape)
    except unreadable as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MetregError(f"{role}: not a readable NIfTI image ({reason}): {name}") from None
    header = None
    if hasattr(image.header, "get_xyzt_units"):
        header = image.header
        return _place(values, _nifti_affine(header, role, name), role, name, header)
    return _place(values, np.asarray(image.affine, dtype=float), role, name)


def _values_of(image: Any) -> Array:
    """The values of a nibabel image. What a file still holds of them is unpacked to its end, where the checksum is."""
    from nibabel.arrayproxy import ArrayProxy

    header_file = image.file_map.get("header")
    if header_file is not None and str(header_file.filename).lower().endswith(".gz"):
        unpack(Path(header_file.filename).read_bytes())
    data = image.dataobj
    if type(data) is not ArrayProxy or not isinstance(data.file_like, (str, Path)):
        return np.asanyarray(data)
    path = Path(data.file_like)
    name = path.name.lower()
    size = path.stat().st_size
    if name.endswith((".gz", ".mgz")):
        content = unpack(path.read_bytes())
        size = len(content)
        layout = (data.shape, data.dtype, data.offset, data.slope, data.inter)
        data = ArrayProxy(BytesIO(content), layout, order=data.order)
    voxels = math.prod(data.shape) * data.dtype.itemsize
    check_length(data.offset + voxels, size, more=name.endswith((".mgh", ".mgz")))  # those have text behind the voxels
    return np.asanyarray(data)


def _nifti_affine(header: Any, role: str, name: str) -> Array:
    """Index to RAS millimetres as ITK reads it too: in the header's unit; without a form, voxels along the axes of LPS."""
    unit = {"meter": 1000.0, "micron": 0.001}.get(header.get_xyzt_units()[0], 1.0)
    forms = {form: getattr(header, f"get_{form}")(coded=True) for form in ("sform", "qform")}
    given = [matrix for matrix, code in forms.values() if code > 0 and matrix is not None]
    if not given:
        return np.diag([-unit, -unit, unit, 1.0]) @ np.diag([*header["pixdim"][1:4].astype(float), 1.0])
    corner = np.array([*header.get_data_shape(), 1, 1, 1][:3], dtype=float)
    gap = max(float(np.abs(transform_points(given[0] - other, corner[None])).max()) for other in given)
    if gap > 0.1:
        log.warning(
            "%s: the header's sform and qform differ by up to %.1f mm; the sform is used, other tools may differ: %s",
            *(role, gap * unit, name),
        )
    return np.diag([unit, unit, unit, 1.0]) @ np.asarray(given[0], dtype=float)


@quiet_itk()
def _from_itk(path: Path, role: str) -> Image:
    """NRRD, MetaImage, PNG, TIFF, ..., or a folder with a DICOM series."""
    import SimpleITK as sitk

    try:
        if path.is_dir():
            series = sitk.ImageSeriesReader.GetGDCMSeriesIDs(str(path))
            if len(series) != 1:
                raise MetregError(f"{role}: wanted a folder with one DICOM series, got {len(series)}: {path}")
            files = sitk.ImageSeriesReader.GetGDCMSeriesFileNames(str(path), series[0])
            _check_series(files, role, path)
            image = sitk.ReadImage(files)
        else:
            image = _read_itk(path)
    except RuntimeError:
        raise MetregError(f"{role}: not an image that nibabel or SimpleITK can read: {path}") from None
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise MetregError(f"{role}: damaged ({error}): {path}") from None
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


def _read_itk(path: Path) -> Any:
    """A SimpleITK image, once its file has been found whole: some readers make up what is missing."""
    import SimpleITK as sitk

    reader = sitk.ImageFileReader()
    reader.SetFileName(str(path))
    reader.ReadImageInformation()
    one_pixel = sitk.Image([1] * reader.GetDimension(), reader.GetPixelID())
    numbers = math.prod(reader.GetSize()) * reader.GetNumberOfComponents()
    check_pixels(path, numbers * one_pixel.GetSizeOfPixelComponent())
    return reader.Execute()


def _check_series(files: Sequence[str], role: str, path: Path) -> None:
    """Refuse a DICOM series with a damaged file, which its reader leaves out, or with slices not equally far apart."""
    import SimpleITK as sitk

    within = {Path(file).name for file in files}
    for file in sorted(path.iterdir()):
        if file.name not in within and _is_dicom(file):
            raise MetregError(f"{role}: {file.name} is damaged, or no part of the DICOM series beside it: {path}")
    reader, positions = sitk.ImageFileReader(), []
    for name in files:
        reader.SetFileName(name)
        reader.ReadImageInformation()
        positions.append(reader.GetOrigin())
    steps = np.linalg.norm(np.diff(np.array(positions), axis=0), axis=1)
    if len(steps) and np.ptp(steps) > 0.05 * np.median(steps):
        raise MetregError(
            f"{role}: slices are missing or unevenly spaced ({steps.min():.3g} to {steps.max():.3g} mm apart): {path}"
        )


def _is_dicom(path: Path) -> bool:
    """Whether a file is one by its name or its first bytes; an index of the folder aside."""
    if not path.is_file() or path.name.upper() == "DICOMDIR":
        return False
    with path.open("rb") as file:
        return path.suffix.lower() in (".dcm", ".ima") or file.read(132).endswith(b"DICM")


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
    last = np.eye(len(affine))[-1]
    if not np.array_equal(affine[-1], last):
        raise MetregError(f"{role}: wanted an affine with the last row {last.tolist()}, got {affine[-1].tolist()}: {name}")
    if is_singular(affine):
        raise MetregError(f"{role}: the header's affine is singular, so voxels have no place: {name}")
    values = values.reshape(*shape, *channels)
    if len(shape) == 2 and len(affine) == 4:
        affine = affine[np.ix_((0, 1, 3), (0, 1, 3))]
        if is_singular(affine):
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


def is_singular(affine: Array) -> bool:
    """Whether a homogeneous matrix is not finite or has no inverse, but for rounding."""
    size = voxel_size(affine)
    return not np.isfinite(affine).all() or size.min() == 0 or abs(np.linalg.det(affine[:-1, :-1] / size)) < 1e-6


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
