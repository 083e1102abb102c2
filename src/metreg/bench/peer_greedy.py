"""Greedy on one pair: `python peer_greedy.py MOVING FIXED AFFINE.json PREFIX`, in the environment of the peers.

It is given the affine by its own option -it. PREFIX.h5 maps fixed to moving points, PREFIX_inverse.h5 goes back.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import SimpleITK as sitk
from picsl_greedy import Greedy3D  # type: ignore[import-not-found,unused-ignore]

SETTINGS = "-m NCC 2x2x2 -n 100x50x10"
EXACT = "-wp 0 -seed 1"
"""Warps are not rounded, and noise is the same in every run."""


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("moving", "fixed", "affine", "prefix"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--warped", action="store_true", help="write PREFIX_warped.nii.gz too, resampled by Greedy")
    given = parser.parse_args()
    matrix = np.array(json.loads(given.affine.read_text(encoding="utf-8"))["matrix"])  # fixed to moving points, RAS
    moving, fixed = (sitk.ReadImage(str(path), sitk.sitkFloat32) for path in (given.moving, given.fixed))
    prefix = given.prefix.resolve()
    os.chdir(prefix.parent)  # names in Greedy's options cannot have spaces
    np.savetxt("greedy_affine.mat", matrix)
    greedy = Greedy3D()
    threads = os.environ.get("ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS", "1")
    greedy.execute(
        f"-i fixed moving -it greedy_affine.mat -o warp -oinv back {SETTINGS} {EXACT} -threads {threads}",
        fixed=fixed,
        moving=moving,
        warp=None,
        back=None,
    )
    warp, back = greedy["warp"], greedy["back"]
    if given.warped:
        sitk.WriteImage(warp, "greedy_warp.nii.gz")
        reslice = "-rf fixed -rm moving warped -r greedy_warp.nii.gz greedy_affine.mat"
        greedy.execute(reslice, fixed=fixed, moving=moving, warped=None)
        sitk.WriteImage(greedy["warped"], f"{prefix}_warped.nii.gz")
    del greedy
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    lps = flip @ matrix @ flip
    affine = sitk.AffineTransform(lps[:3, :3].ravel().tolist(), lps[:3, 3].tolist())
    # the last of a composite is applied first
    sitk.WriteTransform(sitk.CompositeTransform([affine, sitk.DisplacementFieldTransform(warp)]), f"{prefix}.h5")
    inverse = [sitk.DisplacementFieldTransform(back), affine.GetInverse()]
    sitk.WriteTransform(sitk.CompositeTransform(inverse), f"{prefix}_inverse.h5")


if __name__ == "__main__":
    main()
