"""A row of an evaluation is kept only while it is made of the same files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from metreg.errors import MetregError
from metreg.evaluation.inputs import FORMAT, Inputs, record_of
from metreg.evaluation.methods import Method, find_transforms
from metreg.io.tables import PairFiles
from metreg.many.claim import write_record
from metreg.settings.model import make_settings

ROLES = ("moving", "fixed", "moving_mask", "fixed_mask", "moving_labels", "fixed_labels", "moving_points", "fixed_points")


def files_in(folder: Path) -> list[PairFiles]:
    pairs = []
    for number in (1, 2):
        paths = {role: folder / f"{role}{number}.txt" for role in ROLES}
        for role, path in paths.items():
            path.write_text(f"{role} {number}")
        pairs.append(PairFiles(**paths))
    return pairs


@pytest.fixture
def inputs(tmp_path: Path) -> Callable[..., Inputs]:
    """Those of two pairs under three methods, whose rows are all in the folder `out`; read anew at every call."""
    pairs = files_in(tmp_path)
    metric, syn = tmp_path / "run" / "metric.safetensors", tmp_path / "syn"
    for name in (metric, *[syn / f"000{number}{end}" for number in (1, 2) for end in (".h5", "_inverse.h5", ".json")]):
        name.parent.mkdir(exist_ok=True)
        name.write_text(name.name)
    methods = [Method("affine"), Method("learned", str(metric)), Method("syn", folder=syn)]

    def read(names: dict[int, str] | None = None, frame: str | None = "ras") -> Inputs:
        transforms = {"syn": find_transforms(syn, pairs)}
        return Inputs(pairs, methods, transforms, names or {1: "left"}, frame, make_settings())  # type: ignore[arg-type]

    for method in methods:
        for number in (1, 2):
            made_of = read().of(method, number)
            write_record(record_of(tmp_path / "out", method, number), {"made_of": made_of, "row": {}}, form=FORMAT)
    return read


def test_what_is_the_same_is_kept(inputs: Callable[..., Inputs], tmp_path: Path) -> None:
    inputs().check(tmp_path / "out")


@pytest.mark.parametrize("role", ROLES)
def test_a_replaced_file_of_a_pair_is_told(role: str, inputs: Callable[..., Inputs], tmp_path: Path) -> None:
    (tmp_path / f"{role}2.txt").write_text("replaced")
    words = f"{role} image" if role in ("moving", "fixed") else role.replace("_", " ")
    said = rf"the {words} .*{role}2.txt is not what it was when .*; so it is with 3 results .* delete .*/0002.json"
    with pytest.raises(MetregError, match=said):
        inputs().check(tmp_path / "out")
    for path in (tmp_path / "out" / "runs").glob("*/0002.json"):
        path.unlink()
    inputs().check(tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("run/metric.safetensors", "the metric .*metric.safetensors is not .* with 2 results .* delete .*/runs/learned,"),
        ("syn/0001.h5", "the transform .*/syn/0001.h5 is not .* with 1 result .* delete .*/0001.json,"),
        ("syn/0001_inverse.h5", "the inverse transform .*/0001_inverse.h5 is not what it was"),
        ("syn/0001.json", "the file of costs .*/0001.json is not what it was"),
    ],
)
def test_a_replaced_file_of_a_method_is_told(file: str, said: str, inputs: Callable[..., Inputs], tmp_path: Path) -> None:
    (tmp_path / file).write_text("replaced")
    with pytest.raises(MetregError, match=said):
        inputs().check(tmp_path / "out")


def test_how_files_are_read_counts_too(inputs: Callable[..., Inputs], tmp_path: Path) -> None:
    with pytest.raises(MetregError, match="the table of label names is not what it was"):
        inputs(names={1: "right"}).check(tmp_path / "out")
    with pytest.raises(MetregError, match="the frame of the landmarks is not what it was"):
        inputs(frame="lps").check(tmp_path / "out")
    record = tmp_path / "out" / "runs" / "syn" / "0001.json"
    record.write_text(record.read_text(encoding="utf-8").replace(FORMAT, "metreg-evaluation-1"))
    with pytest.raises(MetregError, match=r"0001.json was written by another version of metreg; so it is with 1 result "):
        inputs().check(tmp_path / "out")


def test_files_that_moved_are_the_same(inputs: Callable[..., Inputs], tmp_path: Path) -> None:
    before = inputs()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Inputs(files_in(elsewhere), before.methods, before.transforms, before.names, before.frame, before.settings).check(
        tmp_path / "out"
    )
