"""Judge a run: whether its promises are kept, and whether the run proves it."""

from capplan.slo.judging import judge, scope_of
from capplan.slo.verdict import PRECEDENCE, Outcome, Reason, Scope, Verdict, reason_table, worst

__all__ = [
    "PRECEDENCE",
    "Outcome",
    "Reason",
    "Scope",
    "Verdict",
    "judge",
    "reason_table",
    "scope_of",
    "worst",
]
