"""The continuous engine against the scheduler it models, written out the long way."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.replica.compiled.step_laws import LinearStepTime
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.scenario.batching import ContiguousKv, ContinuousBatching, Speculation
from capplan.scenario.layers import Queue
from capplan.scenario.step_times import LinearStep

MOST_TOKENS = 130
LAW = LinearStepTime(4e-3, 1.2e-5, 1.3e-5, 3.9e-8)
STEP = LinearStep(
    base_s=4e-3, per_prefill_token_s=1.2e-5, per_sequence_s=1.3e-5, per_context_token_s=3.9e-8
)


def engine_of(**fields):
    order = fields.pop("order", "fifo")
    kv_blocks = fields.setdefault("kv_blocks", 1000)
    batching = ContinuousBatching(step_time=STEP, scheduler=Queue(order=order), **fields)
    return ContinuousEngine(batching, step_time=LAW, kv_blocks=kv_blocks)


def drive(engine, arrivals, *, check=lambda engine: None):
    """Step an engine through ``(time, job)`` pairs; what arrives during a step waits for it."""
    now, pending, done = 0.0, list(arrivals), []
    while pending or len(done) < len(arrivals):
        while pending and pending[0][0] <= now:
            time, job = pending.pop(0)
            job.scheduler_queue_in_s = time
            engine.waiting.push(job, time)
        seconds = engine.begin(now)
        check(engine)
        if seconds is None:
            now = pending[0][0]
            continue
        now += seconds
        done += engine.end(now)
        check(engine)
    return done


@st.composite
def workloads(draw):
    gap = st.floats(0, 0.05)
    ids = st.lists(st.integers(0, 1), max_size=4)
    jobs = draw(
        st.lists(
            st.tuples(gap, st.integers(1, 90), st.integers(1, 40), st.integers(0, 2), ids),
            min_size=1,
            max_size=30,
        )
    )
    time, rows = 0.0, []
    for gap_s, prompt, output, priority, path in jobs:
        time += gap_s
        rows.append((time, prompt, output, priority, chained(path)))
    return rows


@st.composite
def crowds(draw):
    """Return up to 30 rows from a drawn seed, most at once: memory is short."""
    size, rng = draw(st.integers(10, 30)), np.random.default_rng(draw(st.integers(0, 2**32)))
    return [
        (time, prompt, output, priority, chained(path[:depth]))
        for time, prompt, output, priority, path, depth in zip(
            np.cumsum(rng.choice([0.0, 0.0, 0.02], size)).tolist(),
            rng.integers(1, 90, size).tolist(),
            rng.integers(1, 40, size).tolist(),
            rng.integers(0, 3, size).tolist(),
            rng.integers(0, 2, (size, 4)).tolist(),
            rng.integers(0, 5, size).tolist(),
            strict=True,
        )
    ]


def chained(path):
    """Return ids that stand for a block and all before it, as those of traces do."""
    return [int("1" + "".join(map(str, path[: i + 1])), 3) for i in range(len(path))]


def jobs_of(rows):
    return [
        (
            time,
            Job(
                prompt_tokens=prompt,
                output_tokens=output,
                priority=priority,
                prefix_blocks=ids,
                prefix_block_tokens=24,
                greedy=prompt % 3 == 0,
            ),
        )
        for time, prompt, output, priority, ids in rows
    ]


def compare(long_way, rows, fields, *, blocks, copy_s=0.0):
    """Check an engine's moments and counts against the scheduler written out; return both."""
    batching = ContinuousBatching(step_time=STEP, **fields)
    engine = ContinuousEngine(batching, step_time=LAW, kv_blocks=blocks, copy_s_per_token=copy_s)
    here, there = jobs_of(rows), jobs_of(rows)
    drive(engine, here)
    oracle = long_way(batching, blocks, copy_s=copy_s)
    oracle.run(there)
    assert engine.preemptions == oracle.preemptions
    for (_, mine), (_, theirs) in zip(here, there, strict=True):
        for moment in ("batch_in_s", "prefill_end_s", "decode_end_s"):
            assert getattr(mine, moment) == pytest.approx(getattr(theirs, moment), abs=1e-9)
        assert mine.generated_tokens == mine.output_tokens
        assert mine.cached_tokens == theirs.cached_tokens
        assert mine.prefilled_tokens == theirs.prefilled_tokens
    assert engine.kv.usage_fraction == 0
    return engine, oracle


plain = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 12),
        "max_num_batched_tokens": st.integers(1, 200) | st.just(200),
        "block_size": st.sampled_from([1, 4, 16]),
        "chunked_prefill": st.booleans(),
        "scheduler": st.builds(Queue, order=st.sampled_from(["fifo", "priority"])),
    }
)
prompts = {
    "long_prefill_token_threshold": st.sampled_from([0, 0, 7, 40]),
    "max_num_partial_prefills": st.sampled_from([None, 1, 2]),
    "max_long_partial_prefills": st.sampled_from([None, 1, 2]),
}
watermark = {"watermark": st.sampled_from([0.0, 0.1, 0.4])}
drafts = {
    "speculation": st.none()
    | st.builds(
        Speculation,
        num_speculative_tokens=st.integers(1, 5),
        acceptance=st.floats(0, 1),
        draft_cost_fraction=st.sampled_from([0.0, 0.1]),
    )
}
beams = {"beam_width": st.integers(2, 3)}
contiguous = {
    "kv_layout": st.just("contiguous"),
    "contiguous": st.builds(
        ContiguousKv, reserve=st.sampled_from(["max", "pow2", "oracle"]), compaction=st.booleans()
    ),
}
options = st.one_of(
    st.fixed_dictionaries(prompts | watermark | drafts | {"prefix_caching": st.booleans()}),
    st.fixed_dictionaries(prompts | watermark | beams),
    st.fixed_dictionaries(prompts | drafts | contiguous),
    st.fixed_dictionaries(prompts | beams | contiguous),
)


def agreeing(fields):
    """Return the fields with what they need of each other."""
    fields = fields | {"max_model_len": MOST_TOKENS}
    fields["max_num_seqs"] = max(fields["max_num_seqs"], fields.get("beam_width", 1))
    if not fields.get("long_prefill_token_threshold"):
        fields["max_long_partial_prefills"] = None
    most, block = fields["max_num_batched_tokens"], fields["block_size"]
    fields["max_num_batched_tokens"] = max(most, block)
    if not fields["chunked_prefill"]:
        fields["max_num_batched_tokens"] = max(fields["max_num_batched_tokens"], MOST_TOKENS)
    return fields


def blocks_for(rows, fields, spare):
    """Return enough blocks for each job alone, and some more."""
    draft = fields.get("speculation")
    longest = max(prompt + output for _, prompt, output, *_ in rows)
    if fields.get("kv_layout"):
        longest = MOST_TOKENS
    longest += 2 * draft.num_speculative_tokens if draft else 0
    return math.ceil(longest / fields["block_size"]) * fields.get("beam_width", 1) + spare


@settings(max_examples=300)
@given(rows=workloads(), fields=plain, spare=st.integers(0, 60))
def test_every_moment_is_that_of_the_scheduler_written_out(long_way, rows, fields, spare):
    fields = agreeing(fields)
    compare(long_way, rows, fields, blocks=blocks_for(rows, fields, spare))


@settings(max_examples=250)
@given(
    rows=workloads() | crowds(),
    fields=st.builds(lambda one, two: one | two, plain, options),
    spare=st.sampled_from([0, 1, 5, 20, 60]),
    copy_s=st.sampled_from([0.0, 1e-5]),
)
def test_every_option_is_that_of_the_scheduler_written_out(long_way, rows, fields, spare, copy_s):
    fields = agreeing(fields)
    compare(long_way, rows, fields, blocks=blocks_for(rows, fields, spare), copy_s=copy_s)


def count_long_way(engine):
    """Check the sums an engine keeps against a recount over its sequences."""
    held = decoding = context = 0
    in_step = {job: chunk for job, chunk in engine._chunks.items() if job in engine.running}
    for job in engine.running:
        if job.finish_step:
            decoding += 1
            known = job.prompt_tokens + engine.made(job)
            context += known
            held += math.ceil((known - 1) / engine._block)
        else:
            held += math.ceil(job.computed_tokens / engine._block)
    assert (engine.decoding, engine._context) == (decoding, context)
    assert 0 <= engine.kv.free <= engine.kv.total
    assert engine.kv.total - engine.kv.free >= held
    assert len(engine.running) <= engine.places
    assert decoding + sum(in_step.values()) <= engine._rules.max_num_batched_tokens + decoding
    return held


@settings(max_examples=100)
@given(workloads(), st.integers(1, 12), st.integers(0, 20), st.sampled_from(["fifo", "priority"]))
def test_kv_is_never_over_capacity_and_all_returned(rows, seqs, spare, order):
    blocks = math.ceil(max(p + o for _, p, o, *_ in rows) / 4) + spare
    engine = engine_of(
        max_num_seqs=seqs,
        max_num_batched_tokens=64,
        block_size=4,
        kv_blocks=blocks,
        max_model_len=130,
        order=order,
    )
    done = drive(engine, jobs_of(rows), check=count_long_way)
    assert len(done) == len(rows)
    assert engine.kv.free == blocks
    assert engine.decoding == engine.prefilling == engine._context == 0
    assert not any(engine._phases)


def test_the_last_admitted_is_preempted_and_comes_back_first():
    engine = engine_of(block_size=4, kv_blocks=6, max_num_batched_tokens=64, max_model_len=64)
    first, second, third = (Job(prompt_tokens=7, output_tokens=9) for _ in range(3))
    drive(engine, [(0.0, first), (0.0, second), (0.0, third)])
    assert engine.preemptions > 0
    assert first.decode_end_s < second.decode_end_s <= third.decode_end_s
    assert first.prefilled_tokens == 7
    assert second.prefilled_tokens > 7


def test_a_job_too_long_for_the_model_or_the_memory_is_refused():
    engine = engine_of(kv_blocks=4, block_size=16, max_model_len=100, max_num_batched_tokens=64)
    assert engine.refusal(Job(prompt_tokens=90, output_tokens=11)) == "max_model_len"
    assert engine.refusal(Job(prompt_tokens=60, output_tokens=6)) == "kv_capacity"
    assert engine.refusal(Job(prompt_tokens=60, output_tokens=5)) is None


def test_a_running_job_leaves_at_the_end_of_the_step_and_frees_its_blocks():
    engine = engine_of(block_size=16, kv_blocks=10)
    job = Job(prompt_tokens=32, output_tokens=50)
    engine.waiting.push(job, 0.0)
    engine.begin(0.0)
    engine.end(1.0)
    engine.begin(1.0)
    assert not engine.abort(job)
    assert engine.kv_usage_fraction == pytest.approx(0.3)
    assert engine.end(2.0) == [job]
    assert math.isnan(job.decode_end_s)
    assert engine.kv_usage_fraction == 0
    assert job.spent_tokens == 32 + 2


def test_a_waiting_job_leaves_at_once():
    engine = engine_of()
    job = Job(prompt_tokens=32, output_tokens=50)
    engine.waiting.push(job, 0.0)
    assert engine.abort(job)
    assert engine.begin(0.0) is None


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it_whole():
    engine = engine_of(max_num_batched_tokens=100, max_model_len=100, chunked_prefill=False)
    first, second = (Job(prompt_tokens=60, output_tokens=3) for _ in range(2))
    drive(engine, [(0.0, first), (0.0, second)])
    assert second.batch_in_s == first.prefill_end_s
    chunked = engine_of(max_num_batched_tokens=100, max_model_len=100)
    first, second = (Job(prompt_tokens=60, output_tokens=3) for _ in range(2))
    drive(chunked, [(0.0, first), (0.0, second)])
    assert second.batch_in_s == first.batch_in_s == 0


def test_priority_goes_first_within_the_places():
    engine = engine_of(max_num_seqs=1, order="priority")
    low, high = (
        Job(prompt_tokens=8, output_tokens=2, priority=5),
        Job(prompt_tokens=8, output_tokens=2, priority=1),
    )
    drive(engine, [(0.0, low), (0.0, high)])
    assert high.decode_end_s < low.decode_end_s


def test_batch_id_and_size_are_those_of_the_first_step():
    engine = engine_of()
    jobs = [Job(prompt_tokens=8, output_tokens=3) for _ in range(3)]
    drive(engine, [(0.0, jobs[0]), (0.001, jobs[1]), (0.001, jobs[2])])
    assert [job.batch_id for job in jobs] == [1, 2, 2]
    assert [job.batch_size for job in jobs] == [1, 3, 3]


def test_chunks_attend_to_as_many_pairs_as_the_whole_prompt():
    class Recorder:
        pairs = 0.0

        def seconds(self, prefill_tokens, pairs, sequences, context):
            self.pairs += pairs
            return 0.001

    recorder = Recorder()
    batching = ContinuousBatching(
        max_num_batched_tokens=7, block_size=7, step_time=STEP, kv_blocks=100
    )
    engine = ContinuousEngine(batching, step_time=recorder, kv_blocks=100)
    drive(engine, [(0.0, Job(prompt_tokens=100, output_tokens=1))])
    assert recorder.pairs == pytest.approx(100**2 / 2)
