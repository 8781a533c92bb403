"""What every test shares: the outside things some need, and the rule that CI skips nothing."""

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

collect_ignore = ["benchmarks"]
"""Scripts that measure; they import each other, as scripts of one folder do."""

NO_SKIP_VARIABLE = "CAPPLAN_NO_SKIP"
"""Set to 1 where every test must run (CI): a skipped test then fails the session."""

settings.register_profile("capplan", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("capplan")


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the top folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of public traces and measured runs, which are not part of the project."""
    folder = Path(os.environ.get("CAPPLAN_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip("no folder of public data sets: set CAPPLAN_DATA to one")
    return folder


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Return the Chromium executable, driven headless through Playwright."""
    found = [path for path in map(shutil.which, BROWSERS) if path]
    if not found:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    return Path(found[0])


def _nothing_may_be_skipped() -> bool:
    return os.environ.get(NO_SKIP_VARIABLE) == "1"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Fail a module that skips itself as a whole, where nothing may be skipped."""
    report = yield
    if report.skipped and _nothing_may_be_skipped():
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} was skipped: {_reason(report)}"
    return report


def pytest_sessionfinish(session):
    """Fail a session that skipped a test, where nothing may be skipped."""
    if _skipped(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    """Name each skipped test and its reason, where nothing may be skipped."""
    skipped = _skipped(config)
    if skipped:
        terminalreporter.section(f"{NO_SKIP_VARIABLE}=1: skipped tests fail the session", red=True)
    for report in skipped:
        terminalreporter.write_line(f"{report.nodeid}: {_reason(report)}")


def _skipped(config):
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or not _nothing_may_be_skipped():
        return []
    return reporter.stats.get("skipped", [])


def _reason(report):
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
