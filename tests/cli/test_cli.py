"""The command line as a user meets it: results where promised, and one clear line for every mistake."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from conftest import centred, picture
from metreg.cli.main import main
from metreg.io import formats
from metreg.io.image import Image
from metreg.io.transforms import Affine, Field, Transform, read_transform, write_transform

QUICK = ("--set", "solve.iterations=[4,2,1]", "--quiet")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of a command line, run in this process."""
    monkeypatch.setattr(sys, "argv", ["metreg", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0)


def write(path: Path, values: np.ndarray, affine: np.ndarray | None = None) -> Path:
    nib.save(nib.Nifti1Image(values, np.eye(4) if affine is None else affine), path)
    return path


def test_register_then_apply(
    pair_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moving, fixed = pair_files
    out = tmp_path / "out"
    assert run(monkeypatch, "register", moving, fixed, "-o", out, "--json", "--seed", 5, *QUICK) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seed"] == 5 and told["folds"] == 0
    assert told == json.loads((out / "result.json").read_text(encoding="utf-8"))

    # the transform, applied to the moving image, gives the warped image again
    transform, again = out / "moving_to_fixed.h5", tmp_path / "again.nii.gz"
    assert run(monkeypatch, "apply", transform, moving, "-r", fixed, "-o", again) == 0
    np.testing.assert_allclose(nib.load(again).get_fdata(), nib.load(out / "warped.nii.gz").get_fdata(), atol=0.05)
    assert run(monkeypatch, "apply", out / "momentum.safetensors", moving, "-r", fixed, "-o", again, "--overwrite") == 0
    np.testing.assert_allclose(nib.load(again).get_fdata(), nib.load(out / "warped.nii.gz").get_fdata(), atol=0.05)

    # labels stay labels
    labels = write(
        tmp_path / "labels.nii.gz", (nib.load(moving).get_fdata() > 300).astype(np.uint8) * 7, nib.load(moving).affine
    )
    moved = tmp_path / "moved_labels.nii.gz"
    assert run(monkeypatch, "apply", transform, labels, "-r", fixed, "-o", moved, "--labels") == 0
    assert set(np.unique(nib.load(moved).dataobj)) == {0, 7}

    # points go from fixed to moving, in the frame that was said, other columns kept
    points = tmp_path / "points.csv"
    points.write_text("name,x,y,z\nnose,4,-8,12\near,-3,2,5\n")
    results = {}
    for frame in ("ras", "lps"):
        target = tmp_path / f"{frame}.csv"
        assert run(monkeypatch, "apply", transform, points, "--frame", frame, "-o", target) == 0
        rows = list(csv.DictReader(target.open()))
        assert [row["name"] for row in rows] == ["nose", "ear"]
        results[frame] = np.array([[float(row[c]) for c in "xyz"] for row in rows])
    given = np.array([[4.0, -8, 12], [-3, 2, 5]])
    np.testing.assert_allclose(results["ras"], read_transform(transform).apply(given), atol=1e-4)
    flip = np.array([-1.0, -1, 1])
    np.testing.assert_allclose(results["lps"], read_transform(transform).apply(given * flip) * flip, atol=1e-4)


@pytest.fixture
def mistakes(pair_files: tuple[Path, Path], tmp_path: Path) -> dict[str, Path]:
    """Files in which something is wrong."""
    values = nib.load(pair_files[0]).get_fdata().astype(np.float32)
    affine = nib.load(pair_files[0]).affine
    holes = values.copy()
    holes[3, 3, 3] = np.inf
    (tmp_path / "text.nii.gz").write_text("not an image")
    (tmp_path / "settings.toml").write_text("[solve]\nregularty = 3\n")
    (tmp_path / "occupied").mkdir()
    flipped = bytearray(pair_files[0].read_bytes())
    flipped[len(flipped) // 2] ^= 1
    (tmp_path / "flipped.nii.gz").write_bytes(flipped)
    metres_away = affine + 5000 * np.eye(4, k=3)
    (tmp_path / "a_file").write_text("")
    return {
        "moving": pair_files[0],
        "fixed": pair_files[1],
        "none": tmp_path / "none.nii.gz",
        "text": tmp_path / "text.nii.gz",
        "4d": write(tmp_path / "4d.nii.gz", np.stack([values, values], -1), affine),
        "constant": write(tmp_path / "constant.nii.gz", np.zeros_like(values), affine),
        "holes": write(tmp_path / "holes.nii.gz", holes, affine),
        "2d": write(tmp_path / "2d.nii.gz", values[:, :, 10], affine),
        "mask": write(tmp_path / "mask.nii.gz", np.ones((5, 5, 5), dtype=np.uint8), affine),
        "halves": write(tmp_path / "halves.nii.gz", values / 3, affine),
        "flipped": tmp_path / "flipped.nii.gz",
        "far": write(tmp_path / "far.nii.gz", np.full((*values.shape, 4), 0.25, np.float32), metres_away),
        "elsewhere": write(tmp_path / "elsewhere.nii.gz", values, metres_away),
        "toml": tmp_path / "settings.toml",
        "occupied": tmp_path / "occupied",
        "file": tmp_path / "a_file",
        "out": tmp_path / "out",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("{none} {fixed} -o {out}", "moving image: no such file: {none}"),
        ("{moving} {text} -o {out}", "fixed image: not a readable NIfTI image"),
        ("{4d} {fixed} -o {out}", "moving image: wanted a 2-D or 3-D image, got shape (24, 26, 22, 2): {4d}"),
        (
            "{constant} {fixed} -o {out}",
            "moving image: no finite intensity range (all 0). Is this the right file? {constant}",
        ),
        ("{moving} {holes} -o {out}", "fixed image: 1 voxels are NaN or infinite; replace them first: {holes}"),
        ("{2d} {fixed} -o {out}", "moving image is 2-D and fixed image 3-D: {2d}, {fixed}"),
        (
            "{moving} {fixed} -o {out} --fixed-mask {mask}",
            "fixed mask: wanted the grid of {fixed}, (24, 26, 22), got (5, 5, 5): {mask}",
        ),
        ("{moving} {fixed} -o {out} --moving-labels {halves}", "moving labels: wanted integer labels"),
        ("{moving} {fixed} -o {occupied}", "output: {occupied} exists; choose another name or say --overwrite"),
        ("{moving} {fixed} -o {file}", "output: {file} is a file; choose another name"),
        ("{moving} {fixed} -o {file}/out", "output: cannot write {file}/out"),
        ("{moving} {fixed} -o /proc/metreg", "output: cannot write /proc/metreg"),
        (
            "{moving} {fixed} -o {out} --config {toml}",
            "solve.regularty: unknown setting; did you mean 'regularity'? ({toml})",
        ),
        ("{moving} {fixed} -o {out} --set metric.sigma=[0,1]", "metric.sigma.0: input should be greater than 0, got 0"),
        ("{moving} {fixed} -o {out} --set flow.steps=0", "flow.steps: input should be greater than or equal to 1, got 0"),
        ("{moving} {fixed} -o {out} --set similarity.nme=ncc", "similarity.nme: unknown setting; did you mean 'name'?"),
        ("{moving} {fixed} -o {out} --device cuda:31", "device: 'cuda:31' was asked for"),
        ("{moving} {fixed} -o {out} --preset brian", "preset: unknown 'brian'"),
        (
            "{moving} {fixed} -o {out} --set model=lddmm",
            "settings: model is no setting any more, it is always 'vsvf'; got 'lddmm'",
        ),
        ("{moving} {fixed} -o {out} --metric brain-t9", "metric: unknown 'brain-t9'"),
        ("{moving} {fixed} -o {out} --label-names {none}", "label names: cannot read {none}"),
        ("{moving} {fixed} -o {out} --weights {moving}", "weights: wanted 3-D with 4 weights as last axis"),
        ("{flipped} {fixed} -o {out}", "moving image: not a readable NIfTI image (CRC check failed"),
        ("{moving} {fixed} -o {out} --weights {far}", "weights: no voxel of {moving} comes to lie on {far}; they lie in"),
        ("{moving} {fixed} -o {out} --fill nan", "fill: wanted a finite number, got nan"),
        ("{moving} {fixed} -o {out} --no-such-option", "No such option: --no-such-option"),
        ("{moving} {fixed}", "Missing option '--out' / '-o'"),
    ],
)
def test_a_mistake_gives_one_clear_line_and_nothing_is_written(
    arguments: str,
    said: str,
    mistakes: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    words = [word.format(**mistakes) for word in arguments.split()]
    assert run(monkeypatch, "register", *words, *QUICK) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and "Traceback" not in captured.err
    assert captured.err.startswith("metreg: " + said.format(**mistakes))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_input_is_never_replaced(
    mistakes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    precious = mistakes["moving"].rename(mistakes["occupied"] / "warped.nii.gz")
    assert run(monkeypatch, "register", precious, mistakes["fixed"], "-o", mistakes["occupied"], "--overwrite", *QUICK) == 2
    assert "is an input and would be replaced" in capsys.readouterr().err
    assert precious.exists()


def test_mistakes_in_apply(
    mistakes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = tmp_path / "points.csv"
    points.write_text("x,y,z\n1,2,3\n")
    moving, fixed, out = mistakes["moving"], mistakes["fixed"], tmp_path / "w.nii.gz"
    for words, said in (
        ((mistakes["none"], moving, "-r", fixed, "-o", out), "transform: no such file"),
        ((mistakes["text"], moving, "-r", fixed, "-o", out), "transform: not an ITK transform file"),
        ((mistakes["text"], moving, "-o", out), "--reference: an image needs the grid"),
        (
            (mistakes["text"], moving, "-r", fixed, "-o", tmp_path / "w.jpg"),
            "output: wanted a name ending in .nii or .nii.gz",
        ),
        ((mistakes["text"], points, "-o", tmp_path / "p.csv"), "--frame: say whether the points are in ras or lps"),
        ((mistakes["text"], points, "--frame", "ijk", "-o", tmp_path / "p.csv"), "Invalid value for '--frame'"),
        ((mistakes["text"], moving, "-r", fixed, "-o", fixed), f"output: {fixed} exists"),
    ):
        assert run(monkeypatch, "apply", *words) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"metreg: {said}") and captured.err.count("\n") == 1
    assert not out.exists()


def test_apply_refuses_what_would_give_nothing(
    mistakes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = nib.load(mistakes["moving"])
    field = Field(np.zeros((3, *grid.shape), np.float32), grid.affine)
    good, holed = tmp_path / "good.h5", tmp_path / "holed.h5"
    write_transform(good, Transform((field, Affine(np.eye(4)))))
    field.displacement[:] = np.nan
    write_transform(holed, Transform((field, Affine(np.eye(4)))))
    points = tmp_path / "points.csv"
    points.write_text("x,y,z\n1,2,3\n")
    moving, fixed, far, out = mistakes["moving"], mistakes["fixed"], mistakes["elsewhere"], tmp_path / "w.nii.gz"
    for words, said in (
        ((holed, moving, "-r", fixed, "-o", out), "transform: its field is NaN or infinite at 13728 points"),
        ((holed, points, "--frame", "ras", "-o", tmp_path / "p.csv"), "transform: its field is NaN or infinite"),
        ((good, far, "-r", fixed, "-o", out), f"image: no voxel of {fixed} comes to lie on {far}; is it the image"),
        ((good, far, "-r", fixed, "-o", out, "--labels"), "labels: wanted integer labels"),
        ((good, moving, "-r", far, "-o", out), f"image: no voxel of {far} comes to lie on {moving}; is it the image"),
        ((good, moving, "-r", fixed, "-o", out, "--fill", "inf"), "fill: wanted a finite number, got inf"),
        ((good, moving, "-r", fixed, "-o", out, "--fill", 3, "--labels"), "fill: labels are 0 outside their image"),
    ):
        assert run(monkeypatch, "apply", *words) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith(f"metreg: {said}") and captured.err.count("\n") == 1
    assert not out.exists() and not (tmp_path / "p.csv").exists()


def test_apply_hints_at_what_lies_mostly_elsewhere(
    mistakes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    image = nib.load(mistakes["moving"])
    transform = tmp_path / "a.h5"
    write_transform(transform, Transform((Field(np.zeros((3, *image.shape), np.float32), image.affine),)))
    aside = write(tmp_path / "aside.nii.gz", image.get_fdata(), image.affine + 70 * np.eye(4, k=3))
    part = write(tmp_path / "part.nii.gz", image.get_fdata()[5:10, 5:10, 5:10], image.affine)
    points = tmp_path / "points.csv"
    points.write_text("x,y,z\n1,2,3\n1,2,300\n")
    for words, said in (
        ((part, "-r", mistakes["fixed"]), ""),
        ((aside, "-r", mistakes["fixed"]), "image: only 4.2 % of the voxels of"),
        ((points, "--frame", "lps"), "points: 1 of 2 lie far outside the field of the transform"),
    ):
        caplog.clear()
        out = tmp_path / ("out.csv" if words[0] == points else "out.nii.gz")
        assert run(monkeypatch, "apply", transform, *words, "-o", out, "--overwrite") == 0
        assert said in caplog.text and bool(said) == bool(caplog.text)


def test_what_lies_outside_is_the_background_or_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = (24, 26, 22)
    affine = centred(np.diag([3.0, 3.0, 3.0]), shape)
    fixed = write(tmp_path / "fixed.nii.gz", (picture(shape, affine) - 1024).astype(np.int16), affine)
    inner = centred(np.diag([3.0, 3.0, 3.0]), (18, 20, 16))
    moving = write(tmp_path / "moving.nii.gz", (picture((18, 20, 16), inner) - 1024).astype(np.int16), inner)
    labels = write(tmp_path / "labels.nii.gz", np.ones((18, 20, 16), np.uint8), inner)
    with_labels = ("--moving-labels", labels)
    for given, expected in (((), -1024), (("--fill", -3000), -3000)):
        capsys.readouterr()
        out = tmp_path / f"out{expected}"
        assert run(monkeypatch, "register", moving, fixed, "-o", out, *with_labels, *given, "--json", *QUICK) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["fill"] == expected
        assert ("--fill -3000" in told["command"]) == bool(given)
        applied = tmp_path / f"applied{expected}.nii.gz"
        assert run(monkeypatch, "apply", out / "moving_to_fixed.h5", moving, "-r", fixed, "-o", applied, *given) == 0
        for path in (out / "warped.nii.gz", out / "moving_affine.nii.gz", applied):
            values = nib.load(path).get_fdata()
            assert values[0, 0, 0] == values[-1, -1, -1] == expected
            middle = values[5:-5, 5:-5, 5:-5]
            assert middle.min() >= -1024.01 and middle.max() > 0  # nothing of the fill within the image
        assert nib.load(out / "warped_labels.nii.gz").get_fdata()[0, 0, 0] == 0


def test_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import metreg.metric.store
    from metreg.experiments import demo

    small = replace(
        demo.PLAN,
        training_pairs=4,
        test_pairs=2,
        epochs=(4, 3),
        batch=4,
        iterations=(20, 20),
        converged=20,
    )
    monkeypatch.setattr(
        demo.run_demo.__wrapped__,
        "__kwdefaults__",
        {**demo.run_demo.__wrapped__.__kwdefaults__, "plan": small},
    )
    assert run(monkeypatch, "demo", "-o", tmp_path / "demo", "--json", "--quiet") == 0
    told = json.loads(capsys.readouterr().out)
    for errors in told["errors_px"].values():
        assert errors["global metric"]["ring"] < errors["no registration"]["ring"]
    assert {path.name for path in (tmp_path / "demo").iterdir()} == set(demo.NAMES)
    metric = metreg.metric.store.load_metric(tmp_path / "demo" / "metric.safetensors")
    assert metric.unit_cube and metric.voxel_mm == pytest.approx(
        (1 / 63, 1 / 63)
    )  # of maps, at half the images' resolution


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    start = time.perf_counter()
    shown = subprocess.run([sys.executable, "-m", "metreg", "--help"], capture_output=True, encoding="utf-8", check=True)
    assert time.perf_counter() - start < 5  # a guard against importing torch, not a benchmark
    assert "register" in shown.stdout
    code = "import sys, metreg, metreg.cli.main; print({'torch', 'nibabel', 'matplotlib', 'SimpleITK'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert loaded.stdout.strip() == "set()"


def test_a_killed_run_leaves_no_folder(pair_files: tuple[Path, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "metreg", "register", *map(str, pair_files), "-o", str(tmp_path / "out"), "-q"]
    process = subprocess.Popen([*command, "--set", "solve.iterations=[5000,5000,5000]", "--set", "solve.tolerance=0"])
    time.sleep(8)
    process.kill()
    process.wait()
    assert not (tmp_path / "out").exists()


def test_an_interruption_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*words: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("metreg.settings.model.make_settings", interrupt)
    monkeypatch.setattr("sys.argv", ["metreg", "register", "a.nii.gz", "b.nii.gz", "-o", "out"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("metreg: interrupted")


def test_every_file_is_opened_once(pair_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    open_file = formats._open_file

    def count(path: Path, *rest: Any) -> Image:
        opened.append(path.name)
        return open_file(path, *rest)

    monkeypatch.setattr(formats, "_open_file", count)
    moving, fixed = pair_files
    names = {}
    for role, path in (("moving", moving), ("fixed", fixed)):
        for kind in ("mask", "labels"):
            names[f"{role}-{kind}"] = tmp_path / f"{role}_{kind}.nii.gz"
            image = nib.load(path)
            values = (image.get_fdata() > 100).astype(np.uint8)
            nib.save(nib.Nifti1Image(values, image.affine), names[f"{role}-{kind}"])
    words = [word for name, path in names.items() for word in (f"--{name}", path)]
    assert run(monkeypatch, "register", moving, fixed, "-o", tmp_path / "out", *words, *QUICK) == 0
    assert sorted(opened) == sorted(path.name for path in (moving, fixed, *names.values()))
