import json
import math

import numpy as np
import pandas as pd
import pytest

from capplan.results import RunResult, requests_table, to_json
from capplan.schema import REQUESTS, DataError, names


def test_nan_is_null_and_infinity_a_string_at_any_depth():
    value = {"a": [math.nan, {"b": (math.inf, -math.inf)}], 3: np.array([1.5, np.nan])}
    assert to_json(value) == {"a": [None, {"b": ["inf", "-inf"]}], "3": [1.5, None]}
    json.dumps(to_json(value), allow_nan=False)


def test_numpy_scalars_become_plain_and_booleans_stay():
    assert to_json([np.bool_(True), np.int64(2), np.float64(0.5)]) == [True, 2, 0.5]
    assert to_json([np.bool_(True)])[0] is True


def test_what_has_no_json_form_is_an_error():
    with pytest.raises(TypeError, match="DataFrame"):
        to_json(pd.DataFrame())


def test_a_request_log_has_every_column_typed_even_without_rows():
    assert list(requests_table([]).columns) == names(REQUESTS)
    assert requests_table([])["finish_s"].dtype == np.float64


def test_an_unknown_column_is_refused():
    with pytest.raises(DataError, match="finsh_s"):
        requests_table([{"finsh_s": 1.0}])


def test_a_result_without_a_column_is_refused(make_run, served):
    run = make_run([served("a", 0.0)])
    with pytest.raises(DataError, match="tenant"):
        RunResult(
            scenario=run.scenario,
            trace=run.trace,
            requests=run.requests.drop(columns="tenant"),
            timeline=run.timeline,
            duration_s=1.0,
        )
