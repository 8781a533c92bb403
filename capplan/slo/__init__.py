"""Judge a run: whether its promises are kept, and whether the run proves it."""

from capplan.slo.judging import judge, scope_of
from capplan.slo.promises import promise_table
from capplan.slo.windows import promise_windows

__all__ = ["judge", "promise_table", "promise_windows", "scope_of"]
