"""A damaged file is refused wherever its format can show the damage; else its values are what they were."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import torch
from PIL import Image as Picture

from metreg.errors import MetregError
from metreg.io.formats import open_image
from metreg.io.images import read_image
from metreg.io.tensors import read_tensors, write_tensors
from metreg.io.transforms import Affine, Field, Transform, read_transform, write_transform

SHAPE = (9, 10, 11)
RNG = np.random.default_rng(0)
VOLUME = RNG.integers(0, 1000, SHAPE).astype(np.int16)
PLANE = RNG.integers(0, 255, (20, 21)).astype(np.uint8)


def by_nibabel(kind: type, name: str, folder: Path) -> Path:
    nib.save(kind(VOLUME, np.diag([2.0, 3.0, 4.0, 1.0])), folder / name)
    return folder / name


def by_itk(name: str, folder: Path, *, packed: bool = True) -> Path:
    flat = name.endswith((".png", ".jpg", ".bmp", ".tif"))
    sitk.WriteImage(sitk.GetImageFromArray(PLANE if flat else VOLUME), str(folder / name), packed)
    return folder / name


def by_pillow(name: str, folder: Path) -> Path:
    Picture.fromarray(PLANE).save(folder / name, compression="tiff_deflate")
    return folder / name


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a.nii.gz": (lambda folder: by_nibabel(nib.Nifti1Image, "a.nii.gz", folder), "flip cut tail"),
    "NIfTI-2": (lambda folder: by_nibabel(nib.Nifti2Image, "a.nii.gz", folder), "flip cut tail"),
    "a.nii": (lambda folder: by_nibabel(nib.Nifti1Image, "a.nii", folder), "cut tail"),
    "a.mgz": (lambda folder: by_nibabel(nib.MGHImage, "a.mgz", folder), "flip cut tail"),
    "a.mgh": (lambda folder: by_nibabel(nib.MGHImage, "a.mgh", folder), "cut"),
    "a.img": (lambda folder: by_nibabel(nib.Nifti1Pair, "a.img", folder), "cut tail"),
    "a.img.gz": (lambda folder: by_nibabel(nib.Nifti1Pair, "a.img.gz", folder), "flip cut tail"),
    "a.hdr.gz": (
        lambda folder: by_nibabel(nib.Nifti1Pair, "a.img.gz", folder).with_name("a.hdr.gz"),
        "flip cut tail",
    ),
    "a.nrrd": (lambda folder: by_itk("a.nrrd", folder), "flip cut tail"),
    "raw NRRD": (lambda folder: by_itk("a.nrrd", folder, packed=False), "cut tail"),
    "a.mha": (lambda folder: by_itk("a.mha", folder), "flip cut tail"),
    "raw MetaImage": (lambda folder: by_itk("a.mha", folder, packed=False), "cut tail"),
    "a.png": (lambda folder: by_itk("a.png", folder), "flip cut tail"),
    "a.tif": (lambda folder: by_pillow("a.tif", folder), "flip cut"),
    "a.jpg": (lambda folder: by_itk("a.jpg", folder), "cut"),
    "a.bmp": (lambda folder: by_itk("a.bmp", folder), "cut"),
    "a.vtk": (lambda folder: by_itk("a.vtk", folder), "cut"),
    "a.gipl": (lambda folder: by_itk("a.gipl", folder), "cut"),
    "a.gipl.gz": (lambda folder: by_itk("a.gipl.gz", folder), "flip cut tail"),
}
"""How a file of each format is made, and which damage its format can show."""


def damaged(content: bytes, kind: str) -> dict[str, bytes]:
    """The content of a file after damage of a kind, in several places."""
    size = len(content)
    if kind == "cut":
        return {f"{n} bytes cut off": content[:-n] for n in (21, size // 3)} | {"empty": b""}
    if kind == "tail":
        return {"bytes at the end": content + b"garbage!"}
    places = [int(size * share) for share in (0.4, 0.6, 0.8)]
    return {f"byte {n}": content[:n] + bytes([content[n] ^ 0x10]) + content[n + 1 :] for n in places}


def refuses(path: Path) -> bool:
    """Whether the file is refused in one line that names it."""
    try:
        open_image(path, "image")
    except MetregError as error:
        return str(path) in str(error) and "\n" not in str(error)
    return False


@pytest.mark.parametrize("name", FILES)
def test_damaged_images_are_refused(name: str, tmp_path: Path) -> None:
    make, kinds = FILES[name]
    path = make(tmp_path)
    whole = open_image(path, "image").values.copy()
    content = path.read_bytes()
    for kind in kinds.split():
        for what, changed in damaged(content, kind).items():
            path.write_bytes(changed)
            if kind == "flip":
                assert refuses(path) or np.array_equal(open_image(path, "image").values, whole), what
            else:
                assert refuses(path), what


@pytest.mark.parametrize("name", ["a.nii.gz", "a.mgz", "a.img.gz"])
def test_the_checksum_at_the_very_end_is_compared(name: str, tmp_path: Path) -> None:
    path = FILES[name][0](tmp_path)
    content = path.read_bytes()
    for place, message in ((-6, "CRC"), (-2, "length")):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(MetregError, match=message):
            read_image(path)
        with pytest.raises(MetregError, match=message):  # an image that nibabel has opened, and not yet read
            read_image(nib.load(path))
    path.write_bytes(content)
    assert np.array_equal(read_image(nib.load(path)).values, VOLUME)


def test_gzip_of_several_members_and_with_padding_is_whole(tmp_path: Path) -> None:
    path = by_nibabel(nib.Nifti1Image, "a.nii", tmp_path)
    content = path.read_bytes()
    packed = gzip.compress(content[:500]) + gzip.compress(content[500:]) + bytes(100)
    (tmp_path / "a.nii.gz").write_bytes(packed)
    assert np.array_equal(read_image(tmp_path / "a.nii.gz").values, VOLUME)


def test_scaled_and_swapped_values_are_those_that_nibabel_reads(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOLUME, np.eye(4), nib.Nifti1Header(endianness=">"))
    image.header.set_slope_inter(0.5, -3.0)
    nib.save(image, tmp_path / "a.nii.gz")
    expected = nib.load(tmp_path / "a.nii.gz").get_fdata()
    np.testing.assert_array_equal(read_image(tmp_path / "a.nii.gz").values, expected.astype(np.float32))


@pytest.mark.parametrize("name", ["a.mhd", "a.nhdr"])
@pytest.mark.parametrize("packed", [True, False])
def test_pixels_in_a_file_of_their_own(name: str, packed: bool, tmp_path: Path) -> None:
    path = by_itk(name, tmp_path, packed=packed)
    (pixels,) = (file for file in tmp_path.iterdir() if file != path)
    assert np.array_equal(read_image(path).values, VOLUME.T)
    content = pixels.read_bytes()
    for changed in (content[:-9], content + b"garbage!"):
        pixels.write_bytes(changed)
        with pytest.raises(MetregError, match=name):
            read_image(path)
    pixels.unlink()
    with pytest.raises(MetregError, match=name):
        read_image(path)


def test_fields_of_a_header_come_in_any_order(tmp_path: Path) -> None:
    path = by_itk("a.nhdr", tmp_path)
    lines = path.read_text().splitlines()
    (named,) = (line for line in lines if line.startswith("data file"))
    lines.remove(named)
    path.write_text("\n".join([lines[0], named, *lines[1:], ""]))
    assert np.array_equal(read_image(path).values, VOLUME.T)


def test_pixels_in_many_files(tmp_path: Path) -> None:
    by_itk("a.mhd", tmp_path, packed=False)
    slices = np.split(np.frombuffer((tmp_path / "a.raw").read_bytes(), np.uint8), SHAPE[0])
    for number, values in enumerate(slices):
        (tmp_path / f"slice{number}.raw").write_bytes(values.tobytes())
    header = (tmp_path / "a.mhd").read_text()
    names = "\n".join(f"slice{number}.raw" for number in range(SHAPE[0]))
    for named in (f"LIST\n{names}", f"slice%d.raw 0 {SHAPE[0] - 1} 1"):
        (tmp_path / "a.mhd").write_text(header.replace("ElementDataFile = a.raw", f"ElementDataFile = {named}"))
        assert np.array_equal(read_image(tmp_path / "a.mhd").values, VOLUME.T)
    (tmp_path / "slice3.raw").write_bytes(slices[3].tobytes()[:-1])
    with pytest.raises(MetregError, match="damaged"):
        read_image(tmp_path / "a.mhd")


def affine_itk() -> sitk.AffineTransform:
    transform = sitk.AffineTransform(3)
    transform.SetMatrix([1.1, 0.2, 0.1, -0.1, 0.9, 0.3, 0.05, 0.15, 1.05])
    transform.SetTranslation([1.5, 2.25, 3.125])
    transform.SetCenter([10.5, 20.25, 30.75])
    return transform


@pytest.mark.parametrize("ending", ["tfm", "txt", "mat", "xfm", "h5"])
def test_transform_files_that_end_too_early_are_refused(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{ending}"
    sitk.WriteTransform(affine_itk(), str(path))
    read_transform(path)
    content = path.read_bytes()
    for cut in (2, 4, 20, len(content) // 3, len(content) // 2, len(content) - 3, len(content)):
        path.write_bytes(content[:-cut])
        with pytest.raises(MetregError, match=f"transform: .*a.{ending}"):
            read_transform(path)
    if ending in ("mat", "h5"):
        path.write_bytes(content + b"garbage!")
        with pytest.raises(MetregError, match=r"8 more follow|ends too early|checksum"):
            read_transform(path)


def test_every_byte_of_a_transform_that_we_write_has_a_checksum(tmp_path: Path) -> None:
    affine = np.eye(4)
    affine[:3] += 0.1 * RNG.random((3, 4))
    field = Field(RNG.random((3, 8, 9, 10)).astype(np.float32), np.diag([3.0, 4.0, 5.0, 1.0]))
    path = tmp_path / "a.h5"
    write_transform(path, Transform((field, Affine(affine))))
    points = RNG.uniform(0, 20, (30, 3))
    expected = read_transform(path).apply(points)
    content = path.read_bytes()
    for place in (*range(600), *range(600, len(content), 97)):  # among the first there are bytes that crash a reader
        changed = bytearray(content)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        try:
            found = read_transform(path).apply(points)
        except MetregError:
            continue
        assert place < 512  # in the block that holds the checksum: the rest is whole
        np.testing.assert_array_equal(found, expected)


def test_a_sealed_transform_is_read_by_itk(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    field = Field(RNG.random((3, 8, 9, 10)).astype(np.float32), np.diag([3.0, 4.0, 5.0, 1.0]))
    write_transform(path, Transform((field, Affine(np.eye(4)))))
    there = sitk.ReadTransform(str(path))
    np.testing.assert_allclose(
        np.array(there.TransformPoint((-9.0, -8.0, 10.0))) * [-1, -1, 1], field.apply([[9, 8, 10]])[0]
    )


@pytest.mark.parametrize("compression", ["raw", "tiff_deflate"])
def test_a_volume_of_tiff_pages_that_was_cut_is_refused(compression: str, tmp_path: Path) -> None:
    pages = [Picture.fromarray(plane) for plane in RNG.integers(0, 255, (9, 20, 21)).astype(np.uint8)]
    path = tmp_path / "a.tif"
    pages[0].save(path, save_all=True, append_images=pages[1:], compression=compression)
    assert sorted(read_image(path).shape) == [9, 20, 21]
    content = path.read_bytes()
    for share in (0.2, 0.5, 0.8, 0.95):
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(MetregError, match="ends too early"):
            read_image(path)


def test_a_file_of_tensors_has_a_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    tensors = {"m": torch.arange(60.0).view(3, 4, 5), "half": torch.ones(7, dtype=torch.bfloat16), "none": torch.empty(0)}
    write_tensors(path, tensors, form="test-1", header={"settings": "{}"})
    read, header = read_tensors(path, form="test-1", role="momentum")
    assert torch.equal(read["m"], tensors["m"]) and header == {"format": "test-1", "settings": "{}"}
    content = path.read_bytes()
    for place in (content.index(b"settings") + 2, len(content) - 3, len(content) - 100):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(MetregError, match="momentum: damaged"):
            read_tensors(path, form="test-1", role="momentum")
    for changed in (content[:-1], content + b"\0"):
        path.write_bytes(changed)
        with pytest.raises(MetregError, match="momentum: damaged"):
            read_tensors(path, form="test-1", role="momentum")
