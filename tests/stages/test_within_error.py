"""How far loads move with the error of step times, on M/M/1: 10 % exceed 1 s at μ - ln 10."""

import math
from functools import cache

import pytest

from capplan.encoding import plain
from capplan.stages import run_stages


@pytest.fixture(name="ramped", scope="module")
def _ramped(single_server):
    """Return the ramp of M/M/1 whose service law may be 8 % off, up to a planned peak."""
    law = {"base_s": 0.1, "exponential": True, "error_fraction": 0.08}
    owner = {"owner": "platform"}
    engine = {"kind": "dynamic", "max_batch_size": 1, "scheduler": owner, "service": law}

    @cache
    def ramped(peak_rps=6.0):
        plan = {"run": ["ramp"], "peak_rps": peak_rps}
        return run_stages(single_server(pool={"batching": engine}, plan=plan), seed=3)

    return ramped


@pytest.mark.parametrize("service_s", [0.092, 0.1, 0.108])
def test_a_law_8_percent_off_states_loads_that_hold_those_of_the_true_one(ramped, service_s):
    """The knee of M/M/1 lies at μ / 2."""
    found = ramped()
    within, knee = found.within_error, found.knee
    assert within.low_rps < 1 / service_s - math.log(10) < within.high_rps
    low, high = within.knee(knee)
    assert low < 0.5 / service_s < high
    assert (low, high) != (knee.low_rps, knee.high_rps)
    document = plain(found.to_json())
    assert document["within_step_time_error"]["interval"] == [within.low_rps, within.high_rps]
    assert document["knee"]["within_step_time_error"] == [low, high]


@pytest.mark.parametrize(("peak_rps", "outcome"), [(6.0, "pass"), (7.2, "retest")])
def test_a_peak_that_the_true_law_may_not_carry_is_no_pass(ramped, peak_rps, outcome):
    """A service 8 % slower breaks its promise at 6.96/s, the stated one at 7.70/s."""
    verdict = ramped(peak_rps=peak_rps).verdict
    [planned] = [r for r in verdict.reasons if r.rule == "planned_load"]
    assert planned.outcome == outcome


def test_an_unknown_error_leaves_the_interval_unknown(accepted):
    assert accepted.within_error is None
    document = accepted.to_json()
    assert document["within_step_time_error"] is None
    assert document["knee"]["within_step_time_error"] is None
