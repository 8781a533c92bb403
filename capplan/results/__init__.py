"""What a run says: the request log, its timelines, and every figure computed from them."""

from capplan.results.run import DrawnTrace, RunResult

__all__ = ["DrawnTrace", "RunResult"]
