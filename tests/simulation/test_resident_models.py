"""Several models on one replica: known answers, and what holds in every run."""

import numpy as np
import pandas as pd
import pytest
from conservation_checks import check_conservation
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from capplan.budget import allocate
from capplan.replica.multi_model import FULL, ResidentEngine
from capplan.results.segments import segments
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.simulation.run import _Run

SECOND = {
    "kind": "linear",
    "base_s": 1.0,
    "per_prefill_token_s": 0.0,
    "per_sequence_s": 0.0,
    "per_context_token_s": 0.0,
}
"""Every step takes one second, so a request of n tokens takes n."""
CONTINUOUS = {"kind": "continuous", "kv_blocks": 1000, "step_time": SECOND}
NAMES = ("x", "y", "z")


def models(kv_fraction, *, names=("x", "y"), load_s=3.0, unload_s=0.5):
    entry = {"kv_fraction": kv_fraction, "load_s": load_s, "unload_s": unload_s}
    return [entry | {"name": name} for name in names]


def several(build, entries, *, batching=CONTINUOUS, **fields):
    prompts = {"prompt_tokens": {"kind": "fixed", "tokens": 100}}
    classes = [prompts | {"name": e["name"], "model": e["name"]} for e in entries]
    pool = {"models": entries} | fields.pop("pool", {})
    return build(batching=batching, classes=classes, pool=pool, **fields)


def rates(result, metric):
    """Return the total behind the rates of a metric, over all replicas."""
    rows = result.timeline[result.timeline["metric"] == metric]
    times = np.append(rows["time_s"].to_numpy(), result.duration_s)
    per_replica = rows.groupby("replica")
    return sum(
        (own["value"] * np.diff(np.append(own["time_s"], times[-1]))).sum()
        for _, own in per_replica
    )


@pytest.mark.parametrize(("kv_fraction", "each_s", "loads"), [(0.5, 0.0, 0), (0.6, 3.5, 3)])
def test_alternating_models_thrash_unless_both_fit(build, trace_of, kv_fraction, each_s, loads):
    """One resident at the start; then each request pays an unload and a load."""
    scenario = several(build, models(kv_fraction))
    trace = trace_of([0, 10, 20, 30], output_tokens=1, request_class=["x", "y"] * 2)
    result = simulate(scenario, trace=trace)
    waited = segments(result.requests)["scheduler_queue_s"]
    assert waited.tolist() == [0.0] + [each_s] * 3
    assert result.requests["finish_s"].tolist() == [1, *(np.array([11, 21, 31]) + each_s)]
    assert rates(result, "loads_per_s") == pytest.approx(loads)
    assert rates(result, "evictions_per_s") == pytest.approx(loads)
    assert rates(result, "loading_fraction") == pytest.approx(loads * 3.5)


def test_resident_models_take_turns_step_by_step(build, trace_of):
    trace = trace_of([0.0, 0.0], output_tokens=2, request_class=["x", "y"])
    log = simulate(several(build, models(0.5)), trace=trace).requests
    assert log["batch_in_s"].tolist() == [0.0, 1.0]
    assert log["finish_s"].tolist() == [3.0, 4.0]


def test_a_request_for_a_model_that_needs_room_is_not_overtaken(build, trace_of):
    """x runs until 5, y loads until 8.5 and ends at 9.5; only then x comes again, at 13."""
    trace = trace_of([0.0, 0.5, 0.6], output_tokens=[5, 1, 1], request_class=["x", "y", "x"])
    result = simulate(several(build, models(0.6)), trace=trace)
    assert result.requests["finish_s"].tolist() == [5.0, 9.5, 14.0]
    waiting = result.timeline[result.timeline["metric"] == "waiting_for_model"]
    assert waiting.set_index("time_s")["value"].loc[1.0:4.9].eq(1).all()
    assert waiting.set_index("time_s")["value"].loc[5.1:8.4].eq(2).all()


def test_the_least_recently_used_model_goes(build, trace_of):
    """x, y resident and used in this order; z takes the place of x, so y is still there."""
    trace = trace_of([0, 10, 20, 30, 40], output_tokens=1, request_class=list("xyzyx"))
    log = simulate(several(build, models(0.5, names=NAMES)), trace=trace).requests
    assert segments(log)["scheduler_queue_s"].tolist() == [0, 0, 3.5, 0, 3.5]


def test_a_load_does_not_hold_up_the_models_that_are_there(build, trace_of):
    trace = trace_of([0, 10, 11], output_tokens=1, request_class=list("yzy"))
    log = simulate(several(build, models(0.5, names=NAMES)), trace=trace).requests
    assert log["finish_s"].tolist() == [1.0, 14.5, 12.0]


def test_a_request_that_waits_for_a_load_takes_a_place_in_the_queue(build, trace_of):
    """A free replica takes a batch of x at once beyond its queue, but only one waiting y."""
    batching = CONTINUOUS | {"scheduler": {"length": 1}}
    trace = trace_of([0, 0, 10, 11], output_tokens=1, request_class=list("xxyy"))
    log = simulate(several(build, models(0.6), batching=batching), trace=trace).requests
    assert log["outcome"].tolist() == ["succeeded"] * 3 + ["rejected"]
    assert log["reason"].tolist()[3] == "queue_full"


@pytest.mark.parametrize(("policy", "loads"), [("least_in_flight", 7), ("model_resident", 1)])
def test_the_router_that_looks_for_the_model_loads_it_once(build, trace_of, policy, loads):
    scenario = several(build, models(0.6), replicas=2, pool={"router": {"policy": policy}})
    trace = trace_of(np.arange(8) * 10, output_tokens=1, request_class=["x", "y"] * 4)
    assert rates(simulate(scenario, trace=trace), "loads_per_s") == pytest.approx(loads)


def test_a_crash_loses_the_load_and_returns_as_at_the_start(build, trace_of):
    scenario = several(build, models(0.6), faults=[{"at_s": 11.0, "down_s": 1.0}])
    trace = trace_of([10, 20, 30], output_tokens=1, request_class=list("yxy"))
    result = simulate(scenario, trace=trace)
    assert result.requests["outcome"].tolist() == ["failed", "succeeded", "succeeded"]
    assert result.requests["finish_s"].tolist() == [11.0, 21.0, 34.5]
    assert rates(result, "loading_fraction") == pytest.approx(1.0 + 3.5)


def test_weights_that_are_evicted_take_their_prefix_cache_along(build, trace_of):
    scenario = several(build, models(0.6), batching=CONTINUOUS | {"prefix_caching": True})
    ids = [np.array([1], dtype=np.int64)] * 4
    trace = trace_of(np.arange(4) * 10, request_class=list("xxyx"), prefix_blocks=ids)
    object.__setattr__(trace, "prefix_block_tokens", 64)
    assert simulate(scenario, trace=trace).requests["cached_tokens"].tolist() == [0, 64, 0, 0]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"pool": {"model": "m"}}, "model and models exclude each other"),
        ({"names": ("x", "x")}, "models: names must differ, got x, x"),
        ({"needs": "q"}, "classes.chat.model: one of x, y, got 'q'"),
    ],
)
def test_models_that_cannot_be_say_why(build, fields, told):
    pool = {"models": models(0.5, names=fields.get("names", ("x", "y")))} | fields.get("pool", {})
    with pytest.raises(DataError, match=told):
        build(pool=pool, classes=[{"name": "chat", "model": fields.get("needs")}])


def test_models_are_of_continuous_batching(build, dynamic):
    with pytest.raises(DataError, match="models need batching kind continuous, got dynamic"):
        several(build, models(0.5), batching=dynamic())


def test_steps_of_several_models_are_not_compiled_and_say_so(build, trace_of, caplog):
    with caplog.at_level("INFO", logger="capplan.simulation.steps"):
        run = _Run(
            several(build, models(0.5)), trace_of([0.0]), seed=0, replication=0, engine="fast"
        )
    assert isinstance(run.pools["llm"].replicas[0].engine, ResidentEngine)
    assert "pool llm: models, so its steps are not compiled" in caplog.text


def test_the_model_of_a_class_decides_what_its_budget_leaves(build):
    slow = models(0.5)
    slow[1]["step_time"] = SECOND | {"base_s": 2.0}
    scenario = several(build, slow)
    x, y = allocate(scenario).classes
    assert (x.prefill_s, y.prefill_s) == (3.0, 3.0)
    one, two = (allocate(several(build, slow[i : i + 1])).classes[0] for i in (0, 1))
    assert (one.prefill_s, two.prefill_s) == (1.0, 2.0)


def test_the_budget_says_when_it_leaves_out_loads(build):
    fits, swaps = (
        [f for f in allocate(several(build, models(k))).findings if f.rule == "swaps"]
        for k in (0.5, 0.6)
    )
    assert not fits
    assert [(f.outcome, f.field, f.value) for f in swaps] == [("unknown", "pools.llm.models", 1.2)]


LINEAR = {
    "kind": "linear",
    "base_s": 4e-3,
    "per_prefill_token_s": 1e-4,
    "per_sequence_s": 1e-3,
    "per_context_token_s": 1e-6,
}


@st.composite
def batchings(draw):
    return {
        "kind": "continuous",
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_num_batched_tokens": 300,
        "kv_blocks": draw(st.integers(20, 80)),
        "watermark": draw(st.sampled_from([0.0, 0.2])),
        "async_scheduling": draw(st.booleans()),
        "cancel_frees": draw(st.booleans()),
        "step_time": LINEAR,
        "scheduler": {
            "length": draw(st.none() | st.integers(0, 5)),
            "wait_limit_s": draw(st.none() | st.floats(0.05, 2.0)),
            "order": draw(st.sampled_from(["fifo", "priority"])),
        },
    }


@st.composite
def scenarios(draw, names=NAMES):
    entry = st.fixed_dictionaries(
        {
            "kv_fraction": st.sampled_from([0.3, 0.5, 0.7, 1.0]),
            "load_s": st.sampled_from([0.0, 0.05, 0.4]),
            "unload_s": st.sampled_from([0.0, 0.1]),
        }
    )
    policy = st.sampled_from(["least_in_flight", "model_resident", "round_robin"])
    c = {"retry": {"max_attempts": 2, "attempt_timeout_s": draw(st.none() | st.floats(0.1, 2.0))}}
    return {
        "classes": [
            c | {"name": name, "model": name, "priority": draw(st.integers(0, 1))} for name in names
        ],
        "pool": {
            "models": [draw(entry) | {"name": name} for name in names],
            "router": {
                "policy": draw(policy),
                "max_in_flight": draw(st.none() | st.integers(1, 6)),
            },
            "hosts": draw(st.sampled_from([[], ["h"]])),
        },
        "hosts": [{"name": "h"}],
        "batching": draw(batchings()),
        "replicas": draw(st.integers(1, 2)),
        "faults": draw(st.sampled_from([[], [{"at_s": 0.5, "down_s": 0.3}]])),
    }


@st.composite
def requests(draw, names=NAMES):
    size, rng = draw(st.integers(1, 50)), np.random.default_rng(draw(st.integers(0, 2**32)))
    return {
        "arrival_s": np.cumsum(rng.choice([0.0, 0.01, 0.05, 0.2], size)),
        "prompt_tokens": rng.integers(1, 200, size),
        "output_tokens": rng.integers(1, 60, size),
        "request_class": rng.choice(list(names), size).tolist(),
    }


quick = settings(
    max_examples=80,
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def check_replica(replica):
    """Check that only resident models run, in the memory there is, and everybody once."""
    engine = replica.engine
    assert engine.held_fraction <= FULL
    held = [id(job) for job in (*engine.waiting, *engine.running)]
    assert len(held) == len(set(held)) == replica.in_flight
    assert {engine._model_of(job) for job in engine.running} <= set(engine.resident)
    assert set(map(id, engine.in_step)) <= set(map(id, engine.running))
    assert 0 <= engine.load_s <= replica._clock.now + 1e-9
    if engine.resident:
        assert 0 <= engine.kv_usage_fraction <= 1
    if engine.waiting and replica._steps.end_s == np.inf:
        assert replica._start is not None


@quick
@given(scenario=scenarios(), rows=requests())
def test_no_request_is_lost_and_only_resident_models_run(build, trace_of, scenario, rows):
    trace = trace_of(**rows)
    run = _Run(build(**scenario), trace, seed=0, replication=0)
    run.callers.start(run.gateway)
    while run._busy() and run.clock._queue[0][0] <= run.until_s:
        run.clock.step()
        for replica in run.pools["llm"].replicas:
            check_replica(replica)
    assert not run._busy()


@quick
@given(scenario=scenarios(), rows=requests())
def test_books_balance_and_segments_add_up(build, trace_of, scenario, rows):
    result = simulate(build(**scenario), trace=trace_of(**rows))
    check_conservation(result)
    assert (result.requests["outcome"] != "in_flight").all()
    served = result.requests[result.requests["outcome"] == "succeeded"]
    parts = segments(served)
    assert (parts >= -1e-9).all(axis=None)
    total = served["finish_s"] - served["intended_start_s"]
    np.testing.assert_allclose(parts.sum(axis=1), total, rtol=0, atol=1e-9)


@quick
@given(scenario=scenarios(names=("x",)), rows=requests(names=("x",)))
def test_one_model_alone_is_a_pool_without_models(build, trace_of, scenario, rows):
    scenario["pool"]["models"][0] |= {"kv_fraction": 1.0}
    several = build(**scenario)
    del scenario["pool"]["models"], scenario["classes"][0]["model"]
    one, two = (
        simulate(built, trace=trace_of(**rows), engine="reference")
        for built in (several, build(**scenario))
    )
    pd.testing.assert_frame_equal(one.requests, two.requests, check_exact=True)
    assert one.duration_s == two.duration_s
