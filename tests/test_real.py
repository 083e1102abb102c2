"""Real scans: the overlap of manual labels grows over the affine alignment, and the written map does not fold."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import SimpleITK as sitk

import metreg

pytestmark = pytest.mark.data
OASIS = "oasis2d/img/OASIS-TRT-20-{}_slice118", "oasis2d/label/OASIS-TRT-20-{}_DKT31_CMA_labels_slice118"
MALC = "malc/{}/img/{}", "malc/{}/label/{}"
HIPPOCAMPUS = "hippocampus/img/hippocampus_{}", "hippocampus/label/hippocampus_{}"
PAIRS = {
    "malc 2 mm": (MALC, ("2mm", "1013"), ("2mm", "1014"), 0.08),
    "malc native": (MALC, ("native", "1000"), ("native", "1006"), 0.08),
    "oasis2d": (OASIS, ("1",), ("2",), 0.05),
    "hippocampus": (HIPPOCAMPUS, ("001",), ("003",), 0.02),
}


@pytest.mark.parametrize("name", list(PAIRS))
def test_overlap_grows_and_nothing_folds(name: str, data: Path, tmp_path: Path) -> None:
    (image, labels), moving, fixed, gain = PAIRS[name]
    paths = {
        "moving": data / f"{image.format(*moving)}.nii.gz",
        "fixed": data / f"{image.format(*fixed)}.nii.gz",
        "moving_labels": data / f"{labels.format(*moving)}.nii.gz",
        "fixed_labels": data / f"{labels.format(*fixed)}.nii.gz",
    }
    # a short run: most of the gain comes at the coarser levels
    changes = {"solve.iterations": [30, 15, 3 if name == "malc 2 mm" else 0 if name == "malc native" else 10]}
    result = metreg.register(paths.pop("moving"), paths.pop("fixed"), changes=changes, **paths)
    before, after = (result.overlaps[when].means()["target_overlap"] for when in ("before", "after"))
    assert after > before + gain
    assert result.metric == ("brain-t1" if name.startswith("malc") else "global")
    result.save(tmp_path / "out")
    assert folds_of_file(tmp_path / "out" / "moving_to_fixed.h5") == 0
    assert result.folds == 0 and result.certificate.holds
    assert folds_of_file(tmp_path / "out" / "fixed_to_moving.h5") == 0
    inverse = result.summary["inverse"]
    assert inverse["folds"] == 0 and inverse["certificate"]["holds"] and inverse["error_voxels"]["mean"] < 0.05


def folds_of_file(path: Path) -> int:
    """The strict fold test, written anew over what SimpleITK reads from the file."""
    composite = sitk.ReadTransform(str(path)).Downcast()
    parts = [composite.GetNthTransform(i).Downcast() for i in range(composite.GetNumberOfTransforms())]
    (field,) = (part.GetDisplacementField() for part in parts if isinstance(part, sitk.DisplacementFieldTransform))
    dim, spacing = field.GetDimension(), np.array(field.GetSpacing())
    axes = np.array(field.GetDirection()).reshape(dim, dim)
    u = sitk.GetArrayFromImage(field).transpose(*reversed(range(dim)), dim).astype(np.float64) @ axes  # along the axes
    x = np.stack(np.meshgrid(*[np.arange(n) * s for n, s in zip(u.shape[:dim], spacing, strict=True)], indexing="ij"), -1)
    phi = x + u
    folded = np.zeros(phi.shape[:dim], dtype=bool)
    for corner in np.ndindex(*[2] * dim):
        here = tuple(slice(c, n - 1 + c) for c, n in zip(corner, phi.shape[:dim], strict=True))
        steps = []
        for d in range(dim):
            low = tuple(slice(0, phi.shape[e] - 1) if e == d else here[e] for e in range(dim))
            high = tuple(slice(1, phi.shape[e]) if e == d else here[e] for e in range(dim))
            steps.append((phi[high] - phi[low]) / spacing[d])
        folded[here] |= np.linalg.det(np.stack(steps, -1)) <= 0
    return int(folded.sum())


def test_the_written_field_is_small_and_zero_at_its_edge(data: Path, tmp_path: Path) -> None:
    paths = (data / f"{HIPPOCAMPUS[0].format(n)}.nii.gz" for n in ("001", "004"))
    metreg.register(*paths, changes={"solve.iterations": [5, 5, 5]}).save(tmp_path / "out")
    with h5py.File(tmp_path / "out" / "moving_to_fixed.h5") as file:
        group = file["TransformGroup/2"]
        shape = group["TransformFixedParameters"][:3].astype(int)
        u = group["TransformParameters"][:].reshape(*shape[::-1], 3)
    for axis in range(3):
        assert np.abs(u.take(0, axis)).max() == 0 and np.abs(u.take(-1, axis)).max() == 0
