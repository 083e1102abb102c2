"""A program that uses metreg finds its process as it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import logging, os, random, sys, threading
before = dict(os.environ)
import nibabel as nib
import numpy as np
import SimpleITK as sitk
import torch

torch.set_num_threads(2)
threads, warned = threading.active_count(), sitk.ProcessObject.GetGlobalWarningDisplay()
level = nib.imageglobals.logger.level
state, numbers, ours = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
handlers = list(logging.getLogger().handlers)

import metreg

values = np.zeros((44, 40, 36), dtype=np.float32)
values[6:30, 6:28, 5:27] = np.random.default_rng(0).random((24, 22, 22)) + 1
nib.save(nib.Nifti1Image(values, np.eye(4)), "a.nii.gz")
nib.save(nib.Nifti1Image(np.roll(values, 1, axis=0), np.eye(4)), "b.nii.gz")
sitk.WriteImage(sitk.GetImageFromArray(values), "c.nrrd")
for moving in ("a.nii.gz", "c.nrrd"):
    result = metreg.register(moving, "b.nii.gz", changes={"solve.iterations": [2, 2, 2]})
result.save("out")
metreg.read_transform("out/moving_to_fixed.h5")

import metreg.learn.run
from metreg.io.tables import PairFiles
from pathlib import Path

pair = PairFiles(Path("a.nii.gz"), Path("b.nii.gz"))
settings = metreg.make_settings(changes={"train.epochs": [1, 1], "train.steps": 1, "solve.iterations": [1, 1, 1]})
metreg.learn.run.train_metric([pair], Path("run"), settings, device=torch.device("cpu"))

assert dict(os.environ) == before, set(os.environ) ^ set(before)
assert float(torch.tensor([1e-40]).mul(1.0)[0] * 1e30) > 0, "denormal numbers are taken for zero"
assert threading.active_count() == threads, threading.enumerate()
assert sitk.ProcessObject.GetGlobalWarningDisplay() == warned
assert nib.imageglobals.logger.level == level
assert torch.equal(torch.get_rng_state(), state), "torch's random numbers"
assert np.random.get_state()[1].tolist() == numbers and random.getstate() == ours
assert logging.getLogger().handlers == handlers
"""


def test_environment_numbers_loggers_and_threads_are_left_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
