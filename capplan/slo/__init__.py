"""Judge a run: whether its promises are kept, and whether the run proves it."""

from capplan.slo.judging import judge, scope_of

__all__ = ["judge", "scope_of"]
