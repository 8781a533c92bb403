"""``capplan sweep``."""

from __future__ import annotations

from typing import Any


def add(commands: Any) -> None:
    """Offer the command."""
