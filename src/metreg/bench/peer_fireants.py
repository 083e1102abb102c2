"""FireANTs on one pair: `python peer_fireants.py MOVING FIXED AFFINE.json PREFIX --packages FOLDER`, by metreg's Python.

It takes the torch that is there; FOLDER has what is its own. Settings are those of its authors' script for CUMC12, on the
CPU. PREFIX.h5 maps fixed to moving points. No inverse is written: where grids differ, the one it gives was millimetres off.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import SimpleITK as sitk
import torch

SETTINGS = {
    "scales": [4, 2, 1],
    "iterations": [200, 100, 25],
    "loss_type": "cc",
    "cc_kernel_size": 5,
    "deformation_type": "compositive",
    "smooth_grad_sigma": 1,
    "optimizer": "adam",
    "optimizer_lr": 0.5,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("moving", "fixed", "affine", "prefix"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--warped", action="store_true", help="write PREFIX_warped.nii.gz too, resampled by FireANTs")
    given = parser.parse_args()
    sys.path.append(str(given.packages))
    from fireants.io.image import BatchedImages, Image  # type: ignore[import-not-found,unused-ignore]
    from fireants.registration.greedy import GreedyRegistration  # type: ignore[import-not-found,unused-ignore]

    matrix = np.array(json.loads(given.affine.read_text(encoding="utf-8"))["matrix"])  # fixed to moving points, RAS
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    lps = flip @ matrix @ flip
    scans = [sitk.ReadImage(str(path), sitk.sitkFloat32) for path in (given.fixed, given.moving)]
    fixed, moving = (BatchedImages(Image(scan, device="cpu")) for scan in scans)
    start = torch.from_numpy(lps).float()[None]
    search = GreedyRegistration(**SETTINGS, fixed_images=fixed, moving_images=moving, init_affine=start, progress_bar=False)
    search.optimize()

    prefix = given.prefix
    search.save_as_ants_transforms(f"{prefix}_warp.nii.gz")
    if given.warped:
        warped = sitk.GetImageFromArray(search.evaluate(fixed, moving)[0, 0].detach().cpu().numpy())
        warped.CopyInformation(scans[0])
        sitk.WriteImage(warped, f"{prefix}_warped.nii.gz")
    affine = sitk.AffineTransform(lps[:3, :3].ravel().tolist(), lps[:3, 3].tolist())
    deformation = _without(sitk.ReadImage(f"{prefix}_warp.nii.gz", sitk.sitkVectorFloat64), lps)
    # the last of a composite is applied first
    sitk.WriteTransform(sitk.CompositeTransform([affine, deformation]), f"{prefix}.h5")


def _without(field: sitk.Image, matrix: np.ndarray) -> sitk.Transform:
    """The displacements u of a field that has the affine A in it, A(x + u(x)) - x."""
    size, axes = field.GetSize(), np.array(field.GetDirection()).reshape(3, 3) * np.array(field.GetSpacing())
    index = np.stack(np.meshgrid(*[np.arange(n) for n in size[::-1]], indexing="ij")[::-1], axis=-1)
    x = index @ axes.T + np.array(field.GetOrigin())
    home = np.linalg.inv(matrix)
    u = (x + sitk.GetArrayFromImage(field)) @ home[:3, :3].T + home[:3, 3] - x
    found = sitk.GetImageFromArray(u, isVector=True)
    found.CopyInformation(field)
    return sitk.DisplacementFieldTransform(found)


if __name__ == "__main__":
    main()
