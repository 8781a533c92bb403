"""The batch window with the most headroom, run through baseline, peak and bursts."""

import json

import pytest

import capplan as cp
from capplan.scenario.files import load_scenario, with_values

SIZE = "pools.llm.batching.max_batch_size"
DELAY = "pools.llm.batching.max_queue_delay_s"


def service(rate_rps=4.0, **values):
    """One replica that serves a batch of any size in 0.1 s, and promises an E2E of a second."""
    return load_scenario(
        "benchmark",
        values={
            "classes": [
                {
                    "name": "chat",
                    "owner": "chat",
                    "streaming": False,
                    "promises": {"e2e_s": 1.0, "quantile": 0.95, "min_samples": 200},
                    "prompt_tokens": {"kind": "lognormal", "p50_tokens": 100, "p95_tokens": 300},
                    "output_tokens": {"kind": "fixed", "tokens": 1},
                }
            ],
            "requests": 600,
            "stages": {
                "burst_s": 10.0,
                "every_s": 40.0,
                "step_s": 120.0,
                "ramp_s": 20.0,
                "steady_s": 60.0,
            },
            "traffic.shape": {"kind": "steady", "rate_rps": rate_rps},
            "pools": [
                {
                    "name": "llm",
                    "owner": "llm",
                    "queue": {"owner": "llm"},
                    "batching": {
                        "kind": "dynamic",
                        "max_batch_size": 1,
                        "scheduler": {"owner": "llm"},
                        "service": {"base_s": 0.1},
                    },
                }
            ],
            **values,
        },
    )


def chosen(scenario, vary):
    drawn = cp.draw(scenario, seed=0)
    [study] = cp.pool_studies(scenario, drawn, requests=600)
    grid = cp.sweep(study.scenario, vary, trace=study.trace, seed=0)
    return grid, cp.choose_batching(scenario, study, grid)


@pytest.fixture(scope="module")
def found():
    return chosen(service(), {SIZE: [1, 8], DELAY: [0.0]})


def test_the_window_that_holds_up_to_the_largest_load_is_chosen_not_the_one_that_ties(found):
    grid, choice = found
    assert set(grid.points["goodput_fraction"]) == {1.0}  # at this load both keep every promise
    assert choice.point == {SIZE: 8, DELAY: 0.0}
    holds = choice.headroom.set_index(SIZE)["holds_to"]
    assert 1.0 < holds[1] < 10 / 4.0  # one at a time serves 10/s
    assert holds[8] > 2 * holds[1]


def test_the_chosen_window_is_run_through_baseline_peak_and_bursts(found):
    _, choice = found
    assert [check.stage for check in choice.checks] == ["baseline", "peak", "burst"]
    assert choice.outcome == "pass"
    document = choice.to_json()
    json.dumps(document, allow_nan=False)
    assert document["fields"] == {"max_batch_size": 8, "max_queue_delay_s": 0.0}
    assert document["now"] == {"max_batch_size": 1, "max_queue_delay_s": 0.0}
    assert choice.chart().to_dict()
    assert "holds up to" in choice.summary()


def test_the_own_window_stays_where_no_other_is_surely_better():
    """Batches of 8 and of 9 fill alike at any load that both hold."""
    own = service()
    values = {SIZE: 9}
    _, choice = chosen(with_values(own, values), {SIZE: [8, 9], DELAY: [0.0]})
    assert choice.point == {SIZE: 9, DELAY: 0.0}


def test_a_window_that_breaks_in_the_bursts_is_no_pass():
    """At 6/s one at a time holds the grid, and twice the peak is more than it serves."""
    _, choice = chosen(service(6.0), {SIZE: [1], DELAY: [0.0]})
    outcomes = {check.stage: check.outcome for check in choice.checks}
    assert outcomes["burst"] == "fail"
    assert choice.outcome == "fail"


def test_without_a_window_inside_the_budget_nothing_is_chosen():
    _, choice = chosen(service(30.0), {SIZE: [1], DELAY: [0.0]})
    assert choice.point is None
    assert choice.outcome == "fail"
    assert choice.to_json()["fields"] == {"max_batch_size": None, "max_queue_delay_s": None}


def test_the_headroom_of_a_closed_loop_is_unknown():
    """Users wait for their answers: faster arrivals load the service no more."""
    think = {"kind": "exponential", "mean_s": 2.0}
    users = {"kind": "closed", "users": 4, "think": think}
    scenario = service(**{"traffic.shape": users, "traffic.duration_s": 600.0, "requests": None})
    grid, choice = chosen(scenario, {SIZE: [1, 8], DELAY: [0.0]})
    assert len(grid.points) == 2
    assert choice.point is not None
    assert choice.headroom[["holds_to", "load_rps", "next_good_fraction"]].isna().all(axis=None)
    assert [check.stage for check in choice.checks] == ["baseline"]
    assert "unknown" in choice.summary()
