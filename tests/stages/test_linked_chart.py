"""Brushing one time series marks the same requests in the others, in a page without network."""

import numpy as np
import pandas as pd
import pytest

from capplan import charts

pytestmark = pytest.mark.slow

N = 60
FILLS = (
    "() => [...document.querySelectorAll('svg .mark-symbol.role-mark path')]"
    ".map(mark => mark.getAttribute('fill'))"
)


@pytest.fixture(name="page")
def _page(chromium, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    moments = pd.DataFrame(
        {
            "request_id": [f"r{i}" for i in range(N)],
            "outcome": "succeeded",
            "marked": False,
            "entry_s": np.arange(N, dtype=float),
            "queued_s": np.arange(N) + 0.1,
            "served_s": np.arange(N) + 1.0,
            "prompt_tokens": 100.0,
            "wait_s": 0.5,
            "work_s": 3.0,
        }
    )
    options = {"renderer": "svg", "actions": False}
    file = tmp_path / "chart.html"
    file.write_text(charts.same_requests(moments).to_html(inline=True, embed_options=options))
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(chromium), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(offline=True).new_page()
        page.goto(file.as_uri())
        page.wait_for_selector("svg .mark-symbol path", state="attached")
        yield page
        browser.close()


def test_a_drag_over_one_series_greys_the_others_requests_in_all_three(page):
    from capplan.charts.moments import FAINT

    before = page.evaluate(FILLS)
    frame = page.locator("svg").bounding_box()
    page.mouse.move(frame["x"] + 150, frame["y"] + 70)
    page.mouse.down()
    page.mouse.move(frame["x"] + 300, frame["y"] + 75, steps=5)
    page.mouse.up()
    page.wait_for_function(f"({FILLS})().some(fill => fill.toUpperCase() === '{FAINT}')")
    after = [fill.upper() for fill in page.evaluate(FILLS)]
    assert len(after) == len(before) == 3 * N
    assert FAINT not in {fill.upper() for fill in before}
    kept = [i for i, fill in enumerate(after) if fill != FAINT]
    panels = [{i % N for i in kept if i // N == panel} for panel in range(3)]
    assert panels[0] == panels[1] == panels[2]
    assert 0 < len(panels[0]) < N
