"""Frames of the budget page: promises, shares, waits against shares, readings, findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.formatting import format_value, rule_words

if TYPE_CHECKING:
    from capplan.budget import ClassBudget, WaitBudget
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.scenario.layers import Queue

PROMISES = (
    "deadline_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "availability_fraction",
    "error_rate_fraction",
    "timeout_rate_fraction",
    "goodput_fraction",
    "cost_usd_per_success",
)
ROUNDING = 1e-6
QUEUES = {"gateway_queue": "gateway"}
"""The layers a budget divides among, by their name in a run where the two differ."""


def promise_table(scenario: Scenario) -> pd.DataFrame:
    """Return each promise of each class with its bound, where it comes from, and its samples."""
    from capplan.scenario.part import origin

    rows = []
    for c in scenario.classes:
        for name in PROMISES:
            bound = getattr(c.promises, name)
            if bound is None:
                continue
            latency = name in ("ttft_s", "tpot_s", "e2e_s")
            rows.append(
                {
                    "request_class": c.name,
                    "promise": rule_words(name),
                    "bound": format_value(bound, name),
                    "holds at": f"P{100 * c.promises.quantile:g}" if latency else "all requests",
                    "samples needed": c.promises.samples_needed(),
                    "origin": origin(c.promises, name),
                }
            )
    return pd.DataFrame(rows)


def service_table(budget: WaitBudget) -> pd.DataFrame:
    """Return the subtraction, class by class: promise, less work, leaves what may be waited."""
    return pd.DataFrame(
        [
            {
                "request_class": c.request_class,
                "by": rule_words(c.basis) or "no promise",
                "promise_s": c.promise_s,
                "network_s": c.network_s,
                "gateway_s": c.gateway_s,
                "prefill_s": c.prefill_s,
                "decode_s": c.decode_s,
                "may wait_s": c.remaining_s,
                "at prompt / output": f"{c.prompt_tokens:,.0f} / {c.output_tokens:,.0f} tokens",
                "origin of the times": c.origin,
            }
            for c in budget.classes
        ]
    )


def share_table(budget: WaitBudget) -> pd.DataFrame:
    """Return what each class may wait where, who owns it, and what happens then."""
    table = budget.table()
    action = (
        "reject: "
        + table["status"].astype(str)
        + ", Retry-After "
        + (table["retry_after_s"].map("{:g} s".format))
    )
    window = table["layer"] == "batch_window"
    return pd.DataFrame(
        {
            "request_class": table["request_class"],
            "layer": table["layer"],
            "owner": table["owner"].where(table["owner"] != "", "nobody"),
            "share_s": table["share_s"],
            "queue length": table["queue_length"].map(_length).where(~window, ""),
            "when full": action.where(~window, "start the batch"),
            "engine's flag": table["flag"],
        }
    )


def _length(requests: float) -> str:
    return "unknown" if np.isnan(requests) else f"{requests:,.0f}"


def tail_waits(budget: WaitBudget, result: RunResult, *, quantile: float = 0.99) -> pd.DataFrame:
    """Return the tail of the wait in each layer beside its share.

    Columns: request_class, layer, share_s, wait_s (NaN where nobody's wait was measured), over
    (whether the wait passes its share; rounding of times is forgiven).
    """
    from capplan.budget import WAITING
    from capplan.results import queue_waits
    from capplan.statistics import quantile as quantile_of

    attempts = result.judged
    waits = queue_waits(attempts, end_s=result.duration_s)
    rows = []
    for c in budget.classes:
        own = waits[(attempts["request_class"] == c.request_class).to_numpy()]
        for layer in WAITING:
            known = own[QUEUES.get(layer, layer)].dropna()
            wait = quantile_of(known, quantile) if len(known) else np.nan
            rows.append((c.request_class, layer, c.shares_s[layer], wait))
    frame = pd.DataFrame(rows, columns=["request_class", "layer", "share_s", "wait_s"])
    return frame.assign(over=frame["wait_s"] > frame["share_s"] * (1 + ROUNDING))


def in_flight_frame(budget: WaitBudget, result: RunResult) -> pd.DataFrame:
    """Return the readings of the number in flight: Little's law, simulated, the upper reading.

    Columns: request_class, reading, in_flight.
    """
    rows = [
        (name, "simulated", _mean_in_flight(result, name))
        for name in budget.readings()["request_class"].unique()
    ]
    simulated = pd.DataFrame(rows, columns=["request_class", "reading", "in_flight"])
    return pd.concat([budget.readings(), simulated], ignore_index=True)


def _mean_in_flight(result: RunResult, name: str) -> float:
    """Return the time average of the requests of a class that are inside, after the warm-up."""
    from capplan.results import per_request

    requests = per_request(result, warmup=True)
    own = requests[requests["request_class"] == name]
    last = float(requests["intended_start_s"].max())
    begin = own["intended_start_s"].clip(result.judged_from_s, last)
    end = own["finish_s"].fillna(result.duration_s).clip(result.judged_from_s, last)
    span = last - result.judged_from_s
    return float((end - begin).sum() / span) if span > 0 else np.nan


def finding_table(budget: WaitBudget) -> pd.DataFrame:
    """Return what is broken, or could not be checked, the most severe first."""
    return pd.DataFrame(
        [
            {
                "outcome": f.outcome,
                "rule": rule_words(f.rule),
                "class": f.request_class or "all",
                "field": f.field,
                "value": _text(f.value),
                "limit": _text(f.limit),
                "next action": f.next_action,
            }
            for f in budget.findings
        ],
        columns=["outcome", "rule", "class", "field", "value", "limit", "next action"],
    )


def _text(value: float | str | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def remaining(budget: ClassBudget) -> float:
    """Return what a class may wait, for sorting: one that promised nothing comes last, s."""
    return np.inf if np.isnan(budget.remaining_s) else budget.remaining_s


def feasible_table(budget: WaitBudget) -> pd.DataFrame:
    """Return up to which quantile of its lengths each class has anything left to wait."""
    return pd.DataFrame(
        [
            {
                "request_class": c.request_class,
                "prompts up to_fraction": c.feasible_prompt_quantile,
                "outputs up to_fraction": c.feasible_output_quantile,
                "TPOT_s": c.tpot_s,
                "TPOT promise_s": c.tpot_promise_s,
            }
            for c in budget.classes
        ]
    )


def limit_table(scenario: Scenario) -> pd.DataFrame:
    """Return each queue of the scenario with its limits, its owner, and what it does when full."""
    gateway = scenario.gateway
    queues: list[tuple[str, Queue, str]] = [("gateway", gateway.queue, gateway.owner)]
    for pool in scenario.pools:
        queues.append((f"{pool.name}: service queue", pool.queue, pool.owner))
        queues.append((f"{pool.name}: scheduler queue", pool.batching.scheduler, pool.owner))
    return pd.DataFrame(
        [
            {
                "layer": layer,
                "owner": queue.owner or owner or "nobody",
                "length": "unlimited" if queue.length is None else str(queue.length),
                "longest wait_s": np.nan if queue.wait_limit_s is None else queue.wait_limit_s,
                "order": queue.order,
                "when full": f"{queue.status}, Retry-After {queue.retry_after_s:g} s",
            }
            for layer, queue, owner in queues
        ]
    )
