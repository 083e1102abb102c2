"""metreg beside other tools: what is measured, what becomes of failures, and that transforms mean what tools meant."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from conftest import bent_picture, centred, picture
from helpers import is_running, wait_until
from metreg.bench.environment import open_environment, wanted
from metreg.bench.peers import Bench, check_bench, measure_all, peers_summary, prepare, run_all
from metreg.bench.process import run_fresh
from metreg.bench.tools import PEERS, Tool, tools_of
from metreg.cli.main import main
from metreg.errors import MetregError
from metreg.io.images import read_image
from metreg.io.tables import PairFiles, read_pairs
from metreg.many.processes import TERMINATED
from metreg.metric.store import load_metric, save_metric
from metreg.pipeline.apply import load_transform
from metreg.settings.model import Settings, make_settings

FOLDER = Path(os.environ.get("METREG_PEERS", Path(__file__).resolve().parents[2] / ".venv-peers"))
PYTHON = FOLDER / "bin" / "python"
needs_peers = pytest.mark.skipif(
    not (FOLDER / "installed").is_file() or (FOLDER / "installed").read_text(encoding="utf-8") != wanted(),
    reason="no environment with the peers of metreg: run `make peers`",
)
QUICK = {"solve.iterations": [6, 4, 2], "affine.iterations": 5, "affine.resolution": [0.1]}


@pytest.fixture
def table(pair_files: tuple[Path, Path], tmp_path: Path) -> Path:
    """One pair with labels."""
    for path in pair_files:
        image = nib.load(path)
        labels = np.digitize(np.asarray(image.dataobj), [200, 600]).astype(np.uint8)
        nib.save(nib.Nifti1Image(labels, image.affine), tmp_path / f"labels_{path.name}")
    rows = "moving,fixed,moving_labels,fixed_labels\nmoving.nii.gz,fixed.nii.gz,labels_moving.nii.gz,labels_fixed.nii.gz\n"
    (tmp_path / "pairs.csv").write_text(rows)
    return tmp_path / "pairs.csv"


def test_a_fresh_process_is_measured_alone(tmp_path: Path) -> None:
    """This one has torch in its memory; what it starts has not, and that is what is told."""
    told = "print(os.environ['OMP_NUM_THREADS'], len(os.sched_getaffinity(0)))"
    code = f"import os, time\nwhile time.process_time() < 0.5: pass\n{told}"
    run = run_fresh([sys.executable, "-c", code], cores=1, log=tmp_path / "log.txt")
    assert (run.code, run.said) == (0, "1 1")
    assert 0.5 <= run.cpu_seconds < 1.5 and run.seconds > 0.4
    assert 2 < run.peak_memory_mb < 60
    run = run_fresh([sys.executable, "-c", "print('so'); raise SystemExit(3)"], cores=1, log=tmp_path / "log.txt")
    assert (run.code, run.said) == (3, "so")
    assert run_fresh(["/no/such/tool"], cores=1, log=tmp_path / "log.txt").code != 0


@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGKILL])
def test_a_tool_ends_with_the_process_that_runs_it(way: signal.Signals, tmp_path: Path) -> None:
    number = tmp_path / "number"
    tool = f"import os, pathlib, time; pathlib.Path({str(number)!r}).write_text(str(os.getpid())); time.sleep(60)"
    script = (
        "import pathlib, sys\nfrom metreg.bench.process import run_fresh\n"
        "from metreg.many.processes import ending_in_order\n"
        f"with ending_in_order():\n    run_fresh([sys.executable, '-c', {tool!r}], cores=1, log=pathlib.Path('log.txt'))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: number.is_file() and number.read_text() != "")
    process.send_signal(way)
    _, told = process.communicate(timeout=20)
    assert process.returncode == (TERMINATED if way == signal.SIGTERM else -signal.SIGKILL) and told == ""
    wait_until(lambda: not is_running(int(number.read_text())))


def test_the_environment_is_made_once_and_not_over_other_things(tmp_path: Path) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    python = tmp_path / "env" / "bin" / "python"
    python.write_text("")
    with pytest.raises(MetregError, match="wanted a new folder or one made by this verb"):
        open_environment(tmp_path / "env")
    (tmp_path / "env" / "installed").write_text(wanted())
    assert open_environment(tmp_path / "env") == python


COPY = """
import json, pathlib, shutil, sys
affine, prefix = map(pathlib.Path, sys.argv[3:5])
if not pathlib.Path(sys.argv[5]).exists():
    sys.exit("out of luck")
for end in (".h5", "_inverse.h5"):
    shutil.copy(affine.with_name(affine.stem + end), str(prefix) + end)
"""


def test_a_failure_is_marked_and_the_rest_goes_on(table: Path, tmp_path: Path) -> None:
    settings, out, luck = make_settings(changes=QUICK), tmp_path / "out", tmp_path / "luck"
    copies = [
        Tool(name, "a copy", (sys.executable, "-c", COPY), (str(path),)) for name, path in (("a", luck), ("b", table))
    ]
    bench = prepare(out, read_pairs(table), settings, 1)
    run_all(bench, copies)
    summary = measure_all(bench, copies, settings, versions={"a": "1"})
    assert [(one["method"], one["failed"]) for one in summary["failures"]] == [("a", "exit 1: out of luck")]
    assert set(summary["methods"]) == {"affine", "a (failed on 1 of 1: affine there)", "b"}
    overlaps = [found["target_overlap"]["mean"] for found in summary["methods"].values()]
    assert overlaps == [overlaps[0]] * 3
    assert (
        "a (failed on 1 of 1: affine there)" in (out / "peers.md").read_text(encoding="utf-8")
        and (out / "report.html").is_file()
    )
    assert "seconds" not in summary["methods"]["a (failed on 1 of 1: affine there)"]
    assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["machine"]["cores_used"] == 1

    luck.touch()  # what failed is tried again, what is done is not
    before = (out / "transforms" / "b" / "moving_to_fixed.json").stat().st_mtime_ns
    run_all(prepare(out, bench.files, settings, 1), copies)
    summary = measure_all(bench, copies, settings, versions={})
    assert not summary["failures"] and set(summary["methods"]) == {"affine", "a", "b"}
    assert (out / "transforms" / "b" / "moving_to_fixed.json").stat().st_mtime_ns == before

    luck.write_text("of another kind")  # the file that an option names
    with pytest.raises(MetregError, match=r"a/moving_to_fixed.json was made with another set of options .* delete .*/a,"):
        run_all(prepare(out, bench.files, settings, 1), copies)
    luck.write_text("")
    moving = nib.load(bench.files[0].moving)
    nib.save(nib.Nifti1Image(2 * moving.get_fdata(dtype=np.float32), moving.affine), bench.files[0].moving)
    with pytest.raises(MetregError, match=r"made with another moving image than .* delete .*/\*/moving_to_fixed.json"):
        run_all(prepare(out, bench.files, settings, 1), copies)
    for path in (out / "transforms").glob("*/moving_to_fixed.json"):
        path.unlink()
    run_all(prepare(out, bench.files, settings, 1), copies)
    assert len(list((out / "images").glob("0001_moving_*"))) == 2


def test_a_tool_that_should_give_an_inverse_and_does_not_has_failed(table: Path, tmp_path: Path) -> None:
    one_way = COPY.replace('(".h5", "_inverse.h5")', '(".h5",)')
    tools = [
        Tool(name, "a copy", (sys.executable, "-c", one_way), (str(table),), inverse=inverse)
        for name, inverse in (("both", True), ("there", False))
    ]
    settings = make_settings(changes=QUICK)
    bench = prepare(tmp_path / "out", read_pairs(table), settings, 1)
    run_all(bench, tools)
    summary = measure_all(bench, tools, settings, versions={})
    assert [one["method"] for one in summary["failures"]] == ["both"]
    assert (
        "inverse_mean_mm" not in summary["methods"]["there"] and summary["methods"]["there"]["target_overlap"]["mean"] > 0
    )
    assert not (tmp_path / "out" / "transforms" / "there" / "moving_to_fixed_inverse.h5").exists()


def test_a_run_goes_on_only_as_it_began(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, settings = read_pairs(table), Settings()
    prepare(tmp_path / "out", files, settings, 1)
    monkeypatch.setattr("metreg.bench.peers.cpu_model", lambda: "another one")
    with pytest.raises(MetregError, match=r"--resume: .* was begun on .*another one.* a new folder"):
        prepare(tmp_path / "out", files, settings, 1)
    with pytest.raises(MetregError, match="--cores: 4096 were asked for"):
        check_bench(files, 4096)
    nib.save(nib.Nifti1Image(np.eye(20, dtype=np.float32), np.eye(4)), tmp_path / "flat.nii.gz")
    with pytest.raises(MetregError, match="moving image: wanted a 3-D image, got a 2-D one"):
        check_bench([PairFiles(tmp_path / "flat.nii.gz", files[0].fixed)], None)


def test_runs_know_whose_intensities_they_saw(table: Path, tmp_path: Path) -> None:
    metric = load_metric("brain-t1")
    path = tmp_path / "metric.safetensors"
    save_metric(path, metric)
    settings = make_settings(changes={"intensity": str(path)})
    tool = Tool("metreg global", "", ("metreg",))
    files = read_pairs(table)
    bench = prepare(tmp_path / "out", files, settings, 1)
    record = bench.record(tool.name, 1)
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"made_of": bench.made_of(tool, 1)}))
    bench.check([tool])
    save_metric(path, replace(metric, intensity=tuple(0.9 * value for value in metric.intensity)))
    with pytest.raises(MetregError, match="another metric of the intensities"):
        prepare(tmp_path / "out", files, settings, 1).check([tool])


def test_the_table_of_peers_compares_by_person() -> None:
    people = [(a, b) for a in "abcd" for b in "abcd" if a != b]
    rows = [
        {"method": method, "pair": number, "target_overlap": overlap + 0.01 * number, "subjects": pair, "folds": 0}
        for method, overlap in (("greedy", 0.5), ("metreg", 0.6))
        for number, pair in enumerate(people, start=1)
    ]
    shown = peers_summary(rows)
    assert "| metreg against | difference | 95% interval by person | p by person | paper's p |" in shown
    assert "| greedy | +0.1000 | +0.1000 to +0.1000 | 0.062 |" in shown and "cannot be below 0.0625" in shown
    assert peers_summary([row for row in rows if row["method"] == "greedy"]).count("|\n") == 3


def test_files_of_pairs_that_share_a_name_are_called_by_number(tmp_path: Path) -> None:
    one, two = (PairFiles(Path(f"{who}/T1.nii"), Path(f"{who}/T2.nii")) for who in ("ann", "bob"))
    other = PairFiles(Path("a.nii"), Path("b.nii"))
    back = PairFiles(Path("a.nii"), Path("b_inverse.nii"))  # whose transform would take the place of an inverse
    names = [Bench(tmp_path, [one, two, other], 1).name(number) for number in (1, 2, 3)]
    assert names == ["0001", "0002", "a_to_b"]
    assert [Bench(tmp_path, [other, back], 1).name(number) for number in (1, 2)] == ["0001", "0002"]


def test_wrong_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MetregError, match="--peer: unknown 'sin'; there are greedy, syn"):
        tools_of(["sin"], ["global"], PYTHON, tmp_path)
    with pytest.raises(MetregError, match="methods: two are called 'greedy'"):
        tools_of(["greedy"], ["greedy=global"], PYTHON, tmp_path)


@needs_peers
@pytest.mark.parametrize("name", ["greedy", "syn", "fireants", "metreg global"])
def test_a_transform_gives_the_image_that_its_tool_gives(name: str, tmp_path: Path) -> None:
    """Flipped and oblique, on grids that differ, with an affine to start from, there and back."""
    c, s = np.cos(0.3), np.sin(0.3)
    las = centred(np.diag([-3.0, 3.2, 3.0]), (34, 32, 36))
    oblique = centred(np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]) * np.array([3.0, 3.4, 3.2]), (36, 34, 32))
    move = np.eye(4)
    move[:3, :3] += np.array([[0.06, 0.02, 0], [0, -0.05, 0], [0, 0.03, 0.04]])
    move[:3, 3] = 4, -3, 2
    paths = tmp_path / "moving.nii.gz", tmp_path / "fixed.nii.gz"
    nib.save(nib.Nifti1Image(picture((34, 32, 36), las, np.linalg.inv(move)), las), paths[0])
    nib.save(nib.Nifti1Image(bent_picture((36, 34, 32), oblique), oblique), paths[1])
    (tmp_path / "affine.json").write_text(json.dumps({"matrix": move.tolist()}))
    (tmp_path / "settings.toml").write_text(make_settings(changes=QUICK).to_toml())

    tools = {tool.name: tool for tool in tools_of(PEERS, ["global"], PYTHON, tmp_path / "settings.toml")}
    command = [*tools[name].command(*paths, tmp_path / "affine.json", tmp_path / "out"), "--warped"]
    run = run_fresh(command, cores=1, log=tmp_path / "log.txt")
    assert run.code == 0, (tmp_path / "log.txt").read_text(encoding="utf-8")
    moving, fixed = read_image(paths[0]), read_image(paths[1])
    there = load_transform(tmp_path / "out.h5")
    theirs = np.asarray(nib.load(tmp_path / "out_warped.nii.gz").dataobj)
    ours = there.resample(moving, fixed)
    assert np.abs(ours - theirs).mean() < 0.5 and np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.9999

    aligned = picture((36, 34, 32), oblique)  # the affine undoes the move
    assert np.abs(ours - fixed.values).mean() < 0.7 * np.abs(aligned - fixed.values).mean()
    np.testing.assert_allclose(there.parts[-1].matrix, move, atol=1e-5)
    if name == "fireants":  # has no way back
        return
    back, points = load_transform(tmp_path / "out_inverse.h5"), np.random.default_rng(0).uniform(-20, 20, size=(50, 3))
    assert np.linalg.norm(back.apply(there.apply(points)) - points, axis=1).max() < 1


@needs_peers
def test_the_verb(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "peers", table, "-o", tmp_path / "out", "--peer", "greedy", "--environment", FOLDER, "--cores", "1"]
    words += [word for key, value in QUICK.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    monkeypatch.setattr(sys, "argv", ["metreg", *map(str, words)])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for column in ("target overlap", "folds", "std of log determinant", "CPU seconds", "memory (MiB)"):
        assert column in shown
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert set(summary["methods"]) == {"affine", "greedy", "metreg global"} and not summary["failures"]
    assert {"picsl_greedy", "metreg"} <= set(summary["versions"])
    overlap = {name: found["target_overlap"]["mean"] for name, found in summary["methods"].items()}
    assert overlap["greedy"] > overlap["affine"]
    assert all(found["peak_memory_mb"]["mean"] > 20 for found in summary["methods"].values())
