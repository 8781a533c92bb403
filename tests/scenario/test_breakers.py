"""Named rules in scenario files: loaded, varied, and honest about whose thresholds they are."""

import pytest

from capplan.bundled import data_path
from capplan.scenario.files import load_scenario, with_values, write_scenario
from capplan.scenario.part import origin
from capplan.scenario.yaml_text import read_yaml
from capplan.schema import DataError

PRESETS = sorted(file.stem for file in data_path("breakers").glob("*.yaml"))
SCENARIOS = sorted(file.stem for file in data_path("scenarios").glob("*.yaml"))
OWN = {
    "name": "own",
    "when": {"metric": "queue_length", "above": 9},
    "then": [{"kind": "refuse", "origins": {"retry_after_s": "measured"}}],
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_named_set_fits_every_bundled_scenario(name, preset):
    scenario = load_scenario(name, values={"breakers": preset})
    assert [rule.name for rule in scenario.breakers] == [
        rule["name"] for rule in read_yaml(data_path("breakers", f"{preset}.yaml"))
    ]


def test_the_thresholds_of_the_tiered_default_are_those_that_were_asked_for():
    rules = {b.name: b for b in load_scenario("benchmark", values={"breakers": PRESETS}).breakers}
    assert (rules["slow"].when.above, rules["slow"].when.quantile) == (2.0, 0.99)
    assert rules["slow"].then[0].kind == "greedy"
    assert rules["fragmented"].when.above == 0.4
    assert rules["fragmented"].then[0].kind == "pause_and_compact"
    assert (rules["overfull"].when.above, rules["overfull"].then[0].status) == (200, 503)
    assert rules["overfull"].then[0].retry_after_s > 0
    assert rules["standby"].then[0].ready_at_most_s == 90.0


def test_every_threshold_of_a_named_set_is_a_default():
    scenario = load_scenario("benchmark", values={"breakers": PRESETS})
    for rule in scenario.breakers:
        assert origin(rule.when, "above") == "default"
        assert origin(rule.release, "limit_factor") == "default"
    assert origin(scenario.breakers[-1].then[0], "ready_at_most_s") == "default"


def test_a_threshold_that_is_set_is_a_promise_and_the_others_stay_defaults():
    values = {"breakers.slow.when.above": 1.5}
    first = load_scenario("benchmark", values={"breakers": "tiered-default"})
    again = with_values(first, values)
    slow, fragmented, *_ = again.breakers
    assert (slow.when.above, origin(slow.when, "above")) == (1.5, "promise")
    assert slow.release_at == pytest.approx(1.2)
    assert origin(slow.release, "limit_factor") == origin(fragmented.when, "above") == "default"


def test_a_file_may_name_a_set_beside_rules_of_its_own(tmp_path):
    text = write_scenario(load_scenario("benchmark"))
    file = tmp_path / "mine.yaml"
    file.write_text(text + "breakers: [tiered-default]\n")
    varied = load_scenario(file, values={"breakers.overfull.when.above": 50})
    assert {b.name: b.when.above for b in varied.breakers}["overfull"] == 50
    both = load_scenario("benchmark", values={"breakers": ["tiered-default", OWN]})
    assert [b.name for b in both.breakers][-1] == "own"
    assert origin(both.breakers[-1].then[0], "retry_after_s") == "measured"
    written = tmp_path / "written.yaml"
    written.write_text(write_scenario(both))
    assert load_scenario(written) == both


@pytest.mark.parametrize(
    ("when", "said"),
    [
        (
            {"metric": "e2e_s", "quantile": 0.99999},
            "quantile: needs at most the 10,000 attempts that a window keeps, not 100,000",
        ),
        (
            {"metric": "e2e_s", "min_samples": 10_001},
            "min_samples: needs at most the 10,000 attempts that a window keeps, not 10,001",
        ),
        ({"metric": "queue_length", "window_s": 5.0}, "window_s is of ttft_s, e2e_s, tpot_s"),
        ({"metric": "refused_rps", "min_samples": 5}, "min_samples is of ttft_s, e2e_s, tpot_s"),
        ({"metric": "running", "quantile": 0.5}, "quantile is of ttft_s, e2e_s, tpot_s"),
        ({"metric": "up", "request_class": "benchmark"}, "request_class is of ttft_s"),
    ],
)
def test_what_a_watch_would_ignore_or_never_know_is_an_error(when, said):
    with pytest.raises(DataError, match=f"breakers.own.when: {said}"):
        load_scenario("benchmark", values={"breakers": [OWN | {"when": when | {"above": 1.0}}]})


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"kind": "start_standby"}, "start_standby needs pools.llm.standby"),
        (
            {"kind": "shrink_batch", "max_batch_size": 3},
            "max_batch_size is none of the limits of continuous batching in pool llm",
        ),
    ],
)
@pytest.mark.parametrize("pool", [None, "llm"])
def test_a_rule_that_can_act_nowhere_is_an_error(action, said, pool):
    with pytest.raises(DataError, match=f"breakers.own.then: {said}"):
        load_scenario("benchmark", values={"breakers": [OWN | {"then": [action], "pool": pool}]})


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (
            {"then": [{"kind": "refuse", "classes": ["embed"]}]},
            "breakers.own.classes: 'embed' is served by pool vector, and no rule passes it on to",
        ),
        (
            {"when": {"metric": "e2e_s", "above": 1.0, "request_class": "embed"}},
            "breakers.own.classes: 'embed' is served by pool vector",
        ),
        (
            {"then": [{"kind": "refuse", "only_sheddable": True}]},
            "breakers.own.then.only_sheddable: no class is sheddable",
        ),
    ],
)
def test_a_rule_for_nobody_is_an_error(rule, said):
    base = load_scenario("benchmark")
    own = base.model_dump(mode="json", exclude_unset=True)
    embed = own["classes"][0] | {"name": "embed", "pool": "vector"}
    values = {
        "classes": [own["classes"][0] | {"pool": "llm"}, embed],
        "pools": [own["pools"][0], own["pools"][0] | {"name": "vector"}],
    }
    with_values(base, values | {"breakers": [OWN | {"pool": "vector"}]})
    with pytest.raises(DataError, match=said):
        with_values(base, values | {"breakers": [OWN | {"pool": "llm"} | rule]})


def test_an_unknown_metric_is_told_once():
    rule = OWN | {"when": {"metric": "latency", "above": 1.0}}
    with pytest.raises(DataError, match=r"own\.when\.metric: input should be") as caught:
        load_scenario("benchmark", values={"breakers": [rule]})
    assert "more" not in str(caught.value)


def test_an_unknown_set_names_those_that_there_are():
    with pytest.raises(DataError, match=r"breakers: a list of rules, or the name .* got 'tiered'"):
        load_scenario("benchmark", values={"breakers": ["tiered"]})
