from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from capplan.schema import DataError
from capplan.traffic.trace import from_frame


def frame(**columns: object) -> pd.DataFrame:
    rows = {"arrival_s": [0.0, 1.0, 2.0], "prompt_tokens": [5, 6, 7], "output_tokens": [1, 2, 3]}
    return pd.DataFrame({**rows, **columns})


def test_rows_are_sorted_by_arrival_and_the_late_ones_counted():
    trace = from_frame(frame(arrival_s=[1.0, 0.5, 3.0]))
    assert trace.frame["arrival_s"].tolist() == [0.5, 1.0, 3.0]
    assert trace.frame["prompt_tokens"].tolist() == [6, 5, 7]
    assert trace.ledger.changed == {"out_of_order_sorted": 1}
    assert len(trace) == 3


def test_whole_floats_become_integers_and_flags_booleans():
    trace = from_frame(frame(prompt_tokens=[5.0, 6.0, 7.0], streaming=[True, False, True]))
    assert trace.frame["prompt_tokens"].dtype == np.int64
    assert trace.frame["streaming"].dtype == np.bool_


def test_an_unknown_optional_value_stays_missing():
    trace = from_frame(
        frame(deadline_s=[1.0, np.nan, 2.0], tenant=["a", None, "b"], streaming=[True, None, False])
    )
    for column in ("deadline_s", "tenant", "streaming"):
        assert trace.frame[column].isna().tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"arrival_s": [0.0, np.nan, 1.0]}, "arrival_s"),
        ({"arrival_s": [0.0, np.inf, 1.0]}, "arrival_s"),
        ({"prompt_tokens": [1, -2, 3]}, "prompt_tokens: finite numbers, not negative, got -2"),
        ({"output_tokens": [1.5, 2, 3]}, "output_tokens: whole numbers"),
        ({"output_tokens": ["a", 2, 3]}, "output_tokens: numbers"),
        ({"colour": ["a", "b", "c"]}, "colour: a column of a trace"),
    ],
)
def test_a_value_that_breaks_its_column_is_refused_by_name(columns, words):
    with pytest.raises(DataError, match=words):
        from_frame(frame(**columns))


def test_an_arrival_after_the_observation_window_is_refused():
    assert from_frame(frame(), duration_s=2.0).duration_s == 2.0
    with pytest.raises(DataError, match="inside the observation window of 1 s, got 2"):
        from_frame(frame(), duration_s=1.0)


def test_a_missing_column_and_an_empty_table_are_refused():
    with pytest.raises(DataError, match="output_tokens"):
        from_frame(frame().drop(columns="output_tokens"))
    with pytest.raises(DataError, match="at least one request"):
        from_frame(frame().iloc[:0])
