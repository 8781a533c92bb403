"""Readings of a run that goes on: levels, rates and latency windows whose truth is known."""

import math
from dataclasses import dataclass

import pytest

from capplan.scenario.metric_names import LATENCIES, LEVELS, OF_GATEWAY, RATES
from capplan.simulation.clock import Rank
from capplan.simulation.metrics import MOST_SAMPLES, LatencyWindow, gateway_reading, pool_reading
from capplan.simulation.run import _Run


class Watched:
    """A run whose readings are noted at given times."""

    def __init__(self, scenario, trace, readings, times, *, engine="reference", pool="llm"):
        run = _Run(scenario, trace, seed=0, replication=0, engine=engine)
        self.pool, self.clock, self.run = run.pools[pool], run.clock, run
        self.readings = readings(run, self.pool, run.clock)
        self.found = {name: [] for name in self.readings}
        for time_s in times:
            run.clock.at(time_s, Rank.CHECK, self._note, None)
        run.play()

    def _note(self, _):
        for name, read in self.readings.items():
            self.found[name].append(read())


def every(run, pool, clock):
    return {name: pool_reading(name, pool, clock) for name in (*LEVELS, *RATES)}


def test_levels_and_rates_of_a_queue_of_one_server(single_queue, trace_of):
    """Five come at 0 and take 1 s each, one after the other."""
    scenario = single_queue(1, exponential=False)
    trace = trace_of([0.0] * 5, output_tokens=7)
    found = Watched(scenario, trace, every, [0.5, 1.5, 2.5, 4.75]).found
    assert found["queue_length"] == [4, 3, 2, 0]
    assert found["in_flight"] == found["in_flight_per_replica"] == [1, 1, 1, 1]
    assert found["running"] == [1, 1, 1, 1]
    assert found["up"] == [1, 1, 1, 1]
    assert math.isnan(found["output_tokens_per_s"][0])
    assert found["output_tokens_per_s"][1:3] == [7, 7]
    assert found["output_tokens_per_s"][3] == pytest.approx(14 / 2.25)
    assert found["prefill_tokens_per_s"][1:3] == [100, 100]
    assert found["busy_fraction"][1:] == pytest.approx([1, 1, 1])
    assert found["arrivals_rps"][1:] == [0, 0, 0]


def test_what_there_is_not_is_no_number(single_queue, trace_of):
    found = Watched(single_queue(1), trace_of([0.0] * 5), every, [0.5, 0.5]).found
    assert all(map(math.isnan, found["kv_usage_fraction"] + found["fragmentation_fraction"]))
    for name in RATES:
        assert all(map(math.isnan, found[name])), name  # the first, and one without any time


def test_replicas_that_are_down_do_not_count(build, dynamic, trace_of):
    scenario = build(
        batching=dynamic(1.0),
        replicas=2,
        pool={"router": {"max_in_flight": 1}},
        faults=[{"at_s": 1.5, "count": 2}],
    )
    found = Watched(scenario, trace_of([0.0] * 9), every, [1.25, 2.25]).found
    assert found["in_flight_per_replica"][0] == 1
    assert math.isnan(found["in_flight_per_replica"][1])
    assert math.isnan(found["busy_fraction"][1])
    assert found["up"] == [2, 0]


def test_both_engines_read_the_same(build, trace_of):
    scenario = build(replicas=2)
    trace = trace_of([0.01 * i for i in range(200)], output_tokens=40)
    times = [0.3, 0.8, 1.3]
    one, two = (
        Watched(scenario, trace, every, times, engine=e).found for e in ("fast", "reference")
    )
    for name, values in one.items():
        assert values == pytest.approx(two[name], nan_ok=True), name
    assert max(one["kv_usage_fraction"]) > 0


def test_the_gateways_own(build, dynamic, trace_of):
    def readings(run, pool, clock):
        return {name: gateway_reading(name, run.gateway, clock) for name in OF_GATEWAY}

    scenario = build(batching=dynamic(1.0), gateway={"concurrency": 2, "queue": {"length": 3}})
    trace = trace_of([0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5])
    found = Watched(scenario, trace, readings, [0.25, 0.75]).found
    assert found["queue_length"] == [2, 3]
    assert found["in_flight"] == [2, 2]
    assert found["refused_rps"][1] == 4.0  # two within half a second


def window(name, quantile, window_s, **fields):
    def readings(run, pool, clock):
        return {
            "it": LatencyWindow(
                name,
                quantile=quantile,
                window_s=window_s,
                callers=run.callers,
                clock=clock,
                **fields,
            )
        }

    return readings


def test_a_window_holds_what_ended_in_it_and_forgets_the_rest(single_queue, trace_of):
    """Latencies 1, 2, 3, 4 and 5 s, ending at 1 … 5 s."""
    scenario = single_queue(1, exponential=False)
    trace = trace_of([0.0] * 5)
    median = window("e2e_s", 0.5, 2.0, min_samples=1)
    assert Watched(scenario, trace, median, [1.5, 2.5, 4.75]).found["it"] == [1, 1, 3]
    most = window("e2e_s", 0.99, 10.0, min_samples=1)
    assert Watched(scenario, trace, most, [1.5, 2.5, 4.75]).found["it"] == [1, 2, 4]
    short = window("e2e_s", 0.5, 2.0, min_samples=3)
    assert all(map(math.isnan, Watched(scenario, trace, short, [2.5, 4.75]).found["it"]))


def test_a_window_needs_one_beyond_its_quantile_unless_stated(single_queue, trace_of):
    scenario = single_queue(1, exponential=False)
    ten = window("e2e_s", 0.9, 100.0)
    found = Watched(scenario, trace_of([0.0] * 11), ten, [9.5, 10.5]).found["it"]
    assert math.isnan(found[0])
    assert found[1] == 9


def test_a_failure_is_beyond_every_latency_and_a_refusal_is_none(build, dynamic, trace_of):
    scenario = build(
        batching=dynamic(1.0),
        classes=[{"name": "chat", "retry": {"attempt_timeout_s": 1.5}}],
        pool={"router": {"max_in_flight": 1}, "queue": {"length": 2}},
    )
    trace = trace_of([0.0] * 9)
    for quantile, expected in ((0.3, 1.0), (0.5, math.inf)):
        seen = window("e2e_s", quantile, 100.0, min_samples=3)
        assert Watched(scenario, trace, seen, [1.75]).found["it"] == [expected]


def test_ttft_and_tpot_are_those_of_the_caller(build, trace_of):
    """One step takes 0.1 s and makes one token; the way back takes 0.25 s."""
    step = {"kind": "linear", "base_s": 0.1, "per_prefill_token_s": 0.0}
    step |= {"per_sequence_s": 0.0, "per_context_token_s": 0.0}
    scenario = build(
        batching={"kind": "continuous", "kv_blocks": 999, "step_time": step},
        network={"one_way_s": 0.25},
    )
    trace = trace_of([0.0, 2.0], output_tokens=[5, 1])
    for name, expected in (("ttft_s", 0.6), ("e2e_s", 1.0), ("tpot_s", 0.1)):
        seen = window(name, 0.99, 100.0, min_samples=1)
        assert Watched(scenario, trace, seen, [1.5]).found["it"] == pytest.approx([expected])
    one_token = window("tpot_s", 0.5, 1.0, min_samples=1)
    scenario = scenario.model_copy(update={"drain_s": 10.0})
    assert math.isnan(Watched(scenario, trace, one_token, [2.59]).found["it"][0])


def test_only_the_class_and_the_pool_that_were_asked_for_count(build, dynamic, trace_of):
    pools = [{"name": name, "batching": dynamic(s)} for name, s in (("a", 1.0), ("b", 2.0))]
    scenario = build(classes=[{"name": "x", "pool": "a"}, {"name": "y", "pool": "b"}], pools=pools)
    trace = trace_of([0.0, 0.0, 5.0], request_class=["x", "y", "x"])
    for field, expected in ((None, 2.0), ("a", 1.0), ("b", 2.0)):

        def by_pool(run, pool, clock, field=field):
            chosen = None if field is None else run.pools[field]
            return window("e2e_s", 0.99, 100.0, min_samples=1, pool=chosen)(run, pool, clock)

        assert Watched(scenario, trace, by_pool, [4.0], pool="a").found["it"] == [expected]
    named = window("e2e_s", 0.99, 100.0, min_samples=1, request_class="x")
    assert Watched(scenario, trace, named, [4.0], pool="a").found["it"] == [1.0]


def test_a_window_remembers_only_so_many(single_queue):
    class Callers:
        listeners, log, gateway = [], None, None

    class Clock:
        now = 0.0

    @dataclass
    class Answer:
        finish_s: float
        intended_start_s: float = 0.0
        outcome: str = "succeeded"

    seen = LatencyWindow("e2e_s", quantile=0.5, window_s=1.0, callers=Callers(), clock=Clock())
    for i in range(MOST_SAMPLES + 500):
        seen._ended(Answer(finish_s=float(i)))
    assert seen() == 500 + MOST_SAMPLES / 2 - 1


def test_unknown_metrics_are_errors(single_queue, trace_of):
    run = _Run(single_queue(1), trace_of([0.0]), seed=0, replication=0)
    pool = run.pools["llm"]
    for call in (
        lambda: pool_reading("e2e_s", pool, run.clock),
        lambda: gateway_reading("running", run.gateway, run.clock),
        lambda: LatencyWindow(
            "itl_s", quantile=0.5, window_s=1.0, callers=run.callers, clock=run.clock
        ),
    ):
        with pytest.raises(ValueError, match="known: "):
            call()
    assert set(LEVELS) | set(RATES) | set(LATENCIES) >= set(OF_GATEWAY)
