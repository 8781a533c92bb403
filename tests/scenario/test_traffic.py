import pytest

from capplan.scenario.files import load_scenario, with_values, write_scenario
from capplan.schema import DataError

WAVE = {"kind": "wave", "rate_rps": 5.0}
SHAPES = [
    WAVE,
    {"kind": "ramp", "start_rps": 1.0, "target_rps": 5.0, "ramp_rps_per_s": 0.1},
    {"kind": "calendar", "rate_rps": 5.0, "holidays": [3]},
    {"kind": "sum", "parts": [WAVE, {"kind": "steady", "rate_rps": 1.0}]},
    {"kind": "sequence", "parts": [{"shape": WAVE, "duration_s": 60.0}]},
]


@pytest.fixture(scope="module")
def chat():
    return load_scenario("chat-service")


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s["kind"])
def test_every_shape_survives_a_file(chat, shape, tmp_path):
    scenario = with_values(chat, {"traffic.shape": shape})
    file = tmp_path / "again.yaml"
    file.write_text(write_scenario(scenario))
    assert load_scenario(file) == scenario
    assert scenario.traffic.shape.kind == shape["kind"]


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("traffic.mix", [{"request_class": "nobody", "at_s": 0.0, "share": 1.0}], "nobody"),
        (
            "traffic.mix",
            [{"request_class": "chat", "at_s": 0.0, "share": 1.0}],
            "not with shape replay",
        ),
        (
            "traffic.perturbations",
            [{"kind": "long_outputs", "request_class": "x"}],
            "one of assistant, batch, chat, got 'x'",
        ),
        ("traffic.perturbations", [{"kind": "bursts", "burst_s": 9.0, "every_s": 3.0}], "burst_s"),
        ("traffic.perturbations", [{"kind": "long_outputs", "max_tokens": 1}], "max_tokens"),
        ("traffic.shape", {"kind": "calendar", "rate_rps": 1.0, "hours": [1.0]}, "hours"),
        (
            "traffic.shape",
            {"kind": "wave", "rate_rps": 1.0, "amplitude_fraction": 1.5},
            "amplitude",
        ),
        ("traffic.shape", {"kind": "sum", "parts": []}, "parts"),
        ("traffic.arrivals", {"kind": "weibull", "cv": 0.0}, "cv"),
        (
            "traffic.arrivals",
            {"kind": "modulated", "ratio": 1.0, "busy_s": 1.0, "calm_s": 1.0},
            "ratio",
        ),
    ],
)
def test_what_breaks_a_rule_is_named(chat, field, value, rule):
    with pytest.raises(DataError, match=rule):
        with_values(chat, {field: value})


def test_changes_of_one_class_must_follow_each_other(chat):
    mix = [
        {"request_class": "chat", "at_s": 0.0, "share": 1.0, "over_s": 100.0},
        {"request_class": "chat", "at_s": 50.0, "share": 2.0},
    ]
    with pytest.raises(DataError, match="mix: changes of chat overlap"):
        with_values(chat, {"traffic.shape": WAVE, "traffic.mix": mix})
