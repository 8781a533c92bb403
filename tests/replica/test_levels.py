"""Preferred sizes, priority levels and queue policies of dynamic batching."""

import pytest
from pydantic import ValidationError

from capplan.replica.job import Job
from capplan.replica.whole_batch import DynamicEngine
from capplan.scenario.batching import DynamicBatching, LevelPolicy, QueuePolicy, ServiceLaw


def engine_of(**fields):
    batching = DynamicBatching(service=ServiceLaw(base_s=1.0), **fields)
    return DynamicEngine(batching, batch_seconds=lambda items, size: 1.0)


def wait(engine, *times, priority=0):
    jobs = []
    for time in times:
        job = Job(prompt_tokens=1, output_tokens=1, priority=priority, scheduler_queue_in_s=time)
        job.batch_window_s = 0.0
        engine.waiting.push(job, time)
        jobs.append(job)
    return jobs


def batch(engine, now_s):
    """Return who is served next and finish it at once."""
    if engine.begin(now_s) is None:
        return []
    served = list(engine.running)
    engine.end(now_s)
    return served


def test_the_largest_preferred_size_that_can_be_filled_is_served_at_once():
    engine = engine_of(max_batch_size=8, preferred_batch_sizes=(2, 4), max_queue_delay_s=1.0)
    jobs = wait(engine, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert batch(engine, 0.0) == jobs[:4]
    assert batch(engine, 0.0) == jobs[4:6]
    assert batch(engine, 0.0) == []
    assert batch(engine, 1.0) == jobs[6:]


def test_levels_are_served_in_order_and_an_unknown_priority_is_the_default_level():
    engine = engine_of(max_batch_size=1, priority_levels=2, default_priority_level=2)
    unknown, low, high = (
        wait(engine, 0.0),
        wait(engine, 0.0, priority=2),
        wait(engine, 0.0, priority=1),
    )
    assert [batch(engine, 0.0) for _ in range(3)] == [high, unknown, low]


def test_a_timeout_rejects_when_a_batch_is_formed():
    engine = engine_of(max_batch_size=4, queue_policy=QueuePolicy(timeout_s=1.0))
    gone = []
    engine.drop = gone.append
    late, in_time = wait(engine, 0.0), wait(engine, 0.5)
    assert batch(engine, 1.2) == in_time
    assert gone == late


def test_a_delayed_request_comes_after_its_level_and_before_the_next():
    policy = QueuePolicy(timeout_s=1.0, timeout_action="delay")
    engine = engine_of(max_batch_size=1, priority_levels=2, queue_policy=policy)
    late = wait(engine, 0.0, priority=1)
    low = wait(engine, 1.0, priority=2)
    in_time = wait(engine, 1.0, priority=1)
    assert [batch(engine, 1.5) for _ in range(3)] == [in_time, late, low]


def test_each_level_has_its_own_limit_of_waiting_requests():
    engine = engine_of(
        max_batch_size=1,
        priority_levels=2,
        queue_policy=QueuePolicy(max_queue_size=1),
        level_policies=(LevelPolicy(level=1, max_queue_size=2),),
    )
    high, low = (Job(prompt_tokens=1, output_tokens=1, priority=p) for p in (1, 2))
    wait(engine, 0.0, priority=1)
    wait(engine, 0.0, priority=2)
    assert engine.refusal(high) is None
    assert engine.refusal(low) == "queue_full"
    wait(engine, 0.0, priority=1)
    assert engine.refusal(high) == "queue_full"


def test_a_crash_gives_back_all_levels():
    engine = engine_of(priority_levels=2)
    jobs = wait(engine, 0.0, priority=2) + wait(engine, 0.0, priority=1)
    assert set(engine.clear()) == set(jobs)
    assert len(engine.waiting) == 0


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_batch_size": 4, "preferred_batch_sizes": (8,)}, "at most max_batch_size 4, got 8"),
        ({"default_priority_level": 2}, "at most priority_levels 1, got 2"),
        ({"level_policies": (LevelPolicy(level=3),)}, "at most priority_levels 1, got 3"),
    ],
)
def test_sizes_and_levels_that_do_not_exist_are_refused(fields, told):
    with pytest.raises(ValidationError, match=told):
        DynamicBatching(service=ServiceLaw(base_s=1.0), **fields)
