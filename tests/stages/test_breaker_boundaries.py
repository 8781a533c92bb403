"""A breaker is a boundary: what it does in words, when it acted, and which requests it touched."""

import numpy as np
import pandas as pd
import pytest

from capplan.scenario.files import validate
from capplan.simulation import simulate
from capplan.stages.crossed_limit import crossed_limit
from capplan.stages.degradation import Blame
from capplan.stages.protection import protections
from capplan.stages.recovery import recovery_of
from capplan.stages.stage import stage_of
from capplan.traffic.trace import from_frame

FULL = {
    "name": "full",
    "owner": "serving",
    "when": {"metric": "queue_length", "above": 5},
    "then": [{"kind": "refuse", "retry_after_s": 3.0}],
}
CUT = {
    "name": "cut",
    "when": {"metric": "e2e_s", "quantile": 0.9, "above": 0.5, "min_samples": 5},
    "then": [{"kind": "max_tokens", "tokens": 3, "classes": ["chat"]}],
}


@pytest.fixture(name="stage")
def _stage():
    """Return twenty seconds at twice what one replica of four places serves."""

    def stage(breakers, rate=40.0):
        step = {"kind": "linear", "base_s": 0.02, "per_prefill_token_s": 0.0}
        step |= {"per_sequence_s": 0.0, "per_context_token_s": 0.0}
        batching = {"kind": "continuous", "max_num_seqs": 4, "kv_blocks": 999, "step_time": step}
        scenario = validate(
            {
                "name": "protected",
                "classes": [{"name": "chat"}, {"name": "code"}],
                "traffic": {"shape": {"kind": "steady", "rate_rps": rate}},
                "pools": [{"name": "llm", "batching": batching}],
                "breakers": breakers,
            },
            where="test",
        )
        count = int(20 * rate)
        frame = pd.DataFrame({"arrival_s": np.arange(count) / rate})
        frame["prompt_tokens"], frame["output_tokens"] = 50, 10
        frame["request_class"] = ["chat", "code"] * (count // 2)
        frame["request_id"] = [f"r{i}" for i in range(count)]
        run = simulate(scenario, trace=from_frame(frame))
        return stage_of("s", "burst", rate, run, start_s=0.0, end_s=20.0)

    return stage


def found(stage):
    every = protections(stage.scenario, [stage])
    return {p.boundary.field: p for p in every if p.boundary.field.startswith("breakers.")}


def test_a_refusal_is_proved_by_the_requests_it_ended(stage):
    overloaded = stage([FULL])
    acted = found(overloaded)["breakers.full"]
    log = overloaded.run.requests
    refused = log[log["reason"] == "breaker:full"]
    assert acted.count == len(refused) > 0
    assert set(acted.request_ids) <= set(refused["request_id"])
    assert acted.opened >= 1
    assert acted.boundary.owner == "serving"
    assert acted.boundary.action == "503 with Retry-After 3 s while queue length is above 5"
    assert acted.to_json()["opened"] == acted.opened


def test_a_degraded_answer_is_proof_too_and_only_of_its_class(stage):
    overloaded = stage([CUT, FULL | {"when": {"metric": "queue_length", "above": 1e6}}])
    acted = found(overloaded)
    log = overloaded.run.requests
    assert acted["breakers.cut"].count == int(log["degraded"].sum()) > 0
    assert set(log.loc[log["degraded"], "request_class"]) == {"chat"}
    start, end = acted["breakers.cut"].span_s
    came = log.loc[log["degraded"], "service_queue_in_s"]
    assert came.between(start, end).all()
    assert (acted["breakers.full"].acted, acted["breakers.full"].opened) == (False, 0)


def test_a_breaker_that_touches_no_request_acted_when_it_opened(stage):
    shrink = CUT | {"then": [{"kind": "shrink_batch", "max_num_seqs": 2}]}
    acted = found(stage([shrink]))["breakers.cut"]
    assert (acted.acted, acted.count) == (True, 0)
    assert acted.boundary.action == "batches shrink to max_num_seqs 2 while E2E p90 is above 0.5 s"


def test_below_its_limit_nothing_acted(stage):
    assert not any(p.acted for p in found(stage([CUT, FULL], rate=10.0)).values())


def test_a_default_is_called_one_and_a_rule_that_can_act_nowhere_is_not_set(stage):
    acted = found(stage("tiered-default", rate=10.0))
    assert acted["breakers.slow"].boundary.action.endswith("2 s (a default, not your promise)")
    assert acted["breakers.slow"].boundary.is_set
    standby = acted["breakers.standby"].boundary
    assert (standby.is_set, standby.action) == (False, "none")


def test_the_field_to_move_is_the_breakers_limit(stage):
    overloaded = stage([FULL])
    cause = Blame(layer="service_queue", share_fraction=1.0, reason="breaker:full")
    limit = crossed_limit(overloaded, "chat", cause)
    assert (limit.field, limit.value, limit.candidate) == ("breakers.full.when.above", 5.0, 6.0)


def test_a_breaker_that_stays_open_is_no_recovery(stage):
    full = FULL | {"release": {"below": 2}}
    for rule, outcome in ((CUT | {"release": {"below": 0.01}}, "fail"), (full, "pass")):
        held = stage([rule])
        assert found(held)[f"breakers.{rule['name']}"].opened
        late = stage_of("s", "fall back", 1.0, held.run, start_s=15.0, end_s=60.0)
        rules = {r.rule: r for r in recovery_of(late, None).reasons}
        assert rules["breakers_closed"].outcome == outcome
    plain = stage([])
    assert "breakers_closed" not in {r.rule for r in recovery_of(plain, None).reasons}


def test_greedy_decoding_without_beams_opened_and_did_nothing(stage):
    cheap = CUT | {"name": "cheap", "then": [{"kind": "greedy"}]}
    acted = found(stage([CUT, cheap]))
    assert acted["breakers.cheap"].opened
    assert (acted["breakers.cheap"].acted, acted["breakers.cheap"].count) == (False, 0)
    assert acted["breakers.cut"].count > 0
