"""Under what circumstances a run was made: told beside the record, never part of its identity."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("numpy", "pandas", "scipy", "simpy", "pyarrow", "pydantic", "altair")
"""Packages whose version may move a figure or a picture."""

GIT_TIMEOUT_S = 5.0


def versions() -> dict[str, str]:
    """Return the versions of capplan, Python and the packages that may move a figure."""
    return {"capplan": capplan_version(), "python": platform.python_version(), **_packages()}


def capplan_version() -> str:
    """Return the version of this package."""
    import capplan

    return capplan.__version__


def circumstances(wall_s: float | None = None) -> dict[str, Any]:
    """Return when, how long and where a run was made, and the state of the code's checkout.

    The environment is not recorded: it may hold secrets.
    """
    return {
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "host": platform.node(),
        "platform": platform.platform(),
        "git": git_state(Path(__file__).resolve().parent),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit and whether files differ from it; None outside a checkout."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "-uno"))}


@cache
def _packages() -> dict[str, str]:
    return {name: metadata.version(name) for name in PACKAGES}


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=GIT_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
