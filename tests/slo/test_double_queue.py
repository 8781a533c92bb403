"""Waiting twice, on runs whose waits are written down."""

import numpy as np
import pytest

from capplan.slo import judge

N = 2000
LIMITS = {"pools.llm.queue.wait_limit_s": 0.5, "pools.llm.batching.scheduler.wait_limit_s": 0.5}


@pytest.fixture
def waiting(run, scenario):
    """A run in which each request waits so long in the service and in the scheduler queue, s."""

    def make(in_service, in_scheduler, **values):
        start = np.arange(N) * 0.1
        moved = start + np.broadcast_to(in_service, N)
        served = moved + np.broadcast_to(in_scheduler, N)
        asked = scenario(**values) if values else scenario()
        columns = {"scheduler_queue_in_s": moved, "batch_in_s": served}
        return run(ttft=served - start + 0.5, asked=asked, **columns)

    return make


def reason(result, rule="double_queueing"):
    return next(r for r in judge(result).reasons if r.rule == rule)


def test_two_queues_that_each_spend_over_half_their_budget_are_double_queueing(waiting):
    found = reason(waiting(0.3, 0.3, **LIMITS))
    assert found.outcome == "fail"
    assert found.value == 1.0
    assert found.next_action


def test_one_queue_that_holds_the_wait_is_none(waiting):
    found = reason(waiting(0.45, 0.2, **LIMITS))
    assert (found.outcome, found.value) == ("pass", 0.0)


@pytest.mark.parametrize(("many", "outcome"), [(20, "pass"), (21, "fail")])
def test_one_in_a_hundred_may_wait_twice(waiting, many, outcome):
    long = np.where(np.arange(N) < many, 0.3, 0.0)
    assert reason(waiting(long, long, **LIMITS)).outcome == outcome


def test_where_no_limit_is_set_the_share_of_the_promise_is_the_budget(waiting):
    """Of the 2 s to the first token, each of these two queues may take about 0.6 s."""
    assert reason(waiting(0.25, 0.25)).outcome == "pass"
    assert reason(waiting(0.35, 0.35)).outcome == "fail"


def test_waiting_twice_without_any_promise_is_unknown(waiting, scenario):
    nothing = {"classes": [{"name": "chat", "owner": "chat"}]}
    found = reason(waiting(0.6, 0.6, **nothing))
    assert (found.outcome, found.value) == ("unknown", None)
    assert found.next_action
