import numpy as np
import pytest
from run_tables import requests_table

from capplan.results import RunResult
from capplan.schema import REQUESTS, DataError, names


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
