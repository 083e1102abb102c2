"""ANTs, in an environment of its own (`make peers`), applies our files and gets our image and our points."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

import metreg
from conftest import centred, picture

PYTHON = Path(os.environ.get("METREG_PEERS", Path(__file__).resolve().parents[1] / ".venv-peers")) / "bin" / "python"
SCRIPT = """
import sys, json, ants, pandas, numpy
moving, fixed, transform, points, out = sys.argv[1:]
warped = ants.apply_transforms(ants.image_read(fixed), ants.image_read(moving), [transform], interpolator="linear")
numpy.save(out + ".npy", warped.numpy())
table = pandas.DataFrame(json.load(open(points)), columns=["x", "y", "z"])
moved = ants.apply_transforms_to_points(3, table, [transform])
json.dump(moved[["x", "y", "z"]].values.tolist(), open(out + ".json", "w"))
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no environment with ANTs: run `make peers`")


def test_ants_gets_our_image_and_our_points(tmp_path: Path) -> None:
    c, s = np.cos(0.3), np.sin(0.3)
    axes = np.array([[-c, s, 0], [s, c, 0], [0, 0, 1.0]]) * np.array([3.0, 3.5, 3.2])  # flipped, oblique, anisotropic
    shape = (36, 34, 32)
    affine = centred(axes, shape)
    move = np.eye(4)
    move[:3, :3] += np.array([[0.06, 0.02, 0], [0, -0.05, 0], [0, 0.03, 0.04]])
    move[:3, 3] = 4, -3, 2
    paths = tmp_path / "moving.nii.gz", tmp_path / "fixed.nii.gz"
    for path, how in zip(paths, (None, move), strict=True):
        nib.save(nib.Nifti1Image(picture(shape, affine, how), affine), path)
    result = metreg.register(*paths, changes={"solve.iterations": [10, 10, 5]})
    result.save(tmp_path / "out")

    points = np.random.default_rng(0).uniform(-25, 25, size=(60, 3))
    flip = np.array([-1.0, -1, 1])
    (tmp_path / "points.json").write_text(json.dumps((points * flip).tolist()))
    for name, ours in (("moving_to_fixed", result.transform), ("fixed_to_moving", result.inverse)):
        files = [*paths, tmp_path / "out" / f"{name}.h5", tmp_path / "points.json", tmp_path / name]
        subprocess.run([PYTHON, "-c", SCRIPT, *map(str, files)], check=True, capture_output=True)
        theirs = np.array(json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))) * flip
        np.testing.assert_allclose(ours.apply(points), theirs, atol=1e-3)
    warped = np.asarray(nib.load(tmp_path / "out" / "warped.nii.gz").dataobj)
    gap = np.abs(warped - np.load(tmp_path / "moving_to_fixed.npy"))
    assert warped.max() > 500 and (gap > 0.5).mean() < 1e-3
