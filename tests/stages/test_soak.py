"""A soak finds a leak, and none where there is none."""

import pytest

from capplan.scenario.files import with_values
from capplan.stages import run_stages
from capplan.stages.metrics import trend_reasons
from capplan.stages.run_load import run_load, steady
from capplan.stages.stage import stage_of

SEEDS = 40
SOAK_S = 1200.0


def soaked(scenario, seed):
    """Return a soak at about half of what the replica can do."""
    run = run_load(scenario, steady(6.0), duration_s=SOAK_S, seed=seed)
    return stage_of("soak", "soak", 6.0, run, start_s=60.0, end_s=SOAK_S)


def leaks(stage):
    return [r.evidence.split(":")[0] for r in trend_reasons(stage) if r.outcome == "fail"]


@pytest.fixture(name="sound", scope="module")
def _sound(decoding):
    return decoding(promises={"e2e_s": 20.0})


@pytest.mark.parametrize(("kv_tokens_per_s", "outcome"), [(1.0, "fail"), (None, "pass")])
def test_a_soak_fails_by_a_leak_alone(sound, kv_tokens_per_s, outcome):
    """One token a second is 4.5 % of 80,000 an hour; every promise holds all the while."""
    leak = {"kind": "leak", "at_s": 0.0, "kv_tokens_per_s": kv_tokens_per_s}
    plan = {"stages.run": ["soak"], "stages.soak_s": SOAK_S, "stages.planned_rps": 6.0}
    scenario = with_values(sound, plan | {"faults": [leak] if kv_tokens_per_s else []})
    found = run_stages(scenario, seed=1)
    rules = {r.rule: r.outcome for r in found.verdict.reasons if r.rule != "no_leak"}
    assert rules["soak_promises"] == "pass"
    leaking = {
        r.evidence.split(":")[0]: r.outcome for r in found.verdict.reasons if r.rule == "no_leak"
    }
    assert leaking == {"KV": outcome}
    assert [t["grows"] for t in found.to_json()["trends"]] == [outcome == "fail"]
    assert "no_leak: memory" in found.to_json()["not_applicable"]


@pytest.mark.slow
def test_at_most_one_soak_in_twenty_raises_a_false_alarm(sound):
    alarms = [leaks(soaked(sound, seed)) for seed in range(SEEDS)]
    assert sum(map(bool, alarms)) <= 0.05 * SEEDS


@pytest.mark.slow
def test_a_leak_of_a_hundredth_an_hour_is_found_in_nearly_every_soak(sound):
    leak = {"kind": "leak", "at_s": 0.0, "kv_tokens_per_s": 0.5}
    scenario = with_values(sound, {"faults": [leak]})
    assert sum(leaks(soaked(scenario, seed)) == ["KV"] for seed in range(10)) >= 8
