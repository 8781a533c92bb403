"""A step formed while the one before it runs: who arrives meanwhile joins the step after."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.replica.compiled.step_laws import LinearStepTime
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.step_times import LinearStep

LAW = LinearStepTime(1.0, 0.0, 0.0, 0.0)
STEP = LinearStep(base_s=1.0, per_prefill_token_s=0.0, per_sequence_s=0.0, per_context_token_s=0.0)


def run(arrivals, *, ahead):
    """Return the jobs of ``(time, output tokens)`` after a run whose steps take 1 s each."""
    batching = ContinuousBatching(step_time=STEP, kv_blocks=1000, async_scheduling=ahead)
    engine = ContinuousEngine(batching, step_time=LAW, kv_blocks=1000)
    jobs = [(time, Job(prompt_tokens=8, output_tokens=n)) for time, n in arrivals]
    now, pending, done = 0.0, list(jobs), 0
    while done < len(jobs):
        while pending and pending[0][0] <= now:
            time, job = pending.pop(0)
            job.scheduler_queue_in_s = time
            engine.waiting.push(job, time)
        if (seconds := engine.begin(now)) is None:
            now = pending[0][0]
            continue
        now += seconds
        done += len(engine.end(now))
    return [job for _, job in jobs]


def test_who_arrives_during_a_step_joins_the_step_after_the_next():
    _, late = run([(0.0, 9), (2.5, 2)], ahead=True)
    assert late.batch_in_s == 4.0
    _, late = run([(0.0, 9), (2.5, 2)], ahead=False)
    assert late.batch_in_s == 3.0


def test_who_finds_the_replica_idle_starts_at_once():
    first, second = run([(0.5, 2), (7.25, 2)], ahead=True)
    assert (first.batch_in_s, second.batch_in_s) == (0.5, 7.25)


def test_who_arrives_during_the_last_step_of_all_others_starts_when_it_ends():
    _, late = run([(0.0, 3), (2.5, 2)], ahead=True)
    assert late.batch_in_s == 3.0


@given(st.lists(st.tuples(st.floats(0.01, 3.0), st.integers(1, 6)), min_size=1, max_size=12))
def test_a_step_formed_ahead_delays_nobody_by_more_than_one_step(gaps):
    now, arrivals = 0.0, []
    for gap, n in gaps:
        now += gap
        arrivals.append((now, n))
    for ahead, after in zip(run(arrivals, ahead=True), run(arrivals, ahead=False), strict=True):
        assert ahead.batch_in_s >= ahead.scheduler_queue_in_s
        assert ahead.batch_in_s - ahead.scheduler_queue_in_s <= 2.0
        assert after.batch_in_s - after.scheduler_queue_in_s <= 1.0
        assert ahead.decode_end_s - ahead.batch_in_s == pytest.approx(ahead.output_tokens)
