"""The viewer's bundle is taken whole and only with the pinned hash. The registry is a folder here."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import runpy
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fetch_viewer.py"
FETCH: dict[str, Any] = runpy.run_path(str(SCRIPT))


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Puts code into a package of that registry, and says its integrity."""
    folder = tmp_path / "registry" / "@niivue" / "niivue" / "-"
    folder.mkdir(parents=True)
    monkeypatch.setenv("npm_config_registry", (tmp_path / "registry").as_uri())

    def package(code: str) -> str:
        path = folder / f"niivue-{FETCH['VERSION']}.tgz"
        with tarfile.open(path, "w:gz") as archive:
            entry = tarfile.TarInfo(FETCH["BUNDLE"])
            entry.size = len(code)
            archive.addfile(entry, io.BytesIO(code.encode()))
        return "sha512-" + base64.b64encode(hashlib.sha512(path.read_bytes()).digest()).decode()

    return package


def test_the_bundle_and_its_licence_are_written_once(tmp_path: Path, publish: Callable[[str], str]) -> None:
    vendor, integrity = tmp_path / "vendor", publish("let code;")
    assert FETCH["fetch"](vendor, integrity=integrity)
    assert gzip.decompress((vendor / "niivue.umd.js.gz").read_bytes()) == b"let code;"
    assert "BSD 2-Clause" in (vendor / "niivue.LICENSE").read_text(encoding="utf-8")
    publish("let other;")
    assert not FETCH["fetch"](vendor, integrity="never looked at")
    assert {path.name for path in vendor.iterdir()} == {"niivue.umd.js.gz", "niivue.LICENSE"}


def test_an_older_bundle_is_replaced(tmp_path: Path, publish: Callable[[str], str]) -> None:
    vendor = tmp_path / "vendor"
    vendor.mkdir()
    (vendor / "niivue.umd.js.gz").write_bytes(b"old")
    (vendor / "niivue.LICENSE").write_text("NiiVue 0.1.0")
    assert FETCH["fetch"](vendor, integrity=publish("let new;"))
    assert gzip.decompress((vendor / "niivue.umd.js.gz").read_bytes()) == b"let new;"


def test_another_hash_is_refused_and_nothing_is_written(
    tmp_path: Path, publish: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    vendor = tmp_path / "vendor"
    publish("let evil;")
    with pytest.raises(OSError, match=r"its hash is sha512-.*, not sha512-YMjQ"):
        FETCH["fetch"](vendor)
    assert not vendor.exists()
    assert not FETCH["fetch_or_warn"](vendor)
    assert capsys.readouterr().err.startswith("warning: no 3-D viewer in the reports")


def test_no_registry_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("npm_config_registry", (tmp_path / "nowhere").as_uri())
    assert not FETCH["fetch_or_warn"](tmp_path / "vendor")
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "vendor").exists()
