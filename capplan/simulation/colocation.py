"""What sharing costs each class: the mix against each class alone, on the same requests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from capplan.results import per_request
from capplan.scenario.files import with_values
from capplan.simulation.run import simulate
from capplan.statistics import replication_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

WAYS = ("mix", "apart", "alone")
"""``mix``: as the scenario says. ``apart``: the same requests, but every pool has machines of its
own, with room for whatever it runs. ``alone``: only the requests of one class, nobody else in the
system; on a host with too little for one batch, a class slows itself there as well."""
RATIOS = {
    "service_slowdown": ("service_s", "alone"),
    "e2e_slowdown": ("e2e_s", "alone"),
    "host_slowdown": ("e2e_s", "apart"),
}
"""Each slowdown: the mix's mean of a figure over that of another way."""


def slowdown(
    scenario: Scenario,
    *,
    replications: int = 5,
    seed: int = 0,
    traces: Sequence[Trace] | None = None,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Return how much slower each class is in the mix than alone, and than without shared hosts.

    The trace of a replication is drawn once; alone, a class sends its own requests of it at the
    same times (common random numbers), so a ratio is due to the company and not to chance. All
    means are over successes past the warm-up, so the share of successes stands beside them.

    Parameters
    ----------
    scenario
        The mix; its ``hosts``, ``pools[].hosts`` and ``classes[].demand`` say what is shared.
    replications, seed
        How many replications, and what names their random numbers.
    traces
        One drawn trace per replication; None draws them.
    confidence
        Of the intervals of the slowdowns, over replications; that of one is unbounded.

    Returns
    -------
    DataFrame
        One row per class that has requests: ``request_class``, ``pool``, ``hosts`` (names,
        joined), ``requests``; for each of ``WAYS`` the means over replications
        ``service_…_s`` (first batch to last token), ``e2e_…_s`` and ``success_…_fraction``; and
        ``service_slowdown``, ``e2e_slowdown``, ``host_slowdown``, each with ``…_low`` and
        ``…_high``. A ratio without a success on one of its sides is NaN.

    Raises
    ------
    ValueError
        When the number of traces is not that of the replications, or below one.
    """
    import pandas as pd

    drawn = _traces(scenario, replications, seed, traces)
    apart = _apart(scenario)
    rows: list[dict[str, object]] = []
    for index, trace in enumerate(drawn):
        both = {
            "mix": _by_class(simulate(scenario, trace=trace, seed=seed, replication=index)),
            "apart": _by_class(simulate(apart, trace=trace, seed=seed, replication=index)),
        }
        for name in both["mix"].index:
            own = trace.frame["request_class"] == name
            only = replace(trace, frame=trace.frame[own].reset_index(drop=True))
            alone = _by_class(simulate(scenario, trace=only, seed=seed, replication=index))
            found = {way: table.loc[name] for way, table in (both | {"alone": alone}).items()}
            rows.append({"request_class": name, **_figures(found)})
    return _summary(pd.DataFrame(rows), scenario, confidence)


def _traces(
    scenario: Scenario, replications: int, seed: int, traces: Sequence[Trace] | None
) -> list[Trace]:
    from capplan.traffic.draw import draw

    if replications < 1 or (traces is not None and len(traces) != replications):
        given = "none" if traces is None else len(traces)
        msg = f"one trace per replication, at least one; got {replications} and {given}"
        raise ValueError(msg)
    if traces is not None:
        return list(traces)
    return [draw(scenario, seed=seed, replication=index) for index in range(replications)]


def _apart(scenario: Scenario) -> Scenario:
    values: dict[str, object] = {
        f"pools.{pool.name}.hosts": [] for pool in scenario.pools if pool.hosts
    }
    return with_values(scenario, values)


def _by_class(run: RunResult) -> pd.DataFrame:
    """Return requests, success share, mean service and E2E time of each class."""
    requests = per_request(run)
    log = run.judged
    log = log[log["outcome"] == "succeeded"]
    service_s = (log["decode_end_s"] - log["batch_in_s"]).groupby(log["request_class"]).mean()
    groups = requests.groupby("request_class", sort=False)
    table = groups.agg(requests=("request_id", "size"), e2e_s=("e2e_s", "mean"))
    succeeded = requests["outcome"].eq("succeeded").groupby(requests["request_class"]).mean()
    return table.assign(service_s=service_s, success_fraction=succeeded)


def _figures(found: dict[str, pd.Series]) -> dict[str, float]:
    row = {"requests": float(found["mix"]["requests"])}
    for figure in ("service_s", "e2e_s", "success_fraction"):
        name, _, unit = figure.rpartition("_")
        row |= {f"{name}_{way}_{unit}": float(found[way][figure]) for way in WAYS}
    for ratio, (figure, way) in RATIOS.items():
        row[ratio] = float(found["mix"][figure] / found[way][figure])
    return row


def _summary(rows: pd.DataFrame, scenario: Scenario, confidence: float) -> pd.DataFrame:
    import pandas as pd

    table = []
    for name, group in rows.groupby("request_class", sort=False):
        pool = scenario.pool_of(str(name))
        row = {
            "request_class": name,
            "pool": pool.name,
            "hosts": ", ".join(dict.fromkeys(pool.hosts)),
            "requests": int(group["requests"].sum()),
        }
        kept = (*RATIOS, "request_class", "requests")
        plain = [str(column) for column in group if column not in kept]
        row |= {column: float(group[column].mean()) for column in plain}
        for ratio in RATIOS:
            estimate = replication_mean(group[ratio].to_numpy(), confidence=confidence)
            row |= {ratio: estimate.value, f"{ratio}_low": estimate.low}
            row[f"{ratio}_high"] = estimate.high
        table.append(row)
    return pd.DataFrame(table)
