"""Answers of the gateway's own, and what they cost."""

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results import headline, per_request
from capplan.results.cost import class_cost_usd, cost_usd
from capplan.results.segments import segments
from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.statistics import replication_mean
from capplan.traffic.trace import from_frame


def repeated(trace_of, times, ids, **columns):
    """Return prompts of 32 tokens, of which equal ids are equal prompts."""
    frame = trace_of(times, prompt_tokens=32, output_tokens=8, **columns).frame
    frame["prefix_blocks"] = [[2 * i, 2 * i + 1] for i in ids]
    return from_frame(frame, prefix_block_tokens=16)


@pytest.fixture(name="cached")
def _cached(build, dynamic):
    def cached(*, cache=None, **fields):
        rules = {"response_cache": cache or {}} | fields.pop("gateway", {})
        return build(batching=dynamic(1.0), replicas=4, gateway=rules, **fields)

    return cached


def run(scenario, trace, **options):
    result = simulate(scenario, trace=trace, **options)
    check_conservation(result)
    return result


def hits(result):
    log = result.requests
    return (log["outcome_layer"].fillna("") == "gateway").tolist()


def test_who_asks_the_same_again_is_answered_by_the_gateway(cached, trace_of):
    scenario = cached(network={"one_way_s": 0.05}, cache={"lookup_s": 0.01})
    result = run(scenario, repeated(trace_of, [0.0, 2.0, 2.0, 4.0], [1, 1, 2, 2]))
    log = result.requests
    assert hits(result) == [False, True, False, True]
    assert log["outcome"].eq("succeeded").all()
    assert log["finish_s"].tolist() == pytest.approx([1.11, 2.11, 3.11, 4.11])
    assert log["batch_in_s"].isna().tolist() == [False, True, False, True]
    assert log["replica"].isna().tolist() == [False, True, False, True]
    parts = segments(log)
    spent = log["finish_s"] - log["intended_start_s"]
    assert parts.sum(axis=1).tolist() == pytest.approx(spent.tolist())
    assert parts["gateway_s"].tolist() == pytest.approx([0.01] * 4)
    table = per_request(result)
    assert table["ttft_s"].tolist() == pytest.approx(spent.tolist())
    assert table["good"].all()


def test_an_answer_is_found_once_it_is_made_and_not_before(cached, trace_of):
    result = run(cached(), repeated(trace_of, [0.0, 0.9, 1.1], [1, 1, 1]))
    assert hits(result) == [False, False, True]


def test_an_answer_is_kept_for_its_time_and_the_oldest_go_first(cached, trace_of):
    times, ids = [0.0, 5.0, 10.0, 12.0], [1, 1, 1, 1]
    old = run(cached(cache={"ttl_s": 10.0}), repeated(trace_of, times, ids))
    assert hits(old) == [False, True, True, False]  # made at 1 s: too old at 11 s, asked for or not
    times, ids = [0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [1, 2, 1, 3, 1, 2]
    few = run(cached(cache={"capacity": 2}), repeated(trace_of, times, ids))
    assert hits(few) == [False, False, True, False, True, False]


def test_tenants_share_answers_unless_they_must_not(cached, trace_of):
    tenants = [{"name": "x"}, {"name": "y"}]
    trace = repeated(trace_of, [0.0, 2.0, 4.0], [1, 1, 1], tenant=["x", "y", "y"])
    assert hits(run(cached(tenants=tenants), trace)) == [False, True, True]
    apart = cached(tenants=tenants, cache={"per_tenant": True})
    assert hits(run(apart, trace)) == [False, False, True]


def test_ids_that_do_not_cover_the_prompt_tell_nothing(cached, trace_of):
    trace = repeated(trace_of, [0.0, 2.0], [1, 1])
    frame = trace.frame.assign(prompt_tokens=40)
    part = from_frame(frame, prefix_block_tokens=16)
    assert hits(run(cached(), part)) == [False, False]


def test_where_there_are_no_ids_a_share_of_each_class_is_found(cached, trace_of):
    classes = [{"name": "chat", "response_cached_fraction": 0.3}]
    scenario = cached(classes=classes)
    result = run(scenario, trace_of(np.arange(4000) * 0.3))
    figures = headline(result)
    share = figures["response_cache_hit_fraction"]
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / 4000))
    assert figures["by_class"]["chat"]["response_cache_hit_fraction"] == share
    assert hits(run(scenario, trace_of(np.arange(40) * 0.3))) == hits(result)[:40]


def test_what_the_gateway_answers_costs_the_accelerator_nothing(cached, trace_of):
    result = run(cached(), repeated(trace_of, [0.0, 2.0, 4.0, 8.0], [1, 1, 2, 3]))
    figures = headline(result)
    assert figures["response_cache"]["hit_fraction"] == pytest.approx(1 / 4)
    assert figures["response_cache"]["bytes"]["max"] == 2 * (32 + 8) * 4
    assert figures["response_cache"]["entries"]["max"] == 2
    assert figures["wasted_accelerator_fraction"] == 0
    assert figures["wasted_token_fraction"] == 0
    busy = result.timeline.query("metric == 'busy_fraction' and replica == 'llm-0'")
    spans = np.diff([*busy["time_s"], result.duration_s])
    assert float(busy["value"] @ spans) == pytest.approx(3.0)


def test_what_the_gateway_answers_is_no_part_of_what_its_class_costs(cached, trace_of):
    classes = [{"name": "known", "response_cached_fraction": 0.8}, {"name": "new"}]
    pool = {"price_usd_per_accelerator_hour": 3.6}
    names = np.where(np.arange(2000) % 2, "known", "new")
    trace = trace_of(np.arange(2000) * 0.5, request_class=names)
    result = run(cached(classes=classes, pool=pool), trace)
    table = per_request(result)
    known, new = (class_cost_usd(result, table, name) for name in ("known", "new"))
    assert known + new == pytest.approx(cost_usd(result))
    assert known / new == pytest.approx(0.2, abs=0.05)


def test_a_class_alone_pays_for_its_pool_though_the_gateway_answers_all(cached, trace_of):
    classes = [{"name": "known", "response_cached_fraction": 1.0}]
    pool = {"price_usd_per_accelerator_hour": 3.6}
    result = run(cached(classes=classes, pool=pool), trace_of([0.0, 10.0]))
    assert class_cost_usd(result, per_request(result), "known") == cost_usd(result) > 0


def test_without_a_response_cache_its_figures_are_unknown(build, dynamic, trace_of):
    result = run(build(batching=dynamic(1.0)), trace_of([0.0, 2.0]))
    figures = headline(result)
    assert np.isnan(figures["response_cache_hit_fraction"])
    assert np.isnan(figures["response_cache"]["bytes"]["max"])
    assert not result.timeline["metric"].str.startswith("response_cache").any()


def test_a_hit_passes_the_limits_before_it_and_holds_a_slot_while_it_is_looked_up(cached, trace_of):
    scenario = cached(cache={"lookup_s": 0.5}, gateway={"concurrency": 1, "overhead_fraction": 0.2})
    log = run(scenario, repeated(trace_of, [0.0, 4.0, 4.0], [1, 1, 1])).requests
    # The first: 1.5 / 0.8. The others: 0.5 / 0.8, and the third waits for the second before.
    assert log["finish_s"].tolist() == pytest.approx([1.875, 4.625, 4.0 + 1.125 / 0.8])
    assert log["gateway_admitted_s"].tolist() == pytest.approx([0.0, 4.0, 4.625])


def test_who_leaves_while_being_looked_up_is_not_answered(cached, trace_of):
    scenario = cached(cache={"lookup_s": 1.0}, gateway={"concurrency": 1})
    trace = repeated(trace_of, [0.0, 5.0, 5.0], [1, 1, 1], deadline_s=[9.0, 0.5, 9.0])
    result = run(scenario, trace)
    assert result.requests["outcome"].tolist() == ["succeeded", "timed_out", "succeeded"]
    assert result.requests["outcome_layer"].fillna("").tolist() == ["", "caller", "gateway"]
    assert result.requests["gateway_admitted_s"].tolist() == pytest.approx([0.0, 5.0, 5.5])


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("gateway.response_cache.capacity", 0, "greater than or equal to 1"),
        ("gateway.response_cache.ttl_s", 0.0, "greater than 0"),
        ("gateway.response_cache.bytes_per_token", 0.0, "greater than 0"),
        ("classes.chat.response_cached_fraction", 1.5, "less than or equal to 1"),
    ],
)
def test_a_response_cache_that_cannot_be_is_one_clear_error(cached, field, value, rule):
    with pytest.raises(DataError, match=f"{field}.*{rule}"):
        with_values(cached(), {field: value})


def test_one_question_asked_at_random_is_found_as_renewal_theory_says(cached, trace_of):
    """Source: Jung, Berger, Balakrishnan, "Modeling TTL-based Internet Caches", INFOCOM 2003.

    A miss starts a cycle that lasts until the answer is too old; in it λ·TTL requests are found.
    """
    rate, ttl_s = 2.0, 1.5
    service = {"base_s": 1e-6}
    scenario = cached(cache={"ttl_s": ttl_s})
    scenario = with_values(scenario, {"pools.llm.batching.service": service})
    shares = []
    for replication in range(8):
        times = np.cumsum(np.random.default_rng(replication).exponential(1 / rate, 2000))
        shares.append(np.mean(hits(run(scenario, repeated(trace_of, times, [7] * 2000)))))
    estimate = replication_mean(np.array(shares), confidence=0.99)
    assert estimate.low <= rate * ttl_s / (1 + rate * ttl_s) <= estimate.high
    assert estimate.high - estimate.low < 0.04
