"""The commands and scripts of the tutorial and the how-to guides run as they stand there, with few iterations."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from conftest import bent_picture, picture

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted(path.stem for path in (DOCS / "howto").glob("*.md") if path.stem != "index")
BLOCK = re.compile(r"(?:^<!-- ([^>]*) -->\n)?^```(\S[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FEW = {
    "register": "--set solve.iterations=[3,3,1] --set affine.iterations=3",
    "evaluate": "--set solve.iterations=[3,3,1] --set affine.iterations=3",
    "train": "--set train.epochs=[1,1] --set train.steps=1 --set affine.iterations=3",
}
"""What is added to a verb, so that tests are quick."""
ALONE = "only without images"
"""Before a block for readers who have no images."""

sys.path.insert(0, str(DOCS))


@pytest.fixture
def folder(pair_files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all files that the pages take for granted, and a `metreg` and an `sbatch` for scripts."""
    like = nib.load(pair_files[0])
    shape, affine = like.shape, like.affine

    def save(name: str, values: np.ndarray) -> None:
        path = tmp_path / f"{name}.nii.gz"
        path.parent.mkdir(exist_ok=True)
        nib.save(nib.Nifti1Image(values, affine), path)

    for role, path in zip(("moving", "fixed"), pair_files, strict=True):
        values = nib.load(path).get_fdata()
        save(f"{role}_labels", (1 * (values > 200) + 1 * (values > 600)).astype(np.uint8))
        save(f"{role}_mask", (values > 0).astype(np.uint8))
    brightest = picture(shape, affine)
    save("region", (brightest > 800).astype(np.uint8))
    save("lesion", (brightest > 1100).astype(np.uint8))
    for i, name in enumerate(("a", "b", "c")):
        move = np.eye(4)
        move[0, 3] = i
        for where in (name, f"images/{name}"):
            save(where, picture(shape, affine, move) if i else bent_picture(shape, affine))
    _program(tmp_path / "bin" / "metreg", _short_metreg())
    _program(tmp_path / "bin" / "sbatch", 'SLURM_ARRAY_TASK_ID=2 SLURM_CPUS_PER_TASK=1 exec bash "$1"')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)


def _short_metreg() -> str:
    cases = "\n".join(f'  {verb}) set -- "$@" {more} ;;' for verb, more in FEW.items())
    return f'case "$1" in\n{cases}\nesac\nexec {shlex.quote(sys.executable)} -m metreg "$@"'


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Of a page in order: the note before a block, its language or the name of its file, its text."""
    for note, kind, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        caption = re.match(r":caption: (\S+)\n", text)
        yield note, f"file {caption[1]}" if caption else kind, text[caption.end() :] if caption else text


def run_page(page: str, *, images: bool = True) -> None:
    """Do in the working folder what a page says; blocks of Python share their names."""
    names: dict[str, object] = {}
    ran = 0
    for note, kind, text in blocks(page):
        if note.startswith("not run") or (note == ALONE and images):
            continue
        if kind.startswith("file "):
            Path(kind.removeprefix("file ")).write_text(text)
        elif kind == "python":
            exec(compile(text, f"{page}", "exec"), names)
        elif kind == "bash":
            _run_shell(text)
        else:
            continue
        ran += 1
    assert ran > 0


def _run_shell(text: str) -> None:
    """Plain calls of metreg here, which saves importing it anew; all else by bash."""
    lines = text.replace("\\\n", " ").strip().splitlines()
    if not all(line.startswith("metreg ") for line in lines):
        subprocess.run(["bash", "-euc", text], check=True)
        return
    from metreg.cli.main import app

    for line in lines:
        command, _, printed = line.partition(" > ")
        verb, *words = shlex.split(command)[1:]
        with redirect_stdout(StringIO()) as said:
            assert app([verb, *words, *shlex.split(FEW.get(verb, ""))], standalone_mode=False) in (None, 0), line
        if printed:
            Path(printed).write_text(said.getvalue())
        for option, out in pairwise(words):
            assert option != "-o" or Path(out).exists(), line


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_runs(guide: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if guide != "report":  # drawing it takes a second each time
        monkeypatch.setattr("metreg.report.pair.pair_page", lambda result, viewer=True: "")
    run_page(f"howto/{guide}.md")
    CHECKS.get(guide, lambda: None)()


def check_fsl() -> None:
    """The warp for FSL, applied by its rules, gives the warped image."""
    from scipy.ndimage import map_coordinates

    moving, fixed = nib.load("moving.nii.gz"), nib.load("fixed.nii.gz")
    warp = nib.load("warp_for_fsl.nii.gz").get_fdata()
    index = np.stack(np.meshgrid(*[np.arange(n) for n in fixed.shape], indexing="ij"), axis=-1)
    size = np.array(fixed.header.get_zooms()[:3])
    flip, last = (
        np.array([-1.0, 1.0, 1.0]),
        np.array([fixed.shape[0] - 1, 0, 0]),
    )  # determinants are positive
    source = flip * (((flip * index + last) * size + warp) / size - last)
    values = map_coordinates(moving.get_fdata(), np.moveaxis(source, -1, 0), order=1)
    warped = nib.load("out/warped.nii.gz").get_fdata()
    assert np.abs(values - warped)[3:-3, 3:-3, 3:-3].max() < 1e-3 * warped.max()


def check_stiff() -> None:
    """In the stiff region the determinants are more even."""
    spread = {}
    for name in ("out_global", "out"):
        region = np.asarray(nib.load(f"{name}/warped_labels.nii.gz").dataobj) > 0
        spread[name] = np.log(nib.load(f"{name}/jacobian.nii.gz").get_fdata()[region]).std()
    assert spread["out"] < spread["out_global"]


def check_table() -> None:
    assert Path("table/overlap.md").read_text(encoding="utf-8").count("\n| other ") == 1


def check_cluster() -> None:
    assert (
        Path("results/0002/warped.nii.gz").exists()
        and json.loads(Path("one.json").read_text(encoding="utf-8"))["folds"] == 0
    )


CHECKS = {"other_tools": check_fsl, "stiff_region": check_stiff, "compare": check_table, "cluster": check_cluster}


@pytest.mark.parametrize("images", [True, False], ids=["own images", "synthetic images"])
def test_the_tutorial_runs(images: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metreg.report.pair.pair_page", lambda result, viewer=True: "")
    if not images:
        for name in ("moving", "fixed", "moving_labels", "fixed_labels"):
            (folder / f"{name}.nii.gz").unlink()
    run_page("tutorial.md", images=images)
    points = [
        [float(cell) for cell in (folder / name).read_text(encoding="utf-8").split()[1].split(",")[1:]] for name in POINTS
    ]
    np.testing.assert_allclose(*points, atol=0.3)


POINTS = ("points.csv", "points_back.csv")


def test_the_reference_lists_every_verb_with_its_options() -> None:
    import generated

    page, verbs = generated.verbs_page(), dict(generated.verbs())
    assert re.findall(r"^## ([\w ]+)$", page, flags=re.MULTILINE) == list(verbs)
    assert {"register", "apply", "train", "evaluate"} <= set(verbs)
    for command in verbs.values():
        for option in (name for param in command.params for name in param.opts if name.startswith("-")):
            assert f"`{option}`" in page


def test_the_reference_lists_every_setting_with_its_default() -> None:
    import generated

    from metreg.settings.model import Settings

    page = generated.settings_page()
    listed = re.findall(r"^\| `([\w.]+)` \|", page.split("## Presets")[0], flags=re.MULTILINE)
    assert listed == generated.setting_names()

    def keys(values: dict[str, object], prefix: str = "") -> Iterator[str]:
        for key, value in values.items():
            if isinstance(value, dict):
                yield from keys(value, f"{prefix}{key}.")
            else:
                yield prefix + key

    assert set(keys(Settings().model_dump())) == set(listed)
    assert "| `solve.regularity` | `350.0` | number from 0 |" in page


def choices_of_the_paper() -> list[list[str]]:
    """The cells of the table of choices, but for its headings."""
    page = (DOCS / "explanation" / "paper.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| **")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == 4][1:]


def test_every_choice_of_the_paper_has_a_verdict() -> None:
    rows = choices_of_the_paper()
    assert len(rows) > 50
    for choice, paper, ours, verdict in rows:
        assert paper and ours, choice
        assert re.match(r"(as in the (paper|footnote)|not said|different: )", verdict), choice
    names = {row[0] for row in rows}
    wanted = {"clipping", "learning rate, momenta", "differences in it", "$\\gamma$", "BatchNorm", "scale of the input"}
    assert wanted | {"similarity", "network kept", "after the smoothing", "intensities"} <= names


def test_the_settings_in_the_table_of_the_paper_are_those_of_its_presets() -> None:
    """`KEY = VALUE` is what both presets have; every other name is that of a setting."""
    import generated

    from metreg.settings.model import make_settings

    known = set(generated.setting_names()) | {"learned.network"}
    presets = [make_settings(name) for name in ("paper2d", "paper3d")]
    compared = 0
    for row in choices_of_the_paper():
        for code in re.findall(r"`([^`]*)`", row[2]):
            name, equals, value = (part.strip() for part in code.partition("="))
            if "." in name or equals:
                assert name in known, code
            if equals and value != "FILE":
                for preset in presets:
                    found = preset.model_dump(mode="json")
                    for part in name.split("."):
                        found = found[part]
                    assert found == json.loads(value), code
                compared += 1
    assert compared > 15


def test_generated_pages_have_their_place() -> None:
    for name in ("verbs", "settings"):
        assert "<!-- generated -->" in (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")
