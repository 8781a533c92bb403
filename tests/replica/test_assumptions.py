"""What every answer rests on: the error of its step times, and settings that no one stated."""

import json

import pytest

from capplan.catalog.engines import DEFAULTS_SOURCE
from capplan.cli import main
from capplan.replica.assumptions import rests_on
from capplan.replica.family_errors import KERNELS, family_errors
from capplan.scenario.files import load_scenario, validate, with_values


def service(accelerator="H100-SXM-80GB", model="Llama-3.1-8B", batching=None, **pool):
    own = {"kind": "continuous", "max_model_len": 8192, **(batching or {})}
    return validate(
        {
            "name": "x",
            "classes": [{"name": "c", "promises": {"deadline_s": 60.0}}],
            "traffic": {"shape": {"kind": "steady", "rate_rps": 1.0}, "duration_s": 60.0},
            "pools": [
                {"name": "llm", "model": model, "accelerator": accelerator, "batching": own, **pool}
            ],
        },
        where="x",
    )


@pytest.mark.parametrize(
    ("accelerator", "sequences", "tokens"),
    [
        ("H100-SXM-80GB", 1024, 8192),
        ("H200-SXM-141GB", 1024, 8192),
        ("A100-SXM-80GB", 256, 2048),
        ("L40S", 256, 2048),
    ],
)
def test_a_pool_takes_the_batch_limits_of_an_engine_on_its_accelerator(
    accelerator, sequences, tokens
):
    study = service(accelerator)
    found = study.pool().batching
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (sequences, tokens)
    assert not {"max_num_seqs", "max_num_batched_tokens"} & found.model_fields_set
    [note] = [s for s in rests_on(study) if DEFAULTS_SOURCE in s]
    assert f"max_num_seqs {sequences:,}" in note
    assert f"max_num_batched_tokens {tokens:,}" in note


def test_a_limit_that_is_stated_stays_and_bounds_the_other():
    stated = service(batching={"max_num_batched_tokens": 512})
    assert stated.pool().batching.max_num_batched_tokens == 512
    assert stated.pool().assumed_settings == {"max_num_seqs": 512}
    both = {"max_num_seqs": 64, "max_num_batched_tokens": 2048}
    assert service(batching=both).pool().assumed_settings == {}
    assert not any(DEFAULTS_SOURCE in s for s in rests_on(service(batching=both)))


def test_another_accelerator_brings_its_own_limits():
    moved = with_values(service(), {"pools.llm.accelerator": "A100-SXM-80GB"})
    assert moved.pool().batching.max_num_seqs == 256
    nowhere = service(accelerator=None, batching={"kv_blocks": 1000})
    assert nowhere.pool().assumed_settings == {}


COMPARED = "data/validation"


def test_an_error_is_quoted_for_servers_of_the_measured_kind_alone():
    [near, *_] = rests_on(service())
    assert COMPARED in near
    for pool, why in (
        ({"accelerator": "A100-SXM-80GB"}, "A100"),
        ({"tensor_parallel": 2}, "2 accelerators"),
        ({"weight_dtype": "fp8"}, "below 16 bits"),
        ({"model": "Mixtral-8x7B-v0.1", "tensor_parallel": 4}, "experts"),
    ):
        [far, *_] = rests_on(service(**pool))
        assert COMPARED not in far
        assert "not compared" in far
        assert why in far


def test_memory_outside_the_compared_range_is_named_unless_it_is_stated():
    def named(**options):
        return any("compared range" in s for s in rests_on(service(**options)))

    assert not named()
    assert named(weight_dtype="fp8")
    assert not named(weight_dtype="fp8", batching={"kv_blocks": 10_000})


def test_stated_times_are_not_compared_and_a_calibration_quotes_its_own_kind():
    linear = load_scenario("benchmark")
    assert "not compared" in rests_on(linear)[0]
    assert not any("calibrated" in s for s in rests_on(linear))
    fitted = service(batching={"step_time": {"kind": "calibrated", "prefill_scale": 1.1}})
    assert "calibrated over roofline" in rests_on(fitted)[0]


@pytest.mark.parametrize("command", ["simulate", "size", "stages", "sweep"])
def test_each_answer_states_the_error_of_its_step_times(command, tmp_path, capsys):
    more = {
        "size": ["--lose", "0", "--most", "1"],
        "stages": ["--set", "stages.run=[baseline]", "--out", str(tmp_path / "s")],
        "sweep": ["--vary", "gateway.overhead_s=0.0,0.1", "--out", str(tmp_path / "v")],
    }.get(command, [])
    assert main([command, "benchmark", "--set", "requests=60", *more, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(rests_on(load_scenario("benchmark"))) <= set(document["assumed"])


def test_the_error_against_kernels_is_that_of_the_models_own_family():
    families = {
        "dense at 8 bits": {"weight_dtype": "fp8"},
        "mixture-of-experts": {"model": "Mixtral-8x7B-v0.1", "tensor_parallel": 4},
        "latent-attention at 8 bits": {
            "model": "DeepSeek-V3", "tensor_parallel": 8, "accelerator": "H200-SXM-141GB",
        },
        "linear-attention": {"model": "Qwen3.5-27B"},
        "sliding-window": {"model": "gemma-3-27b-pt"},
        "sliding-window at 4 bits": {"model": "gpt-oss-20b"},
    }  # fmt: skip
    for family, pool in families.items():
        study = service(**pool)
        [first, *_] = family_errors(study.pool())
        assert (first.family, first.against) == (family, KERNELS)
        assert -0.5 < first.least_fraction < 0 < first.median_fraction
        assert first.median_fraction < max(first.most_fraction, -first.least_fraction) < 0.5
        assert str(first) in rests_on(study)[0]
    for pool in ({"weight_dtype": "int4"}, {"accelerator": "L4"}):
        assert family_errors(service(**pool).pool()) == []


@pytest.mark.parametrize(
    ("promises", "doubted"),
    [
        ({"ttft_s": 500.0, "deadline_s": 3_000.0}, {"ttft_s", "deadline_s"}),
        ({"ttft_s": 3.0, "deadline_s": 60.0}, set()),
        ({"e2e_s": 3_000.0}, {"e2e_s"}),
    ],
)
def test_promises_that_may_be_milliseconds_are_named(promises, doubted):
    study = with_values(service(), {"classes.c.promises": promises})
    named = {s.split(":")[0].rpartition(".")[2] for s in rests_on(study) if "seconds" in s}
    assert named == doubted
    retry = {"max_attempts": 2, "attempt_timeout_s": 15_000.0}
    late = with_values(service(), {"classes.c.retry": retry})
    assert any("attempt_timeout_s: 15000" in s for s in rests_on(late))
    spoken = with_values(study, {"classes.c.streaming": False})
    assert not any("seconds" in s for s in rests_on(spoken))


def test_a_name_that_leaves_the_memory_open_is_named_in_full():
    assert any("A100 is read as A100-SXM-80GB" in s for s in rests_on(service("A100")))
    assert not any("is read as" in s for s in rests_on(service("A100-SXM-40GB")))


def test_a_fault_after_the_run_is_named_and_one_in_it_is_not(capsys):
    faults = "faults=[{kind: crash, pool: replicas, at_s: AT, count: 1}]"
    pool = load_scenario("benchmark").pool().name
    for at, late in (("0.5", False), ("90000", True)):
        fault = faults.replace("AT", at).replace("replicas", pool)
        assert main(["simulate", "benchmark", "--set", "requests=50", "--set", fault]) == 0
        assert ("it did nothing" in capsys.readouterr().out) == late


def test_a_length_limit_that_no_one_stated_is_named():
    open_ended = with_values(service(), {"pools.llm.batching": {"kind": "continuous"}})
    assert any("requests beyond 8,192 tokens are refused" in s for s in rests_on(open_ended))
    assert not any("max_model_len" in s for s in rests_on(service()))
