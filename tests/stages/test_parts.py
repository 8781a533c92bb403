"""The parts of an acceptance, each on a table whose answer is known by hand."""

import dataclasses
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from capplan import charts
from capplan.scenario.classes import Promises
from capplan.scenario.files import with_values
from capplan.stages.crossed_limit import crossed_limit
from capplan.stages.degradation import _backlog, blame
from capplan.stages.isolation import cuts_of, isolation_reasons, tenants_over_share
from capplan.stages.metrics import levels, slope_per_hour, trend_reasons, unknown_levels
from capplan.stages.protection import protections
from capplan.stages.ramp import LoadRamp
from capplan.stages.recovery import errors_back
from capplan.stages.rules import unowned_queues
from capplan.stages.run import run_stages
from capplan.stages.run_load import loads_of, run_load, step
from capplan.stages.stage import stage_of
from capplan.stages.violations import (
    allowance,
    broken,
    starves,
)


def table(outcomes, *, e2e=0.1, **columns):
    n = len(outcomes)
    succeeded = np.array(outcomes) == "succeeded"
    frame = pd.DataFrame(
        {
            "request_id": [f"r{i}" for i in range(n)],
            "request_class": "chat",
            "tenant": "all",
            "outcome": outcomes,
            "success": succeeded,
            "streaming": True,
            "output_tokens": 10,
            "deadline_s": np.nan,
            "intended_start_s": np.arange(n, dtype=float),
            "finish_s": np.arange(n) + 0.5,
            "e2e_s": np.where(succeeded, e2e, np.nan),
            "good": succeeded.astype(float),
            "attempts": 1,
        }
    ).assign(**columns)
    return frame.assign(e2e_censored_s=frame["e2e_s"].fillna(np.inf))


@pytest.fixture(name="server", scope="module")
def _server(single_server):
    """Return a steady run of the single server at half its capacity, as a stage."""
    shape = {"kind": "steady", "rate_rps": 5.0}
    run = run_load(single_server(), shape, duration_s=300.0, seed=1)
    return stage_of("half", "plain", 5.0, run, start_s=30.0, end_s=300.0)


def test_a_promise_breaks_when_more_requests_break_it_than_may():
    """Of 100 requests ten may fail; the eleventh failure, at 90.5 s, is one too many."""
    outcomes = ["succeeded"] * 80 + ["timed_out"] * 20
    found = broken(table(outcomes), Promises(goodput_fraction=0.9), "goodput_fraction")
    assert (found.share.value, found.used_up_s) == (0.2, 90.5)
    assert found.request_ids[0] == "r80"
    assert found.span_s == (80.0, 99.5)


def test_bursts_of_failures_widen_the_interval_of_independent_ones():
    even = ["succeeded", "succeeded", "succeeded", "succeeded", "timed_out"] * 40
    burst = ["succeeded"] * 160 + ["timed_out"] * 40
    promises = Promises(goodput_fraction=0.9)
    one, other = (broken(table(o), promises, "goodput_fraction") for o in (even, burst))
    assert one.share.value == other.share.value
    assert one.proven
    assert not other.proven


@pytest.mark.parametrize(
    ("promises", "rule", "share"),
    [
        (Promises(e2e_s=1.0, quantile=0.95), "e2e_s", 0.05),
        (Promises(error_rate_fraction=0.01), "error_rate_fraction", 0.01),
        (Promises(availability_fraction=0.99), "availability_fraction", 0.01),
    ],
)
def test_an_allowance_is_the_share_that_may_break(promises, rule, share):
    assert allowance(promises, rule) == pytest.approx(share)


def test_a_steady_stage_counts(server):
    assert server.stationary
    assert server.counts
    assert not server.broken
    assert server.offered_rps == pytest.approx(5.0, rel=0.1)
    assert server.goodput_rps < server.throughput_rps == server.offered_rps


def test_a_short_stage_says_how_many_minutes_it_lacks(single_server):
    """p90 needs 100 requests: 20 s at 2/s bring about 40, and 30 s more the rest."""
    run = run_load(single_server(), {"kind": "steady", "rate_rps": 2.0}, duration_s=20.0, seed=1)
    found = stage_of("short", "plain", 2.0, run, start_s=0.0, end_s=20.0)
    assert not found.counts
    assert found.needs_min > 0.3
    assert [r.rule for r in found.thin] == ["e2e_s"]


def test_a_late_load_generator_is_told_from_the_service(server):
    log = server.run.requests
    late = dataclasses.replace(
        server.run, requests=log.assign(sent_s=log["intended_start_s"] + 0.2)
    )
    found = stage_of("late", "plain", 5.0, late, start_s=30.0, end_s=300.0)
    assert found.client_limited
    assert not found.counts
    assert not server.client_limited


def test_a_break_of_the_start_up_alone_is_void_and_repeated_slower(single_server):
    plan = {"ramp_s": 40.0, "step_s": 460.0, "steady_s": 300.0, "repeats": 1, "longest_s": 2000.0}
    scenario = single_server(plan=plan)
    found, voids = step(scenario, 3.0, before_rps=60.0, name="x", kind="ramp", seed=1)
    assert [v.void for v in voids] == [True]
    assert found.void
    assert not found.counts


def test_a_rate_limit_that_refuses_is_blamed_and_moved(single_server):
    gateway = {"rate_limits": {"rate_rps": 2.0, "burst": 1}}
    scenario = single_server(gateway=gateway, promises={"error_rate_fraction": 0.01})
    run = run_load(scenario, {"kind": "steady", "rate_rps": 4.0}, duration_s=200.0, seed=1)
    found = stage_of("refused", "plain", 4.0, run, start_s=0.0, end_s=200.0)
    first = found.breaks[0]
    cause = blame(found, first, None)
    assert (cause.layer, cause.reason) == ("gateway", "rate_limit")
    limit = crossed_limit(found, "chat", cause)
    assert (limit.field, limit.candidate) == ("gateway.rate_limits.0.rate_rps", pytest.approx(2.4))
    acted = {p.boundary.field: p for p in protections(scenario, [found])}[limit.field]
    refused = run.requests[run.requests["outcome"] == "rejected"]
    assert acted.count == len(refused)
    assert set(acted.request_ids) <= set(refused["request_id"])
    assert acted.run_id == found.run_id


def test_a_limit_that_is_not_set_protects_nothing(server):
    found = {p.boundary.field: p for p in protections(server.scenario, [server])}
    length = found["pools.server.queue.length"]
    assert (length.boundary.action, length.acted) == ("none", False)


def test_the_start_of_the_ramp_is_a_fifth_of_the_estimate(single_server):
    scenario = single_server(plan={"start_rps": None, "planned_rps": None, "peak_rps": None})
    loads = loads_of(scenario, seed=1)
    assert loads.estimate_rps == pytest.approx(10.0, rel=0.01)
    assert loads.start_rps == pytest.approx(2.0, rel=0.01)
    assert loads.planned_rps == pytest.approx(5.0, rel=0.1)
    assert loads.peak_rps >= loads.planned_rps


def test_two_unowned_queues_block_the_acceptance(single_server):
    batching = single_server().pools[0].batching.model_dump(mode="json")
    pool = {"queue": {}, "batching": batching | {"scheduler": {}}}
    scenario = single_server(pool=pool)
    assert unowned_queues(scenario).outcome == "blocked"
    found = run_stages(scenario, seed=1)
    assert found.verdict.outcome == "blocked"
    assert [r.rule for r in found.verdict.decisive] == ["unowned_queues"]
    assert [s.kind for s in found.stages] == ["baseline"], "the load is raised no further"


def test_unowned_queues_block_a_plan_without_a_baseline(single_server):
    batching = single_server().pools[0].batching.model_dump(mode="json")
    scenario = single_server(pool={"queue": {}, "batching": batching | {"scheduler": {}}})
    verdict = run_stages(with_values(scenario, {"stages.run": ["ramp"]})).verdict
    assert verdict.outcome == "blocked"
    assert verdict.scope.input_distribution == {}
    assert all(math.isnan(end) for end in verdict.scope.load_range_rps)


def test_one_unowned_queue_is_no_block(single_server):
    assert unowned_queues(single_server(pool={"queue": {}})).outcome == "pass"


def test_errors_are_back_after_the_last_failure_of_a_part_that_fails():
    outcomes = ["timed_out"] * 50 + ["succeeded"] * 50
    assert errors_back(table(outcomes), 20.0, 100.0) == 29.0
    assert errors_back(table(outcomes), 60.0, 100.0) == 0.0
    assert math.isnan(errors_back(table(outcomes[::-1]), 20.0, 100.0))
    lucky = [*outcomes[::-1][:-1], "succeeded"]
    assert math.isnan(errors_back(table(lucky), 20.0, 100.0)), "one success is no recovery"


def test_the_low_class_starves_where_it_succeeds_less_than_half_as_often():
    both = table(["succeeded"] * 200)
    both["request_class"] = ["high", "low"] * 100
    assert not starves(both, "low", "high")
    lost = (both["request_class"] == "low") & (both.index > 40)
    assert starves(both.assign(outcome=both["outcome"].mask(lost, "timed_out")), "low", "high")


def test_a_tenant_over_its_share_is_told_from_one_within_and_from_no_tenant(single_server, server):
    tenants = [{"name": "noisy", "share": 1.0}, {"name": "quiet", "share": 1.0}]
    scenario = single_server(tenants=tenants, promises={"goodput_fraction": 0.9})
    rows = table(["succeeded"] * 400)
    loud = dataclasses.replace(
        server, table=rows.assign(tenant=["noisy", "noisy", "quiet", "noisy"] * 100)
    )
    assert tenants_over_share(scenario, loud.table) == ["noisy"]
    assert list(cuts_of(scenario, [loud])) == [], "it hurts no other"
    [held] = isolation_reasons(scenario, [loud], ())
    assert (held.outcome, held.value) == ("pass", "noisy")
    fair = dataclasses.replace(server, table=rows.assign(tenant=["noisy", "quiet"] * 200))
    [reason] = isolation_reasons(scenario, [fair], ())
    assert (reason.outcome, reason.value) == ("pass", None)
    one = dataclasses.replace(server, table=rows.assign(tenant="noisy"))
    [unmeasured] = isolation_reasons(scenario, [one], ())
    assert unmeasured.outcome == "unknown"


@pytest.mark.parametrize(
    ("quiet_rps", "loud_rps", "outcome"), [(2.4, 9.6, "fail"), (11.0, 3.0, "pass")]
)
def test_isolation_fails_only_if_the_loud_tenant_is_the_cause(
    single_server, quiet_rps, loud_rps, outcome
):
    """Of 10/s a quiet tenant at 2.4/s finds room without the loud one; at 11/s it never does."""
    share = {2.4: 1.0, 11.0: 10.0}[quiet_rps]
    tenants = [
        {"name": "quiet", "share": share, "sent_share": quiet_rps},
        {"name": "loud", "share": 1.0, "sent_share": loud_rps},
    ]
    scenario = single_server(tenants=tenants)
    load = quiet_rps + loud_rps
    run = run_load(scenario, {"kind": "steady", "rate_rps": load}, duration_s=300.0, seed=1)
    stage = stage_of("x", "ramp", load, run, start_s=30.0, end_s=300.0)
    [cut] = cuts_of(scenario, [stage])
    sent = cut.again.table["tenant"].value_counts()
    assert sent["quiet"] == (stage.table["tenant"] == "quiet").sum()
    assert sent["loud"] == pytest.approx(sent["quiet"] / share, rel=0.1)
    [reason] = isolation_reasons(scenario, [stage], [cut])
    assert (reason.outcome, reason.value) == (outcome, "loud")
    assert cut.again.run_id in reason.evidence
    [unmeasured] = isolation_reasons(scenario, [stage], [dataclasses.replace(cut, again=None)])
    assert unmeasured.outcome == "unknown"


def test_the_interval_of_a_flat_level_covers_zero_nearly_always():
    rng = np.random.default_rng(1)
    time = np.arange(0.0, 3600.0, 6.0)
    found = [slope_per_hour(time, rng.normal(5, 1, time.size)) for _ in range(200)]
    covered = sum(one.low <= 0 <= one.high for one in found)
    assert covered >= 180, "95 % of 200, less four standard errors"


def test_an_injected_leak_is_found_and_what_is_not_measured_is_unknown(server):
    rows = server.run.timeline
    assert list(trend_reasons(server)) == []
    assert set(unknown_levels(server)) == {
        f"no_leak: {what}" for what in ("memory", "KV", "connections", "threads")
    }
    live = dataclasses.replace(server, run=dataclasses.replace(server.run, backend="live"))
    assert [r.outcome for r in trend_reasons(live)] == ["unknown"]
    leak = pd.DataFrame(
        {
            "time_s": np.arange(0.0, 300.0),
            "layer": "decode",
            "replica": "server-0",
            "metric": "kv_usage_fraction",
            "value": 0.2 + np.arange(300) / 1000,
        }
    )
    run = dataclasses.replace(server.run, timeline=pd.concat([rows, leak], ignore_index=True))
    leaking = dataclasses.replace(server, run=run)
    [kv] = [r for r in trend_reasons(leaking) if r.evidence.startswith("KV")]
    assert kv.outcome == "fail"
    assert kv.value == pytest.approx(3.6)


def test_a_level_that_rises_with_the_load_alone_has_no_slope():
    """It is twice the load, which rises; a leak of 1 an hour beside it is found."""
    rng = np.random.default_rng(2)
    time = np.arange(0.0, 3600.0, 6.0)
    load = 10 + time / 600 + rng.normal(0, 2, time.size)
    for leak, grows in ((0.0, False), (1.0, True)):
        level = 2 * load + leak * time / 3600 + rng.normal(0, 0.1, time.size)
        found = slope_per_hour(time, level, load)
        assert (found.low > 0) is grows
        assert found.value == pytest.approx(leak, abs=0.3)


def test_a_metric_that_no_layer_reports_is_unknown(server):
    found = levels(server)
    assert found["2 accelerators"]["fragmentation"] is None
    assert found["3 queues and hosts"]["host_pause_s"] is None
    assert found["2 accelerators"]["busy"]["mean"] == pytest.approx(0.5, abs=0.05)
    assert found["1 callers"]["error_fraction"] == 0.0


def test_other_stages_can_be_chosen(single_server):
    plan = {"run": ["soak", "spike", "wave", "replay"], "soak_s": 600.0, "wave_period_s": 200.0}
    found = run_stages(single_server(plan=plan), seed=1)
    assert [s.kind for s in found.stages] == ["soak", "spike", "wave", "replay"]
    assert {r.rule for r in found.verdict.reasons} >= {"soak_promises"}
    assert found.ramp is None
    assert "no_leak: KV" in found.to_json()["not_applicable"]


def test_void_tries_stand_before_the_step_that_they_gave_way_to(single_server):
    run = run_load(single_server(), {"kind": "steady", "rate_rps": 1.0}, duration_s=20.0, seed=1)

    def at(name, load_rps):
        return stage_of(name, "ramp", load_rps, run, start_s=0.0, end_s=20.0)

    ramp = LoadRamp(
        steps=(at("1", 1.0), at("between", 1.5), at("2", 2.0)),
        voids=(at("void 2", 2.0), at("void 3", 3.0)),
    )
    assert [s.name for s in ramp.in_turn()] == ["1", "between", "void 2", "2", "void 3"]


def test_a_growing_backlog_is_looked_for_in_the_queues_of_its_own_pool(server):
    """The gateway and the pool hold 3 and 5; another pool's queue of 50 is not on the way."""
    rows = pd.DataFrame(
        {
            "time_s": 290.0,
            "layer": ["gateway", "service_queue", "scheduler_queue", "scheduler_queue"],
            "replica": ["", "server", "other-0", "server-0"],
            "metric": "length",
            "value": [3.0, 5.0, 50.0, 0.0],
        }
    )
    run = dataclasses.replace(server.run, timeline=rows)
    found = _backlog(dataclasses.replace(server, run=run), "chat")
    assert (found.layer, found.share_fraction) == ("service_queue", 5 / 8)


def test_steps_at_one_load_share_one_bar():
    """Ten of ten and five of ten requests succeed at one load: three quarters of the bar."""
    ends = (["succeeded"] * 10, ["succeeded"] * 5 + ["rejected"] * 5, ["timed_out"] * 10)
    steps = tuple(
        SimpleNamespace(load_rps=load, table=pd.DataFrame({"outcome": end}))
        for load, end in zip((4.0, 4.0, 8.0), ends, strict=True)
    )
    found = LoadRamp(steps=steps).outcomes()
    shares = found.set_index(["load_rps", "outcome"])["share_fraction"].to_dict()
    assert shares == {(4.0, "succeeded"): 0.75, (4.0, "rejected"): 0.25, (8.0, "timed_out"): 1.0}
    assert charts.outcomes_by_load(found).to_dict()
    assert LoadRamp(steps=()).outcomes().empty
