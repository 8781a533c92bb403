import numpy as np
import pandas as pd
import pytest

from capplan.results import RunResult
from capplan.scenario.files import load_scenario
from capplan.schema import REQUESTS, TIMELINE, TRACE
from capplan.traffic.trace import from_frame

FILL = {"float": 0.5, "int": 3, "str": "x", "bool": True}


def table(columns, rows):
    frame = pd.DataFrame({c.name: [FILL.get(c.kind)] * rows for c in columns if c.kind != "list"})
    return (
        frame.assign(request_id=[f"r{i}" for i in range(rows)]) if "request_id" in frame else frame
    )


@pytest.fixture
def make_result():
    """Return a function that makes a small run without running anything."""

    def make(rows=4, *, seed=1, **values):
        requests = table(REQUESTS, rows).assign(outcome="succeeded", first_token_s=np.nan)
        trace = table(TRACE, rows).assign(arrival_s=np.arange(rows, dtype=float))
        return RunResult(
            scenario=load_scenario("benchmark", values=values),
            trace=from_frame(trace, source="made"),
            requests=requests,
            timeline=table(TIMELINE, rows),
            seed=seed,
            duration_s=1.0,
            wall_s=0.1,
        )

    return make
