"""How far step times can be off: what is known of it, and a law at either end."""

import pytest

from capplan.replica.step_error import StepError, known_error, with_step_times
from capplan.replica.step_time import batch_seconds, step_time
from capplan.scenario.files import load_scenario, validate

STEPS = [
    (0, 0, 1, 100), (0, 0, 64, 90_000), (512, 131_072, 0, 0), (512, 131_072, 32, 40_000),
    (4096, 2e7, 200, 5e5),
]  # fmt: skip
"""Prefilled tokens, their pairs, decoding sequences, their context."""


def service(model="Llama-3.1-8B", accelerator="H100-SXM-80GB", law=None, **pool):
    batching = {
        "kind": "continuous",
        "max_model_len": 8192,
        "step_time": law or {"kind": "roofline"},
    }
    return validate(
        {
            "name": "x",
            "classes": [{"name": "c", "promises": {"deadline_s": 60.0}}],
            "traffic": {"shape": {"kind": "steady", "rate_rps": 1.0}, "duration_s": 60.0},
            "pools": [
                {"name": "llm", "model": model, "accelerator": accelerator, "batching": batching}
                | pool
            ],
        },
        where="x",
    )


LAWS = {
    "roofline": {"kind": "roofline", "overhead_s": 0.002, "per_sequence_s": 5e-5},
    "linear": {"kind": "linear", "base_s": 0.01, "per_prefill_token_s": 1e-5,
               "per_sequence_s": 1e-4, "per_context_token_s": 1e-8},
    "silicon": {"kind": "silicon", "overhead_s": 0.002},
    "calibrated roofline": {"kind": "calibrated", "prefill_scale": 1.2, "fixed_s": 0.001},
    "calibrated silicon": {"kind": "calibrated", "base": {"kind": "silicon"}, "dense_scale": 0.9},
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
def test_each_step_takes_as_many_times_as_long_as_is_asked(law):
    if "silicon" in law:
        pytest.importorskip("aiconfigurator_core")
    own = service(law=LAWS[law])
    slower = with_step_times(own, {"llm": 1.08})
    before, after = (step_time(one.pool()) for one in (own, slower))
    for work in STEPS:
        assert after.seconds(*work) == pytest.approx(1.08 * before.seconds(*work), rel=1e-9)


def test_batches_of_another_pool_take_as_long_as_before():
    own = load_scenario("chat-service")
    slower = with_step_times(own, {"labelling": 2.0})
    before, after = (one.pool("labelling").batching.service for one in (own, slower))
    assert batch_seconds(after, 8, 900) == pytest.approx(2 * batch_seconds(before, 8, 900))
    assert slower.pool("llm") == own.pool("llm")


def test_an_error_that_was_not_measured_is_unknown_unless_it_is_stated():
    for unknown in (
        service(law=LAWS["linear"]),
        service(accelerator="A10G", model="Llama-3.2-1B"),
        load_scenario("embedding-batch"),
    ):
        assert known_error(unknown.pool()) is None
    stated = known_error(service(law=LAWS["linear"] | {"error_fraction": 0.1}).pool())
    assert (stated.shorter_fraction, stated.longer_fraction) == (0.1, 0.1)


def test_an_error_is_of_the_law_so_that_a_law_too_fast_has_longer_real_steps():
    """A law 20 % too fast says 0.8 of the real time, which is 1.25 of what it says."""
    error = StepError.of(-0.2, 0.0, "a run")
    assert error.factor(longer=True) == pytest.approx(1.25)
    assert error.factor(longer=False) == 1.0


@pytest.mark.parametrize(
    "pool",
    [
        {},
        {"accelerator": "A100-SXM-80GB"},
        {"model": "Mixtral-8x7B-v0.1", "tensor_parallel": 2, "weight_dtype": "fp8"},
        {"model": "DeepSeek-V3", "accelerator": "H200", "tensor_parallel": 8},
    ],
)
def test_an_error_against_servers_or_kernels_is_known_by_family(pool):
    error = known_error(service(**pool).pool())
    assert 0 <= error.shorter_fraction < 0.3
    assert 0 < error.longer_fraction < 0.4
