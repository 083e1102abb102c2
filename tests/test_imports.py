"""Packages are imported by one thread: two that import the same one at once may see half of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys, threading, time

class Watch:
    \"\"\"Sees which thread asks for a module first, and makes matplotlib slow to find.\"\"\"
    def __init__(self):
        self.elsewhere = []
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is not threading.main_thread():
            self.elsewhere.append(name)
        if name.startswith("matplotlib"):
            time.sleep(0.01)
        return None

watch = Watch()
sys.meta_path.insert(0, watch)
import numpy as np
import metreg

values = np.zeros((24, 26, 22), dtype=np.float32)
values[6:18, 6:20, 5:17] = np.random.default_rng(0).random((12, 14, 12)) + 1
moving = (np.roll(values, 1, axis=0), np.eye(4))
result = metreg.register(moving, (values, np.eye(4)), changes={"solve.iterations": [1, 1, 1]})
result.save(sys.argv[1])
heavy = ("matplotlib", "scipy", "PIL", "nibabel", "SimpleITK", "h5py", "jinja2", "metreg", "numba")
print([name for name in watch.elsewhere if name.split(".")[0] in heavy])
"""


def test_no_package_is_imported_by_a_thread_beside_the_main_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
    assert (tmp_path / "out" / "report.html").is_file()


BROKEN = """
import sys
sys.modules["matplotlib"] = None  # what an import of it raises then is an ImportError
import numpy as np
import metreg

values = np.zeros((24, 26), dtype=np.float32)
values[6:18, 6:20] = np.random.default_rng(0).random((12, 14)) + 1
moving = (np.roll(values, 1, axis=0), np.eye(3))
result = metreg.register(moving, (values, np.eye(3)), changes={"solve.iterations": [1, 1, 1]})
result.save(sys.argv[1])
"""


def test_without_matplotlib_all_is_written_but_the_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path / "out")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "report.html: left out" in done.stderr
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"warped.nii.gz", "moving_to_fixed.h5", "result.json"} <= names and "report.html" not in names
