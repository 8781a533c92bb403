"""Random faults, and breakers that react to them."""

from functools import cache
from typing import get_args

from hypothesis import strategies as st

from capplan.scenario.breakers import Action
from capplan.scenario.faults import KINDS, ReplicaFault

ACTIONS = [one.model_fields["kind"].default for one in get_args(get_args(Action)[0])]

FIELDS = {
    "crash": [{}, {"down_s": 0.05}, {"down_s": 0.5, "count": 3}],
    "hang": [
        {"for_s": 0.4},
        {"detect_s": 0.1},
        {"detect_s": 0.1, "restart_s": 0.2, "count": 2},
    ],
    "slow": [{"for_s": 0.5, "factor": 3.0}],
    "leak": [{}, {"for_s": 1.5, "kv_tokens_per_s": 300.0, "count": 2}],
    "node_loss": [{"down_s": 0.3}],
    "model_reload": [{"load_s": 0.2, "drain_s": 0.1}],
    "router_blind": [{"for_s": 0.8}],
    "generator_limit": [{"rate_rps": 20.0, "for_s": 1.0}, {"connections": 3}],
}
"""What random faults of a kind state beyond the defaults: nothing, for a kind that is not here."""


@cache
def faults():
    def of_kind(kind):
        where = {"pool": st.sampled_from([None, "a", "b"])} if has_pool(kind) else {}
        own = st.sampled_from(FIELDS.get(kind, [{}]))
        timed = st.fixed_dictionaries({"kind": st.just(kind), "at_s": st.floats(0, 3)} | where)
        found = st.builds(lambda stated, when: stated | when, own, timed)
        if not issubclass(KINDS[kind], ReplicaFault):
            return found
        law = {"kind": st.just(kind), "mtbf_s": st.just(0.8), "mttr_s": st.just(0.2)} | where
        return found | st.fixed_dictionaries(law)

    return st.one_of([of_kind(kind) for kind in KINDS])


def has_pool(kind):
    return "pool" in KINDS[kind].model_fields


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
    fields = {
        "pause_and_compact": {},
        "start_standby": {},
        "refuse": {"at": st.sampled_from(["service_queue", "gateway"]), "classes": classes},
        "max_tokens": {"tokens": st.integers(1, 30), "classes": classes},
        "route": {"to": st.sampled_from("ab"), "classes": classes},
    }
    shrinks = [{"max_num_seqs": 1}, {"max_num_batched_tokens": 40}, {"max_batch_size": 1}]
    action = st.one_of(
        st.sampled_from([{"kind": "shrink_batch"} | limit for limit in shrinks]),
        *(
            st.fixed_dictionaries({"kind": st.just(kind)} | fields.get(kind, {"classes": classes}))
            for kind in ACTIONS
            if kind != "shrink_batch"
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
