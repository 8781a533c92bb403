"""Load acceptance: where a service first degrades, whether it protects itself and recovers.

:func:`run_stages` runs what ``scenario.stages`` plans and returns an :class:`Acceptance`.
"""

from capplan.stages.acceptance import Acceptance
from capplan.stages.protection import limit_table
from capplan.stages.ramp import LoadRamp
from capplan.stages.run import run_stages
from capplan.stages.stage import Stage

__all__ = ["Acceptance", "LoadRamp", "Stage", "limit_table", "run_stages"]
