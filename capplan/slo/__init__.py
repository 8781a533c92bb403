"""Judge a run: whether its promises are kept, and whether the run proves it."""

from capplan.slo.judging import judge, scope_of
from capplan.slo.promises import promise_table

__all__ = ["judge", "promise_table", "scope_of"]
