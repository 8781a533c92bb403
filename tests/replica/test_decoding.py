"""Speculation, beams, partial prefills and the watermark, by what they change."""

import pytest
from pydantic import ValidationError

from capplan.replica.continuous import ContinuousEngine
from capplan.replica.job import Job
from capplan.scenario.batching import ContiguousKv, ContinuousBatching, Speculation
from capplan.scenario.step_times import LinearStep

STEP = LinearStep(
    base_s=4e-3, per_prefill_token_s=1e-4, per_sequence_s=1e-5, per_context_token_s=1e-8
)


def engine_of(law, *, kv_blocks=1000, **fields):
    batching = ContinuousBatching(step_time=STEP, kv_blocks=kv_blocks, **fields)
    return ContinuousEngine(batching, step_time=law, kv_blocks=kv_blocks)


def serve(engine, jobs):
    """Serve jobs that are all here from the start; return how many steps that takes."""
    for job in jobs:
        engine.waiting.push(job, 0.0)
    now = 0.0
    while (seconds := engine.begin(now)) is not None:
        now += seconds
        engine.end(now)
    return engine.steps


@pytest.mark.parametrize(("drafted", "acceptance"), [(1, 0.5), (4, 0.8), (5, 0.0), (3, 1.0)])
def test_steps_make_the_expected_tokens_of_speculation(law, drafted, acceptance):
    """Leviathan et al. 2023, equation 1: (1 - a^(g+1)) / (1 - a) tokens per step."""
    draft = Speculation(num_speculative_tokens=drafted, acceptance=acceptance)
    each = (
        drafted + 1.0 if acceptance == 1 else (1 - acceptance ** (drafted + 1)) / (1 - acceptance)
    )
    job = Job(prompt_tokens=10, output_tokens=2001)
    steps = serve(engine_of(law, speculation=draft), [job])
    assert 2000 / (steps - 1) == pytest.approx(each, rel=2e-3)
    assert job.generated_tokens == 2001
    assert job.prefilled_tokens == 10


def test_without_acceptance_speculation_only_costs(law):
    plain, drafted = (Job(prompt_tokens=10, output_tokens=50) for _ in range(2))
    serve(engine_of(law), [plain])
    speculation = Speculation(num_speculative_tokens=2, acceptance=0, draft_cost_fraction=0.25)
    serve(engine_of(law, speculation=speculation), [drafted])
    alone = [law.seconds(0, 0, 1, 10 + made) for made in range(1, 50)]
    more = sum(alone) * 2 * 0.25 + 49 * 2 * law.per_prefill_token_s
    assert drafted.decode_end_s - plain.decode_end_s == pytest.approx(more)


def test_a_beam_takes_its_width_in_places_blocks_and_tokens(law):
    engine = engine_of(law, kv_blocks=9, beam_width=3, max_num_seqs=8)
    jobs = [Job(prompt_tokens=20, output_tokens=5) for _ in range(3)]
    for job in jobs:
        engine.waiting.push(job, 0.0)
    engine.begin(0.0)
    assert engine.prefilling == 1  # two blocks a sequence: six of nine
    assert engine.kv_usage_fraction == pytest.approx(6 / 9)
    assert engine.end(1.0) == []
    assert engine.begin(1.0) == pytest.approx(law.seconds(0, 0, 3, 3 * 21))
    serve(engine, [])
    assert jobs[0].spent_tokens == 20 + 3 * 5
    assert engine.refusal(Job(prompt_tokens=40, output_tokens=10)) == "kv_capacity"


def test_beams_may_share_the_full_blocks_of_their_prompt(law):
    fields = {"kv_blocks": 12, "beam_width": 3, "max_num_seqs": 9, "beam_shares_prompt": True}
    engine = engine_of(law, **fields)
    jobs = [Job(prompt_tokens=20, output_tokens=20) for _ in range(3)]
    for job in jobs:
        engine.waiting.push(job, 0.0)
    engine.begin(0.0)
    # Blocks of 16: one full block of the prompt, and three that it shares with the answers.
    assert engine.prefilling == 3
    assert engine.kv_usage_fraction == pytest.approx(12 / 12)
    assert engine.end(1.0) == []
    serve(engine, [])
    assert engine.kv_usage_fraction == 0
    assert all(job.generated_tokens == 20 for job in jobs)
    assert engine.preemptions > 0  # the third block of each branch does not fit for all
    long = {"prompt_tokens": 40, "output_tokens": 10}
    assert engine.refusal(Job(**long)) is None  # 2 + 2 · 3 of 12 blocks
    assert engine_of(law, **fields | {"beam_shares_prompt": False}).refusal(Job(**long)) is None
    tight = fields | {"kv_blocks": 8}
    assert engine_of(law, **tight).refusal(Job(**long)) is None
    assert engine_of(law, **tight | {"beam_shares_prompt": False}).refusal(Job(**long)) is not None


def test_a_long_prompt_leaves_room_for_others_beside_it(law):
    def first_tokens(**fields):
        engine = engine_of(law, max_num_batched_tokens=100, max_model_len=4000, **fields)
        jobs = [Job(prompt_tokens=n, output_tokens=2) for n in (1000, 30)]
        serve(engine, jobs)
        return [job.prefill_end_s for job in jobs]

    whole, shared = first_tokens(), first_tokens(long_prefill_token_threshold=50)
    assert shared[1] < 0.1 * whole[1]
    assert shared[0] > whole[0]


def test_a_long_prompt_too_many_is_passed_by_a_short_one(law):
    jobs = [Job(prompt_tokens=n, output_tokens=2) for n in (500, 400, 20)]
    limits = {"long_prefill_token_threshold": 50, "max_long_partial_prefills": 1}
    serve(engine_of(law, **limits), jobs)
    assert jobs[2].batch_in_s == 0 < jobs[1].batch_in_s
    last_chunk_s = jobs[0].prefill_end_s - law.seconds(100, 0, 0, 0)
    assert jobs[1].batch_in_s == pytest.approx(last_chunk_s)


def test_the_watermark_keeps_blocks_free_for_those_that_run(law):
    def preempted(watermark):
        engine = engine_of(law, kv_blocks=20, watermark=watermark, block_size=4)
        serve(engine, [Job(prompt_tokens=8, output_tokens=30) for _ in range(12)])
        return engine.preemptions

    assert preempted(0.4) < preempted(0.0)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"beam_width": 4, "max_num_seqs": 2}, "4 needs as many max_num_seqs, 2 is 2 short"),
        ({"beam_width": 4, "kv_blocks": 3}, "as many kv_blocks, got 3"),
        ({"beam_shares_prompt": True}, "beam_shares_prompt needs a beam_width above 1"),
        (
            {"beam_shares_prompt": True, "beam_width": 2, "kv_layout": "contiguous"},
            "beam_shares_prompt is of kv_layout paged",
        ),
        ({"max_long_partial_prefills": 1}, "needs a long_prefill_token_threshold"),
        ({"kv_layout": "contiguous", "prefix_caching": True}, "prefix_caching is of kv_layout"),
        ({"kv_blocks": 0}, "greater than or equal to 1"),
        ({"chunked_prefill": False}, "at least max_model_len .8192.: 2048 is 6144 short"),
        ({"max_num_batched_tokens": 7}, "7 fills no block of block_size 16: 9 short"),
    ],
)
def test_a_configuration_that_cannot_be_says_why(fields, told):
    with pytest.raises(ValidationError, match=told):
        ContinuousBatching(**fields)


def test_contiguous_parts_are_checked():
    with pytest.raises(ValidationError):
        ContiguousKv(reserve="half")
