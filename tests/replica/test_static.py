"""Static batches: padded, and as long as their longest."""

import pytest

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.replica.whole_batch import StaticEngine, static_step_time
from capplan.scenario.batching import ContinuousBatching, StaticBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import LinearStep
from capplan.schema import DataError

STEP = LinearStep(
    base_s=4e-3, per_prefill_token_s=1e-4, per_sequence_s=1e-3, per_context_token_s=1e-6
)


def engine_of(law, **fields):
    return StaticEngine(StaticBatching(step_time=STEP, **fields), step_time=law)


def drive(engine, jobs):
    """Serve jobs that are all here from the start; return when the last is done."""
    for job in jobs:
        job.scheduler_queue_in_s = job.batch_window_s = 0.0
        engine.waiting.push(job, 0.0)
    now = 0.0
    while (seconds := engine.begin(now)) is not None:
        now += seconds
        engine.end(now)
    return now


def test_a_batch_is_padded_and_waits_for_its_longest(law):
    jobs = [Job(prompt_tokens=p, output_tokens=o) for p, o in ((10, 2), (50, 5))]
    end_s = drive(engine_of(law, max_batch_size=2), jobs)
    prefill = law.seconds(100, 0, 0, 0)
    decode = sum(law.seconds(0, 0, 2, 2 * (50 + made)) for made in range(1, 5))
    assert end_s == pytest.approx(prefill + decode)
    assert [job.decode_end_s for job in jobs] == [end_s, end_s]
    assert jobs[0].prefill_end_s == pytest.approx(prefill)
    assert not jobs[0].streams


def test_nobody_joins_a_running_batch(law):
    jobs = [Job(prompt_tokens=10, output_tokens=5) for _ in range(3)]
    drive(engine_of(law, max_batch_size=2), jobs)
    assert jobs[2].batch_in_s == jobs[0].decode_end_s


def test_continuous_batching_serves_the_same_requests_sooner(law):
    lengths = [(20 + 7 * i % 60, 5 + 13 * i % 90) for i in range(40)]

    def jobs():
        return [Job(prompt_tokens=p, output_tokens=o) for p, o in lengths]

    batching = ContinuousBatching(step_time=STEP, max_num_seqs=8, kv_blocks=1000)
    continuous = ContinuousEngine(batching, step_time=law, kv_blocks=1000)
    assert drive(continuous, jobs()) < 0.8 * drive(engine_of(law, max_batch_size=8), jobs())


def test_equal_requests_take_as_long_as_in_continuous_batching(law):
    def jobs():
        return [Job(prompt_tokens=30, output_tokens=12) for _ in range(4)]

    batching = ContinuousBatching(step_time=STEP, max_num_seqs=4, kv_blocks=1000)
    continuous = ContinuousEngine(batching, step_time=law, kv_blocks=1000)
    ends = drive(continuous, jobs()), drive(engine_of(law, max_batch_size=4), jobs())
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)


def test_a_batch_that_does_not_fit_says_by_how_much():
    pool = Pool(
        name="llm",
        model="Llama-3.1-8B",
        accelerator="RTX 4090",
        batching=StaticBatching(max_batch_size=64, max_model_len=8192),
    )
    with pytest.raises(DataError, match=r"524288 tokens in memory for \d+, \d+ too many"):
        static_step_time(pool)


def test_a_job_too_long_for_the_model_is_refused(law):
    engine = engine_of(law, max_model_len=100)
    assert engine.refusal(Job(prompt_tokens=90, output_tokens=11)) == "max_model_len"
    assert engine.refusal(Job(prompt_tokens=90, output_tokens=10)) is None
