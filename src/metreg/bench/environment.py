"""The Python environment in which other tools live: they pin other versions of numpy and scipy than metreg's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from metreg.errors import MetregError
from metreg.many.processes import run_command

PINS = Path(__file__).with_name("peers.txt")
PINS_WITH_TORCH = Path(__file__).with_name("peers_torch.txt")
"""Of tools that take the torch that metreg has."""
VERSIONS = """
import json, sys, importlib.metadata as m
sys.path.append(sys.argv[1])
print(json.dumps({name: m.version(name) for name in sys.argv[2:]}))
"""


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "metreg" / "peers"


def python_of(folder: Path) -> Path:
    return folder.absolute() / "bin" / "python"


def packages_of(folder: Path) -> Path:
    """Where tools lie that are run by metreg's Python."""
    return folder.absolute() / "with-torch"


def wanted() -> str:
    """What a finished environment says of itself."""
    return "".join(pins.read_text(encoding="utf-8") for pins in (PINS, PINS_WITH_TORCH))


def open_environment(folder: Path, tell: Callable[[str], None] = lambda line: None) -> Path:
    """Its Python; the environment is made where there is none, and brought up to date where the pins have changed."""
    python, mark = python_of(folder), folder / "installed"
    if python.exists() and mark.is_file() and mark.read_text(encoding="utf-8") == wanted():
        return python
    if folder.exists() and not (folder / "pyvenv.cfg").is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise MetregError(f"--environment: wanted a new folder or one made by this verb, got {folder}; choose another")
    tell(f"installing the peers into {folder}")
    _run([sys.executable, "-m", "venv", str(folder)], folder)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    _run([*install, "-r", str(PINS)], folder)
    shutil.rmtree(packages_of(folder), ignore_errors=True)
    _run([*install, "--no-deps", "--target", str(packages_of(folder)), "-r", str(PINS_WITH_TORCH)], folder)
    mark.write_text(wanted(), encoding="utf-8")
    return python


def versions_in(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Of installed packages."""
    command = [str(python), "-I", "-c", VERSIONS, str(packages_of(python.parents[1])), *packages]
    done = run_command(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        raise MetregError(f"--environment: {_last(done.stderr)}; take {python.parents[1]} away, and it is made anew")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _run(command: list[str], folder: Path) -> None:
    done = run_command(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", errors="replace")
    if done.returncode:
        raise MetregError(f"--environment: cannot install the peers into {folder}: {_last(done.stderr or done.stdout)}")


def _last(said: str) -> str:
    """The last line that speaks of an error, or just the last."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no reason given")


if __name__ == "__main__":
    open_environment(Path(sys.argv[1]))
