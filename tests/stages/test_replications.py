"""The ramp on several draws of the requests: intervals that hold the known limit."""

import math

import pytest

from capplan.encoding import plain
from capplan.stages import run_stages
from capplan.stages.ramp import Found
from capplan.stages.replications import together

PLAN = {"run": ["ramp"], "start_rps": 6.0, "step_s": 300.0, "steady_s": 200.0, "longest_s": 900.0,
        "most_steps": 6, "beyond": 0, "refine": 0}  # fmt: skip


def found(load, low, high):
    return Found(load_rps=load, low_rps=low, high_rps=high)


def test_loads_of_several_ramps_have_an_interval_no_narrower_than_their_steps():
    spread = together([found(9.0, 8.0, 10.0), found(10.0, 9.0, 11.0), found(11.0, 10.0, 12.0)])
    assert spread["mean_rps"] == 10.0
    assert spread["interval"] == pytest.approx(
        [10 - 4.303 / math.sqrt(3), 10 + 4.303 / math.sqrt(3)], rel=1e-3
    )
    alike = together([found(9.0, 8.0, 10.0)] * 3)
    assert alike["interval"] == [8.0, 10.0]


def test_ramps_that_found_nothing_are_counted_not_averaged():
    spread = together([found(9.0, 8.0, 10.0), found(math.nan, math.nan, math.nan)])
    assert (spread["found"], spread["mean_rps"]) == (1, 9.0)
    nothing = together([found(math.nan, math.nan, math.nan)])
    assert nothing["found"] == 0
    assert math.isnan(nothing["mean_rps"])


@pytest.fixture(name="repeated", scope="module")
def _repeated(single_server):
    return run_stages(single_server(plan=PLAN | {"replications": 3}), seed=1)


def test_the_limit_of_a_queue_lies_in_the_interval_over_replications(repeated):
    """M/M/1 answers 90 % within 1 s up to 10 - ln(10) requests a second."""
    limit = 10.0 - math.log(10.0)
    low, high = repeated.acceptable()["chat"]["replications"]["interval"]
    assert low < limit < high
    low, high = repeated.replications.first_degradation["interval"]
    assert low < limit < high


def test_replications_are_other_draws_and_the_first_is_the_acceptance_itself(repeated):
    document = plain(repeated.to_json())["replications"]
    runs = [set(one["loads_rps"]) for one in document["runs"]]
    assert runs[0] == {s.run_id for s in repeated.ramp.steps}
    assert not runs[0] & runs[1]
    assert document["count"] == 3
    assert document["first_degradation"]["crossed"] == ["chat e2e_s in service_queue"] * 3


def test_one_replication_is_what_it_was(single_server):
    found = run_stages(single_server(plan=PLAN | {"most_steps": 2}), seed=1)
    assert found.replications is None
    assert "replications" not in found.acceptable()["chat"]


def test_processes_do_not_change_the_result(single_server, repeated):
    scenario = single_server(plan=PLAN | {"replications": 3})
    again = run_stages(scenario, seed=1, jobs=2)
    assert plain(again.to_json()) == plain(repeated.to_json())
