import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from capplan.encoding import plain, to_text
from capplan.scenario.layers import Queue


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float


class Told:
    def to_json(self):
        return {"p99": np.float64("inf")}


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (float("nan"), None),
        (np.float64("nan"), None),
        (pd.NA, None),
        (pd.NaT, None),
        (float("inf"), "inf"),
        (-np.inf, "-inf"),
        (np.int64(3), 3),
        (np.bool_(True), True),
        ((1, 2.5), [1, 2.5]),
        (np.array([1.0, np.nan]), [1.0, None]),
        (Path("a/b"), "a/b"),
        (pd.Timestamp("2024-05-01T00:00:00Z"), "2024-05-01T00:00:00+00:00"),
        (Figure("ttft_s", float("nan")), {"name": "ttft_s", "value": None}),
        (Told(), {"p99": "inf"}),
        ({1.0: 2, 60: 3}, {"1": 2, "60": 3}),
        (
            pd.DataFrame({"a": [1, 2], "b": [np.nan, 1.0]}),
            [{"a": 1, "b": None}, {"a": 2, "b": 1.0}],
        ),
    ],
)
def test_values_are_written_as_scripts_read_them(value, written):
    assert plain(value) == written
    assert json.loads(to_text(value)) == written


def test_a_scenario_part_is_written_by_field():
    assert plain(Queue(length=4))["length"] == 4


def test_what_json_cannot_say_is_an_error():
    with pytest.raises(TypeError, match="no JSON for object"):
        plain({"x": object()})
