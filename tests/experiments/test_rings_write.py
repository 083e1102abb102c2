from __future__ import annotations

import csv
import hashlib
from pathlib import Path

import nibabel as nib
import numpy as np
import SimpleITK as sitk
import torch

from metreg.experiments.rings.draw import ring_pair
from metreg.experiments.rings.write import write_rings


def test_pairs_as_files_are_the_pairs(tmp_path: Path) -> None:
    write_rings(tmp_path / "rings", pairs=2, seed=3, overwrite=False)
    rows = list(csv.DictReader((tmp_path / "rings" / "pairs.csv").open()))
    generator = torch.Generator().manual_seed(3)
    for row in rows:
        pair = ring_pair(generator)
        files = {column: tmp_path / "rings" / name for column, name in row.items()}
        np.testing.assert_array_equal(nib.load(files["moving"]).get_fdata(), pair.source[0, 0].numpy())
        np.testing.assert_array_equal(nib.load(files["fixed_labels"]).get_fdata(), pair.target_labels[0, 0].numpy())
        weights = nib.load(files["true_weights"]).get_fdata()
        np.testing.assert_allclose(weights.reshape(128, 128, 4).sum(-1), 1, atol=1e-5)
        # the true map, applied by SimpleITK, makes the fixed image of the moving one
        moving, fixed = (sitk.ReadImage(str(files[name])) for name in ("moving", "fixed"))
        warped = sitk.GetArrayFromImage(sitk.Resample(moving, fixed, sitk.ReadTransform(str(files["true_map"]))))
        assert np.abs(warped - sitk.GetArrayFromImage(fixed))[2:-2, 2:-2].max() < 1e-3


def test_the_same_seed_writes_the_same_images(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        write_rings(tmp_path / name, pairs=1, seed=0, overwrite=False)
        values = nib.load(tmp_path / name / "pairs" / "0_fixed.nii.gz").get_fdata()
        digests.append(hashlib.sha256(values.tobytes()).hexdigest())
    assert digests[0] == digests[1]
