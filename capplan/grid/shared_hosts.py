"""What classes that share a host do to each other: each in the mix against itself alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from capplan.display import Displayed
from capplan.formatting import counted, format_value, listed
from capplan.results import per_request
from capplan.results.headline import summary
from capplan.simulation import simulate

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

FIGURES = ("good_fraction", "e2e_p50_s", "e2e_p99_s")
COLUMNS = ("host", "request_class", "requests",
           *(f"{when}_{name}" for name in FIGURES for when in ("in_mix", "alone")))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostSharing(Displayed):
    """Each class of a shared host in the mix and alone: ``frame`` has a row for each of them."""

    frame: pd.DataFrame

    def table(self) -> pd.DataFrame:
        """Return good requests and E2E (a failure as infinite), in the mix and alone."""
        return self.frame

    def summary(self) -> str:
        """Return which class the others on its host cost most, in a sentence."""
        if self.frame.empty:
            return "No host is shared by several classes that have requests."
        cost = self.frame["alone_good_fraction"] - self.frame["in_mix_good_fraction"]
        slower = self.frame["in_mix_e2e_p99_s"] / self.frame["alone_e2e_p99_s"]
        of = self.frame.assign(cost=cost, slower=slower.fillna(1.0))
        worst = of.sort_values(["cost", "slower"], ascending=False).iloc[0]
        shares = (worst[f"{when}_good_fraction"] for when in ("in_mix", "alone"))
        tails = (worst[f"{when}_e2e_p99_s"] for when in ("in_mix", "alone"))
        good = " against ".join(format_value(float(v), "_fraction") for v in shares)
        tail = " against ".join(format_value(float(v), "_s") for v in tails)
        return (
            f"{counted(self.frame['host'].nunique(), 'host')} shared by "
            f"{listed(self.frame['request_class'])}. The mix costs {worst['request_class']} most: "
            f"{good} alone keep every promise, its E2E p99 is {tail}."
        )


def host_sharing(result: RunResult) -> HostSharing:
    """Return each class of a shared host in this run against itself alone.

    Alone, it sends the same requests at the same moments to the same service, without those of the
    other classes; so their common pool is its own too. One more simulation for each such class.
    """
    trace = cast("Trace", result.trace)
    mixed = per_request(result)
    rows = []
    alone: dict[str, dict[str, float]] = {}
    for host, names in shared(result.scenario).items():
        present = [name for name in names if (mixed["request_class"] == name).any()]
        for name in present if len(present) > 1 else ():
            if name not in alone:
                own = trace.frame[trace.frame["request_class"] == name].reset_index(drop=True)
                only = simulate(
                    result.scenario, trace=replace(trace, frame=own), seed=result.seed,
                    replication=result.replication,
                )  # fmt: skip
                alone[name] = _figures(per_request(only), "alone")
            mine = mixed[mixed["request_class"] == name]
            row: dict[str, Any] = {"host": host, "request_class": name, "requests": len(mine)}
            rows.append(row | _figures(mine, "in_mix") | alone[name])
    return HostSharing(frame=pd.DataFrame(rows, columns=COLUMNS))


def shared(scenario: Scenario) -> dict[str, list[str]]:
    """Return the classes on each host that several use, by host."""
    on: dict[str, list[str]] = {host.name: [] for host in scenario.hosts}
    for c in scenario.classes:
        for host in dict.fromkeys(scenario.pool_of(c.name).hosts):
            on[host].append(c.name)
    return {host: names for host, names in on.items() if len(names) > 1}


def _figures(requests: pd.DataFrame, when: str) -> dict[str, float]:
    tail = summary(requests["e2e_censored_s"])
    values = (float(requests["good"].mean(skipna=False)), tail["p50"], tail["p99"])
    return {f"{when}_{name}": value for name, value in zip(FIGURES, values, strict=True)}
