"""ANTs' SyN on one pair: `python peer_ants.py MOVING FIXED AFFINE.json PREFIX --kind KIND`, among the peers.

KIND is a type_of_transform of antspyx that has a deformable stage only; the affine is its initial transform.
PREFIX.h5 maps fixed to moving points, PREFIX_inverse.h5 goes back.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import ants  # type: ignore[import-not-found,unused-ignore]
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("moving", "fixed", "affine", "prefix"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--kind", default="SyNOnly")
    parser.add_argument("--warped", action="store_true", help="write PREFIX_warped.nii.gz too, resampled by ANTs")
    given = parser.parse_args()
    matrix = np.array(json.loads(given.affine.read_text(encoding="utf-8"))["matrix"])  # fixed to moving points, RAS
    flip = np.diag([-1.0, -1.0, 1.0, 1.0])
    lps = flip @ matrix @ flip
    prefix = str(given.prefix)
    initial = ants.create_ants_transform(
        transform_type="AffineTransform", dimension=3, precision="double", matrix=lps[:3, :3], offset=lps[:3, 3]
    )
    ants.write_transform(initial, f"{prefix}_initial.mat")
    moving, fixed = (ants.image_read(str(path)) for path in (given.moving, given.fixed))
    found = ants.registration(
        fixed,
        moving,
        type_of_transform=given.kind,
        initial_transform=[f"{prefix}_initial.mat"],
        outprefix=f"{prefix}_ants",
        write_composite_transform=True,
    )
    if given.warped:
        ants.image_write(found["warpedmovout"], f"{prefix}_warped.nii.gz")
    Path(f"{prefix}_antsComposite.h5").replace(f"{prefix}.h5")
    Path(f"{prefix}_antsInverseComposite.h5").replace(f"{prefix}_inverse.h5")


if __name__ == "__main__":
    main()
