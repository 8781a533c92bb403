"""Readers: any trace file in, a checked :class:`~capplan.traffic.trace.Trace` out."""

from __future__ import annotations

from capplan.traffic.readers.read import FORMATS, read_trace

__all__ = ["FORMATS", "read_trace"]
