"""What callers do in the instant of an answer happens before the replica's next step."""

import numpy as np
import pandas as pd
import pytest
from conservation_checks import check_conservation

from capplan.simulation import simulate

HEDGED = [{"name": "chat", "hedge": {"after_s": 0.1}}]
LIMIT = {"kind": "generator_limit", "at_s": 0.0, "connections": 3}
GATEWAYS = [{}, {"response_cache": {}}, {"concurrency": 8}]


def both(scenario, trace):
    results = [simulate(scenario, trace=trace, engine=kind) for kind in ("reference", "fast")]
    for result in results:
        check_conservation(result)
    return results


@pytest.mark.parametrize("gateway", GATEWAYS)
@pytest.mark.parametrize("fields", [{"classes": HEDGED}, {"faults": [LIMIT]}])
def test_compiled_steps_give_the_same_tables(build, trace_of, fields, gateway):
    rng = np.random.default_rng(1)
    arrivals = np.sort(rng.uniform(0.0, 20.0, 200))
    trace = trace_of(arrivals, output_tokens=rng.integers(20, 26, 200))
    reference, fast = both(build(**fields, gateway=gateway), trace)
    pd.testing.assert_frame_equal(reference.requests, fast.requests)
    pd.testing.assert_frame_equal(reference.timeline, fast.timeline)


@pytest.mark.parametrize("kind", ["reference", "fast"])
def test_a_hedge_that_lost_is_not_in_the_next_step(build, trace_of, kind):
    """The answer takes 102 ms; its hedge, sent after 100, waits for the running step to end."""
    scenario, trace = build(classes=HEDGED), trace_of([0.0], output_tokens=25)
    log = simulate(scenario, trace=trace, engine=kind).requests
    assert log["outcome"].tolist() == ["succeeded", "cancelled"]
    assert log["sent_s"][1] == pytest.approx(0.1)
    assert 0.1 < log["finish_s"][0] < 0.104
    assert np.isnan(log["batch_in_s"][1])
    assert log["wasted_tokens"][1] == 0


@pytest.mark.parametrize("kind", ["reference", "fast"])
def test_a_connection_that_is_free_again_is_used_in_the_next_step(build, trace_of, kind):
    limit = LIMIT | {"connections": 2}
    trace = trace_of([0.0, 0.0, 0.0], output_tokens=[5, 50, 5])
    log = simulate(build(faults=[limit]), trace=trace, engine=kind).requests
    assert log["sent_s"][2] == log["batch_in_s"][2] == log["finish_s"][0]
