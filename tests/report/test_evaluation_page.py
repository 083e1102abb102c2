"""The page of an evaluation in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import browser, need_browser, opened
from test_evaluation import folder, table

__all__ = ["folder", "table"]  # fixtures


@pytest.mark.browser
def test_it_opens_offline_and_leads_to_the_worst_pairs(table: Path) -> None:
    need_browser()
    with browser() as chromium, opened(chromium, table / "report.html") as here:
        here.picture("evaluation", "figure")
        here.page.locator("a[href^='pages/']").first.click()
        here.page.locator("#compare-slider").wait_for()
        assert here.errors == []
