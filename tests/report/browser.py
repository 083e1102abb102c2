"""Open a page of one file in chromium, with the network off, and keep what it complains of."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SOFTWARE_WEBGL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")


def need_browser() -> None:
    """Skip where there is no chromium, no playwright or no NiiVue bundle."""
    pytest.importorskip("playwright", reason="no playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("no chromium: make browser")
    if not files("metreg.report").joinpath("vendor", "niivue.umd.js.gz").is_file():
        pytest.skip("no NiiVue bundle: make viewer")


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's chromium, without a window; WebGL by the processor."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # nothing is fetched, so the sandbox, which root cannot have, has nothing to keep out
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *SOFTWARE_WEBGL])
        try:
            yield chromium
        finally:
            chromium.close()


@dataclass
class Opened:
    """A page, and the errors that it threw or wrote to the console."""

    page: Any
    folder: Path
    errors: list[str] = field(default_factory=list)

    def picture(self, name: str, selector: str = "#viewer-canvas") -> np.ndarray:
        """What an element of the page looks like but for its rim, (rows, columns, 3); kept as a PNG file too."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        png = self.page.locator(selector).first.screenshot(path=self.folder / f"{name}.png")
        return np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)[1:-1, 1:-1]


@contextmanager
def opened(chromium: Any, path: Path, *, before: str = "") -> Iterator[Opened]:
    """The page of a file:// address, offline, after a script. Screenshots go to METREG_SCREENSHOTS, or beside the file."""
    folder = Path(os.environ.get("METREG_SCREENSHOTS") or path.parent)
    folder.mkdir(parents=True, exist_ok=True)
    context = chromium.new_context(offline=True, viewport={"width": 900, "height": 1000})
    context.add_init_script(before)
    try:
        here = Opened(context.new_page(), folder)
        here.page.on("console", lambda message: here.errors.append(message.text) if message.type == "error" else None)
        here.page.on("pageerror", lambda error: here.errors.append(str(error)))
        here.page.goto(path.resolve().as_uri())
        yield here
    finally:
        context.close()
