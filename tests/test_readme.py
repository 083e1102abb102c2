"""The README's commands run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",  # other tests run beside it
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_block_is_the_two_commands() -> None:
    assert blocks("bash")[0].split("\n")[:2] == ["make demo", "make test"]


@pytest.mark.skipif(not (ROOT / ".venv" / "installed").exists(), reason="not in the environment that make sets up")
def test_make_demo_runs() -> None:
    done = subprocess.run(["make", "demo"], cwd=ROOT, env=ENVIRONMENT, capture_output=True, encoding="utf-8", check=True)
    headline = done.stdout[done.stdout.index("rings without texture") :].split("rings with texture")[0]
    rows = dict(re.findall(r"^  (\w+ metric) +([\d.]+) +[\d.]+$", headline, flags=re.MULTILINE))
    assert float(rows["learned metric"]) < 0.6 * float(rows["global metric"])
    assert (ROOT / "demo" / "report.html").stat().st_size > 10_000


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """A folder with the files that the README names: two real brains at 2 mm, labels and points."""
    for role, name in (("moving", "1013"), ("fixed", "1014")):
        shutil.copy(data / "malc" / "2mm" / "img" / f"{name}.nii.gz", tmp_path / f"{role}.nii.gz")
    shutil.copy(data / "malc" / "2mm" / "label" / "1013.nii.gz", tmp_path / "moving_labels.nii.gz")
    (tmp_path / "points.csv").write_text("x,y,z\n0,0,0\n-20,15,30\n")
    return tmp_path


@pytest.mark.data
def test_the_real_pair_example_runs_from_the_shell_and_from_python(folder: Path) -> None:
    shell, python = blocks("bash")[1], blocks("python")[0]
    commands = [line for line in shell.splitlines() if line and not line.startswith("source")]
    assert [command.split()[1] for command in commands] == ["register", "apply", "apply"]
    for command in commands:
        subprocess.run(command, shell=True, cwd=folder, env=ENVIRONMENT, check=True)
    for name in re.findall(r"^\| `([\w.]+)`", README, flags=re.MULTILINE):
        assert (folder / "out" / name).exists()
    assert (folder / "labels_on_fixed.nii.gz").exists() and (folder / "points_in_moving.csv").exists()
    done = subprocess.run([sys.executable, "-c", python], cwd=folder, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout.startswith("0 Certificate(")
    assert (folder / "out_python" / "warped.nii.gz").exists()


@pytest.mark.data
def test_the_learning_example_runs(data: Path, tmp_path: Path) -> None:
    """With slices for a, b and c, and few epochs."""
    (tmp_path / "pairs.csv").write_text(blocks("csv")[0])
    for name, source in zip("abc", sorted((data / "oasis2d").rglob("*.nii.gz"))[:3], strict=True):
        shutil.copy(source, tmp_path / f"{name}.nii.gz")
    train, register = blocks("bash")[2].splitlines()
    short = ("--set train.epochs=[1,1] --set train.steps=1", "--set solve.iterations=[5,5,2]")
    for command, less in zip((train, register), short, strict=True):
        subprocess.run(f"{command} {less}", shell=True, cwd=tmp_path, env=ENVIRONMENT, check=True)
    assert (tmp_path / "out_learned" / "weights.nii.gz").exists()


def test_the_table_of_verbs_is_complete() -> None:
    from metreg.cli.main import app

    verbs = {command.name or command.callback.__name__ for command in app.registered_commands}
    verbs |= {group.typer_instance.info.name for group in app.registered_groups}
    assert set(re.findall(r"^\| `metreg (\w+)", README, flags=re.MULTILINE)) == verbs
