"""The rule that divides a class's queueing budget, and moving one share by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping

from capplan.scenario.layers import BudgetRule

WAITING = ("gateway_queue", "service_queue", "scheduler_queue", "batch_window")
"""The layers in which a request waits, outermost first."""


def divide(remaining_s: float, window_s: float, rule: BudgetRule) -> dict[str, float]:
    """Return the share of each waiting layer, s; they sum to ``remaining_s``.

    ``equal`` gives each layer a quarter, ``weights`` divides by the weights, ``proportional``
    gives the batch window ``window_s`` (or all that remains, if that is less) and divides the rest
    by the weights of the queues. NaN if nothing remains or there is no promise.

    >>> divide(1.0, 0.1, BudgetRule(rule="proportional"))["batch_window"]
    0.1
    """
    if not remaining_s > 0:
        return dict.fromkeys(WAITING, math.nan)
    weights = dict.fromkeys(WAITING, 1.0)
    if rule.rule != "equal":
        weights = {layer: float(getattr(rule.weights, layer)) for layer in WAITING}
    fixed = 0.0
    if rule.rule == "proportional":
        weights["batch_window"] = 0.0
        fixed = min(window_s, remaining_s) if sum(weights.values()) > 0 else remaining_s
    rest, total = remaining_s - fixed, sum(weights.values())
    shares = {layer: rest * w / total if total > 0 else 0.0 for layer, w in weights.items()}
    shares["batch_window"] += fixed
    return shares


def rebalance(shares: Mapping[str, float], layer: str, new_s: float) -> dict[str, float]:
    """Return the shares with one set to ``new_s`` and the others scaled to keep the sum.

    Others that are all 0 get equal parts. Raises ``ValueError`` for an unknown layer and for a
    share that is negative or larger than the sum.

    >>> rebalance({"a": 1.0, "b": 1.0, "c": 2.0}, "a", 2.5)
    {'a': 2.5, 'b': 0.5, 'c': 1.0}
    """
    if layer not in shares:
        msg = f"layer must be one of {', '.join(shares)}, got {layer!r}"
        raise ValueError(msg)
    total = sum(shares.values())
    if not 0 <= new_s <= total * (1 + 1e-9):
        msg = f"new_s must lie between 0 and the sum of the shares ({total:g} s), got {new_s!r}"
        raise ValueError(msg)
    others = {name: share for name, share in shares.items() if name != layer}
    rest, held = max(total - new_s, 0.0), sum(others.values())
    moved = {
        name: rest * share / held if held > 0 else rest / len(others)
        for name, share in others.items()
    }
    return {name: new_s if name == layer else moved[name] for name in shares}
