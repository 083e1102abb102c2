"""Left is left, in every picture and for every orientation of a file."""

from __future__ import annotations

from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest

from metreg.measure.overlap import Overlap
from metreg.report.planes import cuts, middle_of
from metreg.report.plots import overlap_bars, panel

SHAPE = (20, 24, 16)
TURN = np.array([[0.94, -0.34, 0.0], [0.34, 0.94, 0.0], [0.0, 0.0, 1.0]])
AXES = {
    "RAS": np.diag([2.0, 2, 2]),
    "LAS": np.diag([-2.0, 2, 2]),
    "oblique": TURN @ np.diag([2.0, 2, 2]),
    "PIR": np.array([[0.0, 0, 2], [-2, 0, 0], [0, -2, 0]]),
}
SIDES = {"L": (-1, 0, 0), "R": (1, 0, 0), "A": (0, 1, 0), "P": (0, -1, 0), "S": (0, 0, 1), "I": (0, 0, -1)}


def marked(axes: np.ndarray, side: str) -> tuple[np.ndarray, np.ndarray]:
    """An image that is bright on one side of the patient, and its affine."""
    affine = np.eye(4)
    affine[:3, :3] = axes
    affine[:3, 3] = -axes @ (np.array(SHAPE) - 1) / 2
    index = np.stack(np.meshgrid(*[np.arange(n) for n in SHAPE], indexing="ij"), -1)
    world = index @ axes.T + affine[:3, 3]
    return (world @ np.array(SIDES[side]) > 6).astype(np.float32), affine


@pytest.mark.parametrize("name", AXES)
@pytest.mark.parametrize("side", SIDES)
def test_a_mark_appears_where_its_letter_stands(name: str, side: str) -> None:
    image, affine = marked(AXES[name], side)
    seen = 0
    for cut in cuts(SHAPE, affine, at=tuple(n // 2 for n in SHAPE)):
        if side not in cut.letters:
            continue
        picture = cut.take(image)
        rows, columns = np.nonzero(picture)
        height, width = picture.shape
        place = {
            0: columns.mean() < width / 2,
            1: columns.mean() > width / 2,
            2: rows.mean() < height / 2,
            3: rows.mean() > height / 2,
        }
        assert place[cut.letters.index(side)], f"{side} in the {cut.name} view of {name}"
        seen += 1
    assert seen == 2


def test_views_are_radiological() -> None:
    axial, coronal, sagittal = cuts(SHAPE, np.eye(4), at=(0, 0, 0))
    assert (axial.name, axial.letters) == ("axial", ("R", "L", "A", "P"))
    assert (coronal.name, coronal.letters) == ("coronal", ("R", "L", "S", "I"))
    assert (sagittal.name, sagittal.letters) == ("sagittal", ("A", "P", "S", "I"))


@pytest.mark.parametrize("name", AXES)
def test_pixels_and_voxels_belong_together(name: str) -> None:
    affine = np.eye(4)
    affine[:3, :3] = AXES[name]
    for cut in cuts(SHAPE, affine, at=(3, 4, 5)):
        rows, columns = np.indices(cut.voxels().shape[:2])
        assert np.array_equal(cut.pixels(cut.voxels()), np.stack([rows, columns]))
        assert np.array_equal(np.moveaxis(cut.voxels(), -1, 0), cut.take(np.indices(SHAPE)))


def test_a_sagittal_slice_file_says_so(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from metreg.io.images import read_image

    values = np.zeros((1, 24, 16), np.float32)
    values[0, :6] = 1  # the low end of y: the patient's back
    nib.save(nib.Nifti1Image(values, np.eye(4)), tmp_path / "slice.nii.gz")
    image = read_image(tmp_path / "slice.nii.gz")
    (cut,) = cuts(image.shape, image.affine, at=(0, 0), plane=image.plane)
    assert (cut.name, cut.letters) == ("sagittal", ("A", "P", "S", "I"))
    assert np.nonzero(cut.take(image.values))[1].min() == 18


def test_a_picture_without_a_patient_has_no_letters() -> None:
    (cut,) = cuts((8, 8), np.eye(3), at=(0, 0), lost=True)
    assert cut.letters == ("", "", "", "") and cut.name == "image"


def test_the_middle_is_that_of_what_is_seen() -> None:
    seen = np.zeros((10, 10), dtype=bool)
    seen[6:9, 2:5] = True
    assert middle_of(seen) == (7, 3) and middle_of(np.zeros((4, 6), dtype=bool)) == (2, 3)


@pytest.mark.parametrize("name", ["RAS", "LAS", "oblique"])
def test_the_figure_of_a_result_shows_left_on_the_labelled_side(name: str) -> None:
    """The whole way: a file with a marked left side, registered, drawn."""
    import metreg

    image, affine = marked(AXES[name], "L")
    dim = 0.3 * marked(AXES[name], "S")[0] + 0.1
    picture = np.maximum(image, dim)
    quick = {"solve.iterations": [1, 0, 0], "affine.kind": "none"}
    result = metreg.register((picture, affine), (picture, affine), changes=quick, device="cpu")
    sheet = panel(result).axes[0]
    shown = sheet.images[0].get_array()
    left, right, bottom, top = sheet.images[0].get_extent()
    places = [text.get_position() for text in sheet.texts if text.get_text() == "L"]
    letters = [x for x, y in places if left < x < right and top < y < bottom]
    columns = np.nonzero(np.asarray(shown) > 0.9)[1]
    assert len(letters) == 1 and letters[0] > (left + right) / 2 and columns.mean() > shown.shape[1] / 2


@pytest.mark.parametrize("name", ["", "n" * 300])
def test_bars_have_room_for_names(name: str) -> None:
    found = Overlap((1, 2), (0.4, 0.6), (0.5, 0.7))
    shown = SimpleNamespace(overlaps={"before": found, "after": found}, label_names={2: name})
    axis = overlap_bars(shown).axes[0]  # type: ignore[arg-type]
    assert 0 < axis.get_position().x0 < 0.5 and len(axis.texts) == 2


@pytest.mark.parametrize("seed", range(5))
def test_the_middle_is_a_median(seed: int) -> None:
    seen = np.random.default_rng(seed).random((5, 7, 6)) < 0.3
    below = [np.sort(where)[(len(where) - 1) // 2] for where in np.nonzero(seen)]
    assert middle_of(seen) == tuple(below)
    assert middle_of(np.zeros((4, 6), dtype=bool)) == (2, 3)
