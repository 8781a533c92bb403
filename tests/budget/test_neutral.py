"""Derived limits end only what is lost: no request that keeps its deadline, and no replica."""

import pytest

import capplan as cp
from capplan.budget import allocate, apply
from capplan.scenario.fields import derived_fields
from capplan.scenario.files import load_scenario, validate, with_values
from capplan.starter import scenario as starter
from capplan.starter import use_cases

LIMITS = {
    "gateway.concurrency": "derived",
    "gateway.queue.length": "derived",
    "gateway.queue.wait_limit_s": "derived",
    "pools.llm.queue.length": "derived",
    "pools.llm.queue.wait_limit_s": "derived",
    "pools.llm.router.max_in_flight": "derived",
    "pools.llm.batching.scheduler.length": "derived",
    "pools.llm.batching.scheduler.wait_limit_s": "derived",
}


def service(**promises):
    """Return long and short prompts in bursts, on replicas that wait now and then."""
    return validate(
        {
            "name": "bursty",
            "requests": 1200,
            "classes": [
                {
                    "name": "chat",
                    "promises": {
                        "deadline_s": 60.0, "ttft_s": 1.0, "quantile": 0.95,
                        "availability_fraction": 0.99, **promises,
                    },
                    "prompt_tokens": {
                        "kind": "lognormal", "p50_tokens": 2000, "p95_tokens": 16_000,
                        "max_tokens": 60_000,
                    },
                    "output_tokens": {
                        "kind": "lognormal", "p50_tokens": 100, "p95_tokens": 400,
                        "max_tokens": 1000,
                    },
                }
            ],
            "traffic": {
                "shape": {"kind": "steady", "rate_rps": 8.0},
                "arrivals": {"kind": "gamma", "cv": 4.0},
            },
            "pools": [
                {
                    "name": "llm", "model": "Llama-3.1-8B", "accelerator": "H100-SXM-80GB",
                    "replicas": 2,
                    "batching": {
                        "kind": "continuous", "max_num_seqs": 64, "max_model_len": 61_000,
                        "max_num_batched_tokens": 8192,
                    },
                }
            ],
        },
        where="bursty",
    )  # fmt: skip


def needed(scenario):
    return cp.size(scenario, lose=0, n_max=12, seed=1).replicas[0]


def test_derived_limits_need_as_many_replicas_as_the_promise_alone():
    free = service()
    own = needed(free)
    assert own > 1
    assert needed(with_values(free, LIMITS)) == own
    assert needed(apply(free, allocate(free))) == own, "also those of another number of replicas"


def test_limits_from_a_promise_that_some_may_miss_can_cost_replicas():
    free = service(availability_fraction=0.995)
    late = {"budget.limits_from": "promise"}
    own = needed(with_values(free, LIMITS))
    found = needed(with_values(free, LIMITS | late))
    assert found is None or found > own, "None: more than were tried"


def test_in_an_overload_limits_lose_no_request_that_keeps_its_deadline():
    scenario = service(deadline_s=8.0)
    scenario = with_values(scenario, {"traffic.shape.rate_rps": 20.0})
    limited = with_values(scenario, LIMITS)
    trace = cp.draw(scenario, seed=1)
    free, held = (cp.simulate(s, trace=trace, seed=1).requests for s in (scenario, limited))
    ended = held[held["reason"].isin(["queue_full", "wait_limit"])]
    assert len(ended) > 20
    kept = set(free.loc[free["outcome"] == "succeeded", "request_id"])
    assert not kept & set(ended["request_id"])
    assert "wait_limit" in set(ended["reason"])


def test_limits_from_the_promise_keep_more_in_time_in_an_overload():
    scenario = with_values(service(), LIMITS | {"traffic.shape.rate_rps": 12.0})
    trace = cp.draw(scenario, seed=1)
    for source, least, most in (("deadline", 0.0, 0.1), ("promise", 0.4, 1.0)):
        study = with_values(scenario, {"budget.limits_from": source})
        good = cp.per_request(cp.simulate(study, trace=trace, seed=1))["good"].mean()
        assert least <= good <= most


@pytest.mark.parametrize("use_case", use_cases())
def test_a_starter_states_its_own_budget_and_loses_nothing_by_it(use_case):
    load = {"rps": 2.0} if use_case in ("agent", "batch") else {"users": 1000}
    study = with_values(starter(use_case=use_case, **load), {"requests": 2500})
    assert allocate(study).outcome == "pass"
    without = with_values(study, derived_fields(study))
    trace = cp.draw(study, seed=1)
    logs = [cp.simulate(s, trace=trace, seed=1).requests for s in (without, study)]
    assert logs[0].equals(logs[1])
    assert set(logs[0]["outcome"]) == {"succeeded"}


CODE = {
    "name": "code-assistant",
    "warmup_s": 60.0,
    "classes": [
        {
            "name": "code",
            "promises": {
                "deadline_s": 30.0, "ttft_s": 2.0, "quantile": 0.99, "availability_fraction": 0.995,
            },
            "retry": {"max_attempts": 2, "attempt_timeout_s": 14.0, "backoff_s": 0.5,
                      "jitter": True},
        }
    ],
    "gateway": {"overhead_s": 0.01},
    "pools": [
        {
            "name": "llm", "model": "Llama-3.1-70B", "accelerator": "H100-SXM-80GB",
            "tensor_parallel": 4, "weight_dtype": "fp8", "kv_dtype": "fp8",
            "batching": {
                "kind": "continuous", "max_num_seqs": 128, "max_num_batched_tokens": 8192,
                "max_model_len": 16384,
            },
        }
    ],
}  # fmt: skip


def test_a_code_assistant_on_the_public_trace_needs_no_more_replicas_for_its_limits(shared_data):
    trace = shared_data / "traces/azure-llm-2023/AzureLLMInferenceTrace_code.csv"
    traffic = {"trace": str(trace), "shape": {"kind": "replay"}}
    free = validate({**CODE, "traffic": traffic}, where="code")
    own = needed(free)
    assert 4 < own < 8
    assert needed(with_values(free, LIMITS)) == own


def test_limits_of_the_bundled_service_follow_its_replicas():
    study = load_scenario("chat-service")
    three, six = (allocate(with_values(study, {"pools.llm.replicas": n})).settings for n in (3, 6))
    queue = "pools.llm.queue.length"
    assert six[queue] == pytest.approx(2 * three[queue], rel=0.01)
    wait = "pools.llm.batching.scheduler.wait_limit_s"
    assert six[wait] == three[wait], "what is lost does not depend on the replicas"
