"""The report of a pair in a real browser, opened from disk with the network off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import browser, need_browser, opened

import metreg
from conftest import bent_picture, centred, picture
from metreg.report.pair import say_certificate

SHAPE = (40, 44, 36)
AFFINE = centred(np.diag([-2.0, 2.0, 2.0]), SHAPE)
QUICK = {"solve.iterations": [20, 10, 5], "affine.kind": "none"}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    need_browser()
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 3-D pair with labels and a local metric."""
    moving, fixed = picture(SHAPE, AFFINE), bent_picture(SHAPE, AFFINE)
    share = np.linspace(0, 0.4, SHAPE[0], dtype=np.float32)[:, None, None] * np.ones(SHAPE, np.float32)
    weights = np.stack([np.zeros(SHAPE, np.float32), share, np.zeros(SHAPE, np.float32), 1 - share], axis=-1)
    labels = [np.digitize(image, [150, 500]).astype(np.int32) for image in (moving, fixed)]
    result = metreg.register(
        (moving, AFFINE),
        (fixed, AFFINE),
        changes=QUICK,
        weights=(weights, AFFINE),
        moving_labels=(labels[0], AFFINE),
        fixed_labels=(labels[1], AFFINE),
        device="cpu",
    )
    out = tmp_path_factory.mktemp("pair") / "out"
    result.save(out)
    return out / "report.html"


@pytest.mark.browser
def test_the_report_opens_offline_and_its_parts_work(chromium: Any, report: Path) -> None:
    with opened(chromium, report) as here:
        page = here.page
        half = here.picture("pair-curtain", ".compare-view")
        assert len(np.unique(half.reshape(-1, 3), axis=0)) > 30

        page.locator("#compare-slider").fill("100")  # all fixed
        fixed = here.picture("pair-fixed", ".compare-view")
        page.locator("#compare-slider").fill("0")  # all moving
        after = here.picture("pair-after", ".compare-view")
        page.locator("input[name=compare-when][value=before]").check()
        before = here.picture("pair-before", ".compare-view")
        apart = [np.abs(image - fixed).mean() for image in (before, after)]
        assert apart[1] < 0.7 * apart[0], "after the registration the images should look more alike"
        middle = half.shape[1] // 2
        assert np.abs(half - fixed)[:, : middle - 3].mean() < 0.3 < np.abs(half - fixed)[:, middle + 3 :].mean()
        assert np.abs(half - after)[:, middle + 3 :].mean() < 0.3

        page.locator("input[name=compare-how][value=checks]").check()
        page.locator("#compare-slider").fill("30")
        checks = here.picture("pair-checks", ".compare-view")
        assert not np.array_equal(checks, before) and not np.array_equal(checks, fixed)

        page.wait_for_function("() => window.metregViewer")
        assert len(np.unique(here.picture("pair-viewer").reshape(-1, 3), axis=0)) > 50

        table = page.locator("table.sortable").filter(has_text="overlap after")
        table.locator("th button").nth(0).click()
        first = [cell.inner_text() for cell in table.locator("tbody tr td:first-child").all()]
        table.locator("th button").nth(0).click()
        second = [cell.inner_text() for cell in table.locator("tbody tr td:first-child").all()]
        assert first == sorted(first, key=int) and second == first[::-1]
        assert here.errors == []
        page.screenshot(path=here.folder / "pair-page.png", full_page=True)


@pytest.mark.browser
def test_the_report_of_a_2d_pair_opens_offline(chromium: Any, tmp_path: Path) -> None:
    affine = centred(np.diag([2.0, 2.0]), (50, 60))
    pair = (picture((50, 60), affine), affine), (bent_picture((50, 60), affine), affine)
    metreg.register(*pair, changes=QUICK, device="cpu").save(tmp_path / "out")
    with opened(chromium, tmp_path / "out" / "report.html") as here:
        assert len(np.unique(here.picture("pair-2d", ".compare-view").reshape(-1, 3), axis=0)) > 30
        assert here.page.locator("#viewer-canvas").count() == 0
        assert here.errors == []


def test_the_page_says_what_was_asked_for(report: Path) -> None:
    page = report.read_text(encoding="utf-8")
    for part in ("Before and after", "The metric", "Jacobian determinant", "Overlap by structure", "Regularity by region"):
        assert f"<h2>{part}</h2>" in page
    assert "invertible everywhere" in page and "All settings" in page
    assert report.stat().st_size < 5e6


def test_what_was_repaired_is_said() -> None:
    facts: dict[str, Any] = {"folds": 0, "certificate": {"smallest": 0.01, "holds": True}}
    facts["before_repair"] = {"folds": 7, "smallest": -0.5, "repaired": True}
    assert "Before the repair there were 7, and the determinant reached -0.5." in say_certificate(facts)
    facts["before_repair"] = {"folds": 0, "smallest": 0.01, "repaired": False}
    assert "repair" not in say_certificate(facts)
