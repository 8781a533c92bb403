"""Random pools, some of which scale."""

from functools import cache

from hypothesis import strategies as st
from strategies.batching import (
    continuous,
    dynamic,
    levelled,
    maybe,
    optional,
    queues,
    static,
)


@cache
def elastic():
    """Return what lets the replicas of a pool come and go within seconds."""
    laws = st.sampled_from(
        [{"kind": "fixed", "seconds": s} for s in (0.0, 0.2)]
        + [{"kind": "lognormal", "p50_s": 0.1, "p95_s": 0.5}]
    )
    trigger = {"metric": "queue_length", "source": "external", "target": 2.0}
    metrics = st.sampled_from(
        [
            {"metric": name, "target": target}
            for name, target in (("in_flight", 2.0), ("running", 1.0))
        ]
        + [{"metric": "busy_fraction", "target": 0.5}, trigger]
    )
    keda = {"polling_interval_s": 0.2, "cooldown_s": 0.3}
    rules = st.fixed_dictionaries(
        {
            "max_replicas": st.integers(1, 5),
            "metrics": st.lists(metrics, max_size=1).map(lambda more: [trigger, *more]),
            "sync_period_s": st.sampled_from([0.1, 0.3]),
            "scrape_interval_s": st.just(0.1),
            "metric_lag_s": st.sampled_from([0.0, 0.15]),
            "behavior": st.sampled_from([0.0, 0.4]).map(
                lambda window: {"scale_down": {"stabilization_window_s": window}}
            ),
        }
    )
    zero = rules.map(lambda one: one | {"min_replicas": 0, "event_driven": keda})
    return st.fixed_dictionaries(
        {
            "lifecycle": st.fixed_dictionaries(
                {"provisioning": laws, "model_load": laws, "grace_period_s": st.floats(0, 1)}
            ),
            "autoscaler": rules | zero,
            "standby": maybe() | st.builds(lambda law: {"replicas": 1, "ready": law}, laws),
            "resource_pool": st.just("rack"),
        }
    )


@cache
def pools(name):
    return st.builds(lambda plain, more: plain | more, plain_pools(name), st.just({}) | elastic())


@cache
def plain_pools(name):
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "replicas": st.integers(1, 3),
            "replicas_per_node": st.just(2),
            "step_factors": st.sampled_from([[], [], [1.0, 2.5]]),
            "queue": queues(),
            "router": st.fixed_dictionaries(
                {
                    "policy": st.sampled_from(["round_robin", "least_in_flight", "random"]),
                    "max_in_flight": maybe() | st.integers(1, 6),
                }
            ),
            "batching": continuous() | optional() | dynamic() | levelled() | static(),
        }
    )
