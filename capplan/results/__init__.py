"""Results of a run: the request log, its timelines, and every figure computed from them."""

from capplan.results.conservation import conservation_table
from capplan.results.cost import pool_cost_usd_per_hour
from capplan.results.groups import by_bucket, grouped, length_bucket, phase
from capplan.results.headline import headline, outcome_counts, system_stability
from capplan.results.replica_lifecycle import lead_times, lifecycle_table
from capplan.results.requests import per_request
from capplan.results.run import RunResult
from capplan.results.scaling import scaling_findings, scaling_summary, scaling_table
from capplan.results.segments import QUEUES, SEGMENTS, mean_segments, queue_waits, segments

__all__ = [
    "QUEUES",
    "SEGMENTS",
    "RunResult",
    "by_bucket",
    "conservation_table",
    "grouped",
    "headline",
    "lead_times",
    "length_bucket",
    "lifecycle_table",
    "mean_segments",
    "outcome_counts",
    "per_request",
    "phase",
    "pool_cost_usd_per_hour",
    "queue_waits",
    "scaling_findings",
    "scaling_summary",
    "scaling_table",
    "segments",
    "system_stability",
]
