"""Random users that wait, and pools that share hosts."""

from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from strategies.batching import STEP, maybe

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
capacities = maybe() | st.sampled_from([0.5, 1.0, 3.0, 50.0])
rates = {
    "compute_units": amounts,
    "io_bytes_per_s": amounts,
    "network_bytes_per_s": amounts,
}


@cache
def request_class(name):
    retry = {
        "max_attempts": st.integers(1, 3),
        "attempt_timeout_s": maybe() | st.floats(0.1, 2.0),
        "backoff_s": st.sampled_from([0.0, 0.19]),
        "retry_on": st.just(["rejected", "timed_out", "failed"]),
    }
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "pool": st.just(name),
            "prompt_tokens": st.just(TOKENS),
            "output_tokens": st.just(TOKENS),
            "promises": st.fixed_dictionaries({"deadline_s": maybe() | st.floats(0.2, 4.0)}),
            "retry": st.fixed_dictionaries(retry),
            "demand": st.fixed_dictionaries(rates),
        }
    )


@cache
def a_pool(name):
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "replicas": st.integers(1, 3),
            "hosts": st.sampled_from([[], ["h"], ["h", "g"]]),
            "queue": st.fixed_dictionaries(
                {"length": maybe() | st.integers(0, 4), "wait_limit_s": maybe() | st.just(0.7)}
            ),
            "router": st.fixed_dictionaries({"max_in_flight": maybe() | st.integers(1, 4)}),
            "batching": st.just(BATCHING[name]),
            "load_bandwidth_bytes_per_s": st.just(1.0),
            "model_load": maybe() | st.just({"bytes": 2.0, "over": "both", "start_s": 0.1}),
        }
    )


think = st.sampled_from([{"kind": "exponential", "mean_s": 1.0}, {"kind": "fixed", "seconds": 0.5}])
closed = st.fixed_dictionaries(
    {
        "kind": st.just("closed"),
        "users": st.integers(1, 12),
        "think": think,
        "ramp_s": st.sampled_from([0.0, 5.0]),
        "session_requests": maybe() | st.just(3.0),
    }
)
opened = st.just({"kind": "steady", "rate_rps": 6.0})


@st.composite
def shared_scenarios(draw_):
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


shared_runs = given(data=shared_scenarios(), seed=st.integers(0, 99))
