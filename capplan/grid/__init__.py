"""Grids over any fields of a scenario, and one pool of it studied alone."""

from capplan.grid.pool_study import PoolStudy, pool_studies
from capplan.grid.result import SweepResult
from capplan.grid.shared_hosts import host_sharing
from capplan.grid.sweep import sweep

__all__ = ["PoolStudy", "SweepResult", "host_sharing", "pool_studies", "sweep"]
