"""The whole way: two images in, a folder out that other tools read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import SimpleITK as sitk
import torch

import metreg
from conftest import bend, bent_picture, centred, picture
from metreg.cli.terminal import summary_table
from metreg.core.grid import Grid
from metreg.errors import MetregError
from metreg.io.image import Image
from metreg.io.transforms import Transform
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, save_metric
from metreg.pipeline.register import predict_weights
from metreg.pipeline.resolve import open_metric
from metreg.prepare.pair import Pair
from metreg.result.result import Result
from metreg.settings.model import LearnedSettings, MetricSettings, make_settings

QUICK = {"solve.iterations": [20, 10, 4]}
FLIP = np.diag([-1.0, -1.0, 1.0])


def save(path: Path, values: np.ndarray, affine: np.ndarray) -> Path:
    full = np.eye(4)
    keep = [0, 1, 3] if len(affine) == 3 else [0, 1, 2, 3]
    full[np.ix_(keep, keep)] = affine
    nib.save(nib.Nifti1Image(values, full), path)
    return path


def rotated(angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    return np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])


HEADERS = {
    "2-D": (np.diag([-2.0, -2.0]), np.diag([-2.0, -2.2])),
    "3-D, flipped and anisotropic": (np.diag([3.0, 3.0, 3.0]), np.diag([-3.0, 3.5, 4.0])),
    "3-D, permuted and oblique": (np.diag([3.0, -3.0, 3.0])[:, [2, 0, 1]], rotated(0.4) * 3.2),
    "3-D, sheared": (np.diag([3.0, 3.0, 3.0]), np.array([[3.0, 0.6, 0], [0, 3.0, 0.5], [0.3, 0, 3.0]])),
}


@pytest.mark.parametrize("header", list(HEADERS))
def test_a_known_deformation_is_found_and_other_software_agrees(header: str, tmp_path: Path) -> None:
    moving_axes, fixed_axes = HEADERS[header]
    shapes = [tuple(int(110 / size) for size in np.linalg.norm(axes, axis=0)) for axes in (moving_axes, fixed_axes)]
    affines = [centred(axes, shape) for axes, shape in zip((moving_axes, fixed_axes), shapes, strict=True)]
    moving = save(tmp_path / "moving.nii.gz", picture(shapes[0], affines[0]), affines[0])
    fixed = save(tmp_path / "fixed.nii.gz", bent_picture(shapes[1], affines[1]), affines[1])
    result = metreg.register(moving, fixed, metric="global", changes=QUICK)
    result.save(tmp_path / "out")
    dim = len(moving_axes)

    # the truth, in mm
    points = np.random.default_rng(0).uniform(-15, 15, size=(300, dim))
    before = np.linalg.norm(bend(points) - points, axis=1).mean()
    after = np.linalg.norm(bend(points) - result.transform.apply(points), axis=1).mean()
    assert after < 0.4 * before
    assert result.folds == 0 and result.certificate.holds

    # points through SimpleITK, both ways
    flip = FLIP[:dim, :dim]
    for name, ours in (("moving_to_fixed", result.transform), ("fixed_to_moving", result.inverse)):
        theirs = sitk.ReadTransform(str(tmp_path / "out" / f"{name}.h5"))
        found = np.array([theirs.TransformPoint((flip @ p).tolist()) for p in points]) @ flip
        np.testing.assert_allclose(ours.apply(points), found, atol=1e-3)
    round_trip = result.inverse.apply(result.transform.apply(points))
    assert np.linalg.norm(round_trip - points, axis=1).max() < 0.1 * np.linalg.norm(fixed_axes, axis=0).min()

    # the warped image through SimpleITK, which cannot read a sheared header
    warped = nib.load(tmp_path / "out" / "warped.nii.gz")
    np.testing.assert_allclose(warped.affine, nib.load(fixed).affine, atol=1e-6)
    if "sheared" not in header:
        images = [sitk.ReadImage(str(path)) for path in (moving, fixed)]
        theirs = sitk.ReadTransform(str(tmp_path / "out" / "moving_to_fixed.h5"))
        resampled = sitk.GetArrayFromImage(sitk.Resample(*images, theirs, sitk.sitkLinear, 0.0)).T
        gap = np.abs(np.asarray(warped.dataobj) - resampled)
        assert (gap > 0.5).mean() < 1e-3  # of 1000; at the edge of the moving image either may be right


def test_the_folder_holds_what_is_promised(pair_files: tuple[Path, Path], tmp_path: Path) -> None:
    moving, fixed = pair_files
    labels = []
    for path in pair_files:
        image = nib.load(path)
        values = (image.get_fdata() > 300).astype(np.uint8) + (image.get_fdata() > 700)
        labels.append(save(tmp_path / f"labels_{path.name}", values.astype(np.uint8), image.affine))
    names = tmp_path / "names.csv"
    names.write_text("number,name\n1,rind\n2,core\n")
    result = metreg.register(
        moving, fixed, moving_labels=labels[0], fixed_labels=labels[1], label_names=names, changes=QUICK
    )
    out = tmp_path / "out"
    result.save(out)
    expected = (
        "warped.nii.gz warped_labels.nii.gz moving_to_fixed.h5 fixed_to_moving.h5 moving_affine.nii.gz sigma.nii.gz "
        "weights.nii.gz jacobian.nii.gz momentum.safetensors result.json settings.toml report.html"
    )
    assert {path.name for path in out.iterdir()} == set(expected.split())

    told = json.loads((out / "result.json").read_text(encoding="utf-8"))
    assert told["folds"] == 0 and told["certificate"]["holds"] is True
    assert told["overlap"]["after"]["target_overlap"] > told["overlap"]["before"]["target_overlap"]
    assert [row["name"] for row in told["overlap_by_label"]] == ["rind", "core"]
    assert told["energy"]["total"] == pytest.approx(told["energy"]["similarity"] + told["energy"]["regularity"])
    assert told["seed"] == 0 and told["versions"]["metreg"] and told["configuration"]["solve"]["optimiser"] == "lbfgs"
    assert told["metric"] == "global" and told["metric_licence"] == "Apache-2.0"

    sigma, weights = nib.load(out / "sigma.nii.gz"), nib.load(out / "weights.nii.gz")
    assert weights.shape == (*sigma.shape, 4)
    np.testing.assert_allclose(weights.get_fdata().sum(-1), 1, atol=1e-5)
    length = told["configuration"]["length_mm"]
    assert 0.01 * length <= sigma.get_fdata().min() <= sigma.get_fdata().max() <= 0.2 * length
    assert nib.load(out / "jacobian.nii.gz").get_fdata().min() > 0
    assert set(np.unique(nib.load(out / "warped_labels.nii.gz").dataobj)) <= {0, 1, 2}
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64" in page and not re.search(r"(src|href)=.https?:", page)  # tests/report open it offline

    # the same settings again, from the file that was written, give the same map
    again = metreg.register(moving, fixed, settings=metreg.make_settings(config=out / "settings.toml"))
    np.testing.assert_array_equal(again.transform.parts[0].displacement, result.transform.parts[0].displacement)

    # and so does the compact form
    there, back = metreg.read_momentum(out / "momentum.safetensors")
    points = np.random.default_rng(0).uniform(-20, 20, size=(50, 3))
    np.testing.assert_allclose(there.apply(points), result.transform.apply(points), atol=1e-4)
    np.testing.assert_allclose(back.apply(points), result.inverse.apply(points), atol=1e-4)


def test_the_shipped_metric_tells_its_licence() -> None:
    metric = open_metric("brain-t1")
    assert metric is not None and metric.model.dim == 3 and "NonCommercial" in metric.licence
    assert metreg.make_settings(usual=metric.used) == metreg.make_settings("brain")
    assert metric.model.metric == metreg.make_settings("brain-constant").metric  # its set point
    told = metadata("metreg")
    assert told["License-Expression"] == "Apache-2.0 AND LicenseRef-brain-t1-NonCommercial"
    assert any("brain-t1" in name for name in told.get_all("License-File", []))
    with pytest.raises(MetregError, match="use global, brain-t1 or a metric file"):
        open_metric("brain-t2")


def test_arrays_and_nibabel_images_register_like_files(pair_files: tuple[Path, Path]) -> None:
    images = [nib.load(path) for path in pair_files]
    arrays = [(image.get_fdata(), image.affine) for image in images]
    changes = {"solve.iterations": [3, 2, 1]}
    fields = [
        metreg.register(*pair, changes=changes).transform.parts[0].displacement for pair in (pair_files, images, arrays)
    ]
    np.testing.assert_allclose(fields[0], fields[1], atol=1e-5)
    np.testing.assert_allclose(fields[0], fields[2], atol=1e-5)


def test_single_slices_of_3d_files(tmp_path: Path) -> None:
    shape, axes = (50, 55), np.diag([2.0, 2.0])
    affine = np.eye(4)
    affine[:3, 0], affine[:3, 1], affine[:3, 2] = (2.0, 0, 0), (0, 0, 3.0), (0, 2.0, 0)  # coronal
    affine[:3, 3] = (-49, 17, -54)
    flat = centred(axes, shape)
    moving = tmp_path / "moving.nii.gz"
    fixed = tmp_path / "fixed.nii.gz"
    nib.save(nib.Nifti1Image(picture(shape, flat)[:, None], affine), moving)
    nib.save(nib.Nifti1Image(bent_picture(shape, flat)[:, None], affine), fixed)
    result = metreg.register(moving, fixed, changes=QUICK)
    result.save(tmp_path / "out")
    warped = nib.load(tmp_path / "out" / "warped.nii.gz")
    assert warped.shape == (50, 1, 55)
    np.testing.assert_allclose(warped.affine, affine)
    images = [sitk.ReadImage(str(path)) for path in (moving, fixed)]
    theirs = sitk.ReadTransform(str(tmp_path / "out" / "moving_to_fixed.h5"))
    resampled = sitk.GetArrayFromImage(sitk.Resample(*images, theirs, sitk.sitkLinear, 0.0)).T
    assert (np.abs(np.asarray(warped.dataobj) - resampled) > 0.5).mean() < 2e-3
    x = np.array([[3.0, 17.0, -4.0]])
    np.testing.assert_allclose(result.inverse.apply(result.transform.apply(x)), x, atol=0.05)
    there, back = metreg.read_momentum(tmp_path / "out" / "momentum.safetensors")
    np.testing.assert_allclose(there.apply(x), result.transform.apply(x), atol=1e-4)
    np.testing.assert_allclose(back.apply(x), result.inverse.apply(x), atol=1e-4)


def test_momenta_of_a_pyramid_that_ends_early_give_the_same_transforms_again(
    pair_files: tuple[Path, Path], tmp_path: Path
) -> None:
    changes = {"solve.shrink": [2, 1.5], "solve.iterations": [5, 5]}
    result = metreg.register(*pair_files, metric="global", changes=changes, device="cpu")
    result.save(tmp_path / "out")
    there, _ = metreg.read_momentum(tmp_path / "out" / "momentum.safetensors")
    x = np.array([[3.0, 7.0, -4.0], [10.0, -12.0, 5.0]])
    np.testing.assert_allclose(there.apply(x), result.transform.apply(x), atol=1e-4)


def test_labels_of_slices_whose_axes_are_turned_move_with_their_image(tmp_path: Path) -> None:
    """Two slices at 44 and 46 degrees: their 2-D worlds are mirrored until they are matched."""
    shape, flat = (50, 55), centred(np.diag([2.0, 2.0]), (50, 55))
    files = []
    for name, degrees, values in (("a", -44, picture(shape, flat)), ("b", -46, bent_picture(shape, flat))):
        c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
        affine = centred(np.array([[1, 0, 0], [0, c, -s], [0, s, c]]) * 2, (50, 55, 1))
        files.append(save(tmp_path / f"{name}.nii.gz", values[..., None], affine))
        files.append(save(tmp_path / f"{name}_labels.nii.gz", (values > 400).astype(np.uint8)[..., None], affine))
    a, a_labels, b, b_labels = files
    result = metreg.register(a, b, moving_labels=a_labels, fixed_labels=b_labels, changes=QUICK)
    assert result.overlaps["after"].means()["dice"] > 0.97


def test_given_weights_make_the_metric_local(pair_files: tuple[Path, Path], tmp_path: Path) -> None:
    moving, fixed = pair_files
    image = nib.load(moving)
    soft = image.get_fdata()[..., None] > 500
    weights = np.where(soft, [0.4, 0.3, 0.2, 0.1], [0.0, 0.0, 0.0, 1.0]).astype(np.float32)
    path = save(tmp_path / "w.nii.gz", weights, image.affine)
    result = metreg.register(moving, fixed, weights=path, changes=QUICK)
    sigma = result.sigma.get_fdata()
    assert sigma.min() < 0.75 * sigma.max()
    assert result.folds == 0
    result.save(tmp_path / "out")
    there, _ = metreg.read_momentum(tmp_path / "out" / "momentum.safetensors")
    points = np.random.default_rng(0).uniform(-20, 20, size=(50, 3))
    np.testing.assert_allclose(there.apply(points), result.transform.apply(points), atol=1e-4)


def test_a_metric_file_predicts_the_weights(tmp_path: Path) -> None:
    shape, affine = (60, 60), centred(np.diag([2.0, 2.0]), (60, 60))
    moving = save(tmp_path / "a.nii.gz", picture(shape, affine), affine)
    fixed = save(tmp_path / "b.nii.gz", bent_picture(shape, affine), affine)
    model = LearnedMetric(2, MetricSettings(sigma=(0.02, 0.05, 0.2)), LearnedSettings(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.network.layers[-1].weight.fill_(0.2)
    path = tmp_path / "metric.safetensors"
    save_metric(path, MetricFile(model.eval(), 150.0, (4.0, 4.0), licence="CC BY-NC 4.0"))
    result = metreg.register(moving, fixed, metric=str(path), changes=QUICK)
    told = result.summary
    assert told["metric"] == str(path) and told["metric_licence"] == "CC BY-NC 4.0"
    assert told["configuration"]["length_mm"] == 150 and told["configuration"]["metric"]["sigma"] == (0.02, 0.05, 0.2)
    sigma = result.sigma.get_fdata()
    assert 3 <= sigma.min() < sigma.max() <= 30  # mm
    result.save(tmp_path / "out")
    points = np.random.default_rng(0).uniform(-20, 20, size=(50, 2))
    there, _ = metreg.read_momentum(tmp_path / "out" / "momentum.safetensors")
    np.testing.assert_allclose(there.apply(points), result.transform.apply(points), atol=1e-4)
    solid = (np.random.default_rng(0).random((12, 12, 12)), np.eye(4))
    with pytest.raises(MetregError, match="it is for 2-D images, these are 3-D"):
        metreg.register(solid, solid, metric=str(path), changes={**QUICK, "affine.kind": "none"})


def test_a_network_looks_at_images_as_in_its_training_whatever_their_resolution() -> None:
    model = LearnedMetric(2, MetricSettings(), LearnedSettings(), torch.Generator().manual_seed(0))
    with torch.no_grad():
        model.network.layers[-1].weight.fill_(0.2)
    learned, settings = MetricFile(model.eval(), 150.0, (4.0, 4.0)), make_settings()
    found = {}
    for size, count in ((2, 61), (4, 31), (10, 13)):  # millimetres, voxels along an axis of the same box
        affine = centred(np.diag([float(size)] * 2), (count, count))
        grid = Grid.of_image((count, count), affine, 150.0)
        source = torch.from_numpy(picture(grid.shape, affine) / 1000).float()[None, None]
        weights = predict_weights(learned, Pair(source, source, grid, None), settings)
        assert isinstance(weights, torch.Tensor)
        found[size] = weights
    assert found[2].shape[2:] == found[4].shape[2:] == (31, 31)
    assert float((found[2] - found[4]).abs().max()) < 0.2 * float(found[2].std())
    assert found[10].shape[2:] == (13, 13)  # no point between voxels


def test_nothing_moves_in_background_that_was_left_out(tmp_path: Path) -> None:
    shape, affine = (60, 60), centred(np.diag([2.0, 2.0]), (60, 60))
    moving = np.where(np.hypot(*np.mgrid[-29.5:30, -29.5:30]) < 20, picture(shape, affine), 0)
    fixed = np.where(np.hypot(*np.mgrid[-29.5:30, -29.5:30]) < 20, bent_picture(shape, affine), 0)
    wide = centred(np.diag([2.0, 2.0]), (160, 160))
    paths = [save(tmp_path / f"{i}.nii.gz", np.pad(v, 50), wide) for i, v in enumerate((moving, fixed))]
    result = metreg.register(*paths, changes={**QUICK, "affine.kind": "none"})
    assert max(result.pair.grid.shape) < 60 and result.folds == 0 and result.certificate.holds
    assert result.jacobian.shape == (160, 160) and np.ptp(result.jacobian) > 0.1
    assert (result.jacobian[:40] == 1).all() and (result.jacobian[:, -40:] == 1).all()
    far = np.array([[-150.0, 0], [150, 150], [62, 0]])
    np.testing.assert_array_equal(result.transform.apply(far), far)
    result.save(tmp_path / "out")
    assert nib.load(tmp_path / "out" / "warped.nii.gz").shape[:2] == (160, 160)
    labels = np.zeros((160, 160), dtype=np.int16)
    labels[5:9, 5:9], labels[78:82, 78:82] = 1, 2
    measured = replace(result, moving_labels=Image(labels, wide)).regions
    assert measured[0].sigma_mm == pytest.approx(measured[1].sigma_mm)  # the metric is the same everywhere


def test_masks_keep_an_artefact_from_pulling(tmp_path: Path) -> None:
    shape, affine = (60, 60), centred(np.diag([2.0, 2.0]), (60, 60))
    clean = picture(shape, affine)
    spoilt = clean.copy()
    spoilt[36:42, 28:34] = 2500
    mask = np.ones(shape, dtype=np.uint8)
    mask[34:44, 26:36] = 0
    paths = {name: save(tmp_path / f"{name}.nii.gz", v, affine) for name, v in (("a", clean), ("b", spoilt), ("m", mask))}
    points = np.random.default_rng(0).uniform(-30, 30, size=(200, 2))

    def moved(**masks: Path) -> float:
        changes = {**QUICK, "affine.kind": "none", "solve.regularity": 1000}
        result = metreg.register(paths["a"], paths["b"], changes=changes, **masks)
        return float(np.linalg.norm(result.transform.apply(points) - points, axis=1).mean())

    pulled = moved()
    assert moved(fixed_mask=paths["m"]) < 0.5 * pulled
    assert moved(fixed_mask=paths["m"], moving_mask=paths["m"]) < 0.02 * pulled


def test_images_of_unlike_dimension_are_refused() -> None:
    flat = (np.random.default_rng(0).random((8, 9)), np.eye(3))
    solid = (np.random.default_rng(0).random((8, 9, 7)), np.eye(4))
    with pytest.raises(MetregError, match="moving image is 2-D and fixed image 3-D"):
        metreg.register(flat, solid)


def test_images_that_never_meet_are_refused() -> None:
    values = np.random.default_rng(0).random((20, 20))
    far = np.array([[1.0, 0, 5000], [0, 1, 0], [0, 0, 1]])
    with pytest.raises(MetregError, match="do not overlap"):
        metreg.register((values, np.eye(3)), (values, far), changes={"affine.kind": "none"})


@pytest.mark.parametrize(
    ("alignment", "message"),
    [
        (np.diag([1.0, 1.0, 1.0, 2.0]), r"the last row \[0.0, 0.0, 0.0, 1.0\], got \[0.0, 0.0, 0.0, 2.0\]"),
        (np.diag([1.0, 1.0, 0.0, 1.0]), "no inverse"),
        (np.diag([1.0, np.nan, 1.0, 1.0]), "not finite"),
        (np.eye(3), r"wanted 4 x 4 numbers, .* got an array of shape \(3, 3\)"),
        ([["a"] * 4] * 4, "wanted 4 x 4 numbers"),
        ([[1, 0], [0]], "wanted 4 x 4 numbers"),
    ],
)
def test_alignments_that_are_none_are_refused(alignment: Any, message: str, pair_files: tuple[Path, Path]) -> None:
    with pytest.raises(MetregError, match=f"alignment: .*{message}"):
        metreg.register(*pair_files, alignment=alignment, changes=QUICK)


def test_an_alignment_may_be_a_list(pair_files: tuple[Path, Path]) -> None:
    result = metreg.register(*pair_files, alignment=np.eye(4, dtype=int).tolist(), changes={"solve.iterations": [1, 1, 1]})
    np.testing.assert_array_equal(result.affine, np.eye(4))


def test_the_warped_image_is_the_background_or_what_is_asked_for_outside(pair_files: tuple[Path, Path]) -> None:
    fixed = nib.load(pair_files[1])
    small = nib.load(pair_files[0]).slicer[4:-4, 4:-4, 4:-4]
    values = np.full(small.shape, 50, np.float32)
    values[1:-1, 1:-1, 1:-1] += small.get_fdata()[1:-1, 1:-1, 1:-1]
    moving = (values, small.affine)
    few = {"solve.iterations": [2, 1, 1]}
    usual, asked = (metreg.register(moving, fixed, fill=fill, changes=few) for fill in (None, -7))
    assert usual.fill == usual.summary["fill"] == 50 and asked.fill == asked.summary["fill"] == -7
    corners = usual.warped.get_fdata()[0, 0, 0], asked.warped.get_fdata()[0, 0, 0]
    assert corners == (50, -7)
    inside = asked.warped.get_fdata() > 0
    np.testing.assert_allclose(usual.warped.get_fdata()[inside], asked.warped.get_fdata()[inside], atol=1e-3)


def test_an_interrupted_save_leaves_nothing(
    pair_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = metreg.register(*pair_files, changes={"solve.iterations": [1, 1, 1]})
    before = set(tmp_path.iterdir())

    def broken(self: Transform) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(metreg.Result, "report", broken)
    with pytest.raises(KeyboardInterrupt):
        result.save(tmp_path / "out")
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("part", ["overlaps", "inverse_facts", "brain_jacobian", "planes", "viewer", "jacobian", "report"])
def test_what_fails_while_measuring_or_drawing_costs_no_transform(
    part: str, pair_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    result = metreg.register(*pair_files, metric="global", changes={"solve.iterations": [1, 1, 1]})

    def broken(self: Result) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(Result, part, broken if part == "report" else property(broken))
    result.save(tmp_path / "out")
    assert "no luck" in caplog.text and "transforms and images are written" in caplog.text
    for name in ("moving_to_fixed.h5", "fixed_to_moving.h5", "momentum.safetensors", "warped.nii.gz", "settings.toml"):
        assert (tmp_path / "out" / name).is_file()
    told = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf-8"))
    assert told["metric"] == "global" and told["energy"]["total"] > 0
    summary_table(told, tmp_path / "out")  # what the command line says of it


def test_overwriting_replaces_our_files_and_keeps_others(pair_files: tuple[Path, Path], tmp_path: Path) -> None:
    result = metreg.register(*pair_files, changes={"solve.iterations": [1, 1, 1]})
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "warped_labels.nii.gz").write_text("of an earlier run")
    with pytest.raises(MetregError, match="exists; choose another name or say --overwrite"):
        result.save(out)
    result.save(out, overwrite=True)
    assert (out / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert not (out / "warped_labels.nii.gz").exists()
