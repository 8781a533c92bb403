"""Random faults, and breakers that react to them."""

from functools import cache

from hypothesis import strategies as st
from strategies.batching import maybe

AT_REPLICAS = [
    {"kind": "hang", "for_s": 0.4},
    {"kind": "hang", "detect_s": 0.1},
    {"kind": "hang", "detect_s": 0.1, "restart_s": 0.2, "count": 2},
    {"kind": "slow", "for_s": 0.5, "factor": 3.0},
    {"kind": "node_loss", "down_s": 0.3},
    {"kind": "model_reload", "load_s": 0.2, "drain_s": 0.1},
    {"kind": "router_blind", "for_s": 0.8},
]
AT_CALLERS = [
    {"kind": "generator_limit", "rate_rps": 20.0, "for_s": 1.0},
    {"kind": "generator_limit", "connections": 3},
]
BY_LAW = [
    {"kind": "crash", "mtbf_s": 0.8, "mttr_s": 0.2},
    {"kind": "hang", "mtbf_s": 0.8, "mttr_s": 0.2},
    {"kind": "slow", "mtbf_s": 0.8, "mttr_s": 0.2},
]


@cache
def faults():
    where, when = st.sampled_from([None, "a", "b"]), st.floats(0, 3)
    crash = {"count": st.integers(1, 3), "down_s": maybe() | st.floats(0.05, 2)}
    return st.one_of(
        st.fixed_dictionaries({"pool": where, "at_s": when} | crash),
        st.builds(
            lambda fault, pool, at_s: fault | {"pool": pool, "at_s": at_s},
            st.sampled_from(AT_REPLICAS), where, when,
        ),
        st.builds(lambda fault, at_s: fault | {"at_s": at_s}, st.sampled_from(AT_CALLERS), when),
        st.builds(lambda fault, pool: fault | {"pool": pool}, st.sampled_from(BY_LAW), where),
    )  # fmt: skip


BUNDLED = {"above": "default", "below": "default"}
"""A rule of a bundled set may stand where it can act in no pool."""


@cache
def breakers(index):
    """Return a rule of every kind of metric and action; where it can't act, it does not."""
    classes = st.sampled_from([[], [], ["chat"], ["embed"]])
    watched = [
        {"metric": "queue_length", "above": 0},
        {"metric": "in_flight", "above": 1, "of": "gateway"},
        {"metric": "running", "below": 2},
        {"metric": "busy_fraction", "above": 0.3},
        {"metric": "refused_rps", "above": 0},
        {"metric": "e2e_s", "quantile": 0.5, "min_samples": 2, "window_s": 1.0, "above": 0.1},
        {"metric": "fragmentation_fraction", "above": 0.05},
    ]
    watched = [one | {"origins": BUNDLED} for one in watched]
    action = st.one_of(
        st.fixed_dictionaries({"kind": st.sampled_from(["pause_and_compact", "start_standby"])}),
        st.sampled_from(
            [
                {"kind": "shrink_batch", "max_num_seqs": 1},
                {"kind": "shrink_batch", "max_num_batched_tokens": 40},
                {"kind": "shrink_batch", "max_batch_size": 1},
            ]
        ),
        st.fixed_dictionaries({"kind": st.just("greedy"), "classes": classes}),
        st.fixed_dictionaries(
            {
                "kind": st.just("refuse"),
                "classes": classes,
                "at": st.sampled_from(["service_queue", "gateway"]),
            }
        ),
        st.fixed_dictionaries(
            {"kind": st.just("max_tokens"), "tokens": st.integers(1, 30), "classes": classes}
        ),
        st.fixed_dictionaries(
            {"kind": st.just("route"), "to": st.sampled_from("ab"), "classes": classes}
        ),
    )
    return st.fixed_dictionaries(
        {
            "name": st.just(f"g{index}"),
            "tier": st.sampled_from([None, 1, index + 1]),
            "when": st.sampled_from(watched),
            "for_s": st.sampled_from([0.0, 0.2]),
            "then": st.lists(action, min_size=1, max_size=2),
            "release": st.fixed_dictionaries({"after_s": st.sampled_from([None, 0.4])}),
            "cool_down_s": st.sampled_from([0.0, 0.3]),
            "check_every_s": st.sampled_from([0.05, 0.11, 0.5]),
        }
    )


@st.composite
def protected(draw):
    """Return up to three rules; the first may be of the first tier, for the others."""
    found = [draw(breakers(index)) for index in range(draw(st.sampled_from([0, 1, 3])))]
    if found:
        found[0]["tier"] = 1
    return found
