"""Every field of every kind of fault changes the run."""

import numpy as np
import pytest

from capplan.scenario.faults import KINDS
from capplan.scenario.files import with_values
from capplan.simulation import simulate

ONCE = {
    "crash": {"at_s": 1.0, "down_s": 0.5},
    "hang": {"at_s": 1.0, "for_s": 0.8, "detect_s": 0.2, "restart_s": 0.3},
    "slow": {"at_s": 1.0, "for_s": 1.0, "factor": 3.0},
    "leak": {"at_s": 0.5, "for_s": 1.0, "kv_tokens_per_s": 300.0},
    "node_loss": {"pool": "llm", "node": 0, "at_s": 1.0, "down_s": 0.5},
    "model_reload": {"at_s": 0.5, "load_s": 0.4, "drain_s": 0.05},
    "router_blind": {"at_s": 0.5, "for_s": 1.0},
    "generator_limit": {"at_s": 0.5, "for_s": 1.0, "rate_rps": 30.0, "connections": 9},
}
CHANGES = {
    "crash": {"pool": "other", "count": 2, "down_s": 0.2},
    "hang": {"pool": "other", "count": 2, "for_s": 0.1, "detect_s": 0.5, "restart_s": 0.9},
    "slow": {"pool": "other", "count": 2, "for_s": 0.3, "factor": 9.0},
    "leak": {"pool": "other", "count": 2, "for_s": 0.3, "kv_tokens_per_s": 200.0},
    "node_loss": {"pool": "other", "node": 1, "down_s": 0.2},
    "model_reload": {
        "pool": "other",
        "count": 1,
        "max_unavailable": 2,
        "drain_s": 9.0,
        "load_s": 0.7,
        "version": "v2",
    },
    "router_blind": {"pool": "other", "for_s": 0.3},
    "generator_limit": {"rate_rps": 20.0, "connections": 2, "for_s": 0.5},
}
BY_LAW = {"mtbf_s": 0.4, "mttr_s": 0.3}
PAGED = {
    "kind": "continuous",
    "max_num_seqs": 4,
    "max_model_len": 256,
    "kv_blocks": 25,
    "step_time": {
        "kind": "linear", "base_s": 0.01, "per_sequence_s": 0.0, "per_prefill_token_s": 0.0,
        "per_context_token_s": 0.0,
    },
}  # fmt: skip
"""Batches of two to three requests fill the KV."""
HOST = {"kind": "node_loss", "host": "h", "at_s": 1.0, "down_s": 0.5}


@pytest.fixture(name="base")
def _base(build, dynamic):
    pool = {"batching": dynamic(0.05), "replicas_per_node": 1, "replicas": 2}
    return build(
        classes=[
            {"name": name, "pool": pool, "retry": {"max_attempts": 2, "backoff_s": 0.1}}
            for name, pool in (("a", "llm"), ("b", "other"))
        ],
        pools=[{"name": "llm", "hosts": ["h"]} | pool, {"name": "other"} | pool],
        hosts=[{"name": "h"}],
    )


@pytest.fixture(name="trace")
def _trace(trace_of):
    rng = np.random.default_rng(3)
    classes = rng.choice(["a", "b"], 120)
    return trace_of(np.cumsum(rng.exponential(1 / 40, 120)), request_class=classes)


def differ(one, two, trace):
    runs = [simulate(scenario, trace=trace) for scenario in (one, two)]
    same = runs[0].versions == runs[1].versions
    return not (same and runs[0].requests.equals(runs[1].requests))


def changes():
    for kind, stated in ONCE.items():
        once = {"kind": kind} | stated
        for name, value in ({"at_s": 0.8} | CHANGES[kind]).items():
            yield pytest.param(once, once | {name: value}, id=f"{kind}.{name}")
        own = {k: v for k, v in once.items() if k not in ("at_s", "down_s", "restart_s")}
        law = BY_LAW if kind != "model_reload" else {"mtbf_s": BY_LAW["mtbf_s"]}
        if "mttr_s" in law:
            own.pop("for_s", None)
        for name in law:
            yield pytest.param(own | law, own | law | {name: 2 * law[name]}, id=f"{kind}.{name}")
    yield pytest.param({"kind": "node_loss"} | ONCE["node_loss"], HOST, id="node_loss.host")


@pytest.mark.parametrize(("fault", "changed"), list(changes()))
def test_a_field_of_a_fault_changes_the_run(base, trace, fault, changed):
    if fault["kind"] == "leak":
        base = with_values(base, {f"pools.{p}.batching": PAGED for p in ("llm", "other")})
    one, two = (with_values(base, {"faults": [f]}) for f in (fault, changed))
    assert differ(one, two, trace)
    assert differ(base, one, trace)


def test_every_field_of_every_kind_is_tried():
    assert set(ONCE) == set(CHANGES) == set(KINDS)
    for kind, model in KINDS.items():
        known = set(CHANGES[kind]) | {"at_s", "mtbf_s", "mttr_s", "kind"}
        assert set(model.model_fields) == known | ({"host"} if kind == "node_loss" else set())
