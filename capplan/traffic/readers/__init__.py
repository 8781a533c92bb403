"""Readers: any trace file in, a checked :class:`~capplan.traffic.trace.Trace` out."""

from __future__ import annotations

from capplan.traffic.readers.detect import FORMATS
from capplan.traffic.readers.read import read_trace

__all__ = ["FORMATS", "read_trace"]
