"""What an acceptance and its runs show: what acted, what was wasted, how sure the loads are."""

from dataclasses import replace

import pytest

from capplan.pages import acting_charts
from capplan.scenario.files import validate
from capplan.stages import LoadRamp, run_stages

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


def test_without_breakers_and_autoscalers_nothing_is_drawn(plain):
    run = plain.stage("fall_back").whole
    assert acting_charts(run) == []
    assert run.breaker_spans().empty
    assert run.elastic_timeline().empty
    assert run.acted().startswith("No breaker is set and no pool scales")


def test_breakers_degraded_answers_and_replicas_are_drawn_and_counted(acting):
    run = acting.stage("fall_back").whole
    assert len([chart.to_dict() for chart in acting_charts(run)]) == 3
    assert "1 of 1 breaker opened (brief)." in run.acted()
    assert "answers were degraded" in run.acted()
    assert "became ready on request" in run.acted()


def test_spans_of_a_rule_that_never_opened_are_empty_but_there(acting):
    run = acting.stage("fall_back").run
    spans = run.breaker_spans()
    assert (spans["end_s"] > spans["start_s"]).all()
    rows = run.timeline
    shut = rows.assign(value=rows["value"].where(rows["metric"] != "breaker_open", 0.0))
    quiet = replace(run, timeline=shut).breaker_spans()
    assert quiet.to_numpy().tolist() == [["brief@llm", 0.0, 0.0]]


def test_the_attempts_of_an_overload_and_their_waste_are_counted_by_layer(plain):
    run = plain.stage("fall_back").whole
    table = run.conservation()
    assert table[["timed_out", "rejected"]].sum().sum() > 0
    assert set(table["layer"]) <= {"service_queue", "scheduler_queue", "decode", "gateway"}
    assert "waited in two queues or more, on average" in run.summary()


def test_moments_keep_marked_and_failed_requests(plain):
    run = plain.stage("fall_back").run
    wanted = run.requests["request_id"].iloc[[0, 5]].tolist()
    moments = run.moments(wanted)
    assert set(moments.loc[moments["marked"], "request_id"]) == set(wanted)
    assert len(moments) <= 600
    assert moments["entry_s"].is_monotonic_increasing


def test_rules_that_do_not_apply_stand_below_the_others(plain):
    table = plain.rule_table().reset_index(drop=True)
    silent = table[table["outcome"] == "does not apply"]
    assert "recovery by scale out" in set(silent["rule"])
    assert silent.index.min() == len(plain.verdict.reasons)


def test_without_a_ramp_no_load_is_said_to_keep_every_promise(plain):
    assert plain.ramp is None
    assert "unknown" in plain.degradation_summary()
    assert "unknown" in plain.knee_summary()
    assert "One ramp was run" in plain.load_summary()
    assert plain.chart() is None


def test_an_acceptance_shows_its_summary_and_a_row_per_stage(plain):
    assert plain.table()["stage"].tolist() == [s.name for s in plain.stages]
    assert plain.as_text().startswith(str(plain))
    assert "<table" in plain._repr_html_()


def test_throughput_goodput_and_outcomes_are_shares_of_the_load(plain):
    ramp = LoadRamp(steps=(plain.baseline,))
    flows = ramp.flows()
    assert (flows["low"].isna() | (flows["low"] <= flows["flow_rps"] + 1e-9)).all()
    assert (flows["high"].isna() | (flows["high"] <= flows["load_rps"] + 1e-9)).all()
    assert ramp.outcomes()["share_fraction"].sum() == pytest.approx(1.0)


def test_ttft_is_that_of_streamed_answers_only(plain):
    ramp = LoadRamp(steps=(plain.baseline,))
    table = plain.baseline.table.assign(streaming=False)
    silent = LoadRamp(steps=(replace(plain.baseline, table=table),))
    assert set(ramp.latencies("ttft")["request_class"]) == {"chat"}
    assert silent.latencies("ttft").empty
    assert set(silent.latencies("e2e")["request_class"]) == {"chat"}


def test_a_ramp_without_steps_has_empty_frames():
    ramp = LoadRamp(steps=())
    assert ramp.flows().empty
    assert ramp.latencies("e2e").empty
    assert ramp.outcomes().empty
