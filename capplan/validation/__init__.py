"""How far a prediction is from a measured run.

The measured requests are replayed as they were sent, and the same figures are taken of both: over
the requests that succeeded, and beside them the share that did. What bends a comparison is found
and left out beside the whole: the first minute, requests that met a limit, periodic stalls.
"""

from capplan.validation.compare import compare, predicted_requests, validate, with_step_time
from capplan.validation.figures import LATENCIES, QUANTILES, Figure
from capplan.validation.result import Validation
from capplan.validation.series import long_series

__all__ = [
    "LATENCIES",
    "QUANTILES",
    "Figure",
    "Validation",
    "compare",
    "long_series",
    "predicted_requests",
    "validate",
    "with_step_time",
]
