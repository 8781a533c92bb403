"""Every field of every kind of fault changes the run."""

import numpy as np
import pytest

from capplan.scenario.faults import GeneratorLimit, Hang, ModelReload, NodeLoss, RouterBlind, Slow
from capplan.scenario.files import with_values
from capplan.simulation import simulate

ONCE = {
    Hang: {"kind": "hang", "at_s": 1.0, "for_s": 0.8, "detect_s": 0.2, "restart_s": 0.3},
    Slow: {"kind": "slow", "at_s": 1.0, "for_s": 1.0, "factor": 3.0},
    NodeLoss: {"kind": "node_loss", "pool": "llm", "node": 0, "at_s": 1.0, "down_s": 0.5},
    ModelReload: {"kind": "model_reload", "at_s": 0.5, "load_s": 0.4, "drain_s": 0.05},
    RouterBlind: {"kind": "router_blind", "at_s": 0.5, "for_s": 1.0},
    GeneratorLimit: {
        "kind": "generator_limit",
        "at_s": 0.5,
        "for_s": 1.0,
        "rate_rps": 30.0,
        "connections": 9,
    },
}
CHANGES = {
    Hang: {"pool": "other", "count": 2, "for_s": 0.1, "detect_s": 0.5, "restart_s": 0.9},
    Slow: {"pool": "other", "count": 2, "for_s": 0.3, "factor": 9.0},
    NodeLoss: {"pool": "other", "node": 1, "down_s": 0.2},
    ModelReload: {
        "pool": "other",
        "count": 1,
        "max_unavailable": 2,
        "drain_s": 9.0,
        "load_s": 0.7,
    },
    RouterBlind: {"pool": "other", "for_s": 0.3},
    GeneratorLimit: {"rate_rps": 20.0, "connections": 2, "for_s": 0.5},
}
BY_LAW = {kind: {"mtbf_s": 0.4, "mttr_s": 0.3} for kind in ONCE if kind is not ModelReload}
BY_LAW[ModelReload] = {"mtbf_s": 0.4}


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
    return not runs[0].requests.equals(runs[1].requests)


def changes():
    for kind, fields in CHANGES.items():
        for name, value in ({"at_s": 0.8} | fields).items():
            changed = ONCE[kind] | {name: value}
            yield pytest.param(ONCE[kind], changed, id=f"{kind.__name__}.{name}")
    for kind, law in BY_LAW.items():
        own = {k: v for k, v in ONCE[kind].items() if k not in ("at_s", "down_s", "restart_s")}
        if "mttr_s" in law:
            own.pop("for_s", None)
        for name in law:
            changed = own | law | {name: 2 * law[name]}
            yield pytest.param(own | law, changed, id=f"{kind.__name__}.{name}")
    host = {"kind": "node_loss", "host": "h", "at_s": 1.0, "down_s": 0.5}
    yield pytest.param(ONCE[NodeLoss], host, id="NodeLoss.host")


@pytest.mark.parametrize(("fault", "changed"), list(changes()))
def test_a_field_of_a_fault_changes_the_run(base, trace, fault, changed):
    one, two = (with_values(base, {"faults": [f]}) for f in (fault, changed))
    assert differ(one, two, trace)
    assert differ(base, one, trace)


def test_every_field_of_every_kind_is_shown_to_be_heeded(base):
    faults = with_values(base, {"faults": list(ONCE.values())}).faults
    assert {type(fault) for fault in faults} == set(ONCE)
    for kind in ONCE:
        known = set(CHANGES[kind]) | {"at_s", "mtbf_s", "mttr_s", "kind"}
        known |= {"host"} if kind is NodeLoss else set()
        assert set(kind.model_fields) == known, kind.__name__
