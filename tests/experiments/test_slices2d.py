"""`metreg reproduce slices2d` on tiny slices and volumes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from people import TINY, leave_out_pages, write_people

from metreg.cli.main import main
from metreg.errors import MetregError
from metreg.experiments import slices2d
from metreg.experiments.findings import CONSTANT, GLOBAL, LONG
from metreg.experiments.harness import Experiment, Plan
from metreg.io.tables import TEST, Scan, read_scans, scan_pairs
from metreg.learn import run as training
from metreg.metric.store import load_metric
from metreg.settings.model import changed, make_settings

NAMES = {f"person-{i}_slice": f"person-{i}_manual_labels_slice" for i in (1, 2, 3, 4, 10)}
PLAN = Plan(training_pairs=3, test_pairs=2, epochs=(1, 1), iterations=2)


def run(
    data: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    resume: bool = False,
    pairs: int | None = None,
    **more: object,
) -> dict[str, object]:
    monkeypatch.setattr(slices2d, "QUICK", PLAN)
    leave_out_pages(monkeypatch)
    settings = make_settings("paper2d", changes={**TINY, **more})
    return slices2d.reproduce(
        data,
        out,
        settings,
        quick=True,
        device=torch.device("cpu"),
        resume=resume,
        pairs=pairs,
        label_names=data / "names.csv" if (data / "names.csv").is_file() else None,
    )


@pytest.fixture
def slices(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    write_people(data / "img", data / "label", NAMES, (26, 24), 3.0)
    (data / "names.csv").write_text("1,rest\n4,left lateral ventricle\n")
    return data


def test_everything_is_written_and_a_second_run_does_nothing_again(
    slices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    summary = run(slices, out, monkeypatch)
    assert summary == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert {path.name for path in out.iterdir()} == slices2d.NAMES - {"slices"}  # they came as slices
    methods = ["affine", GLOBAL, LONG, "omt15", "omt50", "omt100", CONSTANT]
    for part in ("insample", "heldout"):
        assert list(summary["overlap"][part]) == methods  # type: ignore[index]
        assert 0 < summary["largest_weight"][part]["omt50"] < 1  # type: ignore[index]
        assert (out / part / "boxes.png").is_file() and (out / "metrics" / part / "omt15" / "metric.safetensors").is_file()
        told = summary["methods"][part]["omt50"]  # type: ignore[index]
        assert len(told["weights"]) == 4 and sum(told["weights"]) == pytest.approx(1) and len(told["sigma_mm"]) == 2
    assert summary["folds"] == 0 and summary["pairs"]["heldout"] == {"training": 3, "test": 2}  # type: ignore[index]
    assert any("ventricles" in claim for claim in summary["claims"])  # type: ignore[attr-defined]
    assert "omt100" in (out / "table.md").read_text(encoding="utf-8") and "| claim | held | measured |" in (
        out / "summary.md"
    ).read_text(encoding="utf-8")
    assert (out / "report.html").read_text(encoding="utf-8").count("data:image/png") == 2

    parts = [
        path for path in out.rglob("*") if path.suffix in (".safetensors", ".png") or path.parent.parent.name == "runs"
    ]
    stamps = {path: path.stat().st_mtime_ns for path in parts if path.name != "boxes.png"}
    assert run(slices, out, monkeypatch, resume=True)["overlap"] == summary["overlap"]
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}
    with pytest.raises(MetregError, match="other settings"):
        run(slices, out, monkeypatch, resume=True, seed=5)
    image = slices / "img" / "person-10_slice.nii.gz"
    image.write_bytes((slices / "img" / "person-1_slice.nii.gz").read_bytes())
    with pytest.raises(MetregError, match=rf"was begun with other images \(5\.test person-10_slice\.image {image}\)"):
        run(slices, out, monkeypatch, resume=True)
    assert stamps == {path: path.stat().st_mtime_ns for path in stamps}


def test_volumes_are_cut_where_their_middle_is_whatever_their_axes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    names = {f"{i}": f"{i}" for i in range(4)}
    write_people(data / "img", data / "label", names, (20, 22, 18), 4.0)
    (plain,) = slices2d.axial_slices(read_scans(data)[:1], tmp_path / "slices")
    volume = nib.load(data / "img" / "0.nii.gz")
    shown = np.flatnonzero((volume.get_fdata() > 30).any((0, 1)))
    at = (shown[0] + shown[-1]) // 2
    cut = nib.load(plain.image)
    assert cut.shape == (20, 22, 1)
    np.testing.assert_allclose(cut.get_fdata()[..., 0], volume.get_fdata()[..., at])
    np.testing.assert_allclose((cut.affine @ [0, 0, 0, 1])[2], (volume.affine @ [0, 0, at, 1])[2])
    assert plain.labels is not None and nib.load(plain.labels).shape == (20, 22, 1)

    turned = volume.as_reoriented(nib.orientations.axcodes2ornt(("P", "I", "R"))[np.argsort([1, 2, 0])])
    nib.save(turned, tmp_path / "turned.nii.gz")
    assert nib.aff2axcodes(turned.affine) != ("R", "A", "S")
    (other,) = slices2d.axial_slices([Scan(tmp_path / "turned.nii.gz")], tmp_path / "turned")
    again = nib.as_closest_canonical(nib.load(other.image))
    np.testing.assert_allclose(again.get_fdata(), nib.as_closest_canonical(cut).get_fdata(), rtol=1e-6)


def test_slices_of_volumes_without_labels_and_fewer_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    write_people(data, None, {f"{i}": "" for i in range(4)}, (20, 22, 12), 4.0)
    monkeypatch.setattr(slices2d, "PENALTIES", (50,))
    summary = run(data, tmp_path / "out", monkeypatch, pairs=2)
    assert summary["pairs"] == {part: {"training": 2, "test": 2} for part in ("insample", "heldout")}
    assert len(list((tmp_path / "out" / "slices" / "img").iterdir())) == 4
    assert summary["overlap"]["heldout"]["omt50"] is None  # type: ignore[index]
    assert not any("beats" in claim or "ventricles" in claim for claim in summary["claims"])  # type: ignore[attr-defined]


def test_labels_and_subjects_are_found(slices: Path) -> None:
    scans = read_scans(slices)
    assert [scan.name for scan in scans] == list(NAMES)  # 10 comes last
    assert [scan.labels.name for scan in scans if scan.labels] == [f"{name}.nii.gz" for name in NAMES.values()]
    assert [scan.name for scan in scans if scan.part == TEST] == ["person-4_slice", "person-10_slice"]
    table = slices / "subjects.csv"
    table.write_text("id,subject\n" + "".join(f"{name},{'ann' if i < 2 else i}\n" for i, name in enumerate(NAMES)))
    scans = read_scans(slices)
    assert len(scan_pairs(scans)) == 20 - 2  # the two of ann make no pair
    table.write_text(
        "id,subject,part\n" + "".join(f"{name},{i},{'test' if i > 2 else 'train'}\n" for i, name in enumerate(NAMES))
    )
    assert [scan.subject for scan in read_scans(slices) if scan.part == TEST] == ["3", "4"]
    for text, said in (
        ("id,person\n", "wanted the columns id, subject"),
        ("id,subject\nperson-1_slice,a\n", "no line for the image person-2_slice"),
        (
            "id,subject,part\n" + "".join(f"{name},a,maybe\n" for name in NAMES),
            "wanted train, test or nothing, got 'maybe'",
        ),
        (
            "id,subject,part\n" + "".join(f"{name},a,{'test' if i else 'train'}\n" for i, name in enumerate(NAMES)),
            "a is there to train and to test",
        ),
    ):
        table.write_text(text)
        with pytest.raises(MetregError, match=said):
            read_scans(slices)
    table.unlink()
    next((slices / "label").iterdir()).unlink()
    with pytest.raises(MetregError, match="wanted the labels of person-"):
        read_scans(slices)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("slices2d", "--data: wanted for slices2d, a folder of images"),
        ("slices2d --data {empty}", "data: no images in {empty}"),
        ("slices2d --data {one}", "wanted two subjects or more to train and two to test"),
        ("slices2d --data {empty} --published {empty}", "--published: slices2d has no use for it"),
        ("synthetic2d --data {empty}", "--data: synthetic2d has no use for it"),
        ("synthetic2d --pairs 5", "--pairs: synthetic2d has no use for it"),
    ],
)
def test_a_mistake_gives_one_line(
    arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"empty": tmp_path / "empty", "one": tmp_path / "one"}
    places["empty"].mkdir()
    write_people(places["one"], None, {"a": "", "b": ""}, (8, 8), 9.0)
    words = ["metreg", "reproduce", *[word.format(**places) for word in arguments.split()], "-o", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert said.format(**places) in capsys.readouterr().err


def test_metrics_that_differ_in_prices_share_the_first_stage_and_go_on_where_they_were_stopped(
    slices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_pages(monkeypatch)
    pairs = scan_pairs(read_scans(slices))[:3]
    variants = {name: {"learned.transport": price} for name, price in (("a", 15.0), ("b", 100.0))}
    told: list[str] = []

    def work(out: Path) -> Experiment:
        settings = make_settings("paper2d", changes={**TINY, "train.epochs": [10, 10], "train.batch": 3})
        return Experiment(out, settings, torch.device("cpu"), tell=told.append)

    stages: list[list[int]] = []

    def page(about: object, history: list[dict[str, int]], *rest: object) -> str:
        stages.append([record["stage"] for record in history])
        return ""

    monkeypatch.setattr(training, "training_page", page)
    whole = work(tmp_path / "whole").learn_each("part", pairs, variants)
    assert stages == [[1] * 10 + [2] * 10] * 2  # every report has both stages
    assert sum("stage 1" in line for line in told) == 1 and sum("stage 2" in line for line in told) == 2
    assert sorted(path.name for path in (tmp_path / "whole" / "metrics" / "part").iterdir()) == ["a", "b"]

    learn = Experiment.learn

    def until_b(self: Experiment, name: str, *rest: Any, **more: Any) -> Path:
        if name == "part/b":
            raise KeyboardInterrupt
        return learn(self, name, *rest, **more)

    stopped = work(tmp_path / "stopped")
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "learn", until_b)
        with pytest.raises(KeyboardInterrupt):
            stopped.learn_each("part", pairs, variants)
    told.clear()
    gone_on = stopped.learn_each("part", pairs, variants)
    assert not any("stage 1" in line or "part/a" in line for line in told)
    for name in variants:
        one, other = (load_metric(paths[name]).model.network.state_dict() for paths in (whole, gone_on))
        assert all(torch.equal(one[key], other[key]) for key in one)
    a, b = (load_metric(whole[name]).model.network.state_dict() for name in variants)
    assert any(not torch.equal(a[key], b[key]) for key in a)

    at_once = replace(stopped, out=tmp_path / "at_once", settings=changed(stopped.settings, {"train.epochs": (0, 1)}))
    assert all(path.is_file() for path in at_once.learn_each("part", pairs, variants).values())
