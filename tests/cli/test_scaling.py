"""What keeps an autoscaler from scaling stands in the reader's text of a run."""

import json

import pytest

from capplan.cli import main

FIELD = "pools.llm.autoscaler.metrics.0.target"


@pytest.fixture(name="call")
def _call(capsys):
    def call(target):
        metric = {"metric": "busy_fraction", "source": "pods", "target": target}
        rules = {"max_replicas": 4, "metrics": [metric]}
        values = {"autoscaler": rules, "cold_start_s": 30.0}
        words = [f"pools.llm.{name}={json.dumps(value)}" for name, value in values.items()]
        sets = [part for word in words for part in ("--set", word)]
        assert main(["simulate", "benchmark", "--set", "requests=200", *sets]) == 0
        return capsys.readouterr().out

    return call


def test_a_target_out_of_reach_is_named_with_its_field(call):
    text = call(0.95)
    assert "target out of reach" in text
    assert FIELD in text
    assert "set the target below 0.9091" in text


def test_a_target_within_reach_is_not(call):
    assert FIELD not in call(0.6)
