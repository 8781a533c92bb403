import math

import numpy as np
import pytest

from capplan.results import headline
from capplan.results.cost import accelerator_seconds


@pytest.fixture
def rows(served, ended):
    """One success of 121 tokens on a replica, one attempt that wasted 79, one that never ran."""
    return [
        served("a", 0.0, replica="llm-0"),
        served("b", 1.0, replica="llm-0", outcome="timed_out", outcome_layer="caller",
               output_tokens=0, wasted_tokens=79),
        ended("c", 2.0, at="gateway_in_s", outcome="rejected", layer="gateway", finish=2.2),
    ]  # fmt: skip


def test_busy_time_is_divided_by_tokens(make_run, rows, busy):
    run = make_run(rows, timeline=busy("llm-0", 0.5), duration_s=400.0)
    assert accelerator_seconds(run).tolist() == [121.0, 79.0, 0.0]
    found = headline(run)
    assert found["wasted_tokens"] == 79
    assert found["wasted_accelerator_s"] == pytest.approx(79.0)
    assert found["wasted_accelerator_fraction"] == pytest.approx(79 / 200)


def test_a_replica_of_several_accelerators_spends_that_much_more(make_run, rows, busy, two_classes):
    from capplan.scenario.files import with_values

    scenario = with_values(two_classes, {"pools.llm.tensor_parallel": 4})
    run = make_run(rows, scenario=scenario, timeline=busy("llm-0", 0.5), duration_s=400.0)
    assert accelerator_seconds(run).tolist() == [484.0, 316.0, 0.0]


def test_busy_seconds_without_a_timeline_are_unknown_not_zero(make_run, rows):
    seconds = accelerator_seconds(make_run(rows))
    assert np.isnan(seconds[:2]).all()
    assert math.isnan(headline(make_run(rows))["wasted_accelerator_s"])


def test_waits_in_two_queues_are_listed_by_layer(make_run, served):
    rows = [
        served("a", 0.0, waits=(1.0, 2.0, 0.0)),
        served("b", 1.0, waits=(0.0, 2.0, 0.0)),
        served("c", 2.0, outcome="failed", outcome_layer="decode", waits=(0.5, 0.0, 0.0)),
        served("c", 9.0, attempt=2, waits=(0.0, 0.0, 1.5)),
    ]
    found = headline(make_run(rows))["double_queued"]
    assert found["requests"] == 2
    assert found["requests_fraction"] == pytest.approx(2 / 3)
    expected = {"gateway": 0.75, "service_queue": 1.0, "scheduler_queue": 0.75}
    assert found["wait_s"] == pytest.approx(expected)
