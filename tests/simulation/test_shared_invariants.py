"""What holds in every run of users who wait and pools that share hosts, whatever the scenario."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capplan.results.books import check_books
from capplan.results.segments import segments
from capplan.scenario.files import with_values
from capplan.simulation import simulate
from capplan.traffic.draw import draw

STEP = {
    "kind": "linear",
    "base_s": 4e-3,
    "per_prefill_token_s": 1e-4,
    "per_sequence_s": 1e-3,
    "per_context_token_s": 1e-6,
}
BATCHING = {
    "llm": {"kind": "continuous", "max_num_seqs": 4, "max_num_batched_tokens": 300,
            "max_model_len": 300, "kv_blocks": 40, "step_time": STEP},
    "media": {"kind": "dynamic", "max_batch_size": 3, "max_queue_delay_s": 0.05,
              "service": {"base_s": 0.2, "per_item_s": 0.05}},
}  # fmt: skip
TOKENS = {"kind": "lognormal", "p50_tokens": 40, "p95_tokens": 90, "max_tokens": 140}

FAULTS = [
    {"pool": "media", "at_s": 5.0, "down_s": 2.0},
    {"kind": "node_loss", "host": "h", "at_s": 6.0, "down_s": 1.0},
    {"kind": "slow", "pool": "llm", "at_s": 2.0, "for_s": 5.0, "factor": 3.0},
    {"kind": "hang", "pool": "media", "at_s": 4.0, "for_s": 2.0, "count": 2},
    {"kind": "hang", "pool": "llm", "at_s": 4.0, "detect_s": 0.5, "restart_s": 0.5},
    {"kind": "hang", "pool": "llm", "mtbf_s": 3.0, "mttr_s": 0.5},
    {"kind": "generator_limit", "at_s": 1.0, "for_s": 3.0, "rate_rps": 2.0},
]

amounts = st.sampled_from([0.0, 0.3, 1.0, 2.5])
capacities = st.none() | st.sampled_from([0.5, 1.0, 3.0, 50.0])
rates = {
    "compute_units": amounts,
    "io_bytes_per_s": amounts,
    "network_bytes_per_s": amounts,
}


def request_class(name):
    retry = {
        "max_attempts": st.integers(1, 3),
        "attempt_timeout_s": st.none() | st.floats(0.1, 2.0),
        "backoff_s": st.sampled_from([0.0, 0.2]),
        "retry_on": st.just(["rejected", "timed_out", "failed"]),
    }
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "pool": st.just(name),
            "prompt_tokens": st.just(TOKENS),
            "output_tokens": st.just(TOKENS),
            "promises": st.fixed_dictionaries({"deadline_s": st.none() | st.floats(0.2, 4.0)}),
            "retry": st.fixed_dictionaries(retry),
            "demand": st.fixed_dictionaries(rates),
        }
    )


def a_pool(name):
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "replicas": st.integers(1, 3),
            "hosts": st.sampled_from([[], ["h"], ["h", "g"]]),
            "queue": st.fixed_dictionaries(
                {"length": st.none() | st.integers(0, 4), "wait_limit_s": st.none() | st.just(0.7)}
            ),
            "router": st.fixed_dictionaries({"max_in_flight": st.none() | st.integers(1, 4)}),
            "batching": st.just(BATCHING[name]),
            "load_bandwidth_bytes_per_s": st.just(1.0),
            "model_load": st.none() | st.just({"bytes": 2.0, "over": "both", "start_s": 0.1}),
        }
    )


think = st.sampled_from([{"kind": "exponential", "mean_s": 1.0}, {"kind": "fixed", "seconds": 0.5}])
closed = st.fixed_dictionaries(
    {
        "kind": st.just("closed"),
        "users": st.integers(1, 12),
        "think": think,
        "ramp_s": st.sampled_from([0.0, 5.0]),
        "session_requests": st.none() | st.just(3.0),
    }
)
opened = st.just({"kind": "steady", "rate_rps": 6.0})


@st.composite
def scenarios(draw_):
    names = list(BATCHING)
    host = {rate: capacities for rate in rates if rate != "compute_units"}
    machines = st.fixed_dictionaries(host | {"compute_units": st.sampled_from([0.5, 1.0, 4.0])})
    return {
        "classes": [draw_(request_class(name)) for name in names],
        "pools": [draw_(a_pool(name)) for name in names],
        "hosts": [{"name": name} | draw_(machines) for name in ("h", "g")],
        "traffic": {"shape": draw_(closed | opened), "duration_s": 15.0},
        "network": draw_(
            st.fixed_dictionaries(
                {
                    "one_way_s": st.sampled_from([0.0, 0.02]),
                    "handshake_s": st.sampled_from([0.0, 0.05]),
                    "connections": st.sampled_from(["fresh", "long_lived"]),
                }
            )
        ),
        "faults": draw_(st.lists(st.sampled_from(FAULTS), max_size=3)),
    }


@given(data=scenarios(), seed=st.integers(0, 99))
@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_books_balance_and_users_wait_for_their_answers(build, data, seed):
    scenario = build(**data)
    trace = draw(scenario, seed=seed)
    run = simulate(scenario, trace=trace, seed=seed)
    check_books(run)
    log = run.requests
    assert not log["outcome"].eq("in_flight").any()
    done = log[log["outcome"] == "succeeded"]
    parts = segments(done)
    took = done["finish_s"] - done["intended_start_s"]
    np.testing.assert_allclose(parts.sum(axis=1), took, atol=1e-9)
    assert (parts.to_numpy() > -1e-9).all()
    assert simulate(scenario, trace=trace, seed=seed).requests.equals(log)
    if scenario.traffic.shape.kind == "closed":
        check_users(trace, log)


def check_users(trace, log):
    """Each request starts exactly a think time after the last attempt of the one before."""
    ends = log.groupby("request_id")["finish_s"].max()
    starts = log.groupby("request_id")["intended_start_s"].min()
    for _, rows in trace.frame.groupby("user"):
        sent = rows[rows["request_id"].isin(starts.index)]
        begin = starts[sent["request_id"]].to_numpy()
        over = ends[sent["request_id"]].to_numpy()
        np.testing.assert_allclose(begin[1:], over[:-1] + sent["think_s"].to_numpy()[1:])
        assert (begin < trace.duration_s).all()
        if len(sent) < len(rows):
            next_think = rows["think_s"].iloc[len(sent)]
            assert over[-1] + next_think >= trace.duration_s


@given(data=scenarios(), seed=st.integers(0, 99))
@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_no_batch_is_faster_than_at_full_speed_and_a_large_host_changes_nothing(build, data, seed):
    scenario = build(**data | {"faults": []})
    trace = draw(scenario, seed=seed)
    log = simulate(scenario, trace=trace, seed=seed).requests
    media = log[log["request_class"].eq("media") & log["decode_end_s"].notna()]
    at_full_speed = 0.2 + 0.05 * media["batch_size"]
    assert (media["decode_end_s"] - media["batch_in_s"] > at_full_speed - 1e-9).all()
    large = {f"hosts.{h}.{rate}": 1e9 for h in ("h", "g") for rate in rates}
    apart = {f"pools.{p}.hosts": [] for p in BATCHING}
    roomy = simulate(with_values(scenario, large), trace=trace, seed=seed).requests
    alone = simulate(with_values(scenario, apart), trace=trace, seed=seed).requests
    assert roomy.equals(alone)
