"""Grids over any fields of a scenario, and one pool of it studied alone."""

from capplan.grid.pool_study import PoolStudy, pool_studies
from capplan.grid.result import SweepResult
from capplan.grid.sweep import sweep

__all__ = ["PoolStudy", "SweepResult", "pool_studies", "sweep"]
