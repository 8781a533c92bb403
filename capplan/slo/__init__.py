"""Judge a run: whether its promises are kept, and whether the run proves it."""

from capplan.slo.judging import judge, scope_of
from capplan.slo.verdict import PRECEDENCE, Outcome, Reason, Scope, Verdict, worst

__all__ = ["PRECEDENCE", "Outcome", "Reason", "Scope", "Verdict", "judge", "scope_of", "worst"]
