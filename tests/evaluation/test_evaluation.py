"""`metreg evaluate`: one row per pair and method, whatever tool the transforms came from."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path
from threading import Thread
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

from conftest import bend, bent_picture, centred, picture
from helpers import children_of, is_running, wait_until
from metreg.cli.main import main
from metreg.core.grid import world_points
from metreg.io.transforms import Affine, Field, Transform, write_transform
from metreg.many.processes import TERMINATED
from metreg.metric.learned import LearnedMetric
from metreg.metric.store import MetricFile, load_metric, metric_path, save_metric
from metreg.pipeline.register import register
from metreg.pipeline.resolve import BRAIN, MEAN
from metreg.result.result import Result
from metreg.settings.model import LearnedSettings, MetricSettings

SHAPE = (26, 28, 24)
AFFINE = centred(np.diag([-3.0, 3.0, 3.0]), SHAPE)
QUICK = ["--no-affine", "--set", "solve.iterations=[15,5,0]", "--device", "cpu"]


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["metreg", *map(str, words)])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs with labels and landmarks, and the true transforms of the first kind as another tool's."""
    folder = tmp_path_factory.mktemp("pairs")
    images = {"a": picture(SHAPE, AFFINE), "b": bent_picture(SHAPE, AFFINE)}
    for name, values in images.items():
        nib.save(nib.Nifti1Image(values, AFFINE), folder / f"{name}.nii.gz")
        nib.save(nib.Nifti1Image(np.digitize(values, [150, 500]).astype(np.int16), AFFINE), folder / f"{name}_l.nii.gz")
    points = world_points(SHAPE, AFFINE)[::2000]
    for name, places in (("a", bend(points)), ("b", points)):
        lines = "".join(f"{x},{y},{z}\n" for x, y, z in places)
        (folder / f"{name}.csv").write_text(f"x,y,z\n{lines}")
    header = "moving,fixed,moving_labels,fixed_labels,moving_points,fixed_points,moving_subject,fixed_subject\n"
    rows = "a.nii.gz,b.nii.gz,a_l.nii.gz,b_l.nii.gz,a.csv,b.csv,anna,bert\nb.nii.gz,a.nii.gz,b_l.nii.gz,a_l.nii.gz,,,,\n"
    (folder / "pairs.csv").write_text(header + rows)
    u = (bend(world_points(SHAPE, AFFINE)) - world_points(SHAPE, AFFINE)).T.reshape(3, *SHAPE)
    (folder / "true").mkdir()
    write_transform(folder / "true" / "a_to_b.h5", Transform((Field(u.astype(np.float32), AFFINE), Affine(np.eye(4)))))
    (folder / "true" / "a_to_b.json").write_text('{"seconds": 7.5, "cpu_seconds": 9.0, "peak_memory_mb": 100}')
    write_transform(folder / "true" / "0002.h5", Transform((Affine(np.eye(4)),)))
    return folder


@pytest.fixture(scope="module")
def table(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("evaluation") / "out"
    with pytest.MonkeyPatch.context() as patch:
        words = ["--metric", "global", "--transforms", f"true={folder / 'true'}", "--frame", "ras", "-q", *QUICK]
        assert run(patch, "evaluate", folder / "pairs.csv", "-o", out, *words) == 0
    return out


def test_a_row_for_every_pair_and_method(table: Path) -> None:
    rows = list(csv.DictReader((table / "results.csv").open()))
    assert [(row["pair"], row["method"]) for row in rows] == [
        (pair, method) for pair in "12" for method in ("affine", "global", "true")
    ]
    found = {row["method"]: row for row in rows if row["pair"] == "1"}
    assert float(found["true"]["target_overlap"]) > float(found["affine"]["target_overlap"])
    assert float(found["global"]["target_overlap"]) > float(found["affine"]["target_overlap"])
    assert float(found["true"]["landmarks_mm"]) < 0.05 < float(found["affine"]["landmarks_mm"])
    assert found["true"]["seconds"] == "7.5" and found["true"]["cpu_seconds"] == "9.0"
    assert found["true"]["inverse_mean_mm"] == "" and float(found["global"]["inverse_max_mm"]) < 0.5
    assert all(row["folds"] == "0" for row in rows)
    by_label = list(csv.DictReader((table / "overlap.csv").open()))
    assert {row["label"] for row in by_label} == {"1", "2"}


def test_folds_are_counted_before_they_are_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stripes that change places, with next to no price of it: the map folds, and what the repair hides is told."""
    x = np.arange(40) / 39
    stripes = np.exp(-(((x - 0.42) / 0.04) ** 2)) + 0.5 * np.exp(-(((x - 0.58) / 0.04) ** 2))
    for name, values in (("a", stripes), ("b", stripes[::-1])):
        image = np.repeat(values[:, None], 40, axis=1).astype(np.float32)
        nib.save(nib.Nifti1Image(image, np.eye(4)), tmp_path / f"{name}.nii.gz")
    (tmp_path / "pairs.csv").write_text("moving,fixed\na.nii.gz,b.nii.gz\n")
    changes = ["solve.regularity=0.01", "solve.folding=0", "solve.iterations=[60,60,200]", "metric.weights=[0.5,0.5,0,0]"]
    changes += ["unit_cube=true", "similarity.name=ssd", "affine.kind=none"]
    words = [word for change in changes for word in ("--set", change)]
    out = tmp_path / "out"
    assert run(monkeypatch, "evaluate", tmp_path / "pairs.csv", "-o", out, "--metric", "global", "-q", *words) == 0
    affine, found = csv.DictReader((out / "results.csv").open())
    assert affine["folds_before_repair"] == ""
    assert int(found["folds_before_repair"]) > 0 and float(found["smallest_before_repair"]) < 0
    assert found["repaired"] == "True" and found["folds"] == "0"
    before = f"{found['folds_before_repair']} in 1 ({float(found['smallest_before_repair']):.2f})"
    assert f"| global | {before} | 0 |" in (out / "cost.md").read_text(encoding="utf-8")
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["methods"]["global"]["before_repair"]["pairs"] == 1


def test_tables_figures_and_pages_are_there(table: Path) -> None:
    summary = json.loads((table / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["methods"]) == {"affine", "global", "true"} and summary["pairs"] == 2
    assert summary["methods"]["global"]["folds"] == 0 and summary["methods"]["global"]["certified"] == 2
    assert set(summary["comparisons"]) == set(summary["methods"]) - {summary["reference"]}
    assert "| affine |" in (table / "overlap.md").read_text(encoding="utf-8") and "tabular" in (
        table / "jacobian.tex"
    ).read_text(encoding="utf-8")
    assert (table / "boxes.png").stat().st_size > 5000
    for name in ("overlap.md", "report.html"):
        text = (table / name).read_text(encoding="utf-8")
        assert "95% interval by person" in text and "unpaired, pairs counted as independent" in text
        assert "a p by person cannot be below" in text
    assert all(0 <= test["person_p"] <= 1 for test in summary["comparisons"].values())
    assert sorted(path.name for path in (table / "pages" / "global").iterdir()) == ["0001.html", "0002.html"]


def test_what_is_done_is_not_done_again(table: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("it was done already")

    monkeypatch.setattr("metreg.evaluation.run.register", refuse)
    words = ["--metric", "global", "--transforms", f"true={folder / 'true'}", "--frame", "ras", "-q", *QUICK]
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", "-o", table, "--resume", *words) == 0
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", "-o", table, "--resume", "--seed", 3, *words) == 2


def state_of(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """All files with what is in them and when it was written."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_a_replaced_image_and_a_retrained_metric_are_refused_and_the_rest_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out, metric = tmp_path / "data", tmp_path / "out", tmp_path / "lr=0.1" / "metric.safetensors"
    shutil.copytree(folder, data)
    metric.parent.mkdir()
    learned = load_metric(metric_path(BRAIN))
    save_metric(metric, learned)
    words: list[object] = ["evaluate", data / "pairs.csv", "-o", out, "--metric", metric, "--frame", "ras", "-q"]
    words += ["--transforms", f"true={data / 'true'}", "--no-affine", "--device", "cpu"]
    words += ["--set", "solve.iterations=[1,0,0]", "--set", "solve.local_iterations=[1,0,0]"]
    assert run(monkeypatch, *words) == 0
    assert (out / "runs" / "lr=0.1" / "0001.json").is_file()
    before = state_of(out)

    def refused(said: str) -> None:
        assert run(monkeypatch, *words, "--resume") == 2
        told = capsys.readouterr().err
        assert said in told and told.count("\n") == 1
        assert state_of(out) == before

    save_metric(metric, replace(learned, licence="another"))
    refused(f"the metric {metric} is not what it was when {out}/runs/lr=0.1/0001.json was made; so it is with 2 results")
    save_metric(metric, learned)
    image = data / "a.nii.gz"
    kept = image.read_bytes()
    shutil.copy(data / "b.nii.gz", image)
    refused(f"the moving image {image} is not what it was when {out}/runs/affine/0001.json was made; so it is with 6 res")
    image.write_bytes(kept)
    write_transform(data / "true" / "0002.h5", Transform((Affine(np.diag([1.1, 1.0, 1.0, 1.0])),)))
    refused(f"the transform {data}/true/0002.h5 is not what it was")

    stale = out / "runs" / "true" / "0002.json"
    stale.unlink()  # as was told
    assert run(monkeypatch, *words, "--resume") == 0
    after = state_of(out)
    rows = {path for path in before if path.parent.parent.name == "runs"}
    assert {path for path in rows if after[path] != before[path]} == {stale}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--transforms", "syn=nowhere"], "wanted NAME=FOLDER"),
        (["--metric", "nowhere.safetensors"], "unknown 'nowhere.safetensors'"),
        (["--metric", "global", "--metric", "global"], "two are called 'global'"),
        (["--reference", "other"], "no method is called 'other'"),
        (["--metric", "../x=global"], "cannot be the name"),
        ([], "say whether the landmarks are in ras or lps"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    said: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", "-o", tmp_path / "out", *words, *QUICK) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_a_missing_transform_is_told_before_any_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    words = ["--transforms", f"syn={tmp_path / 'empty'}", "--frame", "ras"]
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", "-o", tmp_path / "out", *words) == 2
    assert "wanted a_to_b.h5 or 0001.h5" in capsys.readouterr().err


def test_processes_side_by_side_find_what_one_finds(
    folder: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--metric", "global", "--transforms", f"true={folder / 'true'}", "--frame", "ras", *QUICK]
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", "-o", tmp_path / "out", "--jobs", 2, *words) == 0
    assert "pair 2 of 2, global: target overlap" in capfd.readouterr().err
    for name in ("pages/global/0001.html", "pages/global/0002.html"):
        assert (tmp_path / "out" / name).is_file()
    one, two = (list(csv.DictReader((where / "results.csv").open())) for where in (table, tmp_path / "out"))
    assert [row["method"] for row in one] == [row["method"] for row in two]
    for mine, other in zip(one, two, strict=True):
        assert float(mine["target_overlap"]) == pytest.approx(float(other["target_overlap"]), abs=1e-3)
        assert mine["folds"] == other["folds"]


def save_learned(path: Path, intensity: tuple[float, ...]) -> Path:
    """A network as it begins, with an average quantile function of its own."""
    model = LearnedMetric(3, MetricSettings(), LearnedSettings(), torch.Generator().manual_seed(0)).eval()
    save_metric(path, MetricFile(model, 78.0, (6.0, 6.0, 6.0), intensity=intensity))
    return path


def test_all_metrics_see_the_same_intensities(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the first learned one; the table says so, and which metric was trained with others."""
    shares = np.linspace(0, 1, 101)
    first = save_learned(tmp_path / "first.safetensors", tuple(np.sqrt(shares)))
    second = save_learned(tmp_path / "second.safetensors", tuple(shares**2))
    seen = {}

    def listen(*args: object, **options: Any) -> Result:
        result = register(*args, **options)
        seen[options["metric"]] = result.pair.source, result.pair.target
        return result

    monkeypatch.setattr("metreg.evaluation.run.register", listen)
    few = ["--no-affine", "--set", "solve.iterations=[1,1,0]", "--device", "cpu", "--frame", "ras"]
    lines = (folder / "pairs.csv").read_text().splitlines()[:2]
    (folder / "one.csv").write_text("\n".join(lines) + "\n")
    metrics = ["--metric", "global", "--metric", f"A={first}", "--metric", f"B={second}", "--metric", f"mean={MEAN}{first}"]
    assert run(monkeypatch, "evaluate", folder / "one.csv", "-o", tmp_path / "out", *metrics, *few) == 0
    for images in seen.values():
        for mine, other in zip(images, seen["global"], strict=True):
            assert torch.equal(mine, other)
    changes = {"solve.iterations": [1, 1, 0], "affine.kind": "none"}
    alone = register(folder / "a.nii.gz", folder / "b.nii.gz", metric="global", changes=changes, device="cpu")
    brighter = seen["global"][0] - alone.pair.source
    assert float(brighter.max()) > 0.1  # a root in place of the image's own quantiles
    rows = {row["method"]: row for row in read_rows(tmp_path / "out")}
    assert {rows[name]["intensities"] for name in ("global", "A", "mean")} == {f"as {first}"}
    assert rows["B"]["intensities"] == f"as {first}, not as in its training"
    cost = (tmp_path / "out" / "cost.md").read_text(encoding="utf-8")
    assert "| intensities |" in cost.splitlines()[0] and "not as in its training" in cost
    assert f'intensity = "{first}"' in (tmp_path / "out" / "settings.toml").read_text(encoding="utf-8")
    words = ["--metric", "global", "--set", "intensity=nobody", *few]
    assert run(monkeypatch, "evaluate", folder / "one.csv", "-o", tmp_path / "bad", *words) == 2
    told = capsys.readouterr().err
    assert "intensity: unknown 'nobody'; use metric, own, brain-t1 or a metric file" in told


def test_rows_of_the_global_metric_know_whose_intensities_they_saw(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a learned metric that is compared beside it: when that is learned anew, they count no more."""
    shares = np.linspace(0, 1, 101)
    learned = save_learned(tmp_path / "metric.safetensors", tuple(np.sqrt(shares)))
    few = ["--no-affine", "--set", "solve.iterations=[1,1,0]", "--device", "cpu", "--frame", "ras", "-q"]
    words = [folder / "pairs.csv", "-o", tmp_path / "out", "--metric", "global", "--metric", f"A={learned}", *few]
    assert run(monkeypatch, "evaluate", *words) == 0
    save_learned(learned, tuple(shares**2))
    shutil.rmtree(tmp_path / "out" / "runs" / "A")
    assert run(monkeypatch, "evaluate", *words, "--resume") == 2
    assert "the metric of the intensities" in capsys.readouterr().err


def test_what_lies_elsewhere_is_said_or_refused(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    far = np.eye(4)
    far[0, 3] = 5000.0
    (tmp_path / "far").mkdir()
    write_transform(tmp_path / "far" / "0001.h5", Transform((Affine(far),)))
    lines = (folder / "pairs.csv").read_text().splitlines()
    table = folder / "first.csv"
    table.write_text("\n".join(lines[:2]) + "\n")
    words = [table, "-o", tmp_path / "out", "--transforms", f"far={tmp_path / 'far'}", "--no-affine", "--device", "cpu"]
    assert run(monkeypatch, "evaluate", *words, "--frame", "ras") == 0
    assert "far: image: no voxel of" in caplog.text
    points = (folder / "a.csv").read_text().splitlines()
    moved = [points[0], *[f"{float(line.split(',')[0]) + 4000},{line.split(',', 1)[1]}" for line in points[1:]]]
    (folder / "moved.csv").write_text("\n".join(moved) + "\n")
    table.write_text("\n".join(lines[:2]).replace("a.csv", "moved.csv") + "\n")
    words[2] = tmp_path / "other"
    assert run(monkeypatch, "evaluate", *words, "--frame", "ras") == 2
    assert "is --frame ras right?" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def read_rows(out: Path) -> list[dict[str, Any]]:
    """The records of an evaluation of one pair."""
    return [json.loads(path.read_text(encoding="utf-8"))["row"] for path in (out / "runs").glob("*/0001.json")]


def test_a_killed_worker_is_told_in_one_line_and_the_run_can_be_resumed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def kill_one() -> None:
        end = time.monotonic() + 60
        while len(workers := active_children()) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        workers[0].kill()

    Thread(target=kill_one, daemon=True).start()
    words = ["-o", tmp_path / "out", "--metric", "global", "--frame", "ras", *QUICK]
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", *words, "--jobs", 2) == 2
    told = capfd.readouterr().err
    assert "--jobs: a process was killed" in told and "Traceback" not in told
    assert not active_children()
    assert run(monkeypatch, "evaluate", folder / "pairs.csv", *words, "--resume") == 0
    assert len(list((tmp_path / "out" / "runs" / "global").glob("*.json"))) == 2


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_began_them(way: signal.Signals, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["-o", out, "--metric", "global", "--frame", "ras", "--no-affine", "--device", "cpu", "--jobs", 2]
    words += ["--set", "solve.iterations=[3000,3000,3000]", "--set", "solve.tolerance=0"]
    command = [sys.executable, "-m", "metreg", "evaluate", folder / "pairs.csv", *words]
    process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (out / "runs" / "affine" / "0001.json").is_file() or process.poll() is not None, 60)
    workers = children_of(process.pid)
    assert len(workers) >= 2
    process.send_signal(way)
    _, told = process.communicate(timeout=30)
    wait_until(lambda: not any(map(is_running, workers)))
    if way == signal.SIGTERM:
        assert process.returncode == TERMINATED
        assert told.splitlines()[-1].startswith("metreg: terminated") and "Traceback" not in told
        assert not list(out.rglob("*.part"))
    assert not list((out / "runs").rglob("global/*"))
