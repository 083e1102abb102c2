from __future__ import annotations

from pathlib import Path

import pytest

from metreg.errors import MetregError
from metreg.io.atomic import atomic_file, atomic_folder

NAMES = frozenset({"a.txt", "b.txt"})


def fill(path: Path, *, overwrite: bool = False) -> None:
    with atomic_folder(path, names=NAMES, overwrite=overwrite) as work:
        (work / "a.txt").write_text("new")


def test_a_folder_appears_whole_with_its_parents(tmp_path: Path) -> None:
    fill(tmp_path / "x" / "y")
    assert [path.name for path in (tmp_path / "x" / "y").iterdir()] == ["a.txt"]
    assert (tmp_path / "x" / "y" / "a.txt").stat().st_mode & 0o777 == 0o644


def test_overwriting_touches_only_our_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b.txt", "mine.txt"):
        (tmp_path / name).write_text("old")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path)
    fill(Path(), overwrite=True)  # even the folder we stand in
    found = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir() if path.is_file()}
    assert found == {"a.txt": "new", "mine.txt": "old"}
    assert (tmp_path / "sub").is_dir()


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "mine.txt").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    fill(tmp_path / "link", overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert {path.name for path in (tmp_path / "real").iterdir()} == {"a.txt", "mine.txt"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_failure_leaves_all_as_it_was(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a.txt").write_text("old")

    def broken() -> None:
        with atomic_folder(tmp_path / "out", names=NAMES, overwrite=True) as work:
            (work / "a.txt").write_text("new")
            raise OSError(28, "No space left on device")

    with pytest.raises(MetregError, match="out: No space left on device"):
        broken()
    left = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert sorted(left) == (["out", "out/a.txt"] if exists else [])


def test_a_file_appears_whole(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "deep" / "x.csv", overwrite=False) as path:
        path.write_text("1")
        assert not (tmp_path / "deep" / "x.csv").exists()
    assert (tmp_path / "deep" / "x.csv").read_text(encoding="utf-8") == "1"
    with pytest.raises(MetregError, match="exists"), atomic_file(tmp_path / "deep" / "x.csv", overwrite=False):
        pass
