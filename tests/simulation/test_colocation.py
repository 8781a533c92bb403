"""The mix against each class alone, on the same requests."""

import math

import numpy as np
import pytest

from capplan.scenario.files import load_scenario, with_values
from capplan.simulation import slowdown
from capplan.simulation.colocation import RATIOS
from capplan.traffic.streams import stream


def pool(name, host="h"):
    return {
        "name": name,
        "replicas": 25,
        "hosts": [host] if host else [],
        "router": {"max_in_flight": 1},
        "batching": {
            "kind": "dynamic",
            "max_batch_size": 1,
            "service": {"base_s": 1e-9, "per_size_s": 1.0},
        },
    }


@pytest.fixture(name="shared")
def _shared(build):
    """Two classes on pools of their own that share one host; a third stands apart."""
    demand = {"compute_units": 1.0}
    return build(
        classes=[
            {"name": "a", "pool": "a", "demand": demand},
            {"name": "b", "pool": "b", "demand": demand},
            {"name": "c", "pool": "c", "demand": demand},
        ],
        pools=[pool("a"), pool("b"), pool("c", host=None)],
        hosts=[{"name": "h"}],
        warmup_s=300.0,
    )


def crowd(trace_of, replications, *, n=1600):
    traces = []
    for replication in range(replications):
        rng = stream(31, replication, 0)
        names = rng.choice(["a", "b", "c"], n, p=[0.25, 0.5, 0.25])
        arrival = np.cumsum(rng.exponential(1 / 0.8, n))
        traces.append(trace_of(arrival, size=rng.exponential(1.0, n), request_class=names))
    return traces


def test_two_classes_that_share_a_host_are_as_slow_as_processor_sharing_says(shared, trace_of):
    """Alone E[S] / (1 - own load), in the mix E[S] / (1 - both); Kleinrock II, section 4.4."""
    found = slowdown(shared, replications=5, traces=crowd(trace_of, 5), confidence=0.99).set_index(
        "request_class"
    )
    mix = 1 / (1 - 0.6)
    for name, own in (("a", 0.2), ("b", 0.4)):
        row = found.loc[name]
        known = mix * (1 - own)
        assert row["e2e_slowdown_low"] <= known <= row["e2e_slowdown_high"]
        assert row["e2e_slowdown_high"] - row["e2e_slowdown_low"] < 0.5 * known
        assert row["e2e_mix_s"] == pytest.approx(mix, rel=0.15)
        assert row["success_mix_fraction"] == row["success_alone_fraction"] == 1.0
        assert row["hosts"] == "h"
    # b is more of the load, so its company costs it less.
    assert found.loc["a", "e2e_slowdown"] > found.loc["b", "e2e_slowdown"]


def test_who_shares_nothing_is_exactly_as_fast(shared, trace_of):
    found = slowdown(shared, replications=1, traces=crowd(trace_of, 1)).set_index("request_class")
    row = found.loc["c"]
    assert [row[ratio] for ratio in RATIOS] == [1.0, 1.0, 1.0]
    assert row["hosts"] == ""
    assert math.isinf(row["e2e_slowdown_low"])
    with pytest.raises(ValueError, match="one trace per replication"):
        slowdown(shared, replications=2, traces=crowd(trace_of, 1))


def test_company_in_one_pool_is_told_apart_from_company_on_one_host(build, trace_of):
    scenario = build(
        classes=[{"name": "a", "pool": "p"}, {"name": "b", "pool": "p"}],
        pools=[pool("p") | {"replicas": 1}],
        hosts=[{"name": "h"}],
    )
    rng = stream(37, 0, 0)
    trace = trace_of(np.cumsum(rng.exponential(2.0, 400)), size=1.0, request_class=["a", "b"] * 200)
    found = slowdown(scenario, replications=1, traces=[trace])
    assert (found["e2e_slowdown"] > 1.1).all()
    assert (found["host_slowdown"] == 1.0).all()
    assert found["service_slowdown"].tolist() == pytest.approx([1.0, 1.0])


def test_the_bundled_mix_slows_those_who_share_and_nobody_else():
    scenario = load_scenario(
        "mixed-modality", values={"traffic.duration_s": 240.0, "warmup_s": 30.0}
    )
    found = slowdown(scenario, replications=1, seed=1).set_index("request_class")
    shared = found[found["hosts"] != ""]
    assert len(shared) >= 3
    assert (shared["service_slowdown"] > 0.99).all()
    assert shared["host_slowdown"].max() > 1.01
    apart = with_values(scenario, {f"pools.{p}.hosts": [] for p in set(shared["pool"])})
    for ratio in slowdown(apart, replications=1, seed=1)["host_slowdown"]:
        assert ratio == 1.0
