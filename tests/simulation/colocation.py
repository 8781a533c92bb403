"""How much slower each class is in the mix than alone, and than without shared hosts."""

from dataclasses import replace

import pandas as pd

from capplan.results import per_request
from capplan.scenario.files import with_values
from capplan.simulation import simulate
from capplan.statistics import replication_mean

RATIOS = {
    "service_slowdown": ("service_s", "alone"),
    "e2e_slowdown": ("e2e_s", "alone"),
    "host_slowdown": ("e2e_s", "apart"),
}
"""Each slowdown: the mean of a figure in the mix over that of another way of running: ``alone``,
with the requests of one class only; ``apart``, with a host for every pool."""


def slowdown(scenario, *, traces, seed=0, confidence=0.95):
    """Return one row per class; each replication runs the same requests in all three ways."""
    apart = with_values(scenario, {f"pools.{p.name}.hosts": [] for p in scenario.pools if p.hosts})
    rows = []
    for index, trace in enumerate(traces):
        mix, far = (
            by_class(simulate(way, trace=trace, seed=seed, replication=index))
            for way in (scenario, apart)
        )
        for name in mix.index:
            own = trace.frame["request_class"] == name
            only = replace(trace, frame=trace.frame[own].reset_index(drop=True))
            alone = by_class(simulate(scenario, trace=only, seed=seed, replication=index))
            others = {"alone": alone.loc[name], "apart": far.loc[name]}
            ratios = {r: mix.loc[name, f] / others[way][f] for r, (f, way) in RATIOS.items()}
            rows.append({"request_class": name, "e2e_mix_s": mix.loc[name, "e2e_s"]} | ratios)
    table = {}
    for name, group in pd.DataFrame(rows).groupby("request_class", sort=False):
        pool = scenario.pool_of(str(name))
        table[name] = {"e2e_mix_s": group["e2e_mix_s"].mean(), "pool": pool.name}
        table[name]["hosts"] = ", ".join(dict.fromkeys(pool.hosts))
        for ratio in RATIOS:
            estimate = replication_mean(group[ratio].to_numpy(), confidence=confidence)
            table[name] |= {ratio: estimate.value, f"{ratio}_low": estimate.low}
            table[name][f"{ratio}_high"] = estimate.high
    return pd.DataFrame(table).T.infer_objects()


def by_class(run):
    """Return the mean service and E2E time of each class, over its successes."""
    log = run.judged[run.judged["outcome"] == "succeeded"]
    service_s = (log["decode_end_s"] - log["batch_in_s"]).groupby(log["request_class"]).mean()
    groups = per_request(run).groupby("request_class", sort=False)
    return groups.agg(e2e_s=("e2e_s", "mean")).assign(service_s=service_s)
