"""The affine that all tools start from: `python -m metreg.bench.alignment MOVING FIXED SETTINGS.toml PREFIX`.

PREFIX.json has the matrix, fixed to moving points in RAS millimetres, and what finding it cost without start-up;
PREFIX.h5 and PREFIX_inverse.h5 are transforms.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from metreg.io.images import read_image
from metreg.io.transforms import Affine, Transform, write_transform
from metreg.prepare.affine import align
from metreg.settings.model import make_settings


def main() -> None:
    moving, fixed, toml, prefix = map(Path, sys.argv[1:])
    settings = make_settings(config=toml)
    images = read_image(moving, "moving image"), read_image(fixed, "fixed image")
    start, start_cpu = time.perf_counter(), time.process_time()
    matrix = align(*images, settings.affine, length_mm=settings.length_mm)
    told = {
        "matrix": matrix.tolist(),
        "align_seconds": round(time.perf_counter() - start, 3),
        "align_cpu_seconds": round(time.process_time() - start_cpu, 3),
    }
    for end, there in (("", matrix), ("_inverse", np.linalg.inv(matrix))):
        write_transform(prefix.with_name(f"{prefix.name}{end}.h5"), Transform((Affine(there),)))
    prefix.with_name(f"{prefix.name}.json").write_text(json.dumps(told), encoding="ascii")


if __name__ == "__main__":
    main()
