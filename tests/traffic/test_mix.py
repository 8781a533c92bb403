import numpy as np
import pandas as pd
import pytest
from scipy import stats

from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.traffic.draw import draw
from capplan.traffic.laws import class_weights
from capplan.traffic.sample import read_base
from capplan.traffic.trace import from_frame

STEADY = {"traffic.shape": {"kind": "steady", "rate_rps": 8.0}, "traffic.duration_s": 1200.0}
MIX = [
    {"request_class": "chat", "at_s": 300.0, "share": 0.0, "over_s": 200.0},
    {"request_class": "batch", "at_s": 600.0, "share": 80.0},
]


@pytest.fixture(scope="module", params=["sample", None])
def switching(request, chat):
    return with_values(chat, {**STEADY, "traffic.trace": request.param, "traffic.mix": MIX})


def test_weights_begin_as_shares_and_switch_one_by_one(switching):
    weights = class_weights(switching, [0, 300, 400, 500, 599, 600, 1100])
    assert weights[:, 0] == pytest.approx([65, 65, 32.5, 0, 0, 0, 0])
    assert weights[:, 1] == pytest.approx([20] * 7)
    assert weights[:, 2] == pytest.approx([15, 15, 15, 15, 15, 80, 80])


@pytest.mark.parametrize(
    ("window", "share"), [((0, 300), 0.65), ((300, 500), None), ((500, 600), 0), ((600, 1200), 0)]
)
def test_drawn_classes_follow_the_weights(switching, window, share):
    frame = draw(switching, seed=2).frame
    inside = frame[frame["arrival_s"].between(*window)]
    chat = int((inside["request_class"] == "chat").sum())
    if share is None:
        share = np.mean([w / (w + 35) for w in np.linspace(65, 0, 2001)])
    low, high = stats.binomtest(chat, len(inside)).proportion_ci(0.999)
    assert low <= share <= high


def test_rows_of_a_class_are_rows_of_that_class(switching):
    frame = draw(switching, seed=2).frame
    tenants = {name: set(rows["tenant"]) for name, rows in frame.groupby("request_class")}
    assert tenants["chat"] == {"web-shop", "mobile-app"}
    assert tenants["batch"] == {"engineering", "back-office"}
    if switching.traffic.trace == "sample":
        base = read_base("sample").frame
        columns = ["request_class", "prompt_tokens", "output_tokens"]
        known = set(map(tuple, base[columns].to_numpy()))
        assert set(map(tuple, frame[columns].to_numpy())) <= known


def test_a_class_that_the_base_lacks_is_an_error(switching):
    base = pd.DataFrame({"arrival_s": [0.0, 1.0], "prompt_tokens": 10, "output_tokens": 5})
    with pytest.raises(DataError, match="requests of class"):
        draw(switching, base=from_frame(base))


def test_a_time_without_any_class_is_an_error(switching):
    nobody = [
        {"request_class": name, "at_s": 100.0, "share": 0.0}
        for name in ("chat", "assistant", "batch")
    ]
    with pytest.raises(ValueError, match="every class has weight 0"):
        draw(with_values(switching, {"traffic.mix": nobody}))
