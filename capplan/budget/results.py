"""The wait budget and its parts: class budgets, layer limits, findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import pandas as pd

from capplan.budget.shares import WAITING
from capplan.scenario.part import Origin
from capplan.verdict import Outcome, Reason

SEVERITY: tuple[Outcome, ...] = ("fail", "blocked", "unknown", "retest", "pass")
"""Outcomes, the one that decides a verdict first."""


REASON_KEYS = ("rule", "outcome", "field", "value", "limit", "next_action", "request_class")
"""What the budget's document says of each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBudget:
    """Where the time of one class goes: service at its quantiles, and what remains to wait.

    ``promise_s = network_s + gateway_s + prefill_s + decode_s + remaining_s``, and ``shares_s``
    sum to ``remaining_s`` (NaN where that is not positive or nothing was promised).
    """

    request_class: str
    owner: str
    pool: str
    streaming: bool
    basis: Literal["ttft_s", "e2e_s", "deadline_s", ""]
    """The promise that leaves least: the others hold where this one does."""
    promise_s: float
    prompt_quantile: float
    output_quantile: float
    prompt_tokens: float
    output_tokens: float
    rate_rps: float
    samples: int
    network_s: float
    gateway_s: float
    """Overhead of the gateway: its fixed part, and its share of the promise."""
    prefill_s: float
    decode_s: float
    """0 for a basis of ``ttft_s``."""
    remaining_s: float
    window_s: float
    """What the batching needs as its window, s."""
    shares_s: Mapping[str, float]
    tpot_s: float
    tpot_promise_s: float
    feasible_prompt_quantile: float
    """The largest prompt quantile that leaves time to wait; NaN where none does."""
    feasible_output_quantile: float
    mean_response_s: float
    """Of a mean request that does not wait, s."""
    in_flight: float
    """Little's law: rate × mean response without waiting, a lower reading."""
    in_flight_upper: float
    """Stable rate × allowed response at the promised quantile: a reading, not a capacity."""
    drain_rps: float
    """The class's part of what its pool serves when full."""
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLimit:
    """The limit of one layer: that of the strictest class that waits in it."""

    layer: str
    pool: str
    """Empty for the gateway."""
    path: str
    """Dotted path of the layer's part in the scenario."""
    owner: str
    request_class: str
    """The class whose share is the smallest."""
    share_s: float
    drain_rps: float
    length: int | None
    """Requests that may wait; per replica in the scheduler queue. None where no share is known."""
    wait_limit_s: float | None
    """None where no share is known, or nobody may wait."""
    status: int
    retry_after_s: float
    flags: Mapping[str, int | float]
    """What the engine calls these limits; empty where no engine is concerned."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitBudget:
    """How long a request may wait in each layer, what follows from it, and what is broken."""

    scenario: str
    rule: str
    classes: tuple[ClassBudget, ...]
    limits: tuple[LayerLimit, ...]
    settings: Mapping[str, int | float]
    """Every derived limit by its dotted path in the scenario."""
    changes: Mapping[str, int | float]
    """Those that the scenario does not have already."""
    findings: tuple[Reason, ...] = field(default=())

    @property
    def outcome(self) -> Outcome:
        """Return the verdict's outcome: the most severe of the findings', else ``pass``."""
        found = {finding.outcome for finding in self.findings}
        return next(outcome for outcome in SEVERITY if outcome in found or outcome == "pass")

    def by_class(self, name: str) -> ClassBudget:
        """Return the budget of one class; KeyError if there is none."""
        return {c.request_class: c for c in self.classes}[name]

    def table(self) -> pd.DataFrame:
        """Return one row per class and waiting layer, by the class's own share.

        Columns: request_class, layer, owner, share_s, drain_rps (the class's part), queue_length
        (the class's requests that drain within the share), waiting (Little's law: rate × share),
        timeout_s, status, retry_after_s, flag, origin.
        """
        limits = {(limit.pool, limit.layer): limit for limit in self.limits}
        rows = []
        for c in self.classes:
            for layer in WAITING:
                limit = limits["" if layer == "gateway_queue" else c.pool, layer]
                rows.append(_row(c, limit))
        return pd.DataFrame(rows)

    def parts(self) -> pd.DataFrame:
        """Return where the time of each class goes: request_class, layer, part_s, deadline_s.

        Layers in the order a request passes them; what passes the promise is the layer ``over``.
        """
        rows = [
            (c.request_class, layer, part, c.promise_s)
            for c in self.classes
            if not math.isnan(c.promise_s)
            for layer, part in _parts(c)
        ]
        return pd.DataFrame(rows, columns=["request_class", "layer", "part_s", "deadline_s"])

    def readings(self) -> pd.DataFrame:
        """Return readings of the number in flight: request_class, reading, in_flight."""
        rows = [
            row
            for c in self.classes
            for row in (
                (c.request_class, "rate × mean response (Little)", c.in_flight),
                (c.request_class, "stable rate × allowed response", c.in_flight_upper),
            )
        ]
        return pd.DataFrame(rows, columns=["request_class", "reading", "in_flight"])

    def to_json(self) -> dict[str, Any]:
        """Return the budget as what JSON knows: NaN is None, infinity is ``"inf"``."""
        return {
            "scenario": self.scenario,
            "rule": self.rule,
            "verdict": {"outcome": self.outcome, "reasons": [_reason(r) for r in self.findings]},
            "classes": _plain(self.classes),
            "layers": _plain(self.limits),
            "settings": _plain(self.settings),
            "changes": _plain(self.changes),
        }


def _reason(found: Reason) -> dict[str, Any]:
    return found.to_json(REASON_KEYS) | {"request_class": found.request_class or ""}


def _row(c: ClassBudget, limit: LayerLimit) -> dict[str, Any]:
    share = c.shares_s[limit.layer]
    return {
        "request_class": c.request_class,
        "layer": limit.layer,
        "owner": limit.owner,
        "share_s": share,
        "drain_rps": c.drain_rps,
        "queue_length": _length(share * c.drain_rps, limit.layer),
        "waiting": c.rate_rps * share,
        "timeout_s": share,
        "status": limit.status,
        "retry_after_s": limit.retry_after_s,
        "flag": "; ".join(f"{name} {_flag(value)}" for name, value in limit.flags.items()),
        "origin": c.origin,
    }


def _flag(value: float) -> str:
    """Return a value as an engine's option takes it: whole numbers in full."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _length(requests: float, layer: str) -> float:
    """Return whole requests; NaN if unknown, and for the window, which is no queue of its own."""
    if math.isnan(requests) or layer == "batch_window":
        return math.nan
    return float(math.floor(requests))


def _parts(c: ClassBudget) -> Iterable[tuple[str, float]]:
    waits = c.shares_s if c.remaining_s > 0 else dict.fromkeys(WAITING, 0.0)
    parts = {"network": c.network_s, "gateway": c.gateway_s, **waits}
    parts |= {"prefill": c.prefill_s, "decode": c.decode_s}
    left = c.promise_s
    for layer, part in parts.items():
        yield layer, min(part, left)
        left -= min(part, left)
    if c.remaining_s < 0:
        yield "over", -c.remaining_s


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    return value
