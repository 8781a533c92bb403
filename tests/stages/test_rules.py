"""Rules of the verdict, each on runs whose answer is known by hand, both ways."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from run_tables import timeline_table

from capplan.stages import scaling
from capplan.stages.next_change import _linked, _throughput_bought, _worse
from capplan.stages.recovery import recovery_of
from capplan.stages.rules import Findings, not_applicable, rules
from capplan.stages.run_load import run_load
from capplan.stages.scaling import READINESS_SAMPLES, added, scaling_reasons
from capplan.stages.stage import stage_of
from capplan.stages.violations import broken, margins_of


@pytest.fixture(name="fallen", scope="module")
def _fallen(single_server):
    """A run at half the capacity, as the fall-back after nothing at all."""
    shape = {"kind": "steady", "rate_rps": 5.0}
    run = run_load(single_server(), shape, duration_s=500.0, seed=1)
    return stage_of("fall back", "fall_back", 5.0, run, start_s=100.0, end_s=500.0)


@pytest.fixture(name="elastic")
def _elastic(monkeypatch):
    """Let the number of replicas of every pool change by itself."""
    monkeypatch.setattr(scaling, "scales", lambda scenario: True)


def with_counts(stage, counts):
    """Return the stage with so many replicas, one count every ten seconds from 100 s on."""
    rows = [
        {"time_s": 100.0 + 10.0 * i, "layer": "service_queue", "replica": "server",
         "metric": "replicas", "value": float(n)}
        for i, n in enumerate(counts)
    ]  # fmt: skip
    others = stage.run.timeline[stage.run.timeline["metric"] != "replicas"]
    timeline = pd.concat([others, timeline_table(rows)], ignore_index=True)
    return dataclasses.replace(stage, run=dataclasses.replace(stage.run, timeline=timeline))


def recovered(*, converged=True):
    return SimpleNamespace(converged=converged)


def outcomes(reasons):
    return {r.rule: r.outcome for r in reasons}


def test_a_fixed_number_of_replicas_is_no_recovery_by_scale_out(fallen):
    assert list(scaling_reasons(fallen, recovered(), [fallen])) == []
    back = recovery_of(fallen, None)
    assert "replicas_as_before" not in {r.rule for r in back.reasons}
    assert set(back.not_applicable) == {
        "replicas_as_before", "same_version", "memory_back", "no_entry_older_than_its_budget",
    }  # fmt: skip
    found = Findings(scenario=fallen.scenario, loads=None, others={"fall_back": fallen})
    found = dataclasses.replace(found, recovery=back)
    silent = not_applicable(found)
    assert {"recovery_by_scale_out", "protective_action", "starvation"} <= set(silent)
    assert not silent.keys() & {r.rule for r in rules(found)}


@pytest.mark.usefixtures("elastic")
def test_a_recovery_by_few_new_replicas_alone_is_retested_and_is_no_protection(fallen):
    grown = with_counts(fallen, [1, 2, 3, 3])
    assert added(grown.run) == 2
    found = {r.rule: r for r in scaling_reasons(grown, recovered(), [grown])}
    assert found["recovery_by_scale_out"].outcome == "retest"
    assert found["recovery_by_scale_out"].value == 2
    assert found["protective_action"].outcome == "fail"


@pytest.mark.usefixtures("elastic")
def test_enough_scale_outs_in_all_stages_prove_that_replicas_come(fallen):
    grown = with_counts(fallen, [1, 2])
    often = with_counts(fallen, [1, 2] * (READINESS_SAMPLES - 1))
    often = dataclasses.replace(often, run_id="another")
    found = outcomes(scaling_reasons(grown, recovered(), [often]))
    assert found == {"recovery_by_scale_out": "pass", "protective_action": "fail"}


@pytest.mark.usefixtures("elastic")
def test_a_limit_that_acted_is_a_protective_action(fallen):
    grown = with_counts(fallen, [1, 2, 1])
    log = grown.run.requests.copy()
    refused = {"outcome": "rejected", "outcome_layer": "service_queue", "reason": "queue_full"}
    log.loc[:9, list(refused)] = list(refused.values())
    run = dataclasses.replace(grown.run, requests=log)
    found = outcomes(scaling_reasons(dataclasses.replace(grown, run=run), recovered(), []))
    assert found == {"recovery_by_scale_out": "pass", "protective_action": "pass"}


@pytest.mark.usefixtures("elastic")
def test_replicas_that_are_not_counted_are_unknown(fallen):
    silent = with_counts(fallen, [])
    found = list(scaling_reasons(silent, recovered(), []))
    assert {r.outcome for r in found} == {"unknown"}
    assert all(r.next_action for r in found)


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [([1, 2, 3, 1], "pass"), ([1, 2, 2], "fail"), ([1, 2, 1, 2, 1], "pass"), ([], "unknown")],
)
def test_replicas_that_are_kept_are_no_recovery(fallen, counts, outcome, monkeypatch):
    monkeypatch.setattr("capplan.stages.recovery.scales", lambda scenario: True)
    back = recovery_of(with_counts(fallen, counts), None)
    assert outcomes(back.reasons)["replicas_as_before"] == outcome


def changed(stage, *, rate=5.0, seconds=0.0, lost=0, **fields):
    """Return a stage whose answers take so much longer, and of which so many requests time out."""
    table = stage.table.copy()
    for name in ("e2e_censored_s", "ttft_censored_s", "e2e_s", "ttft_s"):
        table[name] += seconds
    if lost:
        some = table.index[:: len(table) // lost]
        table.loc[some, "outcome"] = "timed_out"
        table.loc[some, "success"] = False
        table.loc[some, ["e2e_censored_s", "ttft_censored_s"]] = np.inf
    margins = tuple(margins_of(table, stage.scenario))
    return dataclasses.replace(stage, table=table, margins=margins, load_rps=rate, **fields)


def test_more_answers_for_a_longer_tail_are_bought(fallen):
    worse = changed(fallen, lost=20)
    scenario = fallen.scenario
    assert _throughput_bought(scenario, worse, fallen).outcome == "pass"
    slower = changed(fallen, seconds=10.0)
    reason = _throughput_bought(scenario, worse, slower)
    assert reason.outcome == "fail"
    assert reason.next_action


def test_a_better_tail_with_more_errors_names_what_got_worse(fallen):
    scenario = fallen.scenario
    assert list(_worse(scenario, fallen, fallen)) == []
    first = next(_worse(scenario, fallen, changed(fallen, lost=50)))
    assert first.partition(":")[0] == "chat E2E"


def test_a_refusal_in_place_of_a_late_answer_is_no_price(fallen):
    late = changed(fallen, seconds=10.0)
    assert list(_worse(fallen.scenario, late, changed(fallen, lost=50))) == []


def point_of(stage):
    promises = stage.scenario.request_class("chat").promises
    found = broken(stage.table, promises, "e2e_s")
    return SimpleNamespace(stage=stage, found=found, request_class="chat", promise="e2e_s")


def test_a_change_that_looks_better_without_linked_evidence_is_a_pause(fallen):
    before = point_of(changed(fallen, lost=150))
    assert _linked(before, fallen, better=True).outcome == "pass"
    thin = dataclasses.replace(fallen, void=True, note="void")
    paused = _linked(before, thin, better=True)
    assert paused.outcome == "unknown"
    assert _linked(before, thin, better=False).outcome == "pass"
    alike = _linked(point_of(changed(fallen, lost=3)), fallen, better=True)
    assert alike.outcome == "unknown"
