"""Every limit of a gateway is a boundary, its requests the proof, and the field to move."""

import numpy as np
import pandas as pd
import pytest

from capplan.scenario.files import load_scenario
from capplan.simulation import simulate
from capplan.sizing.table import protective_action
from capplan.stages.crossed_limit import crossed_limit
from capplan.stages.degradation import Blame
from capplan.stages.protection import protections
from capplan.stages.stage import stage_of
from capplan.traffic.trace import from_frame

TENANTS = [{"name": "a"}, {"name": "b"}]
FRESH = {"connections": "fresh"}


def trace(count=400, rate=40.0):
    rng = np.random.default_rng(5)
    frame = pd.DataFrame({"arrival_s": np.cumsum(rng.exponential(1 / rate, count))})
    frame["prompt_tokens"] = rng.integers(10, 200, count)
    frame["output_tokens"] = 1
    frame["tenant"] = rng.choice(["a", "b"], count, p=[0.2, 0.8])
    frame["priority"] = rng.integers(0, 3, count)
    frame["request_id"] = [f"r{i}" for i in range(count)]
    return from_frame(frame)


CASES = {
    "gateway.rate_limits.l.rate_rps": {"rate_limits": [{"name": "l", "rate_rps": 5.0}]},
    "gateway.token_limits.l.rate_tokens_per_s": {
        "token_limits": [{"name": "l", "rate_tokens_per_s": 300.0, "burst_tokens": 500}]
    },
    "gateway.token_limits.l.burst_tokens": {
        "token_limits": [{"name": "l", "rate_tokens_per_s": 300.0, "burst_tokens": 100}]
    },
    "gateway.allowances.l.tokens": {"allowances": [{"name": "l", "tenant": "b", "tokens": 900}]},
    "gateway.max_prompt_tokens": {"max_prompt_tokens": 100},
    "gateway.max_total_tokens": {"max_total_tokens": 120},
    "gateway.accept.backlog": {"accept": {"rate_per_s": 5.0, "backlog": 3}},
    "gateway.accept.max_per_caller": {"accept": {"max_per_caller": 2}},
    "gateway.when_full": {"concurrency": 2, "queue": {"length": 2}, "when_full": "displace_lowest"},
    "gateway.quotas": {
        "concurrency": 4,
        "queue": {"length": 3},
        "quotas": [{"tenant": "a", "concurrency": 2}, {"tenant": "b", "concurrency": 1}],
    },
    "gateway.reclaim": {
        "concurrency": 3,
        "reclaim": "cancel",
        "queue": {"length": 5},
        "quotas": [{"tenant": "a", "concurrency": 2}, {"tenant": "b", "concurrency": 1}],
    },
}
MOVED = {"gateway.accept.backlog": "gateway.accept.rate_per_s"}
MOVED |= dict.fromkeys(
    ["gateway.when_full", "gateway.quotas", "gateway.reclaim"], "gateway.concurrency"
)
"""The field to move, where it is not the boundary itself."""


def staged(scenario):
    """Return ten seconds of overload."""
    run = simulate(scenario, trace=trace())
    return stage_of("s", "burst", 40.0, run, start_s=0.0, end_s=10.0)


@pytest.mark.parametrize("field", list(CASES))
def test_a_limit_that_acted_is_proved_by_the_requests_it_ended(single_server, field):
    scenario = single_server(gateway=CASES[field], tenants=TENANTS, network=FRESH)
    stage = staged(scenario)
    run = stage.run
    found = {p.boundary.field: p for p in protections(scenario, [stage])}
    acted = found[field]
    ended = run.requests[run.requests["reason"] == acted.boundary.reason]
    assert acted.count == len(ended) > 0
    assert set(acted.request_ids) <= set(ended["request_id"])
    assert acted.boundary.owner == "platform"
    assert acted.boundary.layer in set(ended["outcome_layer"])
    # whatever the gateway ended is counted at one limit
    here = run.requests["outcome_layer"].isin(["gateway", "network"])
    shown = [
        p.boundary.reason for p in found.values() if p.boundary.layer in {"gateway", "network"}
    ]
    assert set(run.requests.loc[here, "reason"]) <= set(shown)
    assert len(shown) == len(set(shown))


@pytest.mark.parametrize("field", list(CASES))
def test_the_field_to_move_is_the_limit_that_refused(single_server, field):
    scenario = single_server(gateway=CASES[field], tenants=TENANTS, network=FRESH)
    stage = staged(scenario)
    boundary = {b.field: b for b in scenario.limits()}[field]
    cause = Blame(layer=boundary.layer, share_fraction=1.0, reason=boundary.reason)
    limit = crossed_limit(stage, "chat", cause)
    assert limit.field == MOVED.get(field, field)
    assert limit.candidate > limit.value


def test_busy_workers_are_the_field_to_move(single_server):
    scenario = single_server(gateway={"overhead_s": 0.1, "overhead_concurrency": 2})
    stage = staged(scenario)
    limit = crossed_limit(stage, "chat", Blame(layer="gateway", share_fraction=1.0, reason=None))
    assert (limit.field, limit.value, limit.candidate) == ("gateway.overhead_concurrency", 2, 3)


def test_the_capacity_table_says_what_every_limit_does(single_server):
    gateway = CASES["gateway.accept.backlog"] | CASES["gateway.allowances.l.tokens"]
    scenario = single_server(gateway=gateway, tenants=TENANTS)
    shown = protective_action(scenario, scenario.pool(), None)
    assert "gateway: refuses connections beyond 3 waiting" in shown
    assert "gateway: 429 once 900 tokens of b are used, not to be retried" in shown


def test_the_capacity_table_says_what_acts_by_itself():
    scenario = load_scenario("protected-chat")
    shown = protective_action(scenario, scenario.pool("llm"), None)
    assert "breaker overfull: 503 with Retry-After 5 s while queue length is above 20" in shown
    assert "llm autoscaler: 2 to 6 replicas; llm standby: 1 replica" in shown
    assert "breaker" not in protective_action(scenario, scenario.pool("labelling"), None)


def test_limits_that_are_not_set_are_no_limits(single_server):
    fields = {b.field for b in single_server().limits() if b.field.startswith("gateway.")}
    assert fields == {"gateway.rate_limits", "gateway.queue.length", "gateway.queue.wait_limit_s"}
