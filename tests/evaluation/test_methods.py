"""What is compared: names of methods, and which file in a folder is the transform of which pair."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from metreg.bench.tools import tools_of
from metreg.errors import MetregError
from metreg.evaluation.methods import find_transforms, methods_of, split_name
from metreg.io.tables import PairFiles
from metreg.metric.store import metric_path
from metreg.pipeline.resolve import BRAIN


def same_names(tmp_path: Path) -> list[PairFiles]:
    """Two pairs whose images are called alike, in folders of their people."""
    people = [tmp_path / f"sub-{number:02d}" / "T1.nii.gz" for number in (1, 2, 3)]
    return [PairFiles(people[0], people[1]), PairFiles(people[1], people[2])]


def make_files(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder


def test_a_file_that_could_be_of_two_pairs_is_refused(tmp_path: Path) -> None:
    pairs = same_names(tmp_path)
    folder = make_files(tmp_path / "by_name", "T1_to_T1.h5")
    with pytest.raises(MetregError, match=r"pairs 1 and 2 are both called T1_to_T1.* 0001\.h5, 0002\.h5"):
        find_transforms(folder, pairs)
    folder = make_files(tmp_path / "as_folder", "T1_to_T1/moving_to_fixed.h5", "0002.h5")
    with pytest.raises(MetregError, match="pairs 1 and 2 are both called T1_to_T1"):
        find_transforms(folder, pairs)
    folder = make_files(tmp_path / "by_number", "0001.h5", "0002/moving_to_fixed.h5")
    assert find_transforms(folder, pairs) == [folder / "0001.h5", folder / "0002" / "moving_to_fixed.h5"]


def test_the_same_pair_twice_has_one_transform(tmp_path: Path) -> None:
    """Such as with the labels of two raters."""
    pair = same_names(tmp_path)[0]
    folder = make_files(tmp_path / "by_name", "T1_to_T1.h5")
    assert find_transforms(folder, [pair, pair]) == [folder / "T1_to_T1.h5"] * 2


@pytest.mark.parametrize("files", [("a_to_b.h5", "0001.h5"), ("a_to_b.h5", "a_to_b.tfm"), ("0001.mat", "0001.h5")])
def test_two_transforms_of_a_pair_are_refused(files: tuple[str, str], tmp_path: Path) -> None:
    folder = make_files(tmp_path / "two", *files)
    with pytest.raises(MetregError, match=r"has 2 transforms in .*; leave one of them there"):
        find_transforms(folder, [PairFiles(Path("a.nii.gz"), Path("b.nii.gz"))])


def test_an_inverse_is_not_the_transform_of_another_pair(tmp_path: Path) -> None:
    pairs = [PairFiles(Path("a.nii.gz"), Path(name)) for name in ("b.nii.gz", "b_inverse.nii.gz")]
    folder = make_files(tmp_path / "clash", "a_to_b.h5", "a_to_b_inverse.h5")
    with pytest.raises(MetregError, match="the transform of pair 2 and, by its name, the inverse of pair 1"):
        find_transforms(folder, pairs)


def test_a_path_with_an_equals_sign_is_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "lr=0.1" / "metric.safetensors"
    path.parent.mkdir(parents=True)
    shutil.copy(metric_path(BRAIN), path)
    for given in (str(path), f"mean:{path}"):
        assert split_name(given) == ("", given)
    assert split_name(f"mine={path}") == ("mine", str(path))
    found = methods_of([str(path), f"mean:{path}", f"mine={path}"], [])
    assert [method.name for method in found] == ["affine", "lr=0.1", "mean of lr=0.1", "mine"]
    assert {method.metric for method in found[1:]} == {str(path), f"mean:{path}"}
    tools = tools_of([], [str(path), f"mine={path}"], tmp_path, tmp_path / "settings.toml")
    assert [tool.name for tool in tools] == ["metreg lr=0.1", "mine"]
    flat = tmp_path / "lr=0.5.safetensors"
    shutil.copy(path, flat)
    assert methods_of([str(flat)], [])[1].name == "lr=0.5"


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("runs/lr=0.1/metric.safetensors", "metric: unknown 'runs/lr=0.1/metric.safetensors'"),
        ("a/b=global", "'a/b' cannot be the name of a method"),
        ("=global", "wanted M or NAME=M, got '=global'"),
        ("x=nothing", "metric: unknown 'nothing'"),
    ],
)
def test_what_is_neither_a_metric_nor_a_name_is_told(metric: str, said: str) -> None:
    with pytest.raises(MetregError, match=said):
        methods_of([metric], [])


def test_a_folder_with_an_equals_sign_needs_a_name_too(tmp_path: Path) -> None:
    folder = tmp_path / "lr=0.1"
    folder.mkdir()
    with pytest.raises(MetregError, match=r"has no name; name it: --transforms NAME=.*lr=0\.1"):
        methods_of([], [str(folder)])
    assert methods_of([], [f"syn={folder}"])[1].folder == folder
    with pytest.raises(MetregError, match=r"cannot be the name of a method"):
        methods_of([], [f"a/b={folder}"])
