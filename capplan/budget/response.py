"""The response time of each request of a trace without waiting, by a scenario's step times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from capplan.budget.backward import mean_response_s, response_s

if TYPE_CHECKING:
    import pandas as pd

    from capplan.budget.loads import ClassLoad
    from capplan.budget.service import PoolService
    from capplan.scenario import Scenario

Floats = npt.NDArray[np.float64]
LAW = "the scenario's step times and gateway, at its rate and without waiting"


def response_times(
    scenario: Scenario, load: ClassLoad, service: PoolService, rows: pd.DataFrame
) -> Floats:
    """Return the response time of each request of a class, s; their mean is the budget's.

    Prefill grows with the request's prompt and decode with its output, both from those of the mean
    request. A batch that starts and ends together takes the same time for all.
    """
    if service.of(load.request_class).replica is None:
        return np.full(len(rows), mean_response_s(scenario, load, service))
    prefill, decode = service.mean_work_s(load)
    prompt = rows["prompt_tokens"].to_numpy(dtype=np.float64) / max(load.prompt_mean, 1.0)
    decoded = np.maximum(rows["output_tokens"].to_numpy(dtype=np.float64) - 1, 0.0)
    output = decoded / max(load.output_mean - 1, 1e-9)
    inside = (prefill * prompt + decode * output) / (1 - scenario.gateway.overhead_fraction)
    seconds: Floats = response_s(scenario, 0.0) + inside
    return seconds
