"""Random scenarios with everything at once, and requests for them."""

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from strategies.batching import RANKED, compiled_options, continuous, fitting
from strategies.edge import classes, gateways
from strategies.pools import pools
from strategies.trouble import faults, protected

from capplan.scenario.faults import KINDS


@st.composite
def scenarios(draw):
    both = [draw(pools("a")), draw(pools("b"))]
    begins = sum(pool["replicas"] + bool(pool.get("standby")) for pool in both)
    return {
        "classes": [draw(classes("chat", "a")), draw(classes("embed", "b"))],
        "tenants": [{"name": "x"}, {"name": "y"}],
        "pools": both,
        "resource_pools": [{"name": "rack", "accelerators": begins + draw(st.integers(0, 1))}],
        "network": {"one_way_s": draw(st.sampled_from([0.0, 0.015]))},
        "gateway": draw(gateways()),
        "faults": [f for f in draw(st.lists(faults(), max_size=3)) if can_strike(f, both)],
        "breakers": draw(protected()),
        "drain_s": draw(st.sampled_from([0.3, 60.0])),
    }


def can_strike(fault, pools):
    """Return whether a fault has what it needs: a leak, paged KV."""
    own = next((p for p in pools if p["name"] == fault.get("pool")), pools[0])["batching"]
    is_paged = own["kind"] == "continuous" and own.get("kv_layout", "paged") == "paged"
    return is_paged or fault.get("kind") != "leak"


@st.composite
def prefixed(draw):
    """Return rows whose prompts have blocks in common, and how many tokens a block has."""
    rows, rng = draw(requests()), np.random.default_rng(draw(st.integers(0, 2**32)))
    counts = rng.integers(0, 20, len(rows["arrival_s"]))
    blocks = [np.cumsum(rng.integers(1, 3, count)).tolist() for count in counts]
    return rows | {"prefix_blocks": blocks}, draw(st.sampled_from([5, 16, 24, 64]))


@st.composite
def requests(draw):
    """Return up to 60 rows from a drawn seed: a fraction of the cost of drawing each number."""
    size, rng = draw(st.integers(1, 60)), np.random.default_rng(draw(st.integers(0, 2**32)))
    return {
        "arrival_s": np.cumsum(rng.choice([0.0, 0.01, 0.05, 0.2], size)),
        "prompt_tokens": rng.integers(1, 200, size),
        "output_tokens": rng.integers(1, 60, size),
        "request_class": rng.choice(["chat", "embed"], size).tolist(),
        "tenant": rng.choice(["x", "y"], size).tolist(),
    }


@st.composite
def compiled_scenarios(draw):
    """Return scenarios whose steps are all compiled: what ``CompiledEngine`` has, nothing else."""
    found = draw(scenarios())
    for own in found["classes"]:
        own["poisoned_fraction"] = 0.0
        own["cached_fraction"] = draw(st.sampled_from([0.0, 0.6]))
    found["faults"] = [f for f in found["faults"] if not KINDS[f["kind"]].changes_pace]
    for pool in found["pools"]:
        pool["batching"] = fitting(draw(continuous(RANKED)) | draw(compiled_options()))
        pool["step_factors"] = []
    return found


random_runs = given(scenario=scenarios(), rows=requests())
# Without shrinking: a smaller example costs thousands of runs, minutes.
quick = settings(
    max_examples=100,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
