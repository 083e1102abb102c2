"""The public names: all that the command line does, from Python."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

import metreg
from conftest import bent_picture, centred, picture

SHAPE = (24, 22, 20)
AFFINE = centred(np.diag([5.0, 5.0, 5.0]), SHAPE)
FEW = {"solve.iterations": [2, 2, 1]}
VERBS = ("register", "register_tensors", "train", "evaluate", "apply", "inspect", "load_metric")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, values in (("a", picture(SHAPE, AFFINE)), ("b", bent_picture(SHAPE, AFFINE))):
        nib.save(nib.Nifti1Image(values, AFFINE), tmp_path / f"{name}.nii.gz")
        labels = np.digitize(values, [150, 500]).astype(np.int16)
        nib.save(nib.Nifti1Image(labels, AFFINE), tmp_path / f"{name}_labels.nii.gz")
    rows = "a.nii.gz,b.nii.gz,a_labels.nii.gz,b_labels.nii.gz\nb.nii.gz,a.nii.gz,b_labels.nii.gz,a_labels.nii.gz\n"
    (tmp_path / "pairs.csv").write_text(f"moving,fixed,moving_labels,fixed_labels\n{rows}")
    return tmp_path


def test_names_are_what_they_say_whatever_was_imported() -> None:
    importlib.import_module("metreg.deformation.stationary")
    importlib.import_module("metreg.evaluation.run")
    assert all(callable(getattr(metreg, name)) for name in VERBS) and callable(metreg.flow)
    assert set(metreg.__all__) == set(dir(metreg))


@pytest.mark.parametrize("name", VERBS)
def test_every_function_says_what_it_takes_gives_and_raises_and_shows_it(name: str) -> None:
    function = inspect.unwrap(getattr(metreg, name))
    text = inspect.getdoc(function) or ""
    for part in ("Args:", "Returns:", "Raises:", "Example:"):
        assert part in text, part
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in text, parameter
    examples = doctest.DocTestFinder(recurse=False).find(function, name, globs={"metreg": metreg, "torch": torch})
    assert examples and doctest.DocTestRunner().run(examples[0]).failed == 0


def test_a_transform_is_applied_with_and_without_a_file(folder: Path) -> None:
    result = metreg.register(folder / "a.nii.gz", folder / "b.nii.gz", metric="global", changes=FEW)
    warped = metreg.apply(result.transform, folder / "a.nii.gz", folder / "b.nii.gz")
    np.testing.assert_allclose(warped.get_fdata(), result.warped.get_fdata(), atol=1e-3)
    result.save(folder / "out")
    out = folder / "labels.nii.gz"
    labels = metreg.apply(
        folder / "out" / "moving_to_fixed.h5", folder / "a_labels.nii.gz", folder / "b.nii.gz", labels=True, out=out
    )
    np.testing.assert_array_equal(labels.get_fdata(), nib.load(out).get_fdata())
    assert metreg.inspect(folder / "out")["metric"] == "global"


def test_a_metric_is_learned_and_evaluated(folder: Path) -> None:
    heard: list[dict[str, object]] = []
    changes = {"train.epochs": [1, 2], "train.batch": 1, **FEW}
    metric = metreg.train(folder / "pairs.csv", folder / "run", changes=changes, device="cpu", on_epoch=heard.append)
    assert len(heard) == 3 and metric.length_mm == metreg.load_metric(folder / "run" / "metric.safetensors").length_mm
    with pytest.raises(metreg.MetregError, match="--overwrite"):
        metreg.train(folder / "pairs.csv", folder / "run", changes=changes)
    metrics = ["global", f"learned={folder / 'run' / 'metric.safetensors'}"]
    lines: list[str] = []
    how = {"metrics": metrics, "changes": FEW, "device": "cpu"}
    summary = metreg.evaluate(folder / "pairs.csv", folder / "table", tell=lines.append, **how)  # type: ignore[arg-type]
    assert set(summary["methods"]) == {"affine", "global", "learned"} and len(lines) == 6
    assert (folder / "table" / "report.html").is_file()
