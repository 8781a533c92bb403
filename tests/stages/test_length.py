"""Stages last until they count, within the plan's longest; what rests on one that does not count
is unknown."""

import dataclasses

import numpy as np
import pytest

from capplan.stages import run_stages
from capplan.stages.failure_stage import failure
from capplan.stages.ramp import LoadRamp, raise_load
from capplan.stages.recovery import recovery_of
from capplan.stages.rules import Findings, rules
from capplan.stages.run_load import loads_of, run_load
from capplan.stages.scaling import fall_back_s, replica_counts
from capplan.stages.stage import resting_on, stage_of
from capplan.stages.stage_kinds import burst, fall_back, long_outputs, spike, wave
from capplan.statistics import replication_mean
from capplan.verdict import Reason

SHORT = {"step_s": 20.0, "steady_s": 10.0, "ramp_s": 5.0, "every_s": 20.0, "burst_s": 2.0,
         "bursts": 1, "fall_back_s": 10.0, "down_s": None, "start_rps": 2.0, "planned_rps": 2.0,
         "peak_rps": 2.5, "wave_period_s": 20.0}  # fmt: skip
"""p90 of E2E needs 100 requests, 50 s at 2/s: no stage has them in the length it begins with."""
OUTAGE = {"kind": "node_loss"}


def plan_of(single_server, **plan):
    return single_server(plan=SHORT | plan)


@pytest.mark.parametrize("kind", [burst, long_outputs, spike, wave])
def test_a_stage_lasts_until_it_counts_and_no_longer_than_the_plan_allows(single_server, kind):
    scenario = plan_of(single_server, longest_s=800.0)
    found = kind(scenario, loads_of(scenario), seed=1)
    assert found.counts
    assert 40.0 < found.end_s <= 800.0
    assert len(found.table) >= 100
    short = plan_of(single_server, longest_s=30.0)
    found = kind(short, loads_of(short), seed=1)
    assert not found.counts
    assert found.end_s <= 40.0
    assert found.needs_min > 0


def test_failure_and_retest_last_until_they_count(single_server):
    scenario = plan_of(single_server, failure="slow", longest_s=1200.0)
    one, two = failure(scenario, loads_of(scenario), seed=1)
    assert one.counts
    assert two.counts
    stated = plan_of(single_server, failure="slow", longest_s=1200.0, down_s=15.0)
    one, two = failure(stated, loads_of(stated), seed=1)
    assert [fault.for_s for fault in one.run.scenario.faults] == [15.0]
    assert one.end_s - one.start_s > 15.0
    assert one.counts
    assert two.counts


def test_a_longer_fall_back_gives_the_service_no_more_time_to_come_back(single_server):
    scenario = plan_of(single_server, longest_s=800.0)
    found = fall_back(scenario, loads_of(scenario), None, seed=1)
    assert found.counts
    assert found.end_s - found.start_s > 5 * fall_back_s(scenario) == 50.0
    slow = dataclasses.replace(found, run=late(found.run, found.start_s + 30.0))
    rules_of = {r.rule: r.outcome for r in recovery_of(slow, None).reasons}
    assert rules_of["backlog_drains"] == "fail"
    assert not recovery_of(slow, None).converged
    quick = {r.rule: r.outcome for r in recovery_of(found, None).reasons}
    assert quick["backlog_drains"] == "pass"


def late(run, until_s):
    """Return a run whose queues hold one request more until a moment."""
    rows = run.timeline
    waits = (rows["metric"] == "length") & (rows["time_s"] < until_s)
    return dataclasses.replace(
        run, timeline=rows.assign(value=rows["value"].where(~waits, rows["value"] + 1))
    )


def test_what_rests_on_a_stage_that_does_not_count_is_unknown(single_server):
    shape = {"kind": "steady", "rate_rps": 2.0}
    run = run_load(single_server(), shape, duration_s=500.0, seed=1)
    whole = stage_of("whole", "soak", 2.0, run, start_s=10.0, end_s=500.0)
    thin = stage_of("thin", "soak", 2.0, run, start_s=10.0, end_s=30.0)
    kept, lost = Reason(rule="a", outcome="pass"), Reason(rule="b", outcome="fail")
    assert [r.outcome for r in resting_on([whole], [kept, lost])] == ["pass", "fail"]
    assert [r.outcome for r in resting_on([whole, thin], [kept, lost])] == ["unknown", "fail"]
    scenario, loads = single_server(), loads_of(single_server())

    def found(stage):
        base = Findings(scenario=scenario, loads=loads, baseline=stage)
        return {r.rule: r.outcome for r in rules(base)}

    judged = ("baseline_promises", "retry_amplification", "double_queue")
    assert [found(whole)[rule] for rule in judged] == ["pass"] * 3
    assert [found(thin)[rule] for rule in judged] == ["unknown"] * 3
    back = {r.rule: r.outcome for r in recovery_of(thin, None).reasons}
    assert back["answers_back"] == back["retries_stop"] == "unknown"


def test_a_backlog_that_grows_fails_a_stage_that_breaks_no_promise_yet(single_server):
    """12/s at 10/s: the queue grows from the first second, and 60 s may be promised."""
    scenario = single_server(promises={"e2e_s": 300.0})
    run = run_load(scenario, {"kind": "steady", "rate_rps": 12.0}, duration_s=400.0, seed=1)
    stage = stage_of("baseline", "baseline", 12.0, run, start_s=0.0, end_s=400.0)
    assert not stage.breaks
    base = Findings(scenario=scenario, loads=loads_of(scenario), baseline=stage)
    assert {r.rule: r.outcome for r in rules(base)}["baseline_promises"] == "fail"
    varying = dataclasses.replace(stage, steady=False)
    assert not varying.grows()


def test_a_class_without_requests_is_known_to_keep_no_load(single_server):
    run = run_load(single_server(), {"kind": "steady", "rate_rps": 2.0}, duration_s=500.0, seed=1)
    found = stage_of("x", "ramp", 2.0, run, start_s=10.0, end_s=500.0)
    assert found.counts_for("chat")
    assert not found.counts_for("silent")
    assert LoadRamp(steps=(found,)).acceptable("chat").load_rps == 2.0
    assert np.isnan(LoadRamp(steps=(found,)).acceptable("silent").load_rps)


def test_a_break_beyond_doubt_counts_for_its_class_and_not_for_a_thin_one(single_server):
    run = run_load(single_server(), {"kind": "steady", "rate_rps": 2.0}, duration_s=500.0, seed=1)
    found = stage_of("x", "plain", 2.0, run, start_s=10.0, end_s=500.0)
    thin = Reason(rule="e2e_s", outcome="unknown", request_class="rare", samples_missing=10)
    verdict = dataclasses.replace(found.verdict, reasons=(thin,))
    lacking = dataclasses.replace(found, verdict=verdict)
    assert not lacking.counts
    share = replication_mean([0.5, 0.5, 0.5])
    broken = dataclasses.replace(found.margins[0], share=share)
    certain = dataclasses.replace(lacking, breaks=(broken,))
    assert certain.counts
    assert certain.counts_for("chat")
    assert not certain.counts_for("rare")


SCALES = {"cold_start_s": 60.0,
          "autoscaler": {"max_replicas": 6, "metrics": [{"metric": "in_flight", "target": 1.0}]},
          "router": {"max_in_flight": 4}}  # fmt: skip


def test_each_step_of_a_pool_that_scales_begins_with_the_replicas_of_the_step_below(single_server):
    plan = {"longest_s": 2400.0, "most_steps": 5, "factor": 1.5, "refine": 0, "start_rps": 4.0}
    scenario = single_server(pool=SCALES, plan=plan, promises={"e2e_s": 5.0})
    ramp = raise_load(scenario, start_rps=4.0, seed=1)
    begun = [s.scenario.pools[0].replicas for s in ramp.steps]
    ended = [int(replica_counts(s.run).iloc[-1]) for s in ramp.steps]
    assert begun == [1, *ended[:-1]]
    assert begun[-1] > 1
    assert all(s.counts for s in ramp.steps)


def test_stages_of_the_planned_load_begin_with_the_replicas_that_it_holds(single_server):
    plan = {"run": ["baseline", "long_outputs"], "planned_rps": 20.0, "peak_rps": 20.0}
    found = run_stages(single_server(pool=SCALES, plan=plan), seed=1)
    assert found.baseline.scenario.pools[0].replicas == 1
    assert found.stage("long_outputs").scenario.pools[0].replicas > 2
