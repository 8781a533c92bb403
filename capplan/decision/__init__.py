"""The decision of a study: what to run, how far it holds, what breaks first, what it rests on."""

from capplan.decision.clauses import Clause, Decision
from capplan.decision.study import decide

__all__ = ["Clause", "Decision", "decide"]
