"""What breakers did stands in the document of a run, and in the reader's console."""

import json

import pytest

from capplan.cli import main

CUT = {
    "name": "cut",
    "when": {"metric": "running", "above": 0},
    "then": [{"kind": "max_tokens", "tokens": 8}],
}
LINE = ["simulate", "benchmark", "--set", "requests=200"]


@pytest.fixture(name="call")
def _call(capsys):
    def call(*words):
        assert main([*LINE, *words]) == 0
        return capsys.readouterr().out

    return call


def test_degraded_answers_and_breakers_are_in_the_document(call):
    found = json.loads(call("--set", f"breakers={json.dumps([CUT])}", "--json"))
    [rule] = found["breakers"]
    assert (rule["rule"], rule["pool"], rule["opened"] >= 1) == ("cut", "llm", True)
    assert 0 < found["degraded"] <= found["outcomes"]["succeeded"]
    assert found["by_class"]["benchmark"]["degraded"] == found["degraded"]
    good = found["goodput_fraction"] * found["offered"]
    assert good == pytest.approx(found["outcomes"]["succeeded"] - found["degraded"])


def test_a_bundled_rule_that_can_act_in_no_pool_says_why(call):
    assert "none: start_standby needs pools.llm.standby" in call("--set", "breakers=tiered-default")
    found = json.loads(call("--set", "breakers=tiered-default", "--json"))
    [idle] = [rule for rule in found["breakers"] if rule["rule"] == "standby"]
    assert (idle["pool"], idle["opened"]) == (None, 0)
    assert idle["impossible"] == "start_standby needs pools.llm.standby"
    assert {rule["impossible"] for rule in found["breakers"]} - {idle["impossible"]} == {None}


def test_without_breakers_the_document_has_the_same_keys(call):
    found = json.loads(call("--json"))
    assert (found["breakers"], found["degraded"]) == ([], 0)


def test_the_console_tells_what_opened_and_how_many_answers_it_cost(call):
    told = call("--set", f"breakers={json.dumps([CUT])}")
    assert "of these degraded" in told
    assert any(line.split()[:2] == ["cut", "llm"] for line in told.splitlines())
    quiet = call("--set", "breakers=tiered-default")
    assert "of these degraded" not in quiet
    [line] = [one for one in quiet.splitlines() if one.split()[:1] == ["overfull"]]
    assert line.split()[1:3] == ["llm", "0"]
    assert line.endswith("never")


def test_stages_without_a_ramp_say_that_the_first_degradation_is_unknown(capsys, tmp_path):
    short = ["--set", "stages.soak_s=30", "--set", "traffic.duration_s=30"]
    assert main(["stages", "drills/tenant-quota", "--out", str(tmp_path / "run"), *short]) == 0
    told = capsys.readouterr().out
    assert "at which load a promise first breaks is unknown" in told
    assert "the load at the knee is unknown" in told
