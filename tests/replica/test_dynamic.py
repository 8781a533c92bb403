import math

import pytest

from capplan.replica.job import Job
from capplan.replica.whole_batch import DynamicEngine
from capplan.scenario.batching import DynamicBatching, ServiceLaw
from capplan.scenario.layers import Queue


def engine_of(*, order="fifo", **fields):
    batching = DynamicBatching(
        service=ServiceLaw(base_s=1.0), scheduler=Queue(order=order), **fields
    )
    return DynamicEngine(batching, batch_seconds=lambda items, size: 1.0 + items + size / 1000)


def waiting(engine, *times, **fields):
    jobs = []
    for time in times:
        job = Job(prompt_tokens=100, output_tokens=0, scheduler_queue_in_s=time, **fields)
        job.batch_window_s = 0.0
        engine.waiting.push(job, time)
        jobs.append(job)
    return jobs


def test_a_full_batch_starts_at_once():
    engine = engine_of(max_batch_size=2, max_queue_delay_s=10.0)
    jobs = waiting(engine, 0.0, 1.0)
    assert engine.begin(1.0) == pytest.approx(3.2)
    assert [job.batch_size for job in jobs] == [2, 2]
    assert [job.batch_window_s for job in jobs] == [1.0, 0.0]


def test_a_batch_that_is_not_full_waits_for_the_window_of_the_oldest():
    engine = engine_of(max_batch_size=8, max_queue_delay_s=0.5)
    waiting(engine, 1.0, 1.2)
    assert engine.begin(1.2) is None
    assert engine.wake_s == 1.5
    assert engine.begin(1.5) == pytest.approx(3.2)


def test_waiting_for_a_busy_replica_is_not_waiting_for_the_window():
    engine = engine_of(max_batch_size=4, max_queue_delay_s=5.0)
    first = waiting(engine, 0.0, 0.0, 0.0, 0.0)
    engine.begin(0.0)
    late = waiting(engine, 1.0)
    assert engine.end(5.4) == first
    assert engine.begin(5.4) is None
    engine.begin(6.0)
    assert late[0].batch_in_s == 6.0
    assert late[0].batch_window_s == pytest.approx(0.6)


def test_priority_fills_the_batch_and_the_rest_keeps_its_window():
    engine = engine_of(max_batch_size=2, max_queue_delay_s=9.0, order="priority")
    (low,) = waiting(engine, 0.0, priority=1)
    assert engine.begin(0.0) is None
    high = waiting(engine, 2.0, 2.0, priority=0)
    engine.begin(2.0)
    assert [job.batch_in_s for job in high] == [2.0, 2.0]
    assert math.isnan(low.batch_in_s)
    assert low.batch_window_s == 2.0


def test_a_job_given_up_in_a_batch_leaves_with_it_unanswered():
    engine = engine_of(max_batch_size=2)
    gone, served = waiting(engine, 0.0, 0.0)
    engine.begin(0.0)
    assert not engine.abort(gone)
    assert engine.end(3.0) == [gone, served]
    assert math.isnan(gone.decode_end_s)
    assert gone.spent_tokens == 100
    assert served.decode_end_s == 3.0


def test_the_size_of_a_job_is_its_size_else_its_prompt():
    engine = engine_of(max_batch_size=1)
    waiting(engine, 0.0, size=5000.0)
    assert engine.begin(0.0) == pytest.approx(7.0)
