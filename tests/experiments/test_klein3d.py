"""`metreg reproduce klein3d` on tiny volumes, in the layout of Klein et al. 2009 and in the plain one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from people import TINY, leave_out_pages, write_people
from scipy.io import savemat

from metreg.cli.main import main
from metreg.errors import MetregError
from metreg.experiments import klein3d
from metreg.experiments.findings import CONSTANT, GLOBAL, LONG
from metreg.experiments.harness import Plan
from metreg.experiments.klein2009 import published, published_table, read_results
from metreg.measure.statistics import describe
from metreg.metric.store import load_metric
from metreg.settings.model import make_settings

SHAPE, SIZE = (14, 16, 13), 5.0
PLAN = Plan(training_pairs=2, test_pairs=3, epochs=(1, 1), iterations=2)


def run(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **more: object) -> dict[str, object]:
    monkeypatch.setattr(klein3d, "QUICK", PLAN)
    leave_out_pages(monkeypatch)
    settings = make_settings("paper3d", changes=TINY)
    options: dict[str, object] = {"quick": True, "device": torch.device("cpu"), "resume": False, **more}
    return klein3d.reproduce(data, out, settings, **options)  # type: ignore[arg-type]


@pytest.fixture
def klein(tmp_path: Path) -> Path:
    """Three people of CUMC12 and two of MGH10, and results of others on the former."""
    data = tmp_path / "data"
    own = {f"m{i}": f"m{i}" for i in (1, 2, 10)}
    write_people(data / "CUMC12" / "Brains", data / "CUMC12" / "Atlases", own, SHAPE, SIZE, ".img")
    write_people(data / "MGH10" / "Heads", None, {"g1": "", "g2": ""}, SHAPE, SIZE)
    (data / "klein2009").mkdir()
    names = np.array(["SyN", "QPC"], dtype=object)[:, None]
    values = np.linspace(0.1, 0.2, 12).reshape(6, 2)
    savemat(data / "klein2009" / "CUMC_results.mat", {"results": values, "direc_name": names})
    return data


def test_the_paper_s_protocol(klein: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    summary = run(klein, out, monkeypatch)
    assert summary == json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert {path.name for path in out.iterdir()} == klein3d.NAMES
    methods = ["affine", GLOBAL, LONG, "learned on CUMC12", "learned on MGH10", CONSTANT]
    assert list(summary["overlap"]) == methods  # type: ignore[call-overload]
    assert summary["pairs"] == {"test": 3, "learned on CUMC12": 2, "learned on MGH10": 2}
    assert set(summary["comparisons"]) == {*methods, "SyN", "Quicksilver, corrected"} - {"learned on CUMC12"}  # type: ignore[call-overload]
    written = (out / "test" / "overlap.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in written if line.startswith("|")]
    named = [line.split("|")[1].strip() for line in lines]
    assert "SyN" in named and "SyN (published)" not in named and "FLIRT (published)" in named
    assert "| c/c local (published) | 0.520 | 0.034 |" in "\n".join(lines)
    assert "c/c local (published)" in (out / "test" / "jacobian.md").read_text(encoding="utf-8")
    assert "c/c local (published)" in (out / "table.md").read_text(encoding="utf-8")
    assert any("Klein et al. 2009" in claim for claim in summary["claims"])  # type: ignore[attr-defined]
    folders = ("average", "learned_on_CUMC12", "learned_on_MGH10")
    standards = [load_metric(out / "metrics" / name / "metric.safetensors").intensity for name in folders]
    assert standards[0] and standards[0] == standards[1] == standards[2]  # the average over all data sets
    assert "not as in its training" not in (out / "test" / "cost.md").read_text(encoding="utf-8")

    stamps = {
        path: path.stat().st_mtime_ns for path in out.rglob("*") if path.suffix == ".safetensors" or "runs" in path.parts
    }
    (out / "test" / "runs" / GLOBAL / "0001.json").unlink()
    assert run(klein, out, monkeypatch, resume=True)["overlap"] == summary["overlap"]
    changed = [path for path, stamp in stamps.items() if path.is_file() and path.stat().st_mtime_ns != stamp]
    assert {path.name for path in changed} <= {"0001.json", "plan.json"}


def test_pairs_are_those_of_the_paper(klein: Path) -> None:
    todo = klein3d.protocol(klein, klein3d.FULL, 0)
    assert [pair.name for pair in todo.test[:3]] == ["m1_to_m2", "m1_to_m10", "m2_to_m1"]  # moving in the outer loop
    assert todo.chosen == list(range(6)) and todo.klein
    few = klein3d.protocol(klein, PLAN, 0)
    assert [todo.test[i] for i in few.chosen] == few.test
    assert all(pair.moving_labels is None for pairs in todo.training.values() for pair in pairs)


def test_another_set_with_a_person_scanned_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    write_people(data / "img", data / "label", {f"{i}": f"{i}" for i in range(5)}, SHAPE, SIZE)
    (data / "subjects.csv").write_text("id,subject,part\n0,a,train\n1,b,train\n2,c,test\n3,c,test\n4,d,test\n")
    summary = run(data, tmp_path / "out", monkeypatch)
    assert summary["pairs"] == {"test": 3, "learned": 2}
    assert "published" not in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    todo = klein3d.protocol(data, klein3d.FULL, 0)
    assert [pair.name for pair in todo.test] == ["2_to_4", "3_to_4", "4_to_2", "4_to_3"] and not todo.klein
    with pytest.raises(MetregError, match="these are results on CUMC12"):
        run(data, tmp_path / "out2", monkeypatch, results=tmp_path)


def test_what_is_missing_is_named_and_where_it_comes_from(
    klein: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (klein / "CUMC12").rename(tmp_path / "elsewhere")
    for folder in (klein, tmp_path / "nowhere"):
        monkeypatch.setattr(
            sys, "argv", ["metreg", "reproduce", "klein3d", "--data", str(folder), "-o", str(tmp_path / "o")]
        )
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr().err
        assert end.value.code == 2 and said.count("\n") == 1
        assert (
            f"no CUMC12 in {folder}" in said and "Klein et al. 2009, https://www.synapse.org" in said and "Atlases" in said
        )
    (tmp_path / "elsewhere").rename(klein / "CUMC12")
    with pytest.raises(MetregError, match="SyN has 6 pairs, there are 7 here"):
        published(klein / "klein2009", [0], 7)
    with pytest.raises(MetregError, match=r"cannot read .*CUMC_results.mat"):
        read_results(tmp_path)


@pytest.mark.data
def test_statistics_give_the_paper_s_table(data: Path) -> None:
    found = read_results(data / "klein2009")
    rows = {row[0]: row[1:] for row in published_table("overlap_cumc12")}
    compared = [name for name in found if name in rows]
    assert len(rows) == 23 and len(compared) == 13
    for name in compared:
        assert [f"{value:.3f}" for value in describe(found[name]).values()] == rows[name][:7], name
    assert all(len(values) == 132 for values in found.values())
