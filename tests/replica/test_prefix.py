"""The prefix cache, by what is found and what is evicted."""

from types import SimpleNamespace

import pytest

from capplan.replica.compiled.step_laws import LinearStepTime
from capplan.replica.compiled.views import CompiledCache
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.replica.prefix_cache import PrefixCache, block_names
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.step_times import LinearStep

LAW = LinearStepTime(4e-3, 1.2e-5, 1.3e-5, 3.9e-8)
STEP = LinearStep(
    base_s=4e-3, per_prefill_token_s=1.2e-5, per_sequence_s=1.3e-5, per_context_token_s=3.9e-8
)


def engine_of(**fields):
    kv_blocks = fields.setdefault("kv_blocks", 100)
    fields = {"block_size": 4, "prefix_caching": True} | fields
    batching = ContinuousBatching(step_time=STEP, **fields)
    return ContinuousEngine(batching, step_time=LAW, kv_blocks=kv_blocks)


def job(prompt, *ids, output=2, per_id=4, **fields):
    return Job(
        prompt_tokens=prompt,
        output_tokens=output,
        prefix_blocks=ids,
        prefix_block_tokens=per_id,
        **fields,
    )


def serve(engine, *jobs, now=0.0):
    """Serve jobs one after the other; return when the last is done."""
    for one in jobs:
        engine.waiting.push(one, now)
        while (seconds := engine.begin(now)) is not None:
            now += seconds
            engine.end(now)
    return now


def test_what_was_computed_before_is_found_in_whole_blocks():
    engine = engine_of()
    first, second = job(10, 1, 2, 3), job(12, 1, 2, 9)
    serve(engine, first, second)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)
    assert second.prefilled_tokens == 4
    assert second.prefill_end_s - second.batch_in_s == pytest.approx(LAW.seconds(4, 0, 0, 0))


def test_at_least_one_prompt_token_is_computed():
    engine = engine_of()
    again = job(8, 1, 2)
    serve(engine, job(8, 1, 2), again)
    assert again.cached_tokens == 4
    assert again.prefilled_tokens == 4


def test_a_prefix_ends_at_the_first_unknown_block():
    engine = engine_of()
    other = job(16, 1, 7, 3, 4)
    serve(engine, job(16, 1, 2, 3, 4), other)
    assert other.cached_tokens == 4


def test_a_prefix_is_found_while_another_still_holds_it_and_takes_no_new_block():
    engine = engine_of(kv_blocks=7)
    first, second = (job(16, 1, 2, 3, 4, output=8) for _ in range(2))
    for one in (first, second):
        engine.waiting.push(one, 0.0)
    engine.begin(0.0)
    assert engine.prefilling == 2
    assert second.cached_tokens == 12
    assert engine.kv.free == 7 - 4 - 1


def test_the_least_recently_used_prefix_is_evicted_first_and_before_anybody_is_preempted():
    engine = engine_of(kv_blocks=8)
    serve(engine, job(8, 1, 2), job(8, 5, 6), job(9, 1, 2, 0))
    serve(engine, job(12, 21, 22, 23))
    old, recent = job(9, 5, 6), job(9, 1, 2)
    serve(engine, recent)
    assert recent.cached_tokens == 8
    serve(engine, job(20), old)
    assert old.cached_tokens < 8
    assert engine.preemptions == 0


def test_a_preempted_job_finds_its_own_blocks_again():
    batching = {"kv_blocks": 8, "max_num_batched_tokens": 64, "max_model_len": 64}
    computed = []
    for caching in (False, True):
        engine = engine_of(prefix_caching=caching, **batching)
        jobs = [job(7, output=20) for _ in range(2)]
        for one in jobs:
            engine.waiting.push(one, 0.0)
        now = 0.0
        while (seconds := engine.begin(now)) is not None:
            now += seconds
            engine.end(now)
        assert engine.preemptions
        computed.append(sum(one.prefilled_tokens for one in jobs))
    assert computed[1] < computed[0]


def test_a_share_of_the_prompt_stands_for_ids_that_the_trace_lacks():
    engine = engine_of()
    half, all_of_it = job(21, cached_fraction=0.5), job(20, cached_fraction=1.0)
    serve(engine, half, all_of_it)
    assert (half.cached_tokens, all_of_it.cached_tokens) == (8, 16)
    with_ids = job(21, 1, 2, cached_fraction=0.5)
    serve(engine, with_ids)
    assert with_ids.cached_tokens == 0
    assert engine.kv.free == 100


def test_ids_beyond_the_prompt_name_the_answer():
    engine = engine_of()
    turn = job(8, 1, 2, 3, 4, output=9)
    follow_up = job(20, 1, 2, 3, 4, 5)
    serve(engine, turn, follow_up)
    assert follow_up.cached_tokens == 16


def test_a_crash_loses_the_cache():
    engine = engine_of()
    serve(engine, job(8, 1, 2))
    engine.clear()
    again = job(9, 1, 2)
    serve(engine, again)
    assert again.cached_tokens == 0


def test_ids_of_large_blocks_name_every_kv_block_within():
    assert block_names(job(40, 7, 8, per_id=24), 8) == ((7, 8), 3, 5)
    assert block_names(job(1000, 7, per_id=512), 16) == ((7,), 32, 32)
    assert block_names(job(9, 7, 8, output=1), 4) == ((7, 8), 1, 2)
    assert block_names(job(9), 4) == ((), 1, 0)


def taken(cache, one):
    """Admit a job with its whole prompt; return how many tokens were found."""
    one.known_tokens = one.prompt_tokens
    found = cache.found(one, one.prompt_tokens)
    cache.admit(one, found)
    cache.grow(one, one.prompt_tokens)
    return found


def let_go(cache, one):
    one.generated_tokens = one.output_tokens
    cache.release(one, one.prompt_tokens, one.prompt_tokens)


def test_every_block_is_free_or_held_and_known_blocks_are_known_once():
    cache = PrefixCache(10, block_size=4)
    one, two = job(12, 1, 2, 3), job(12, 1, 2, 4)
    assert [taken(cache, each) for each in (one, two)] == [0, 8]
    assert (cache.free, cache.cached) == (10 - 3 - 1, 0)
    let_go(cache, one)
    assert (cache.free, cache.cached) == (10 - 3, 1)
    let_go(cache, two)
    assert (cache.free, cache.cached) == (10, 4)
    assert [cache.known_tokens(job(13, 1, 2, last)) for last in (3, 4, 5)] == [12, 12, 8]


def test_a_prefix_block_is_evicted_kv_block_by_kv_block_from_its_end():
    """One id names six blocks; what other jobs take of them leaves the first ones known."""
    cache, one = PrefixCache(8, block_size=4), job(24, 7, per_id=24)
    taken(cache, one)
    let_go(cache, one)
    assert cache.known_tokens(one) == 20
    for held, left in ((3, 20), (2, 12), (2, 4)):
        taken(cache, other := job(4 * held))
        assert cache.known_tokens(one) == left
        let_go(cache, other)
    assert (cache.free, cache.cached) == (8, 1)


def test_what_others_hold_of_a_prefix_block_stays_and_the_rest_is_evicted():
    cache = PrefixCache(8, block_size=4)
    long, short, filling = job(24, 7, per_id=24), job(13, 7, per_id=24), job(16)
    assert [taken(cache, long), taken(cache, short)] == [0, 12]
    let_go(cache, long)
    assert (cache.free, cache.cached) == (4, 3)
    taken(cache, filling)
    assert (cache.free, cache.cached) == (0, 0)
    assert cache.known_tokens(long) == 12
    for one in (short, filling):
        let_go(cache, one)
    assert (cache.free, cache.cached) == (8, 3)


def numbered(cache, *ids, per_id, prompt):
    keys, _, _ = cache._keys_of(job(prompt, *ids, per_id=per_id))
    return keys.tolist()


def test_whole_numbers_name_blocks_in_compiled_engines_whatever_the_ids_are():
    """Ids of any size, also hashes of 64 bits, share the keys of a common beginning alone."""
    cache = CompiledCache(SimpleNamespace(block_size=16))
    big = 2**63 - 5
    for first, second, third in [(0, 1, 2), (7, big, big - 1), (-3, big, 4)]:
        one = numbered(cache, first, second, per_id=32, prompt=60)
        two = numbered(cache, first, third, per_id=32, prompt=64)
        assert (len(one), len(two)) == (2, 2)
        assert one[0] == two[0]
        assert one[1] != two[1]
    odd = [numbered(cache, *ids, per_id=24, prompt=48) for ids in [(7, 8), (7, 9)]]
    assert odd[0][0] == odd[1][0]
    assert not set(odd[0][1:]) & set(odd[1][1:])


def test_keys_made_of_small_ids_are_made_once_for_all_replicas():
    shared = job(64, 1, 2, per_id=32)
    one, two = (CompiledCache(SimpleNamespace(block_size=16)) for _ in range(2))
    assert one._keys_of(shared) is two._keys_of(shared)
