"""Contiguous KV: holes, fragmentation, compaction, and what paging makes of the same memory."""

import math

import numpy as np
import pytest

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.replica.kv_layouts import ContiguousSpace, copy_s_per_token
from capplan.scenario.batching import ContiguousKv, ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import LinearStep

STEP = LinearStep(
    base_s=4e-3, per_prefill_token_s=1e-5, per_sequence_s=1e-5, per_context_token_s=1e-8
)


def space_of(tokens, *, copy_s=0.0, **fields):
    batching = ContinuousBatching(
        kv_layout="contiguous",
        contiguous=ContiguousKv(**({"reserve": "oracle"} | fields)),
        max_model_len=64,
        max_num_batched_tokens=64,
    )
    return ContiguousSpace(
        batching, blocks=tokens // 16, copy_s_per_token=copy_s, stored=lambda job: 5
    )


def job(tokens):
    return Job(prompt_tokens=tokens - 1, output_tokens=1)


def admit(space, *sizes):
    jobs = [job(size) for size in sizes]
    for one in jobs:
        assert space.has_room(one, 0, 0, spare_blocks=0)
        space.admit(one, 0)
    return jobs


def test_the_first_hole_that_is_large_enough_is_taken():
    space = space_of(96)
    _, b, _, d = admit(space, 10, 20, 30, 20)
    for one in (b, d):
        space.release(one, 0, 0)
    admit(space, 15)
    assert space._holes == [(25, 5), (60, 36)]


def test_holes_that_meet_become_one():
    space = space_of(96)
    a, b, c = admit(space, 10, 20, 30)
    for one in (a, c, b):
        space.release(one, 0, 0)
    assert space._holes == [(0, 96)]
    assert space.usage_fraction == 0
    assert math.isnan(space.internal_fragmentation_fraction)


def test_free_space_without_a_hole_is_external_fragmentation_and_compaction_mends_it():
    for compaction in (False, True):
        space = space_of(64, compaction=compaction, copy_s=1e-3)
        a, _, c, _ = admit(space, 16, 16, 16, 16)
        for one in (a, c):
            space.release(one, 0, 0)
        assert space.external_fragmentation_fraction == 0.5
        assert space.has_room(job(32), 0, 0, spare_blocks=0) == compaction
    assert space.external_fragmentation_fraction == 0
    assert space.pause_s() == pytest.approx(2 * 5 * 1e-3)
    assert space.pause_s() == 0


def test_what_is_reserved_and_not_stored_is_internal_fragmentation():
    space = space_of(160, reserve="max")
    admit(space, 10)
    assert space.internal_fragmentation_fraction == pytest.approx(1 - 5 / 64)
    assert space.reserve(Job(prompt_tokens=10, output_tokens=25)) == 64
    assert space_of(160, reserve="pow2").reserve(Job(prompt_tokens=10, output_tokens=25)) == 42


def concurrency(**fields):
    """Return the mean number of running jobs while there are always some waiting."""
    batching = ContinuousBatching(
        step_time=STEP, max_model_len=1024, kv_blocks=512, max_num_seqs=256, **fields
    )
    law = type("Law", (), {"seconds": staticmethod(lambda *_: 0.01)})
    engine = ContinuousEngine(batching, step_time=law, kv_blocks=512)
    rng = np.random.default_rng(7)
    for _ in range(600):
        prompt, output = int(rng.integers(20, 300)), int(rng.integers(10, 300))
        engine.waiting.push(Job(prompt_tokens=prompt, output_tokens=output), 0.0)
    running, now = [], 0.0
    while engine.waiting:
        now += engine.begin(now)
        running.append(engine.prefilling + engine.decoding)
        engine.end(now)
    return float(np.mean(running))


def test_paging_runs_more_sequences_in_the_same_memory():
    """Measured order of Kwon et al. 2023, figure 13: paged, then oracle, pow2, max."""
    measured = {
        reserve: concurrency(kv_layout="contiguous", contiguous=ContiguousKv(reserve=reserve))
        for reserve in ("max", "pow2", "oracle")
    }
    paged = concurrency()
    assert measured["max"] == pytest.approx(8, abs=0.2)
    assert measured["max"] < measured["pow2"] < measured["oracle"] < paged
    assert paged > 2.5 * measured["max"]


def test_compaction_runs_no_fewer_and_costs_time():
    kinds = [ContiguousKv(reserve="oracle", compaction=c) for c in (False, True)]
    apart, together = (concurrency(kv_layout="contiguous", contiguous=kind) for kind in kinds)
    assert together > apart


def test_moving_a_token_reads_and_writes_its_bytes():
    batching = ContinuousBatching(kv_layout="contiguous", contiguous=ContiguousKv(compaction=True))
    pool = Pool(name="llm", model="Llama-3.1-8B", accelerator="H100 SXM", batching=batching)
    assert copy_s_per_token(pool) == pytest.approx(2 * 131072 / 3.35e12, rel=0.02)
    paged = pool.model_copy(update={"batching": ContinuousBatching()})
    assert copy_s_per_token(paged) == 0
