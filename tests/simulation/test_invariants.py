"""What holds in every run, whatever the scenario."""

import hashlib
import io
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
import pandas as pd
import pytest
from conservation_checks import check_conservation
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies.batching import STEP, fitting
from strategies.runs import compiled_scenarios, prefixed, quick, random_runs, requests

from capplan.replica.compiled.engine import CompiledEngine
from capplan.replica.continuous import ContinuousEngine
from capplan.replica.kv_capacity import kv_blocks, sequence_room
from capplan.replica.prefix_cache import PrefixCache
from capplan.results.conservation import conservation_table
from capplan.results.segments import segments
from capplan.scenario.ending import endings
from capplan.simulation import simulate, simulate_many
from capplan.simulation.fleet import ALIVE
from capplan.simulation.run import COMPILING_PAYS, LOADING_PAYS, _Run

KEYS = ["request_class", "tenant", "attempt"]
OUTCOMES = ("succeeded", "rejected", "timed_out", "failed", "cancelled", "in_flight")

MOMENTS = [
    "intended_start_s",
    "sent_s",
    "gateway_in_s",
    "gateway_admitted_s",
    "service_queue_in_s",
    "scheduler_queue_in_s",
    "batch_in_s",
    "prefill_end_s",
    "decode_end_s",
]


@pytest.mark.slow
@settings(quick, max_examples=500)
@random_runs
def test_books_balance_segments_add_up_and_limits_hold(build, trace_of, scenario, rows):
    built = build(**scenario)
    result = simulate(built, trace=trace_of(**rows))
    books_balance(result)
    segments_add_up(result.requests)
    moments_are_in_order(result.requests)
    callers_keep_their_limits(result.requests, built)
    queues_keep_their_limits(result.requests, built)


def books_balance(result):
    check_conservation(result)
    table = conservation_table(result, by=KEYS)
    ends = [outcome for outcome in OUTCOMES if outcome != "succeeded"]
    assert (table["entered"] == table["left"] + table[ends].sum(axis=1)).all()
    log = result.requests
    per_key = pd.crosstab([log[key] for key in KEYS], log["outcome"]).sum(axis=1)
    assert per_key.equals(log.groupby(KEYS).size())
    assert set(log["outcome"]) <= set(OUTCOMES)
    first = log[log["attempt"] == 1]
    assert sorted(first["request_id"]) == sorted(result.trace.frame["request_id"])
    assert (log["wasted_tokens"][log["outcome"] == "succeeded"] == 0).all()
    assert (log["wasted_tokens"] >= 0).all()
    known = {*endings(), "deadline", "hedge_lost"}
    assert {reason.partition(":")[0] for reason in log["reason"].dropna().unique()} <= known


def segments_add_up(log):
    served = log[log["outcome"] == "succeeded"]
    for until, end in (("last_token", "finish_s"), ("first_token", "first_token_s")):
        parts = segments(served, until=until)
        assert (parts >= -1e-9).all(axis=None)
        total = served[end] - served["intended_start_s"]
        np.testing.assert_allclose(parts.sum(axis=1), total, rtol=0, atol=1e-9)


def moments_are_in_order(log):
    moments = log[MOMENTS].to_numpy()
    steps = np.diff(moments, axis=1)
    assert (steps[~np.isnan(steps)] >= 0).all()
    reached = ~np.isnan(moments)
    assert (reached[:, :-1] | ~reached[:, 1:]).all()


def callers_keep_their_limits(log, built):
    for c in built.classes:
        mine = log[log["request_class"] == c.name]
        most = c.retry.max_attempts + (0 if c.hedge is None else c.hedge.most)
        assert (mine["attempt"] <= most).all()
        lost = mine["reason"] == "hedge_lost"
        assert (lost == (mine["outcome"] == "cancelled")).all()
        won = mine[mine["outcome"] == "succeeded"]["request_id"]
        assert set(mine[lost]["request_id"]) <= set(won)
        spent = mine["finish_s"] - mine["sent_s"]
        assert not (spent > (c.retry.attempt_timeout_s or np.inf) + 1e-9).any()
        first = mine.groupby("request_id")["intended_start_s"].transform("min")
        assert not (mine["finish_s"] > first + mine["deadline_s"] + 1e-9).any()


def queues_keep_their_limits(log, built):
    for c in built.classes:
        mine, pool = log[log["request_class"] == c.name], built.pool_of(c.name)
        mine = mine[~mine["degraded"]]  # a rerouted one waits in another pool's queues
        for queue, entry, exit_ in (
            (built.gateway.queue, "gateway_in_s", "gateway_admitted_s"),
            (pool.queue, "service_queue_in_s", "scheduler_queue_in_s"),
            (pool.batching.scheduler, "scheduler_queue_in_s", "batch_in_s"),
        ):
            waited = mine[exit_] - mine[entry]
            assert not (waited > (queue.wait_limit_s or np.inf) + 1e-9).any()


def places(run):
    """Return how often each attempt stands somewhere, by its identity."""
    found = Counter(map(id, run.gateway.queue.line))
    for pool in run.pools.values():
        found.update(map(id, pool.queue.line))
        for replica in pool.replicas:
            engine = replica.engine
            found.update(map(id, engine.waiting))
            found.update(map(id, engine.running))
    return found


@quick
@random_runs
def test_no_attempt_is_in_two_places_and_no_limit_is_passed(build, trace_of, scenario, rows):
    built = build(**scenario)
    run = _Run(built, trace_of(**rows), seed=0, replication=0, engine="fast")
    run.callers.start(run.gateway)
    sees = all(fault.kind != "router_blind" for fault in built.faults)
    while run._busy() and run.clock._queue[0][0] <= run.until_s:
        run.clock.step()
        found = places(run)
        assert not found or max(found.values()) == 1
        for attempt in run.callers.log.attempts:
            held = attempt.place in {"gateway_queue", "service_queue", "replica"}
            assert held <= (found[id(attempt)] == 1)
        open_slots = sum(
            a.place in {"gateway", "service_queue", "replica", "answer"}
            for a in run.callers.log.attempts
        )
        assert run.gateway.in_flight == open_slots
        assert built.gateway.concurrency is None or open_slots <= built.gateway.concurrency
        check_gateway(built.gateway, run.gateway)
        for pool in built.pools:
            check_pool(pool, run.pools[pool.name], sees=sees)
            check_fleet(pool, run.pools[pool.name])


def check_fleet(rules, pool):
    if pool.fleet is None:
        return
    there = [m.replica for m in pool.fleet.members if m.replica is not None]
    assert {replica.name for replica in there} == {replica.name for replica in pool.replicas}
    assert len({member.name for member in pool.fleet.members}) == len(pool.fleet.members)
    assert pool.fleet.count(*ALIVE) == pool.fleet.target
    assert rules.autoscaler is None or pool.fleet.target <= max(
        rules.autoscaler.max_replicas, rules.replicas
    )
    draining = {member.name for member in pool.fleet.members if member.phase == "draining"}
    assert draining == {replica.name for replica in pool.replicas if replica.draining}


def check_gateway(rules, gateway):
    slots, listener = gateway.slots, gateway._listener
    assert slots.used == gateway.in_flight
    assert not rules.quotas or slots.used == sum(map(slots.held, ("x", "y")))
    withheld = sum(max(quota.withheld - slots.held(quota.tenant), 0) for quota in rules.quotas)
    assert rules.concurrency is None or rules.concurrency - slots.used >= withheld
    for quota in rules.quotas:
        most = np.inf if quota.borrowing_limit is None else quota.borrowing_limit
        assert slots.beyond(quota.tenant) <= most
    assert gateway.busy_workers <= (rules.overhead_concurrency or np.inf)
    assert listener is None or listener.waiting <= rules.accept.backlog
    assert listener is None or listener.open <= (rules.accept.max_open or np.inf)


def check_pool(rules, pool, *, sees):
    """Check the limits of a pool; a blind router goes by an old view and may exceed its own."""
    length = rules.queue.length
    assert length is None or len(pool.queue.line) <= length
    for replica in pool.replicas:
        engine = replica.engine
        running = engine.prefilling + engine.decoding
        assert running <= most_running(rules.batching, engine)
        assert replica.in_flight == len(engine.waiting) + running
        limit = rules.router.max_in_flight
        assert not sees or limit is None or replica.in_flight <= limit
        assert replica.up or not replica.in_flight
        if engine.has_kv:
            assert 0 <= engine.kv_usage_fraction <= 1
        if isinstance(engine, ContinuousEngine):
            assert 0 <= engine.kv.free <= engine.kv.total
        if isinstance(engine, ContinuousEngine) and isinstance(engine.kv, PrefixCache):
            runs = free_runs(engine.kv)
            assert engine.kv.free == sum(run.blocks for run in runs)
            assert engine.kv.cached == sum(run.blocks for run in runs if run.name is not None)


def free_runs(cache):
    runs = [cache._end]
    while (run := runs[-1].after) is not cache._end:
        runs.append(run)
    return runs


def most_running(rules, engine):
    """Return how many jobs may run as configured: breakers shrink batches that run already."""
    if not isinstance(engine, ContinuousEngine):
        return getattr(rules, "max_num_seqs", None) or rules.max_batch_size
    assert engine.seats == sum(job.beam_width for job in engine.running) <= rules.max_num_seqs
    return rules.max_num_seqs


@settings(quick, max_examples=40)
@given(scenario=compiled_scenarios(), rows=requests())
def test_compiled_steps_give_the_tables_of_the_reference(build, trace_of, scenario, rows):
    built = build(**scenario)
    trace = trace_of(**rows)
    run = _Run(built, trace, seed=0, replication=0, engine="fast")
    engines = [replica.engine for pool in run.pools.values() for replica in pool.replicas]
    assert all(isinstance(engine, CompiledEngine) for engine in engines)
    fast, reference = (simulate(built, trace=trace, engine=e) for e in ("fast", "reference"))
    pd.testing.assert_frame_equal(fast.requests, reference.requests, check_exact=True)
    pd.testing.assert_frame_equal(fast.timeline, reference.timeline, check_exact=True)
    assert fast.duration_s == reference.duration_s


@settings(quick, max_examples=20)
@given(scenario=compiled_scenarios(), drawn=prefixed())
def test_a_compiled_prefix_cache_finds_what_the_reference_does(build, trace_of, scenario, drawn):
    for pool in scenario["pools"]:
        cached = {"prefix_caching": True, "beam_width": 1, "kv_blocks": 60}
        pool["batching"] = fitting(pool["batching"] | cached)
        pool["router"]["policy"] = "prefix_aware"
    rows, per_block = drawn
    built, trace = build(**scenario), replace(trace_of(**rows), prefix_block_tokens=per_block)
    fast, reference = (simulate(built, trace=trace, engine=e) for e in ("fast", "reference"))
    pd.testing.assert_frame_equal(fast.requests, reference.requests, check_exact=True)
    pd.testing.assert_frame_equal(fast.timeline, reference.timeline, check_exact=True)


@pytest.mark.parametrize("model", ["gemma-3-27b-pt", "Qwen3.5-27B"])
def test_windows_and_states_take_blocks_in_both_engines(build, trace_of, model):
    """So many requests that what each holds beside its growing KV decides how many run."""
    rng = np.random.default_rng(3)
    rows = {
        "prompt_tokens": rng.integers(10, 1500, 300),
        "output_tokens": rng.integers(1, 400, 300),
    }
    trace = trace_of(np.arange(300) / 100, **rows)
    batching = {"kind": "continuous", "max_num_seqs": 256, "max_model_len": 2048}
    pool = {"model": model, "accelerator": "H100"}

    def study(**options):
        return build(batching=batching | options, pool=pool)

    fast, reference = (simulate(study(), trace=trace, engine=e) for e in ("fast", "reference"))
    pd.testing.assert_frame_equal(fast.requests, reference.requests, check_exact=True)
    pd.testing.assert_frame_equal(fast.timeline, reference.timeline, check_exact=True)
    longest = sequence_room(study().pool()).blocks(1900, block_size=16) + 1900 // 16
    least = kv_blocks(study().pool()) // longest
    assert least <= fast.requests["batch_size"].max() < 256, "memory is the limit"
    ids = [np.cumsum(rng.integers(1, 3, 20)).tolist() for _ in range(300)]
    named = trace_of(np.arange(300) / 100, **rows, prefix_blocks=ids)
    named = replace(named, prefix_block_tokens=64)
    fast, reference = (
        simulate(study(prefix_caching=True), trace=named, engine=e) for e in ("fast", "reference")
    )
    pd.testing.assert_frame_equal(fast.requests, reference.requests, check_exact=True)
    check_conservation(fast)
    assert fast.requests["outcome"].eq("succeeded").all()
    assert fast.requests["cached_tokens"].max() > 64


def test_compiled_steps_give_the_tables_of_the_reference_at_length(build):
    """Thousands of requests of all lengths, a roofline's step times, preemption, crashes."""
    scenario = build(
        requests=1500,
        classes=[
            {
                "name": "chat",
                "promises": {"deadline_s": 20.0},
                "retry": {"max_attempts": 3, "backoff_s": 0.5, "jitter": True},
                "prompt_tokens": {
                    "kind": "lognormal",
                    "p50_tokens": 300,
                    "p95_tokens": 2000,
                    "max_tokens": 4000,
                },
                "output_tokens": {
                    "kind": "lognormal",
                    "p50_tokens": 100,
                    "p95_tokens": 400,
                    "max_tokens": 900,
                },
            }
        ],
        traffic={"shape": {"kind": "steady", "rate_rps": 40.0}},
        replicas=2,
        batching={"kind": "continuous", "kv_blocks": 900, "max_num_seqs": 40},
        pool={"model": "Llama-3.1-8B", "accelerator": "H100-SXM"},
        faults=[{"at_s": 9.0, "down_s": 4.0}],
    )
    fast, reference = (simulate(scenario, engine=e) for e in ("fast", "reference"))
    pd.testing.assert_frame_equal(fast.requests, reference.requests, check_exact=True)
    pd.testing.assert_frame_equal(fast.timeline, reference.timeline, check_exact=True)
    seen = set(fast.requests["outcome"])
    assert {"succeeded", "failed", "timed_out"} <= seen
    preempted = fast.timeline[fast.timeline["metric"] == "preemptions_per_s"]
    assert preempted["value"].max() > 0


@pytest.mark.parametrize(("there", "pays"), [(True, LOADING_PAYS), (False, COMPILING_PAYS)])
def test_machine_code_is_loaded_or_compiled_when_it_pays(build, trace_of, monkeypatch, there, pays):
    monkeypatch.setattr("capplan.simulation.run._simulated", Counter())
    monkeypatch.setattr("capplan.replica.compiled.jit.is_compiled", lambda function: there)
    scenario = build()
    kinds = []
    for tokens in (10, pays - 11, 1):
        run = _Run(scenario, trace_of([0.0], output_tokens=tokens), seed=0, replication=0)
        kinds.append(type(run.pools["llm"].replicas[0].engine))
    assert kinds == [ContinuousEngine, ContinuousEngine, CompiledEngine]


def test_what_is_not_compiled_falls_back_and_says_so(build, trace_of, caplog):
    batching = {"kind": "continuous", "kv_blocks": 900, "kv_layout": "contiguous"}
    batching |= {"step_time": STEP}
    with caplog.at_level("INFO", logger="capplan.simulation.steps"):
        scenario = build(batching=batching)
        run = _Run(scenario, trace_of([0.0]), seed=0, replication=0, engine="fast")
    assert isinstance(run.pools["llm"].replicas[0].engine, ContinuousEngine)
    assert "pool llm: kv_layout, so its steps are not compiled" in caplog.text


def test_on_a_shared_host_steps_are_not_compiled_and_that_is_said(build, trace_of, caplog):
    batching = {"kind": "continuous", "kv_blocks": 900, "step_time": STEP}
    with caplog.at_level("INFO", logger="capplan.simulation.steps"):
        scenario = build(batching=batching, hosts=[{"name": "node"}], pool={"hosts": ["node"]})
        run = _Run(scenario, trace_of([0.0]), seed=0, replication=0, engine="fast")
    assert isinstance(run.pools["llm"].replicas[0].engine, ContinuousEngine)
    assert "pool llm: hosts, so its steps are not compiled" in caplog.text


def digest(frame):
    buffer = io.BytesIO()
    frame.to_parquet(buffer)
    return hashlib.sha256(buffer.getvalue()).hexdigest()


@settings(quick, max_examples=40)
@random_runs
def test_the_same_seed_gives_the_same_bytes(build, trace_of, scenario, rows):
    built, trace = build(**scenario), trace_of(**rows)
    one, two = (simulate(built, trace=trace, seed=3, replication=1) for _ in range(2))
    assert digest(one.requests) == digest(two.requests)
    assert digest(one.timeline) == digest(two.timeline)
    assert one.duration_s == two.duration_s


@settings(quick, max_examples=60)
@random_runs
def test_lengths_on_the_timeline_are_those_the_log_implies(build, trace_of, scenario, rows):
    """Little's law holds exactly when both tell the same story at every instant."""
    scenario["network"] = {"one_way_s": 0.0}
    for rule in scenario["breakers"]:
        rule["then"] = [action for action in rule["then"] if action["kind"] != "route"]
        rule["then"] = rule["then"] or [{"kind": "refuse"}]
    result = simulate(build(**scenario), trace=trace_of(**rows))
    timeline = result.timeline.set_index(["layer", "replica", "metric"]).sort_index()
    for key, entered, left in stays(result.requests):
        series = timeline.loc[key]
        times = series["time_s"].to_numpy()[:, None]
        inside = (entered.to_numpy() <= times) & (left.to_numpy() > times)
        np.testing.assert_array_equal(series["value"], inside.sum(axis=1))


def stays(log):
    """Yield each place with a length on the timeline, and when each attempt was there."""
    end = log["finish_s"].fillna(np.inf)
    yield ("caller", "", "in_flight"), log["intended_start_s"], end
    yield ("gateway", "", "length"), log["gateway_in_s"], log["gateway_admitted_s"].fillna(end)
    for pool, request_class in (("a", "chat"), ("b", "embed")):
        mine = log[log["request_class"] == request_class]
        left = mine["scheduler_queue_in_s"].fillna(end[mine.index])
        yield ("service_queue", pool, "length"), mine["service_queue_in_s"], left


@settings(quick, max_examples=60)
@given(
    sizes=st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 3)), min_size=1, max_size=60),
    servers=st.integers(1, 5),
)
def test_more_replicas_make_no_request_of_a_single_queue_later(build, trace_of, sizes, servers):
    """Guaranteed for FIFO, one request a replica, service times that belong to the requests.

    Source: Kiefer, Wolfowitz, "On the theory of queues with many servers", 1955: the vector of
    remaining work is monotone in the number of servers, on every path.
    """
    gaps, size = zip(*sizes, strict=True)
    trace = trace_of(np.cumsum(gaps), size=list(size))
    service = {"base_s": 1e-9, "per_size_s": 1.0}
    batching = {"kind": "dynamic", "max_batch_size": 1, "service": service}
    fields = {"batching": batching, "pool": {"router": {"max_in_flight": 1}}}
    ends = [
        simulate(build(replicas=n, **fields), trace=trace).requests["finish_s"]
        for n in (servers, servers + 1)
    ]
    assert (ends[1] <= ends[0] + 1e-9).all()


def test_more_replicas_never_raise_the_mean_under_common_random_numbers(single_queue, trace_of):
    rng = np.random.default_rng(5)
    trace = trace_of(np.cumsum(rng.exponential(1 / 2.5, 3000)))
    means = [
        simulate(single_queue(n), trace=trace).requests.eval("finish_s - intended_start_s").mean()
        for n in range(3, 9)
    ]
    assert means == sorted(means, reverse=True)


def test_a_request_that_waits_alone_takes_no_notice_of_the_time_unit(build, trace_of):
    """Scaling every time of a scenario scales every moment."""
    rng = np.random.default_rng(2)
    arrivals = np.cumsum(rng.exponential(0.02, 400))

    def finish(scale):
        step = {
            "kind": "linear",
            "base_s": 4e-3 * scale,
            "per_prefill_token_s": 1e-5 * scale,
            "per_sequence_s": 1e-4 * scale,
            "per_context_token_s": 1e-7 * scale,
        }
        batching = {"kind": "continuous", "kv_blocks": 300, "step_time": step}
        log = simulate(build(batching=batching), trace=trace_of(arrivals * scale)).requests
        return log["finish_s"]

    np.testing.assert_allclose(finish(4.0), finish(1.0) * 4, rtol=1e-12)


def test_the_order_of_equal_requests_changes_only_their_names(build, trace_of):
    arrivals = np.repeat([0.0, 0.1], 20)
    names = [f"r{i}" for i in range(40)]
    scenario = build(replicas=3)
    one = simulate(scenario, trace=trace_of(arrivals, request_id=names)).requests
    two = simulate(scenario, trace=trace_of(arrivals, request_id=names[::-1])).requests
    pd.testing.assert_frame_equal(one.drop(columns="request_id"), two.drop(columns="request_id"))


def test_replications_in_other_processes_are_the_same(build):
    scenario = build(requests=50)
    here = simulate_many(scenario, replications=2, seed=4)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        there = simulate_many(scenario, replications=2, seed=4, executor=executor)
    assert [digest(run.requests) for run in here] == [digest(run.requests) for run in there]
    assert digest(here[0].requests) != digest(here[1].requests)
