"""How many replicas: the fewest that keep the promises, also with some of them lost."""

from capplan.sizing.batching import BatchChoice, choose_batching
from capplan.sizing.loss import Loss
from capplan.sizing.points import Point, Rejection
from capplan.sizing.result import Sizing
from capplan.sizing.rules import RuleOfThumb, rules_of_thumb
from capplan.sizing.search import size

__all__ = [
    "BatchChoice",
    "Loss",
    "Point",
    "Rejection",
    "RuleOfThumb",
    "Sizing",
    "choose_batching",
    "rules_of_thumb",
    "size",
]
