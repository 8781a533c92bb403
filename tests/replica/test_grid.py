"""Functions given at points, and what a step mixes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.replica.compiled.step_laws import curve, of_mix
from capplan.replica.kernel_tables import mix_table

CHUNKS, BEFORES, SEQUENCES, CONTEXTS = (16, 64, 256), (0, 32, 128), (1, 4, 16), (8, 64, 512)
INSIDE = (st.floats(16, 256), st.floats(0, 128), st.floats(1, 16), st.floats(8, 512))


def kernel(chunk, before, sequences, context):
    """Return a time that is straight in each number, as kernels nearly are."""
    return 3 * chunk + 0.1 * chunk * before + sequences * (2 + 0.5 * context)


def table(time=kernel, *, per_prompt=True, empty=True):
    return mix_table(
        time,
        chunks=CHUNKS,
        befores=BEFORES,
        sequences=SEQUENCES,
        contexts=CONTEXTS,
        per_prompt=per_prompt,
        empty=empty,
    )


@given(*INSIDE)
def test_a_table_gives_back_what_is_straight_between_its_points(chunk, before, sequences, context):
    found = of_mix(table(), chunk, before, sequences, context)
    assert found == pytest.approx(kernel(chunk, before, sequences, context))


@given(INSIDE[2], INSIDE[3])
def test_a_decode_batch_alone_is_its_own_part_of_the_table(sequences, context):
    found = of_mix(table(), 0, 0, sequences, context)
    assert found == pytest.approx(sequences * (2 + 0.5 * context))


def test_beyond_the_last_point_the_last_stretch_goes_on():
    assert of_mix(table(), 0, 0, 32, 1024) == pytest.approx(32 * (2 + 0.5 * 1024))
    assert of_mix(table(), 512, 0, 0, 0) == pytest.approx(3 * 512)


def test_where_a_batch_was_not_measured_beside_a_chunk_it_adds_what_it_adds_beside_a_shorter():
    def holes(chunk, before, sequences, context):
        return None if chunk == 256 and sequences else kernel(chunk, before, sequences, context)

    assert of_mix(table(holes), 256, 32, 4, 64) == pytest.approx(kernel(256, 32, 4, 64))


def test_a_table_needs_every_chunk_and_every_batch_alone():
    with pytest.raises(ValueError, match="no time for chunk"):
        table(lambda *point: None if point == (64, 0, 0, 0) else kernel(*point))


@pytest.mark.parametrize("per_prompt", [True, False])
def test_several_short_prompts_take_as_much_as_their_pairs(per_prompt):
    def quadratic(chunk, before, sequences, context):
        return chunk * (before + chunk / 2) + sequences * context

    # 4 prompts of 64 tokens: 256 tokens, 4 * 64 * 32 pairs, so 32 - 128 tokens before.
    found = of_mix(table(quadratic, per_prompt=per_prompt), 256, 32 - 128, 0, 0)
    assert found == pytest.approx(4 * 64 * 32)


def test_a_whole_step_never_takes_less_than_the_smallest():
    def whole(chunk, before, sequences, context):
        return 100 + kernel(chunk, before, sequences, context)

    assert of_mix(table(whole, empty=False), 0, 0, 0.5, 8) == pytest.approx(whole(0, 0, 1, 8))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: curve((1.0, 1.0), (0.0, 0.0)), "rising points"),
        (lambda: curve((1.0,), (0.0,)), "at least two"),
        (lambda: curve((1.0, 2.0), (0.0,)), "one value per point, got 1 for 2"),
    ],
)
def test_points_that_make_no_function_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
