from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import metreg

HALF_WAY = """
import numpy as np
from metreg.kernels.cpu.compile import compiled
from metreg.kernels.cpu.trilinear import value

@compiled()
def half_way(f):
    return value(f, 0, 1, 0, 1, 0, 1, 0.5, 0.5, 0.5)
"""


def run(folder: Path) -> float:
    """What the kernel gives in a fresh process."""
    told = subprocess.run(
        [sys.executable, "-c", "from metreg.kernels.cpu.half import *; print(half_way(np.arange(8.0).reshape(2, 2, 2)))"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(told.stdout)


def test_an_edit_of_a_helper_makes_kernels_of_other_files_compile_again(tmp_path: Path) -> None:
    package = tmp_path / "metreg"
    shutil.copytree(
        Path(metreg.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "vendor", "shipped")
    )
    (package / "kernels" / "cpu" / "half.py").write_text(HALF_WAY)
    assert run(tmp_path) == 3.5
    caches = list((package / "kernels" / "cpu" / "__pycache__").glob("half.half_way*.nbc"))
    assert caches  # so what comes next would be taken from there
    helper = package / "kernels" / "cpu" / "trilinear.py"
    text = helper.read_text(encoding="utf-8")
    assert "return front + s * (c" in text
    helper.write_text(text.replace("return front + s * (c", "return 100 + front + s * (c", 1), encoding="utf-8")
    assert run(tmp_path) == 103.5
