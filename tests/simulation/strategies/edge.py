"""Random callers and gateways."""

from functools import cache

from hypothesis import strategies as st
from strategies.batching import PLAIN, maybe, queues


@cache
def classes(name, pool):
    retry = st.fixed_dictionaries(
        {
            "max_attempts": st.integers(1, 4),
            "attempt_timeout_s": maybe() | st.floats(0.05, 2.0),
            "backoff_s": st.sampled_from([0.0, 0.09]),
            "multiplier": st.sampled_from([1.0, 2.0]),
            "jitter": st.booleans(),
            "honour_retry_after": st.booleans(),
            "heeds_final": st.booleans(),
            "retry_on": st.lists(st.sampled_from(["rejected", "timed_out", "failed"]), unique=True),
            "budget": maybe() | st.sampled_from([{"min_per_s": 0.5}, {"per_tenant": True}]),
            "max_retry_after_s": st.sampled_from([None, 0.2]),
        }
    )
    hedge = st.sampled_from([{"after_s": 0.04, "most": 2}, {"after_quantile": 0.5}])
    return st.fixed_dictionaries(
        {
            "name": st.just(name),
            "pool": st.just(pool),
            "priority": st.integers(0, 2),
            "streaming": st.booleans(),
            "promises": st.fixed_dictionaries({"deadline_s": maybe() | st.floats(0.1, 3.0)}),
            "retry": retry,
            "hedge": maybe() | hedge,
            "poisoned_fraction": st.sampled_from([0.0, 0.0, 0.1]),
            "response_cached_fraction": st.just(0.3),
        }
    )


@cache
def gateways():
    both = st.builds(lambda plain, more: plain | more, plain_gateways(), st.just({}) | guarded())
    return both.map(acting)


def acting(gateway):
    """Return a gateway without what would not act in it, which is an error."""
    bounded = gateway["queue"]["length"] and gateway["concurrency"]
    idle = {
        "overhead_concurrency": gateway["overhead_s"] == 0,
        "reclaim": not gateway.get("quotas"),
        "when_full": not bounded,
    }
    return {name: value for name, value in gateway.items() if not idle.get(name)}


@cache
def guarded():
    """Return what a gateway can limit by tenant, class, priority, token and connection."""
    length = st.integers(1, 6)
    queue = st.builds(
        lambda one, n, order: one | {"length": n, "order": order},
        queues(PLAIN), maybe() | length, st.sampled_from(["fifo", "priority"]),
    )  # fmt: skip
    more = {"lendable_fraction": 0.0}, {"borrowing_limit": 1}
    shares = [{"tenant": "x", "concurrency": 2}, {"tenant": "y", "concurrency": 1}]
    lent = [share | extra for share, extra in zip(shares, more, strict=True)]
    rates = {"name": "r", "tenant": "x", "rate_rps": 5.0, "burst": 3}
    tokens = {"name": "t", "request_class": "chat", "rate_tokens_per_s": 900.0}
    tokens |= {"burst_tokens": 300, "output_estimate_tokens": 20}
    accept = {"rate_per_s": st.sampled_from([None, 30.0]), "backlog": length}
    accept |= {"max_open": maybe() | length}
    return st.fixed_dictionaries(
        {
            "concurrency": st.integers(4, 8),
            "queue": queue,
            "quotas": st.sampled_from([[], shares, lent]),
            "reserves": st.sampled_from([[], [{"priority": 0, "concurrency": 1}]]),
            "reclaim": st.sampled_from(["next_free", "cancel"]),
            "when_full": st.sampled_from(["refuse_new", "displace_lowest"]),
            "overhead_concurrency": maybe() | st.integers(1, 2),
            "max_prompt_tokens": st.sampled_from([None, 150]),
            "drop_final_retries": st.booleans(),
            "retry_budget": st.sampled_from(
                [None, {"fraction": 0.2, "min_per_s": 0.0, "window_s": 1.0}]
            ),
            "rate_limits": st.sampled_from([[], [rates], [{"rate_rps": 20.0}, rates]]),
            "token_limits": st.sampled_from([[], [tokens]]),
            "allowances": st.sampled_from([[], [{"name": "a", "tokens": 900, "period_s": 1.0}]]),
            "accept": maybe()
            | st.fixed_dictionaries(accept).filter(
                lambda one: one["rate_per_s"] or one["max_open"]
            ),
        }
    )


@cache
def plain_gateways():
    kept = st.sampled_from([{}, {"lookup_s": 0.03, "capacity": 3, "ttl_s": 0.5}])
    limit = st.fixed_dictionaries({"rate_rps": st.floats(2, 40), "burst": st.integers(1, 5)})
    return st.fixed_dictionaries(
        {
            "response_cache": maybe() | kept,
            "rate_limits": st.just([]) | limit.map(lambda one: [one]),
            "concurrency": maybe() | st.integers(1, 10),
            "queue": queues(),
            "overhead_s": st.sampled_from([0.0, 0.02]),
            "overhead_per_in_flight_s": st.sampled_from([0.0, 0.002]),
            "overhead_fraction": st.sampled_from([0.0, 0.2]),
        }
    )
