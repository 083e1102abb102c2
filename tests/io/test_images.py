from __future__ import annotations

import gzip
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk

from conftest import centred, picture
from metreg.core.grid import transform_points
from metreg.errors import MetregError
from metreg.io.formats import open_image
from metreg.io.images import match_planes, read_image, read_labels, read_mask, read_weights, write_image
from metreg.io.points import read_points

SHAPE = (7, 8, 9)
OBLIQUE = np.linalg.qr(np.array([[1.0, 0.2, 0.1], [-0.1, 1, 0.3], [0.2, -0.2, 1]]))[0] * np.array([1.0, 2.0, 1.5])


def itk_copy(values: np.ndarray, affine: np.ndarray, path: Path) -> None:
    """The same image written by SimpleITK, which thinks in LPS and in z, y, x."""
    dim = values.ndim
    image = sitk.GetImageFromArray(values.T)
    lps = np.diag([-1.0, -1.0, *[1.0] * (dim - 1)]) @ affine
    spacing = np.linalg.norm(lps[:dim, :dim], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((lps[:dim, :dim] / spacing).ravel().tolist())
    image.SetOrigin(lps[:dim, dim].tolist())
    sitk.WriteImage(image, str(path))


@pytest.mark.parametrize("ending", ["nii.gz", "nrrd", "mha"])
def test_the_same_image_in_any_format_lies_in_the_same_place(ending: str, tmp_path: Path) -> None:
    affine = centred(OBLIQUE, SHAPE)
    values = picture(SHAPE, affine)
    itk_copy(values, affine, tmp_path / f"a.{ending}")
    image = read_image(tmp_path / f"a.{ending}")
    np.testing.assert_allclose(image.values, values, rtol=1e-6)
    np.testing.assert_allclose(image.affine, affine, atol=1e-5)


@pytest.mark.parametrize("ending", ["png", "tif"])
def test_pictures_are_2d(ending: str, tmp_path: Path) -> None:
    values = np.arange(42, dtype=np.uint8).reshape(6, 7)
    sitk.WriteImage(sitk.GetImageFromArray(values), str(tmp_path / f"a.{ending}"))
    image = read_image(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(image.values, values.T)
    np.testing.assert_allclose(image.affine, np.diag([-1.0, -1.0, 1.0]))


def test_colours_are_turned_to_grey(tmp_path: Path) -> None:
    colours = np.zeros((6, 7, 3), dtype=np.uint8)
    colours[2, 3] = 200
    sitk.WriteImage(sitk.GetImageFromArray(colours, isVector=True), str(tmp_path / "a.png"))
    image = read_image(tmp_path / "a.png")
    assert image.shape == (7, 6)
    assert image.values[3, 2] == pytest.approx(200, rel=1e-3)


def write_series(folder: Path, positions: tuple[int, ...]) -> np.ndarray:
    """A DICOM series with slices at these heights."""
    volume = np.arange(len(positions) * 6 * 7, dtype=np.int16).reshape(-1, 6, 7)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for k, (z, values) in enumerate(zip(positions, volume, strict=True)):
        image = sitk.GetImageFromArray(values[None])
        image.SetSpacing((2.0, 2.0, 3.0))
        tags = {"0020|000e": "1.2.3", "0020|000d": "1.2", "0020|0032": f"10\\20\\{z}", "0020|0013": str(k)}
        tags |= {"0020|0037": "1\\0\\0\\0\\1\\0", "0008|0060": "MR", "0008|0018": f"1.2.3.{k + 1}"}
        for tag, value in tags.items():
            image.SetMetaData(tag, value)
        writer.SetFileName(str(folder / f"{k}.dcm"))
        writer.Execute(image)
    return volume


def test_a_folder_with_a_dicom_series(tmp_path: Path) -> None:
    volume = write_series(tmp_path, positions=(0, 3, 6, 9))
    image = read_image(tmp_path)
    np.testing.assert_array_equal(image.values, volume.T)
    np.testing.assert_allclose(transform_points(image.affine, np.array([[0.0, 0, 1]])), [[-10, -20, 3]])


def test_nibabel_images_and_arrays_are_images_too() -> None:
    affine = centred(OBLIQUE, SHAPE)
    values = picture(SHAPE, affine)
    for source in (nib.Nifti1Image(values, affine), (values, affine)):
        image = read_image(source)
        np.testing.assert_allclose(image.affine, affine)
        np.testing.assert_array_equal(image.values, values)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_single_slice_is_2d_and_finds_its_way_back(axis: int, tmp_path: Path) -> None:
    shape = tuple(1 if d == axis else n for d, n in enumerate(SHAPE))
    affine = centred(OBLIQUE, SHAPE)
    values = np.random.default_rng(0).random(shape).astype(np.float32)
    nib.save(nib.Nifti1Image(values, affine), tmp_path / "slice.nii.gz")
    image = read_image(tmp_path / "slice.nii.gz")
    assert image.dim == 2 and image.shape == tuple(n for d, n in enumerate(SHAPE) if d != axis)
    index = np.array([[3.0, 4.0]])
    in_file = np.insert(index, axis, 0, axis=1)
    back = transform_points(image.plane, transform_points(image.affine, index))
    np.testing.assert_allclose(back, transform_points(affine, in_file), atol=1e-5)
    write_image(tmp_path / "again.nii.gz", image.values, image)
    again = nib.load(tmp_path / "again.nii.gz")
    np.testing.assert_allclose(again.affine, affine, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(again.dataobj), values)


@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 1, 6), (4, 5)])
def test_a_header_alone_says_how_far_an_image_reaches(shape: tuple[int, ...], tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.ones(shape, np.float32), np.diag([2.0, 3.0, 4.0, 1.0])), tmp_path / "a.nii.gz")
    whole, header = (open_image(tmp_path / "a.nii.gz", "image", unpacked=unpacked) for unpacked in (True, False))
    assert header.extent_mm == whole.extent_mm and header.shape == whole.shape
    assert np.array_equal(header.affine, whole.affine) and not header.values.any()


@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
def test_what_is_written_lies_where_its_model_does_and_says_nothing_else_of_it(kind: type, tmp_path: Path) -> None:
    affine = centred(OBLIQUE, SHAPE)
    model = kind(np.ones(SHAPE, dtype=np.int16) * 3, affine)
    model.dataobj[0, 0, 0] = 1
    model.set_sform(affine, code=4)
    model.set_qform(affine @ np.diag([1, 1, 1.01, 1]), code=1)
    header = model.header
    header.set_xyzt_units("micron", "sec")
    header["descrip"] = header["aux_file"] = b"John Doe 1970"
    header["intent_name"] = b"z score"
    header["intent_code"] = 5
    header["intent_p1"] = header["cal_max"] = header["slice_duration"] = header["toffset"] = 7
    header["slice_code"] = 1
    header["dim_info"] = 57
    header.set_slope_inter(2, 3)
    header.extensions.append(nib.nifti1.Nifti1Extension("comment", b"John Doe 1970"))
    nib.save(model, tmp_path / "model.nii.gz")
    model = nib.load(tmp_path / "model.nii.gz")

    write_image(
        tmp_path / "written.nii.gz", np.full(SHAPE, 0.25, np.float32), open_image(tmp_path / "model.nii.gz", "image")
    )
    written = nib.load(tmp_path / "written.nii.gz")
    for form in ("sform", "qform"):
        matrix, code = getattr(written, f"get_{form}")(coded=True)
        expected, expected_code = getattr(model, f"get_{form}")(coded=True)
        assert code == expected_code
        np.testing.assert_allclose(matrix, expected, atol=1e-5)
    assert written.header.get_xyzt_units() == model.header.get_xyzt_units()
    assert written.header.get_zooms() == pytest.approx(model.header.get_zooms())
    assert written.get_data_dtype() == np.float32
    np.testing.assert_array_equal(written.get_fdata(), 0.25)
    assert b"John" not in gzip.decompress((tmp_path / "written.nii.gz").read_bytes())
    assert bytes(written.header["descrip"]).startswith(b"metreg ")
    assert not written.header.extensions
    plain = nib.Nifti1Header()
    for name in (
        "intent_code",
        "intent_name",
        "intent_p1",
        "cal_max",
        "slice_duration",
        "slice_code",
        "dim_info",
        "toffset",
    ):
        assert written.header[name] == plain[name], name


def test_labels_are_integers_in_any_type(tmp_path: Path) -> None:
    affine = np.eye(4)
    nib.save(nib.Nifti1Image(np.full(SHAPE, 7.0, dtype=np.float32), affine), tmp_path / "labels.nii.gz")
    assert read_labels(tmp_path / "labels.nii.gz").values.dtype == np.int32
    with pytest.raises(MetregError, match=r"labels: wanted integer labels, got values such as 1\.5"):
        read_labels((np.full(SHAPE, 1.5), affine))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((4, 4, 4)), "no finite intensity range \\(all 0\\)"),
        (np.full((4, 4, 4), 5.0), "no finite intensity range \\(all 5\\)"),
        (np.full((4, 4, 4), np.nan), "64 voxels are NaN or infinite"),
        (np.zeros((4, 4, 4, 3)), "wanted a 2-D or 3-D image, got shape \\(4, 4, 4, 3\\)"),
        (np.zeros((0, 4, 4)), "no voxels"),
        (np.zeros((4,)), "wanted a 2-D or 3-D image"),
        (np.zeros((4, 4, 4), dtype=complex), "wanted numbers, got voxels of type complex"),
    ],
)
def test_useless_images_are_refused(values: np.ndarray, message: str) -> None:
    with pytest.raises(MetregError, match=message):
        read_image((values, np.eye(4)), "moving image")


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.nii.gz").write_text("hello")
    (tmp_path / "text.png").write_text("hello")
    good = tmp_path / "good.nii.gz"
    nib.save(nib.Nifti1Image(np.random.default_rng(0).random((30, 30, 30)), np.eye(4)), good)
    (tmp_path / "cut.nii.gz").write_bytes(good.read_bytes()[:5000])
    for name in ("none.nii.gz", "text.nii.gz", "text.png", "cut.nii.gz"):
        with pytest.raises(MetregError, match=name):
            read_image(tmp_path / name)
    with pytest.raises(MetregError, match="one DICOM series, got 0"):
        read_image(tmp_path)
    with pytest.raises(MetregError, match="singular"):
        read_image((np.zeros((4, 4, 4)), np.diag([1.0, 0, 1, 1])))


def test_masks_must_lie_on_their_image() -> None:
    image = read_image((picture(SHAPE, np.eye(4)) + np.arange(9), np.eye(4)))
    assert read_mask((np.ones(SHAPE), np.eye(4)), image).values.sum() == 7 * 8 * 9
    with pytest.raises(MetregError, match=r"wanted the grid of .* \(7, 8, 9\), got \(7, 8, 8\)"):
        read_mask((np.ones((7, 8, 8)), np.eye(4)), image)
    with pytest.raises(MetregError, match="lies elsewhere"):
        read_mask((np.ones(SHAPE), np.diag([1.0, 1, 1.1, 1])), image)
    with pytest.raises(MetregError, match="empty"):
        read_mask((np.zeros(SHAPE), np.eye(4)), image)


def test_weights_must_be_a_mixture() -> None:
    image = read_image((np.arange(504.0).reshape(SHAPE), np.eye(4)))
    assert read_weights((np.full((*SHAPE, 4), 0.25), np.eye(4)), image, 4).values.shape == (*SHAPE, 4)
    with pytest.raises(MetregError, match="4 weights as last axis"):
        read_weights((np.full((*SHAPE, 3), 1 / 3), np.eye(4)), image, 4)
    with pytest.raises(MetregError, match="whose sum is one"):
        read_weights((np.full((*SHAPE, 4), 0.5), np.eye(4)), image, 4)


def test_points_are_read_in_their_frame(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("name,X,y,z\nnose,1,2,3\n")
    np.testing.assert_array_equal(read_points(path, "ras", 3)[0], [[1, 2, 3]])
    np.testing.assert_array_equal(read_points(path, "lps", 3)[0], [[-1, -2, 3]])
    for text, message in (("a,b\n1,2\n", "columns x, y, z"), ("x,y,z\n1,2\n", "line 2"), ("x,y,z\n1,2,inf\n", "finite")):
        path.write_text(text)
        with pytest.raises(MetregError, match=message):
            read_points(path, "ras", 3)


def as_itk_sees(path: Path) -> np.ndarray:
    image = sitk.ReadImage(str(path))
    affine = np.eye(4)
    affine[:3, :3] = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine


@pytest.mark.parametrize("header", ["micron", "no form", "qform only", "sform only"])
def test_headers_are_read_as_itk_reads_them(header: str, tmp_path: Path) -> None:
    image = nib.Nifti1Image(np.arange(504.0, dtype=np.float32).reshape(SHAPE), centred(OBLIQUE, SHAPE))
    if header == "micron":
        image.header.set_xyzt_units("micron")
    image.header["sform_code"] = 0 if header in ("no form", "qform only") else 1
    image.header["qform_code"] = 0 if header in ("no form", "sform only") else 1
    if header != "sform only":
        image.header.set_qform(centred(OBLIQUE, SHAPE), code=int(image.header["qform_code"]))
    image.to_filename(tmp_path / "a.nii.gz")
    ours = read_image(tmp_path / "a.nii.gz")
    np.testing.assert_allclose(ours.affine, as_itk_sees(tmp_path / "a.nii.gz"), atol=1e-4)
    write_image(tmp_path / "b.nii.gz", ours.values, ours)
    np.testing.assert_allclose(as_itk_sees(tmp_path / "b.nii.gz"), as_itk_sees(tmp_path / "a.nii.gz"), atol=1e-4)


def test_forms_that_disagree_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = nib.Nifti1Image(np.arange(504.0, dtype=np.float32).reshape(SHAPE), np.eye(4))
    image.set_sform(np.diag([1.0, 1, 1.5, 1]), code=2)
    image.set_qform(np.eye(4), code=1)
    image.to_filename(tmp_path / "a.nii.gz")
    np.testing.assert_allclose(read_image(tmp_path / "a.nii.gz").affine, np.diag([1.0, 1, 1.5, 1]))
    assert "sform and qform differ by up to" in caplog.text


def test_headers_that_make_no_sense_are_named(tmp_path: Path) -> None:
    good = tmp_path / "good.nii"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), dtype=np.float32), np.eye(4)), good)
    raw = bytearray(good.read_bytes())
    for name, offset, value in (("type", 70, 9999), ("size", 42, 32767), ("negative", 42, -5)):
        broken = raw.copy()
        broken[offset : offset + 2] = int(value).to_bytes(2, "little", signed=True)
        (tmp_path / f"{name}.nii").write_bytes(broken)
        with pytest.raises(MetregError, match=rf"{name}\.nii"):
            read_image(tmp_path / f"{name}.nii")


def test_slices_nearly_parallel_share_their_axes() -> None:
    slices = []
    for degrees in (-44, -46):
        c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        turn = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
        slices.append(read_image((np.arange(900.0).reshape(30, 30, 1), centred(turn * 2, (30, 30, 1)))))
    moving, fixed = slices
    matched = match_planes(moving, fixed)
    np.testing.assert_allclose(matched.affine[:2, :2], fixed.affine[:2, :2], atol=0.1)
    index = np.array([[3.0, 4.0], [20, 7]])
    there, before = (transform_points(i.plane, transform_points(i.affine, index)) for i in (matched, moving))
    np.testing.assert_allclose(there, before, atol=1e-9)


def test_masks_and_labels_of_odd_values() -> None:
    image = read_image((np.arange(504.0).reshape(SHAPE), np.eye(4)))
    holes = np.full(SHAPE, np.nan)
    holes[2:5] = 1
    assert read_mask((holes, np.eye(4)), image).values.sum() == 3 * 72
    flat = read_image((np.where(np.arange(504).reshape(SHAPE) < 400, 0.0, 1.0), np.eye(4)))
    with pytest.raises(MetregError, match="is constant; is this the right mask"):
        read_mask((np.arange(504).reshape(SHAPE) < 300, np.eye(4)), flat)
    with pytest.raises(MetregError, match="below 2\\^31"):
        read_labels((np.full(SHAPE, 1e12), np.eye(4)))


def test_a_series_with_a_gap_is_refused(tmp_path: Path) -> None:
    write_series(tmp_path, positions=(0, 3, 6, 18))
    with pytest.raises(MetregError, match="missing or unevenly spaced \\(3 to 12 mm apart\\)"):
        read_image(tmp_path)


@pytest.mark.parametrize("slice_number", [0, 1, 3])
def test_a_damaged_slice_of_a_series_is_not_left_out(slice_number: int, tmp_path: Path) -> None:
    write_series(tmp_path, positions=(0, 3, 6, 9))
    file = tmp_path / f"{slice_number}.dcm"
    content = file.read_bytes()
    for size in (len(content) - 1, len(content) // 2, 200, 0):
        file.write_bytes(content[:size])
        with pytest.raises(MetregError, match=str(tmp_path)):
            read_image(tmp_path)
    file.write_bytes(content)
    (tmp_path / "notes.txt").write_text("no slice")
    assert read_image(tmp_path).shape == (7, 6, 4)


def test_weights_must_lie_on_their_image(caplog: pytest.LogCaptureFixture) -> None:
    image = read_image((picture(SHAPE, np.eye(4)) + np.arange(9), np.eye(4)))
    weights = np.full((*SHAPE, 4), 0.25)
    with pytest.raises(MetregError, match=r"weights: no voxel of .* comes to lie on .*; they lie in the space"):
        read_weights((weights, np.diag([1.0, 1, 1, 1]) + np.eye(4, k=3) * 3000), image, 4)
    read_weights((weights, np.diag([2.0, 3, 4, 1])), image, 4)  # larger
    read_weights((weights, np.diag([0.1, 0.1, 0.1, 1])), image, 4)  # a small region of it
    assert not caplog.text
    far = np.eye(4)
    far[:3, 3] = (4, 5, 6)
    read_weights((weights, far), image, 4)
    assert "weights: only 5.4 % of the voxels of" in caplog.text
