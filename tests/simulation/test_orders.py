"""Orders of the three queues in a run: each layer its own, and no expired request is computed."""

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.simulation import simulate

ORDERS = {
    "fifo": {"order": "fifo"},
    "priority": {"order": "priority"},
    "ageing": {"order": "priority", "ageing_per_s": 0.5},
    "fair": {"order": "weighted_fair", "fair": {"by": "tenant_and_class"}},
    "deadline": {"order": "earliest_deadline"},
    "shortest": {"order": "shortest_prompt", "ageing_per_s": 5.0},
    "turns": {"order": "length_buckets", "buckets": {"bounds_tokens": [40, 80]}},
    "buckets": {
        "order": "length_buckets",
        "buckets": {"bounds_tokens": [40, 80], "turn": "shortest_first"},
    },
}
LINEAR = {
    "kind": "linear",
    "base_s": 0.02,
    "per_prefill_token_s": 1e-4,
    "per_sequence_s": 0.0,
    "per_context_token_s": 0.0,
}
CONTINUOUS = {"kind": "continuous", "max_num_seqs": 2, "kv_blocks": 30, "step_time": LINEAR}
DYNAMIC = {"kind": "dynamic", "max_batch_size": 2, "service": {"base_s": 0.2}}
LEVELS = DYNAMIC | {"priority_levels": 2}


def crowd(trace_of, count=300, rate=20.0, **columns):
    rng = np.random.default_rng(5)
    given = {
        "prompt_tokens": rng.integers(1, 120, count),
        "output_tokens": rng.integers(1, 40, count),
        "tenant": rng.choice(["x", "y"], count).tolist(),
        "priority": rng.integers(0, 3, count),
        "deadline_s": rng.choice([0.4, 1.0, np.nan], count),
    }
    return trace_of(np.cumsum(rng.exponential(1 / rate, count)), **given | columns)


@pytest.mark.parametrize("rules", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("batching", [CONTINUOUS, DYNAMIC, LEVELS], ids=["llm", "batch", "levels"])
@pytest.mark.parametrize("layer", ["gateway", "service", "scheduler"])
def test_an_expired_request_never_reaches_the_accelerator(build, trace_of, layer, batching, rules):
    queue = rules | {"wait_limit_s": 0.3}
    fields = {"batching": batching, "pool": {}}
    if layer == "gateway":
        fields["gateway"] = {"concurrency": 3, "queue": queue}
    elif layer == "service":
        fields["pool"] = {"queue": queue, "router": {"max_in_flight": 3}}
    else:
        fields["batching"] = batching | {"scheduler": queue}
    result = simulate(build(**fields), trace=crowd(trace_of))
    check_conservation(result)
    log = result.requests
    late = log[log["outcome"] == "timed_out"]
    assert (late["reason"] == "wait_limit").any()
    assert (late["reason"] == "deadline").any()
    began = late["batch_in_s"].notna()
    assert not (began & (late["reason"] == "wait_limit")).any()
    assert (late["batch_in_s"][began] <= late["finish_s"][began]).all()
    wasted = late["wasted_tokens"] > 0
    assert not (wasted & ~began).any()


def waits(log, by):
    return (log["batch_in_s"] - log["intended_start_s"]).groupby(log[by]).mean()


@pytest.mark.parametrize("layer", ["gateway", "service", "scheduler"])
def test_each_layer_has_its_own_order(build, trace_of, play, layer):
    """Where the queue of a layer stands in order of priority, the first class hardly waits."""
    queue = {"order": "priority"}
    fields = {"batching": CONTINUOUS | {"max_num_seqs": 1}, "pool": {}}
    if layer == "gateway":
        fields["gateway"] = {"concurrency": 1, "queue": queue}
    elif layer == "service":
        fields["pool"] = {"queue": queue, "router": {"max_in_flight": 1}}
    else:
        fields["batching"] = fields["batching"] | {"scheduler": queue}
    trace = crowd(trace_of, rate=3.0, deadline_s=np.nan)
    ordered = waits(play(build(**fields), trace).requests, "priority")
    assert ordered[0] < 0.1 * ordered[2]
    other = {"gateway": {"queue": queue}} if layer != "gateway" else {"pool": {"queue": queue}}
    same = waits(play(build(**fields | other), trace).requests, "priority")
    assert same.equals(ordered)


def noisy(trace_of):
    """Return a tenant that asks for 2/s beside one that asks for 20/s."""
    times = np.concatenate([np.arange(0, 30, 0.5), np.arange(0, 30, 0.05)])
    names = np.repeat(["quiet", "noisy"], [60, 600])
    order = np.argsort(times, kind="stable")
    return trace_of(times[order], tenant=names[order].tolist(), deadline_s=5.0)


def test_a_noisy_tenant_takes_only_its_share(build, trace_of, play):
    """A server of 10/s: in order of arrival both starve; shared, the quiet one gets all it asks."""
    shares = {}
    for order in ("fifo", "weighted_fair"):
        queue = {"order": order}
        pool = {"queue": queue, "router": {"max_in_flight": 1}}
        batching = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 0.1}}
        tenants = [{"name": "quiet"}, {"name": "noisy"}]
        log = play(build(batching=batching, pool=pool, tenants=tenants), noisy(trace_of)).requests
        good = (log["outcome"] == "succeeded").groupby(log["tenant"]).mean()
        computed = log["batch_in_s"].notna().groupby(log["tenant"]).mean()
        shares[order] = (good["quiet"], computed["noisy"])
    assert shares["fifo"][0] < 0.7
    assert shares["weighted_fair"][0] == 1.0
    assert shares["weighted_fair"][1] == pytest.approx((300 - 60) / 600, abs=0.1)


def test_a_weight_gives_a_share_of_a_saturated_server(build, trace_of, play):
    times = np.sort(np.repeat(np.arange(0, 30, 0.1), 2))
    trace = trace_of(times, tenant=["a", "b"] * 300, deadline_s=4.0)
    fair = {"cost": "requests", "tenants": {"a": 3.0}}
    pool = {
        "queue": {"order": "weighted_fair", "fair": fair},
        "router": {"max_in_flight": 1},
    }
    batching = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 0.2}}
    tenants = [{"name": "a"}, {"name": "b"}]
    log = play(build(batching=batching, pool=pool, tenants=tenants), trace).requests
    counts = log[log["batch_in_s"].between(5, 29)]["tenant"].value_counts()
    assert counts["a"] / counts["b"] == pytest.approx(3.0, abs=0.3)


def test_ageing_bounds_the_wait_that_strict_priority_does_not(build, trace_of, play):
    """A server of 10/s is asked for 11/s of class 0; one request of class 1 comes at 1 s."""
    times = np.append(np.arange(0, 60, 1 / 11), 1.0)
    order = np.argsort(times, kind="stable")
    priority = np.append(np.zeros(len(times) - 1, int), 1)
    trace = trace_of(times[order], priority=priority[order])
    batching = {"kind": "dynamic", "max_batch_size": 1, "service": {"base_s": 0.1}}
    longest = {}
    for ageing in (0.0, 0.2):
        queue = {"order": "priority", "ageing_per_s": ageing}
        pool = {"queue": queue, "router": {"max_in_flight": 1}}
        log = play(build(batching=batching, pool=pool), trace).requests
        low = log[log["priority"] == 1].iloc[0]
        longest[ageing] = low["batch_in_s"] - low["intended_start_s"]
    assert longest[0.0] > 59
    # Passed by those that come within 1 / 0.2 = 5 s: at most 11/s × 6 s ahead of it, 10/s served.
    assert 5.0 < longest[0.2] < 5.0 + (11 - 10) * 6 / 10 + 0.2


def test_the_shortest_prompt_first_shortens_the_mean_wait_of_a_run(build, trace_of, play):
    mean = {}
    for order in ("fifo", "shortest_prompt"):
        batching = {
            "kind": "dynamic",
            "max_batch_size": 1,
            "service": {"base_s": 0.01, "per_size_s": 1e-3},
        }
        pool = {"queue": {"order": order}, "router": {"max_in_flight": 1}}
        log = play(
            build(batching=batching, pool=pool), crowd(trace_of, rate=13, deadline_s=np.nan)
        ).requests
        mean[order] = (log["batch_in_s"] - log["intended_start_s"]).mean()
    assert mean["shortest_prompt"] < 0.8 * mean["fifo"]


@pytest.mark.parametrize("where", ["gateway", "service", "scheduler", "reserved"])
def test_names_that_a_scenario_does_not_have_are_refused(build, where):
    queue = {"order": "weighted_fair", "fair": {"tenants": {"nobody": 2.0}}}
    fields = {
        "gateway": {"gateway": {"queue": queue}},
        "service": {"pool": {"queue": queue}},
        "scheduler": {"batching": CONTINUOUS | {"scheduler": queue}},
        "reserved": {
            "batching": CONTINUOUS | {"reserved": [{"classes": ["nobody"], "fraction": 0.5}]}
        },
    }[where]
    with pytest.raises(ValueError, match=r"one of [a-z, ]+, got 'nobody'"):
        build(**fields)
