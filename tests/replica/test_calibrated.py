"""Scaled step times, and what they imply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.replica.compiled.step_laws import (
    LinearStepTime,
    RooflineStepTime,
    ScaledStepTime,
)
from capplan.replica.step_time import implied, step_time
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import CalibratedStep, RooflineStep

STEPS = st.tuples(
    st.integers(0, 2048), st.integers(0, 4096), st.integers(0, 256), st.integers(1, 8192)
).filter(lambda step: step[0] or step[2])


def pool(law):
    batching = ContinuousBatching(step_time=law)
    return Pool(name="llm", model="Llama-3.1-8B", accelerator="H100", batching=batching)


def at(steps, step):
    chunk, before, sequences, context = step
    return steps.seconds(chunk, chunk * (before + chunk / 2), sequences, sequences * context)


BASE = step_time(pool(RooflineStep()))


def test_a_calibrated_step_time_without_its_scales_is_an_error():
    with pytest.raises(ValueError, match="at least one of dense_scale, context_scale"):
        CalibratedStep()
    assert CalibratedStep(fixed_s=0.0).dense_scale == 1.0


@given(STEPS)
def test_scales_of_one_change_nothing(step):
    assert at(step_time(pool(CalibratedStep(dense_scale=1.0, mixed_fraction=None))), step) == at(
        BASE, step
    )
    same = ScaledStepTime(
        base=BASE, dense_scale=1.0, context_scale=1.0, prefill_scale=1.0, fixed_s=0.0
    )
    assert at(same, step) == pytest.approx(at(BASE, step))


@given(STEPS, st.floats(0.5, 2.0), st.floats(0.5, 2.0))
def test_every_step_lies_between_the_base_times_its_smallest_and_largest_scale(step, one, other):
    scales = {"dense_scale": one, "context_scale": other, "prefill_scale": 1.0}
    found = at(ScaledStepTime(base=BASE, fixed_s=0.0, **scales), step)
    low, high = min(scales.values()), max(scales.values())
    assert low * at(BASE, step) <= found * (1 + 1e-9)
    assert found <= high * at(BASE, step) * (1 + 1e-9)


def test_a_scaled_roofline_stays_a_roofline():
    law = CalibratedStep(dense_scale=1.1, context_scale=0.9, prefill_scale=1.3, fixed_s=1e-3)
    steps = step_time(pool(law))
    assert isinstance(steps, RooflineStepTime)
    assert steps.per_context_token_s == pytest.approx(0.9 * BASE.per_context_token_s)
    assert steps.weights_s == pytest.approx(1.1 * BASE.weights_s)
    assert steps.per_pair_s == pytest.approx(1.3 * BASE.per_pair_s)
    assert steps.kernels_s == pytest.approx(1.1 * BASE.kernels_s + 1e-3)
    assert steps.host_s == BASE.host_s


@pytest.mark.parametrize("base", [{"kind": "roofline"}, {"kind": "linear"}])
def test_decoding_sequences_attend_longer_only_beside_a_prefill_of_more_rows_than_decode(base):
    # Llama-3.1-8B: 4 heads share a KV head, so 16 tokens fill the 64 rows of a decode's tile.
    laws = [CalibratedStep(context_scale=0.9, mixed_fraction=f) for f in (0.0, 0.5)]
    if base["kind"] == "roofline":
        plain, mixed = (step_time(pool(law)) for law in laws)
    else:
        scales = {"dense_scale": 1.0, "context_scale": 0.9, "prefill_scale": 1.0, "fixed_s": 0.0}
        under = LinearStepTime(4e-3, 1e-5, 1e-5, 1e-8)
        plain, mixed = (
            ScaledStepTime(base=under, mixed_fraction=f, narrow_tokens=16.0, **scales)
            for f in (0.0, 0.5)
        )
    for step in ((0, 0, 32, 1000), (16, 0, 32, 1000), (512, 0, 0, 0)):
        assert at(mixed, step) == at(plain, step)
    read_s = at(plain, (0, 0, 32, 2000)) - at(plain, (0, 0, 32, 1000))
    for chunk in (17, 512):
        more_s = [
            at(mixed, (chunk, 0, 32, context)) - at(plain, (chunk, 0, 32, context))
            for context in (1000, 2000)
        ]
        assert more_s[1] - more_s[0] == pytest.approx(0.5 * read_s)


def test_a_step_jumps_where_its_tokens_start_another_tile_and_is_as_long_on_average():
    whole = step_time(pool(CalibratedStep(tile_fraction=1.0)))
    jump_s = at(whole, (1024, 0, 1, 1)) - at(whole, (1024, 0, 0, 0))
    assert jump_s == pytest.approx(128 * BASE.per_prompt_token_s, rel=0.05)
    tile = range(1025, 1153)
    means = [sum(at(law, (n, 0, 0, 0)) for n in tile) / 128 for law in (whole, BASE)]
    assert means[0] == pytest.approx(means[1], rel=0.005)
    assert at(whole, (200, 0, 0, 0)) == at(BASE, (200, 0, 0, 0))


def test_what_is_implied_of_a_roofline_is_its_own_efficiency():
    law = RooflineStep(
        memory_efficiency=0.7,
        compute_efficiency=0.6,
        kernel_s=0.0,
        overhead_s=0.0,
        per_sequence_s=0.0,
    )
    said = implied(pool(law), step_time(pool(law)))
    assert said.weights_bandwidth_fraction == pytest.approx(0.7, rel=0.02)
    assert said.kv_bandwidth_fraction == pytest.approx(0.93, rel=0.001)
    assert 0.5 < said.compute_fraction < 0.6  # element-wise kernels take their part
    assert said.plausible


def test_more_than_the_accelerator_can_do_is_not_plausible():
    law = CalibratedStep(context_scale=0.5)
    said = implied(pool(law), step_time(pool(law)))
    assert said.kv_bandwidth_fraction == pytest.approx(1.86, rel=0.001)
    assert not said.plausible


@pytest.mark.parametrize("name", ["Mixtral-8x7B-v0.1", "DeepSeek-V3"])
def test_a_model_of_experts_reads_only_the_experts_of_its_token(name):
    wide = Pool(
        name="llm",
        model=name,
        accelerator="H200",
        tensor_parallel=8,
        batching=ContinuousBatching(step_time=RooflineStep(kernel_s=0.0, overhead_s=0.0)),
    )
    said = implied(wide, step_time(wide))
    assert 0.1 < said.weights_bandwidth_fraction < 0.9
    assert said.plausible


def test_a_model_with_tied_embeddings_reads_them_as_its_output_head():
    law = RooflineStep(memory_efficiency=0.7, kernel_s=0.0, overhead_s=0.0, per_sequence_s=0.0)
    tied = pool(law).model_copy(update={"model": "Llama-3.2-1B"})
    said = implied(tied, step_time(tied))
    assert said.weights_bandwidth_fraction == pytest.approx(0.7, rel=0.03)


def test_a_calibration_keeps_how_its_base_mixes_only_if_it_says_so():
    plain = step_time(pool(RooflineStep()))
    kept, fitted = (
        step_time(pool(CalibratedStep(dense_scale=1.0, mixed_fraction=fraction)))
        for fraction in (None, 0.0)
    )
    work = (512, 512**2 / 2, 32, 32 * 1024)
    assert kept.seconds(*work) == pytest.approx(plain.seconds(*work))
    assert fitted.seconds(*work) < plain.seconds(*work)
