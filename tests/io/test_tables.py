from __future__ import annotations

from pathlib import Path

import pytest

from metreg.errors import MetregError
from metreg.io.tables import find_pairs, read_scans


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.nii.gz", "a.nii.gz", "c.nrrd", "notes.txt"):
        (tmp_path / name).touch()
    return tmp_path


def test_a_folder_gives_all_ordered_pairs_or_some_of_them(folder: Path) -> None:
    everyone = find_pairs(folder)
    assert len(everyone) == 6 and find_pairs(folder, choose="all") == everyone
    assert {p.moving.name for p in everyone} == {"a.nii.gz", "b.nii.gz", "c.nrrd"}
    some = find_pairs(folder, choose="random:4", seed=1)
    assert len(set(some)) == 4 and set(some) < set(everyone)
    assert some == find_pairs(folder, choose="random:4", seed=1)
    assert any(find_pairs(folder, choose="random:4", seed=seed) != some for seed in range(5))


@pytest.mark.parametrize("choose", ["random:0", "random:7", "random", "some"])
def test_a_wrong_choice_is_told(folder: Path, choose: str) -> None:
    with pytest.raises(MetregError, match=r"wanted all or random:N with N from 1 to 6"):
        find_pairs(folder, choose=choose)


def test_a_table_is_read_relative_to_itself(folder: Path) -> None:
    (folder / "sub").mkdir()
    table = folder / "sub" / "pairs.csv"
    table.write_text("fixed,moving,age,moving_mask\n../a.nii.gz,../b.nii.gz,7,\n../b.nii.gz,../c.nrrd,8,../a.nii.gz\n")
    first, second = find_pairs(table)
    assert first.moving.resolve() == folder / "b.nii.gz" and first.moving_mask is None
    assert second.moving_mask is not None and second.moving_mask.resolve() == folder / "a.nii.gz"
    with pytest.raises(MetregError, match="--pairs"):
        find_pairs(table, choose="all")


def test_spaces_around_the_names_of_columns_do_not_matter(folder: Path) -> None:
    (folder / "pairs.csv").write_text("moving, fixed, moving_mask,note,\na.nii.gz, b.nii.gz, c.nrrd,x,\n")
    (pair,) = find_pairs(folder / "pairs.csv")
    assert pair.moving_mask == folder / "c.nrrd"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("moving,target\na,b\n", "no column 'fixed'"),
        ("moving,fixed\n", "no line after the header"),
        (
            "moving,fixed,moving_label,fixed_label\na,b,c,d\n",
            "unknown column .* did you mean 'moving_labels'",
        ),
        ("moving,fixed,fixed\na,b,c\n", "two columns are called 'fixed'"),
        ("moving,fixed,moving_labels\na.nii.gz,b.nii.gz,c.nrrd\n", "line 2 .* has moving_labels but no fixed_labels"),
        ("moving,fixed,fixed_points\na.nii.gz,b.nii.gz,c.nrrd\n", "line 2 .* has fixed_points but no moving_points"),
        ("moving,fixed\na.nii.gz,\n", "line 2 .* names no fixed image"),
        ("moving,fixed\na.nii.gz,b.nii.gz\na.nii.gz,z.nii.gz\n", r"line 3 .*no such file: .*z.nii.gz \(fixed\)"),
    ],
)
def test_a_wrong_table_is_told(folder: Path, text: str, told: str) -> None:
    (folder / "pairs.csv").write_text(text)
    with pytest.raises(MetregError, match=told):
        find_pairs(folder / "pairs.csv")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(MetregError, match="cannot read"):
        find_pairs(tmp_path / "absent.csv")
    with pytest.raises(MetregError, match="two images or more, got 0"):
        find_pairs(tmp_path)


def test_two_images_of_one_name_in_a_data_set_are_refused(tmp_path: Path) -> None:
    """They would be taken for two people, and their slices for one."""
    for name in ("a.nii.gz", "b.img", "b.nii.gz"):
        (tmp_path / name).touch()
    with pytest.raises(MetregError, match=r"b\.img and b\.nii\.gz would both be called b"):
        read_scans(tmp_path)
