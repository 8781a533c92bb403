"""The pages in a real browser that has no network."""

import pytest

pytestmark = pytest.mark.slow

ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHARTS = """figures => figures.map(figure => ({
  live: figure.querySelector(".drawing").classList.contains("live"),
  marks: figure.querySelectorAll("svg path").length,
  wide: figure.getBoundingClientRect().width > 100,
  error: figure.dataset.error ?? null,
}))"""


@pytest.fixture(scope="module")
def browser(chromium):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=str(chromium), args=ARGS)
        yield opened
        opened.close()


def visit(browser, page, **options):
    """Return the opened page, and what it asked for and complained about."""
    context = browser.new_context(offline=True, **options)
    opened = context.new_page()
    seen = {"requests": [], "complaints": []}
    opened.on("request", lambda request: seen["requests"].append(request.url))
    opened.on("console", lambda message: seen["complaints"].append(message.text))
    opened.on("pageerror", lambda error: seen["complaints"].append(str(error)))
    opened.goto(page.as_uri())
    opened.wait_for_load_state("load")
    return opened, seen


@pytest.mark.parametrize("name", ["index", "01_first", "02_last"])
def test_a_page_opens_with_the_network_unplugged(browser, report, name):
    page = report.folder / f"{name}.html"
    opened, seen = visit(browser, page)
    opened.wait_for_timeout(500)
    assert seen == {"requests": [page.as_uri()], "complaints": []}
    assert opened.title()


def test_every_chart_comes_alive(browser, report):
    opened, seen = visit(browser, report.folder / "01_first.html")
    opened.wait_for_selector("figure.chart:last-of-type .drawing.live")
    charts = opened.eval_on_selector_all("figure.chart", CHARTS)
    assert len(charts) == 2
    for chart in charts:
        assert chart["live"]
        assert chart["wide"]
        assert chart["marks"] > 3
        assert chart["error"] is None
    assert seen["complaints"] == []


def test_charts_show_without_scripts_too(browser, report):
    opened, _ = visit(browser, report.folder / "01_first.html", java_script_enabled=False)
    drawings = opened.locator("figure.chart .drawing > svg")
    assert drawings.count() == 2
    assert all(drawings.nth(i).bounding_box()["height"] > 100 for i in range(2))


def test_formulas_are_drawn(browser, report):
    opened, _ = visit(browser, report.folder / "01_first.html")
    box = opened.locator("math[display=block]").bounding_box()
    assert box["width"] > 20
    assert box["height"] > 8


def test_the_pages_lead_to_each_other(browser, report):
    opened, _ = visit(browser, report.folder / "index.html")
    opened.click("text=Who calls, and when?")
    opened.click("nav >> text=last")
    assert opened.inner_text("h1") == "What can a review sign?"
    opened.click("nav >> text=Summary")
    assert opened.inner_text(".verdict") == "pass"


def test_a_page_prints_without_navigation_or_code(browser, report):
    opened, _ = visit(browser, report.folder / "01_first.html")
    opened.emulate_media(media="print")
    assert not opened.locator("nav").first.is_visible()
    assert not opened.locator("details.source").first.is_visible()
    assert opened.locator("figure.chart").first.is_visible()
    assert opened.pdf(prefer_css_page_size=True).startswith(b"%PDF")
