"""metreg on one pair, called like its peers: `peer_metreg MOVING FIXED AFFINE.json PREFIX --metric M`.

PREFIX.h5 maps fixed to moving points, PREFIX_inverse.h5 goes back, PREFIX.json has folds before a repair.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from metreg.settings.process import own_process


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("moving", "fixed", "affine", "prefix"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--metric", default="global")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--short", action="store_true", help="at most two iterations a level")
    parser.add_argument("--warped", action="store_true", help="write PREFIX_warped.nii.gz too")
    given = parser.parse_args()
    own_process()
    register_one(given)


def register_one(given: argparse.Namespace) -> None:
    """Torch is imported here, once the process is metreg's own."""
    import nibabel as nib
    import numpy as np

    from metreg.io.transforms import write_transform
    from metreg.measure.regularity import FoldCount
    from metreg.pipeline.register import register
    from metreg.settings.model import changed, make_settings

    matrix = np.array(json.loads(given.affine.read_text(encoding="utf-8"))["matrix"])
    settings = make_settings(config=given.config)
    if given.short:
        settings = changed(settings, {"solve.iterations": [min(2, n) for n in settings.solve.iterations]})
    result = register(given.moving, given.fixed, metric=given.metric, settings=settings, alignment=matrix, device="cpu")
    write_transform(Path(f"{given.prefix}.h5"), result.transform)
    write_transform(Path(f"{given.prefix}_inverse.h5"), result.inverse)
    facts = FoldCount.of(result.registration.repair).row()
    Path(f"{given.prefix}.json").write_text(json.dumps(facts), encoding="utf-8")
    if given.warped:
        nib.save(result.warped, f"{given.prefix}_warped.nii.gz")


if __name__ == "__main__":
    main()
