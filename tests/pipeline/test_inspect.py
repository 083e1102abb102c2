"""`metreg inspect`: what a metric says, what a result says."""

from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from test_evaluation import run

from conftest import centred, picture
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, load_metric, save_metric
from metreg.pipeline.inspect import inspect_metric, tissue_classes
from metreg.settings.model import LearnedSettings, MetricSettings

SHAPE = (20, 22, 18)
AFFINE = centred(np.diag([-4.0, 4.0, 4.0]), SHAPE)


@pytest.fixture
def metric(tmp_path: Path) -> Path:
    model = LearnedMetric(3, MetricSettings(), LearnedSettings(), torch.Generator().manual_seed(0))
    template = torch.from_numpy(picture(SHAPE, AFFINE) / 1000).clamp(0, 1)[None, None]
    path = tmp_path / "metric.safetensors"
    told = {"pairs": 3, "epochs": (1, 2)}
    file = MetricFile(model.eval(), 80.0, (4.0, 4.0, 4.0), template=template, template_mm=(4.0, 4.0, 4.0), summary=told)
    save_metric(path, file.__class__(**{**file.__dict__, "template_affine": AFFINE}))
    return path


def test_the_template_comes_back_from_the_file(metric: Path) -> None:
    found = load_metric(metric)
    assert found.template is not None and found.template.shape == (1, 1, *SHAPE)
    assert float((found.template[0, 0] - torch.from_numpy(picture(SHAPE, AFFINE) / 1000).clamp(0, 1)).abs().max()) < 1 / 500
    np.testing.assert_array_equal(found.template_affine, AFFINE)


def test_a_metric_over_its_own_template(metric: Path) -> None:
    view = inspect_metric(metric)
    assert view.facts["over"] == "the mean of the training images" and len(view.planes) == 3
    assert view.planes[0].cut.letters == ("R", "L", "A", "P")
    widths = view.facts["gaussians"]["sigma_mm"]
    for row in view.facts["classes"]:
        assert sum(row["weights"]) == pytest.approx(1, abs=1e-4)
        assert widths[0] <= row["sigma_mm"] <= widths[-1]
        squared = sum(w * s**2 for w, s in zip(row["weights"], widths, strict=True))
        assert row["sigma_mm"] <= np.sqrt(squared) + 1e-3  # the mean of roots is below the root of the mean
    assert sum(row["share"] for row in view.facts["classes"]) == pytest.approx(1)


def test_tissue_classes_by_hand() -> None:
    f = np.repeat([0.0, 0.2, 0.6, 1.0], 30).reshape(12, 10)
    sigma = np.repeat([4.0, 3.0, 2.0, 1.0], 30).reshape(12, 10)
    w = np.stack([sigma / 4, 1 - sigma / 4])
    found = {row["class"]: row for row in tissue_classes(f, sigma, w)}
    assert [found[name]["sigma_mm"] for name in ("background", "dark", "middle", "bright")] == [4, 3, 2, 1]
    assert found["bright"]["weights"] == [0.25, 0.75]


def test_the_verb_on_a_metric(metric: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    image = tmp_path / "image.nii.gz"
    nib.save(nib.Nifti1Image(picture(SHAPE, AFFINE), AFFINE), image)
    assert run(monkeypatch, "inspect", metric, "--image", image, "-o", tmp_path / "page.html", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["over"] == str(image) and told["training"]["pairs"] == 3
    assert "<h2>Card</h2>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert run(monkeypatch, "inspect", metric) == 0
    assert "set point" in capsys.readouterr().out


def test_the_verb_on_a_result(
    pair_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:  # type: ignore[no-untyped-def]
    words = ["--set", "solve.iterations=[5,0,0]", "--no-affine", "-q", "--moving-labels", tmp_path / "l.nii.gz"]
    values = nib.load(pair_files[0])
    nib.save(nib.Nifti1Image((values.get_fdata() > 300).astype(np.int16), values.affine), tmp_path / "l.nii.gz")
    assert run(monkeypatch, "register", *pair_files, "-o", tmp_path / "out", *words) == 0
    assert run(monkeypatch, "inspect", tmp_path / "out") == 0
    told = capsys.readouterr().out
    assert "certified invertible" in told and "mean sigma (mm)" in told


@pytest.mark.parametrize("what", ["nothing", "empty"])
def test_what_is_neither_is_refused(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "empty").mkdir()
    assert run(monkeypatch, "inspect", tmp_path / what) == 2
    assert "wanted a metric file or a folder that register wrote" in capsys.readouterr().err
