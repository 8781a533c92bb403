"""A slider of a page, moved by keyboard in JupyterLab in a real browser without network."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

NOTEBOOK = "02_wait_budget.ipynb"
SOURCE = Path(__file__).resolve().parents[2] / "notebooks" / NOTEBOOK
ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SETTINGS = {"@jupyterlab/notebook-extension/tracker.jupyterlab-settings": {"windowingMode": "none"}}
PAGE_CONFIG = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
PATIENCE_MS = 120_000
DRAWN = "() => document.querySelector('.jp-OutputArea .vega-embed svg')?.outerHTML ?? ''"
HAS_KERNEL = """() => {
  const context = window.jupyterapp.shell.currentWidget?.sessionContext;
  return context?.session?.kernel?.connectionStatus === 'connected';
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); return true; }"
ALL_RAN = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
  .every(prompt => /\\[[0-9]+\\]/.test(prompt.textContent))"""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def wait_for(url, server, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.poll() is None, "JupyterLab ended"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not answer within {seconds} s")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Return the address of a JupyterLab of our own that holds one small page."""
    home = tmp_path_factory.mktemp("lab")
    notebook = json.loads(SOURCE.read_text())
    cell = next(cell for cell in notebook["cells"] if cell["id"] == "parameters")
    cell["source"] = [
        line.replace("requests: int = 0", "requests: int = 1500") for line in cell["source"]
    ]
    write(home / "work" / NOTEBOOK, notebook)
    write(home / "config" / "labconfig" / "page_config.json", PAGE_CONFIG)
    for name, value in SETTINGS.items():
        write(home / "settings" / name, value)
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", "--IdentityProvider.token=", "--allow-root"]
    command += ["--ip=127.0.0.1", f"--ServerApp.root_dir={home / 'work'}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
    }
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=home)
        try:
            wait_for(f"http://127.0.0.1:{port}/api", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(20)


@pytest.fixture
def opened(lab, chromium):
    """Return the page in Lab, all cells run, and the addresses it asked for outside."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(chromium), args=ARGS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        outside = []
        own = (lab, lab.replace("http:", "ws:"), "data:", "blob:")
        page.on("request", lambda r: None if r.url.startswith(own) else outside.append(r.url))
        page.goto(f"{lab}/lab/tree/{NOTEBOOK}?reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE_MS)
        page.wait_for_function(HAS_KERNEL, timeout=PATIENCE_MS)
        page.evaluate(RUN_ALL)
        page.wait_for_selector(".jp-OutputArea .vega-embed svg", timeout=PATIENCE_MS)
        page.wait_for_function(ALL_RAN, timeout=PATIENCE_MS)
        yield page, outside
        browser.close()


def test_a_slider_moved_by_keyboard_redraws_the_chart(opened):
    page, outside = opened
    before = page.evaluate(DRAWN)
    assert "<path" in before
    handles = page.locator(".jp-OutputArea .noUi-handle")
    assert handles.count() == 4
    values = [float(v) for v in page.locator(".widget-readout").all_inner_texts()]
    assert sum(values) == pytest.approx(100, abs=0.1)
    for _ in range(5):
        handles.first.press("ArrowRight")
    page.wait_for_function(f"before => ({DRAWN})() !== before", arg=before, timeout=30_000)
    page.wait_for_timeout(1500)
    moved = [float(v) for v in page.locator(".widget-readout").all_inner_texts()]
    assert moved[0] == pytest.approx(values[0] + 5, abs=0.1)
    assert sum(moved) == pytest.approx(100, abs=0.1)
    assert not page.locator(
        ".jp-RenderedText[data-mime-type='application/vnd.jupyter.stderr']"
    ).count()
    assert outside == []
    if os.environ.get("CAPPLAN_SCREENSHOT"):
        handles.first.scroll_into_view_if_needed()
        page.screenshot(path=os.environ["CAPPLAN_SCREENSHOT"])
