"""The continuous engine against the scheduler it models, written out the long way."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.replica.latency import LinearStepTime
from capplan.scenario import ContinuousBatching, LinearStep, Queue

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


class LongWay:
    """vLLM V1's ``Scheduler.schedule``: per-request loops, per-request blocks, no sums kept.

    One difference: where a job of low priority preempts itself, those behind it go on.
    """

    def __init__(self, *, tokens, seqs, block, blocks, chunked, by_priority=False):
        self.tokens, self.seqs, self.block, self.chunked = tokens, seqs, block, chunked
        self.free, self.by_priority = blocks, by_priority
        self.waiting, self.running, self.held, self.computed, self.target = [], [], {}, {}, {}
        self.preemptions = 0

    def allocate(self, job, new):
        need = math.ceil((self.computed[job] + new) / self.block) - self.held[job]
        if need > self.free:
            return False
        self.free -= need
        self.held[job] += need
        return True

    def give_back(self, job):
        self.free += self.held.pop(job)
        self.computed.pop(job)

    def schedule(self):
        budget, scheduled, preempted = self.tokens, {}, []
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            known = job.prompt_tokens + job.generated_tokens
            new = min(known - self.computed[job], budget)
            while not self.allocate(job, new):
                victim = self.running[-1]
                if self.by_priority:
                    worst = max(j.priority for j in self.running)
                    victim = [j for j in self.running if j.priority == worst][-1]
                    if victim in scheduled:
                        budget += scheduled.pop(victim)
                        index -= 1
                self.running.remove(victim)
                self.give_back(victim)
                self.waiting.insert(0, victim)
                preempted.append(victim)
                if victim is job:
                    break
            else:
                scheduled[job] = new
                budget -= new
                index += 1
        self.preemptions += len(preempted)
        if self.by_priority:
            self.waiting.sort(key=lambda job: job.priority)
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.seqs:
            job = self.waiting[0]
            known = job.prompt_tokens + job.generated_tokens
            if not self.chunked and known > budget:
                break
            self.held[job], self.computed[job] = 0, 0
            new = min(known, budget)
            if not self.allocate(job, new):
                del self.held[job], self.computed[job]
                break
            self.waiting.pop(0)
            self.running.append(job)
            self.target[job] = known
            scheduled[job] = new
            budget -= new
        return scheduled

    def seconds(self, scheduled):
        prefill = decode = context = 0
        for job, new in scheduled.items():
            if self.computed[job] >= self.target[job]:
                decode += 1
                context += job.prompt_tokens + job.generated_tokens
            else:
                prefill += new
        return LAW.seconds(prefill, 0, decode, context)

    def run(self, arrivals):
        now, pending, done = 0.0, list(arrivals), 0
        while done < len(arrivals):
            while pending and pending[0][0] <= now:
                self.waiting.append(pending.pop(0)[1])
            scheduled = self.schedule()
            if not scheduled:
                now = pending[0][0]
                continue
            for job in scheduled:
                if math.isnan(job.batch_in_s):
                    job.batch_in_s = now
            now += self.seconds(scheduled)
            for job, new in scheduled.items():
                self.computed[job] += new
                if self.computed[job] < job.prompt_tokens + job.generated_tokens:
                    continue
                job.generated_tokens += 1
                if math.isnan(job.prefill_end_s):
                    job.prefill_end_s = now
                if job.generated_tokens == job.output_tokens:
                    job.decode_end_s = now
                    self.running.remove(job)
                    self.give_back(job)
                    done += 1


@st.composite
def workloads(draw):
    gap = st.floats(0, 0.05)
    jobs = draw(
        st.lists(
            st.tuples(gap, st.integers(1, 90), st.integers(1, 40), st.integers(0, 2)),
            min_size=1,
            max_size=30,
        )
    )
    time, rows = 0.0, []
    for gap_s, prompt, output, priority in jobs:
        time += gap_s
        rows.append((time, prompt, output, priority))
    return rows


def jobs_of(rows):
    return [
        (time, Job(prompt_tokens=prompt, output_tokens=output, priority=priority))
        for time, prompt, output, priority in rows
    ]


@settings(max_examples=300)
@given(
    rows=workloads(),
    seqs=st.integers(1, 12),
    tokens=st.integers(1, 200),
    block=st.sampled_from([1, 4, 16]),
    spare=st.integers(0, 60),
    chunked=st.booleans(),
    order=st.sampled_from(["fifo", "priority"]),
)
def test_every_moment_is_that_of_the_scheduler_written_out(
    *, rows, seqs, tokens, block, spare, chunked, order
):
    longest = max(prompt + output for _, prompt, output, _ in rows)
    tokens = tokens if chunked else max(tokens, 130)
    blocks = math.ceil(longest / block) + spare
    engine = engine_of(
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        chunked_prefill=chunked,
        block_size=block,
        kv_blocks=blocks,
        max_model_len=130,
        order=order,
    )
    here, there = jobs_of(rows), jobs_of(rows)
    drive(engine, here)
    oracle = LongWay(
        tokens=tokens,
        seqs=seqs,
        block=block,
        blocks=blocks,
        chunked=chunked,
        by_priority=order == "priority",
    )
    oracle.run(there)
    assert engine.preemptions == oracle.preemptions
    for (_, mine), (_, theirs) in zip(here, there, strict=True):
        for moment in ("batch_in_s", "prefill_end_s", "decode_end_s"):
            assert getattr(mine, moment) == pytest.approx(getattr(theirs, moment), abs=1e-9)
        assert mine.generated_tokens == mine.output_tokens


def count_long_way(engine):
    """Check the sums an engine keeps against a recount over its sequences."""
    held = decoding = context = 0
    in_step = {job: chunk for job, chunk in engine._chunks if job in engine._running}
    for job in engine._running:
        if job.finish_step:
            decoding += 1
            known = job.prompt_tokens + engine._generated(job)
            context += known
            held += math.ceil((known - 1) / engine._block)
        else:
            held += math.ceil(job.computed_tokens / engine._block)
    assert (engine.decoding, engine._context) == (decoding, context)
    assert 0 <= engine.kv.free <= engine.kv_blocks
    assert engine.kv_blocks - engine.kv.free >= held
    assert len(engine._running) <= engine.places
    assert decoding + sum(in_step.values()) <= engine._max_tokens + decoding
    return held


@settings(max_examples=100)
@given(workloads(), st.integers(1, 12), st.integers(0, 20), st.sampled_from(["fifo", "priority"]))
def test_kv_is_never_over_capacity_and_all_returned(rows, seqs, spare, order):
    blocks = math.ceil(max(p + o for _, p, o, _ in rows) / 4) + spare
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
    batching = ContinuousBatching(max_num_batched_tokens=7, step_time=STEP, kv_blocks=100)
    engine = ContinuousEngine(batching, step_time=recorder, kv_blocks=100)
    drive(engine, [(0.0, Job(prompt_tokens=100, output_tokens=1))])
    assert recorder.pairs == pytest.approx(100**2 / 2)
