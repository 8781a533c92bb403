"""The mix against each class alone, on the same requests."""

import math

import numpy as np
import pytest
from colocation import RATIOS, slowdown

from capplan.scenario.files import load_scenario, with_values
from capplan.traffic.draw import draw
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


def traces_of_three_classes(trace_of, replications, *, n=1600):
    traces = []
    for replication in range(replications):
        rng = stream(31, replication, 0)
        names = rng.choice(["a", "b", "c"], n, p=[0.25, 0.5, 0.25])
        arrival = np.cumsum(rng.exponential(1 / 0.8, n))
        traces.append(trace_of(arrival, size=rng.exponential(1.0, n), request_class=names))
    return traces


def test_two_classes_that_share_a_host_are_as_slow_as_processor_sharing_says(shared, trace_of):
    """Alone E[S] / (1 - own load), in the mix E[S] / (1 - both); Kleinrock II, section 4.4."""
    found = slowdown(shared, traces=traces_of_three_classes(trace_of, 5), confidence=0.99)
    mix = 1 / (1 - 0.6)
    for name, own in (("a", 0.2), ("b", 0.4)):
        row = found.loc[name]
        known = mix * (1 - own)
        assert row["e2e_slowdown_low"] <= known <= row["e2e_slowdown_high"]
        assert row["e2e_slowdown_high"] - row["e2e_slowdown_low"] < 0.5 * known
        assert row["e2e_mix_s"] == pytest.approx(mix, rel=0.15)
        assert row["hosts"] == "h"
    # b is more of the load, so its company costs it less.
    assert found.loc["a", "e2e_slowdown"] > found.loc["b", "e2e_slowdown"]


def test_a_class_that_shares_nothing_is_exactly_as_fast(shared, trace_of):
    found = slowdown(shared, traces=traces_of_three_classes(trace_of, 1))
    row = found.loc["c"]
    assert [row[ratio] for ratio in RATIOS] == [1.0, 1.0, 1.0]
    assert row["hosts"] == ""
    assert math.isinf(row["e2e_slowdown_low"])


def test_sharing_a_pool_is_no_slowdown_of_the_host(build, trace_of):
    scenario = build(
        classes=[{"name": "a", "pool": "p"}, {"name": "b", "pool": "p"}],
        pools=[pool("p") | {"replicas": 1}],
        hosts=[{"name": "h"}],
    )
    rng = stream(37, 0, 0)
    trace = trace_of(np.cumsum(rng.exponential(2.0, 400)), size=1.0, request_class=["a", "b"] * 200)
    found = slowdown(scenario, traces=[trace])
    assert (found["e2e_slowdown"] > 1.1).all()
    assert (found["host_slowdown"] == 1.0).all()
    assert found["service_slowdown"].tolist() == pytest.approx([1.0, 1.0])


def test_the_bundled_mix_slows_only_classes_that_share_a_host():
    scenario = load_scenario(
        "mixed-modality", values={"traffic.duration_s": 240.0, "warmup_s": 30.0}
    )
    traces = [draw(scenario, seed=1)]
    found = slowdown(scenario, traces=traces, seed=1)
    shared = found[found["hosts"] != ""]
    assert len(shared) >= 3
    assert (shared["service_slowdown"] > 0.99).all()
    assert shared["host_slowdown"].max() > 1.01
    apart = with_values(scenario, {f"pools.{p}.hosts": [] for p in set(shared["pool"])})
    for ratio in slowdown(apart, traces=traces, seed=1)["host_slowdown"]:
        assert ratio == 1.0
