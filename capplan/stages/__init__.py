"""Load acceptance: where a service first degrades, whether it protects itself and recovers.

:func:`run_stages` runs what ``scenario.stages`` plans and returns an :class:`Acceptance`.
"""

from capplan.stages.acceptance import Acceptance
from capplan.stages.degradation import Degradation, Knee, degradation_of, knee_of
from capplan.stages.metrics import Trend, slope_per_hour
from capplan.stages.next_change import Candidate
from capplan.stages.protection import ProtectiveAction, limit_table, protections
from capplan.stages.ramp import LoadRamp, raise_load
from capplan.stages.recovery import Recovery, recovery_of
from capplan.stages.run import run_stages
from capplan.stages.run_load import Loads, loads_of
from capplan.stages.stage import Stage, stage_of

__all__ = [
    "Acceptance",
    "Candidate",
    "Degradation",
    "Knee",
    "LoadRamp",
    "Loads",
    "ProtectiveAction",
    "Recovery",
    "Stage",
    "Trend",
    "degradation_of",
    "knee_of",
    "limit_table",
    "loads_of",
    "protections",
    "raise_load",
    "recovery_of",
    "run_stages",
    "slope_per_hour",
    "stage_of",
]
