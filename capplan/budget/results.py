"""The wait budget and its parts: class budgets, layer limits, findings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from capplan.display import Displayed
from capplan.encoding import plain
from capplan.formatting import counted, format_value, rule_words
from capplan.results import per_request, queue_waits
from capplan.scenario.part import Origin
from capplan.statistics import quantile as quantile_of
from capplan.verdict import Outcome, Reason, reason_table, worst

if TYPE_CHECKING:
    from capplan.results import RunResult

ROUNDING = 1e-6
"""A wait that passes its share by no more than this part of it does not pass it."""
QUEUES = {"gateway_queue": "gateway"}
"""The layers a budget divides among, by their name in a run if the two differ."""

WAITING = ("gateway_queue", "service_queue", "scheduler_queue", "batch_window")
"""The layers in which a request waits, outermost first."""

REASON_KEYS = ("rule", "outcome", "field", "value", "limit", "next_action", "request_class")
"""The parts of a reason in the budget's document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBudget:
    """The time of one class: service at its quantiles, and the time that remains to wait.

    ``promise_s = network_s + gateway_s + prefill_s + decode_s + remaining_s``, and ``shares_s``
    sum to ``remaining_s`` (NaN if that is not positive or there is no promise).
    """

    request_class: str
    owner: str
    pool: str
    streaming: bool
    basis: Literal["ttft_s", "e2e_s", "deadline_s", "attempt_timeout_s", ""]
    """The promise that leaves least: if it holds, the others hold."""
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
    lost_by: Literal["ttft_s", "e2e_s", "deadline_s", "attempt_timeout_s", ""]
    """What a request misses for good after ``longest_wait_s``."""
    longest_wait_s: float
    """The wait after which even the least request is lost; limits refuse from there on."""
    window_s: float
    """The window of the batching, s."""
    shares_s: Mapping[str, float]
    tpot_s: float
    tpot_promise_s: float
    feasible_prompt_quantile: float
    """The largest prompt quantile that leaves time to wait; NaN if none does."""
    feasible_output_quantile: float
    attempt_s: float
    """One whole attempt at the quantiles that does not wait, s: with decode for any basis."""
    mean_response_s: float
    """Of a mean request that does not wait, s."""
    in_flight: float
    """Little's law: rate × mean response without waiting, a lower reading."""
    in_flight_upper: float
    """Stable rate × allowed response at the promised quantile: a reading, not a capacity."""
    drain_rps: float
    """The class's part of its pool's drain rate."""
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLimit:
    """The limit of one layer, from the strictest class that waits in it."""

    layer: str
    pool: str
    """Empty for the gateway."""
    path: str
    """Dotted path of the layer's part in the scenario."""
    owner: str
    request_class: str
    """The class with the smallest share."""
    share_s: float
    drain_rps: float
    length: int | None
    """Requests that may wait; per replica in the scheduler queue. None without a known share."""
    wait_limit_s: float | None
    """None without a known share, or if no request may wait."""
    status: int
    retry_after_s: float
    flags: Mapping[str, int | float]
    """The engine's names of these limits; empty without an engine."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WaitBudget(Displayed):
    """The wait budget of each layer, the limits that follow, and the findings."""

    scenario: str
    rule: str
    classes: tuple[ClassBudget, ...]
    limits: tuple[LayerLimit, ...]
    settings: Mapping[str, int | float]
    """Every derived limit by its dotted path in the scenario."""
    changes: Mapping[str, int | float]
    """The settings that differ from the scenario."""
    derived: Mapping[str, int | float | None] = field(default_factory=dict)
    """Those that the scenario leaves to the budget by the word ``derived``."""
    findings: tuple[Reason, ...] = field(default=())

    @property
    def outcome(self) -> Outcome:
        """Return the verdict's outcome: the worst of the findings', ``pass`` without any."""
        return worst(["pass", *(finding.outcome for finding in self.findings)])

    def by_class(self, name: str) -> ClassBudget:
        """Return the budget of one class; KeyError if there is none."""
        return {c.request_class: c for c in self.classes}[name]

    @property
    def tightest(self) -> ClassBudget:
        """Return the budget of the class that may wait least; one without a promise comes last."""
        return min(
            self.classes, key=lambda c: math.inf if math.isnan(c.remaining_s) else c.remaining_s
        )

    def summary(self) -> str:
        """Return the outcome, and which class may wait least."""
        least = self.tightest
        found = counted(len(self.findings), "finding") if self.findings else "no finding"
        return (
            f"Verdict of the budget: **{self.outcome}**, with {found}. Least remains for "
            f"{least.request_class}: {format_value(least.remaining_s, '_s')} of its "
            f"{format_value(least.promise_s, '_s')}, divided by the rule {self.rule}."
        )

    def table(self) -> pd.DataFrame:
        """Return the share of each class in each layer, its owner, and the limits that follow.

        Columns: request_class, layer, owner, share_s, queue_length (the class's requests that
        drain within the share), when full, flag (what the engine calls the limit), origin.
        """
        limits = {(limit.pool, limit.layer): limit for limit in self.limits}
        rows = []
        for c in self.classes:
            for layer in WAITING:
                limit = limits["" if layer == "gateway_queue" else c.pool, layer]
                rows.append(_row(c, limit))
        return pd.DataFrame(rows)

    def limit_table(self) -> pd.DataFrame:
        """Return the limit that each layer needs: that of the strictest class that waits in it."""
        rows = [
            (x.pool or "gateway", x.layer, x.owner or NO_OWNER, x.share_s,
             _length(x.layer, x.length), math.nan if x.wait_limit_s is None else x.wait_limit_s,
             str(x.status))
            for x in self.limits
        ]  # fmt: skip
        heads = ["pool", "layer", "owner", "share_s", "length", "wait_limit_s", "refusal"]
        return pd.DataFrame(rows, columns=heads)

    def class_table(self) -> pd.DataFrame:
        """Return the subtraction, class by class: promise, less work, leaves what may be waited."""
        rows = [
            {
                "request_class": c.request_class,
                "by": rule_words(c.basis) or "no promise",
                "promise_s": c.promise_s,
                "network_s": c.network_s,
                "gateway_s": c.gateway_s,
                "prefill_s": c.prefill_s,
                "decode_s": c.decode_s,
                "may wait_s": c.remaining_s,
                "lost after a wait_s": c.longest_wait_s,
                "lost by": rule_words(c.lost_by) or "no promise",
                "at prompt / output": f"{c.prompt_tokens:,.0f} / {c.output_tokens:,.0f} tokens",
                "origin of the times": c.origin,
            }
            for c in self.classes
        ]
        return pd.DataFrame(rows)

    def feasible_table(self) -> pd.DataFrame:
        """Return up to which quantile of its lengths each class has anything left to wait."""
        rows = [
            {
                "request_class": c.request_class,
                "prompts up to_fraction": c.feasible_prompt_quantile,
                "outputs up to_fraction": c.feasible_output_quantile,
                "TPOT_s": c.tpot_s,
                "TPOT promise_s": c.tpot_promise_s,
            }
            for c in self.classes
        ]
        return pd.DataFrame(rows)

    def finding_table(self) -> pd.DataFrame:
        """Return what is broken, or could not be checked, the most severe first."""
        return reason_table(self.findings)

    def chart(self) -> Any:
        """Return the chart of where the time of each class goes."""
        from capplan import charts

        return charts.budget_by_layer(self.parts())

    def derived_table(self) -> pd.DataFrame:
        """Return the fields that the scenario states as ``derived``, with their values."""
        values = {path: "none" if v is None else _flag(v) for path, v in self.derived.items()}
        return pd.DataFrame(values.items(), columns=["field", "derived value"])

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

    def readings(self, result: RunResult | None = None) -> pd.DataFrame:
        """Return readings of the number in flight, and that of a run beside them if one is given.

        Columns: request_class, reading, in_flight.
        """
        rows = []
        for c in self.classes:
            name = c.request_class
            rows.append((name, "rate × mean response (Little)", c.in_flight))
            rows.append((name, "stable rate × allowed response", c.in_flight_upper))
            if result is not None:
                rows.append((name, "simulated", _mean_in_flight(result, name)))
        return pd.DataFrame(rows, columns=["request_class", "reading", "in_flight"])

    def tail_waits(self, result: RunResult, *, quantile: float = 0.99) -> pd.DataFrame:
        """Return the tail of the wait in each layer of a run beside its share.

        Columns: request_class, layer, share_s, wait_s (NaN if no wait was measured), over
        (whether the wait passes its share).
        """
        attempts = result.judged
        waits = queue_waits(attempts, end_s=result.duration_s)
        rows = []
        for c in self.classes:
            own = waits[(attempts["request_class"] == c.request_class).to_numpy()]
            for layer in WAITING:
                known = own[QUEUES.get(layer, layer)].dropna()
                wait = quantile_of(known, quantile) if len(known) else math.nan
                rows.append((c.request_class, layer, c.shares_s[layer], wait))
        frame = pd.DataFrame(rows, columns=["request_class", "layer", "share_s", "wait_s"])
        return frame.assign(over=frame["wait_s"] > frame["share_s"] * (1 + ROUNDING))

    def to_json(self) -> dict[str, Any]:
        """Return the budget as what JSON knows: NaN is None, infinity is ``"inf"``."""
        return {
            "scenario": self.scenario,
            "rule": self.rule,
            "verdict": {"outcome": self.outcome, "reasons": [_reason(r) for r in self.findings]},
            "classes": plain(self.classes),
            "layers": plain(self.limits),
            "settings": plain(self.settings),
            "changes": plain(self.changes),
            "derived": plain(self.derived),
        }


def _reason(found: Reason) -> dict[str, Any]:
    return found.to_json(REASON_KEYS) | {"request_class": found.request_class or ""}


NO_OWNER = "no owner"


def _row(c: ClassBudget, limit: LayerLimit) -> dict[str, Any]:
    share, is_window = c.shares_s[limit.layer], limit.layer == "batch_window"
    refusal = f"{limit.status}, Retry-After {format_value(limit.retry_after_s, '_s')}"
    return {
        "request_class": c.request_class,
        "layer": limit.layer,
        "owner": limit.owner or NO_OWNER,
        "share_s": share,
        "queue_length": _length(limit.layer, _whole(share * c.drain_rps)),
        "when full": "start the batch" if is_window else refusal,
        "flag": "; ".join(f"{name} {_flag(value)}" for name, value in limit.flags.items()),
        "origin": c.origin,
    }


def _flag(value: float) -> str:
    """Return a value as an engine's option takes it: whole numbers in full."""
    return str(value) if isinstance(value, int) else f"{value:g}"


def _whole(requests: float) -> int | None:
    """Return whole requests; None if unknown."""
    return None if math.isnan(requests) else math.floor(requests)


def _length(layer: str, requests: int | None) -> str:
    """Return the length of a queue as text; empty for the window, which is no queue of its own."""
    return "" if layer == "batch_window" else format_value(requests)


def _mean_in_flight(result: RunResult, name: str) -> float:
    """Return the time average of the requests of a class that are inside, after the warm-up."""
    requests = per_request(result, warmup=True)
    own = requests[requests["request_class"] == name]
    last = float(requests["intended_start_s"].max())
    begin = own["intended_start_s"].clip(result.judged_from_s, last)
    end = own["finish_s"].fillna(result.duration_s).clip(result.judged_from_s, last)
    span = last - result.judged_from_s
    return float((end - begin).sum() / span) if span > 0 else math.nan


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
