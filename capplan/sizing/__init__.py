"""How many replicas: the fewest that keep the promises, also with some of them lost."""

from capplan.sizing.loss import Loss
from capplan.sizing.points import Point, Rejection
from capplan.sizing.result import Sizing
from capplan.sizing.rules import RuleOfThumb, rules_of_thumb
from capplan.sizing.search import size

__all__ = ["Loss", "Point", "Rejection", "RuleOfThumb", "Sizing", "rules_of_thumb", "size"]
