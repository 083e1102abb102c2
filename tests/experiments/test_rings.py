from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch

from metreg.errors import MetregError
from metreg.experiments.rings import report as rings_report
from metreg.experiments.rings.converged import KINDS, draw
from metreg.experiments.rings.experiment import MAIN, SAID, VARIANTS, Plan
from metreg.settings.model import make_settings

TINY = Plan(
    3,
    2,
    (1, 1),
    3,
    (3, 3),
    (*MAIN, "constant_learned", "momentum_input", "joint"),
    seeds=2,
    converged=4,
    silent_pairs=(2, 3),
    regularities=(1.0, 30.0),
)


def run(out: Path, monkeypatch: pytest.MonkeyPatch, resume: bool = False, **more: object) -> dict[str, object]:
    monkeypatch.setattr(rings_report, "QUICK", TINY)
    settings = make_settings("paper2d", changes={"train.steps": 1, "flow.steps": 5, **more})
    return rings_report.reproduce(out, settings, quick=True, device=torch.device("cpu"), resume=resume)


def test_everything_is_written_and_a_second_run_does_nothing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = run(tmp_path / "out", monkeypatch)
    assert summary == json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["errors_px"]) >= {"none", "global", "constant", "true", *TINY.variants}  # type: ignore[call-overload]
    assert set(summary["errors_px"]["omt50"]) == {"disc", "ring"}  # type: ignore[index]
    assert summary["folds"] == 0 and summary["sigma_correlation"]["omt50"]  # type: ignore[index]
    assert {path.name for path in (tmp_path / "out").iterdir()} == rings_report.NAMES
    converged, silent = summary["converged"][0], summary["silent"][0]  # type: ignore[index]
    assert set(converged) == {"none", "global", "constant", "omt50", "true"}
    assert set(silent) == set(KINDS) and silent["noise"]["omt50"]["lambda"] in (1.0, 30.0)
    rows = list(csv.DictReader((tmp_path / "out" / "table.csv").open()))
    assert [row["method"] for row in rows] == [name for key, name in SAID.items() if key in summary["errors_px"]]  # type: ignore[operator]
    assert "| claim | held | measured |" in (tmp_path / "out" / "summary.md").read_text(encoding="utf-8")
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").rglob("*.safetensors")}
    assert run(tmp_path / "out", monkeypatch, resume=True)["errors_px"] == summary["errors_px"]
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    with pytest.raises(MetregError, match=r"was begun with other settings \(seed\)"):
        run(tmp_path / "out", monkeypatch, resume=True, seed=5)


def test_every_variant_is_a_change_of_settings_and_has_a_name() -> None:
    for name, changes in VARIANTS.items():
        make_settings("paper2d", changes=changes)
        assert name in SAID


def test_pairs_without_texture_are_constant_but_for_their_borders() -> None:
    silent, noisy = draw(3, 2, "silent"), draw(3, 2, "noise")
    assert silent.pairs.source[silent.source_labels == 0].median() == 0
    assert float(noisy.pairs.source[noisy.source_labels == 0].std()) == pytest.approx(0.1, rel=0.1)
    assert torch.equal(silent.phi_inv[0], noisy.phi_inv[0])
    part = silent.part(1, 2)
    assert torch.equal(part.pairs.target, silent.pairs.target[1:]) and torch.equal(part.phi_inv, silent.phi_inv[1:])
