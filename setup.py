"""The wheel carries the viewer of the reports, which is fetched while it is built. All else stands in pyproject.toml."""

from __future__ import annotations

import runpy
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FETCH = Path(__file__).resolve().parent / "tools" / "fetch_viewer.py"


class BuildWithViewer(build_py):
    """Fetches the viewer first; without a network it warns and builds without. An editable install leaves it to make."""

    def run(self) -> None:
        if not self.editable_mode and FETCH.is_file():
            runpy.run_path(str(FETCH))["fetch_or_warn"]()
        super().run()


setup(cmdclass={"build_py": BuildWithViewer})
