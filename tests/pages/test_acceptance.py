"""What the page on stages says of the overload: who acted, what was wasted, how sure loads are."""

from dataclasses import replace

import pytest

from capplan.pages import acceptance
from capplan.scenario.files import validate
from capplan.stages import run_stages

POOL = {
    "name": "llm",
    "owner": "platform",
    "cold_start_s": 20.0,
    "queue": {"owner": "platform", "length": 40, "wait_limit_s": 5.0},
    "router": {"max_in_flight": 8},
    "batching": {
        "kind": "continuous",
        "max_num_seqs": 2,
        "kv_blocks": 2000,
        "scheduler": {"owner": "platform", "wait_limit_s": 4.0},
        "step_time": {"kind": "linear", "base_s": 0.02, "per_prefill_token_s": 0.0,
                      "per_sequence_s": 0.0, "per_context_token_s": 0.0},
    },
}  # fmt: skip
BREAKER = {
    "name": "brief",
    "owner": "platform",
    "when": {"metric": "queue_length", "above": 5},
    "then": [{"kind": "max_tokens", "tokens": 4}],
}
SCALER = {"max_replicas": 3, "metrics": [{"metric": "in_flight", "target": 2.0}],
          "behavior": {"scale_down": {"stabilization_window_s": 30.0}}}  # fmt: skip


def accepted(*, pool=None, **fields):
    data = {
        "name": "page",
        "classes": [
            {"name": "chat", "owner": "chat", "promises": {"deadline_s": 8.0, "quantile": 0.9},
             "prompt_tokens": {"kind": "fixed", "tokens": 50},
             "output_tokens": {"kind": "lognormal", "p50_tokens": 8, "p95_tokens": 20}}
        ],
        "traffic": {"shape": {"kind": "steady", "rate_rps": 4.0}, "duration_s": 100.0},
        "network": {"owner": "network"},
        "gateway": {"owner": "gateway"},
        "pools": [POOL | (pool or {})],
        "stages": {"run": ["baseline", "fall_back"], "start_rps": 3.0, "planned_rps": 4.0,
                   "peak_rps": 12.0, "step_s": 120.0, "steady_s": 60.0, "longest_s": 240.0,
                   "fall_back_s": 60.0},
    }  # fmt: skip
    return run_stages(validate(data | fields, where="page"), seed=1)


@pytest.fixture(name="plain", scope="module")
def _plain():
    return accepted()


@pytest.fixture(name="acting", scope="module")
def _acting():
    return accepted(pool={"autoscaler": SCALER}, breakers=[BREAKER])


def test_where_nothing_is_set_nothing_acts(plain):
    [said] = acceptance.acting_parts(plain.stage("fall_back"))
    assert said.startswith("No breaker is set and no pool scales")


def test_breakers_degraded_answers_and_replicas_are_drawn_and_told(acting):
    *drawn, said = acceptance.acting_parts(acting.stage("fall_back"))
    titles = [chart.to_dict() for chart in drawn]
    assert len(titles) == 3
    assert "1 of 1 breaker opened (brief)." in said
    assert "of the answers were degraded" in said
    assert "ready after somebody asked for more" in said


def test_spans_of_a_rule_that_never_opened_are_empty_but_there(acting):
    stage = acting.stage("fall_back")
    spans = acceptance.breaker_spans(stage.run)
    assert (spans["end_s"] > spans["start_s"]).all()
    rows = stage.run.timeline
    shut = rows.assign(value=rows["value"].where(rows["metric"] != "breaker_open", 0.0))
    quiet = acceptance.breaker_spans(replace(stage.run, timeline=shut))
    assert quiet.to_numpy().tolist() == [["brief@llm", 0.0, 0.0]]


def test_the_books_of_an_overload_tell_the_waste(plain):
    stage = plain.stage("fall_back")
    table = acceptance.books_table(stage)
    ends = table[["timed_out", "rejected"]].sum().sum()
    assert ends > 0
    assert set(table["layer"]) <= {"service_queue", "scheduler_queue", "decode", "gateway"}
    said = acceptance.waste_said(stage)
    assert "of the accelerators' busy time went to attempts that did not succeed" in said
    assert "of the requests waited in two queues or more, on average" in said


def test_rules_that_do_not_apply_stand_below_the_others(plain):
    table = acceptance.rule_table(plain)
    silent = table[table["outcome"] == "does not apply"]
    assert "recovery by scale out" in set(silent["rule"])
    assert silent.index.min() == len(plain.verdict.reasons)


def test_one_ramp_does_not_tell_how_far_its_loads_depend_on_chance(plain):
    assert "One ramp was run" in acceptance.acceptable_said(plain)


def test_without_a_ramp_no_load_is_said_to_keep_every_promise(plain):
    assert plain.ramp is None
    assert "unknown" in acceptance.degradation_said(plain)
    assert "unknown" in acceptance.knee_said(plain)
