"""Charts: one function per question, named for what is seen.

Each takes a plain frame (checked first, aggregated to at most 5,000 rows) and returns an Altair
chart whose titles come from the columns. :func:`use_theme` sets look and renderer.
"""

from capplan.charts.batching import (
    figures_by_bucket,
    goodput_by_point,
    slowdown_by_batch,
    throughput_against_tail,
)
from capplan.charts.budget import (
    budget_by_layer,
    in_flight_readings,
    time_by_layer,
    waits_against_shares,
)
from capplan.charts.by_load import (
    flows_by_load,
    goodput_by_replicas,
    latency_by_load,
    latency_distribution,
    outcomes_by_load,
)
from capplan.charts.fidelity import errors_by_run, measured_beside_predicted
from capplan.charts.moments import same_requests
from capplan.charts.over_time import (
    breakers_over_time,
    degraded_over_time,
    flows_in_overload,
    in_flight_over_time,
    outcomes_over_time,
    promises_over_time,
    replicas_over_time,
    waiting_in_overload,
    waiting_over_time,
)
from capplan.charts.theme import use_theme
from capplan.charts.traffic import (
    dispersion_by_window,
    fits_beside_data,
    length_distributions,
    lengths_together,
    rate_over_time,
    requests_by_tenant,
    time_above,
)

__all__ = [
    "breakers_over_time",
    "budget_by_layer",
    "degraded_over_time",
    "dispersion_by_window",
    "errors_by_run",
    "figures_by_bucket",
    "fits_beside_data",
    "flows_by_load",
    "flows_in_overload",
    "goodput_by_point",
    "goodput_by_replicas",
    "in_flight_over_time",
    "in_flight_readings",
    "latency_by_load",
    "latency_distribution",
    "length_distributions",
    "lengths_together",
    "measured_beside_predicted",
    "outcomes_by_load",
    "outcomes_over_time",
    "promises_over_time",
    "rate_over_time",
    "replicas_over_time",
    "requests_by_tenant",
    "same_requests",
    "slowdown_by_batch",
    "throughput_against_tail",
    "time_above",
    "time_by_layer",
    "use_theme",
    "waiting_in_overload",
    "waiting_over_time",
    "waits_against_shares",
]
