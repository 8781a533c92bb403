"""Capacity planning for AI inference: from a traffic trace to limits a review can sign.

The package is lazy: a name is imported from its module when it is first used, so that
``import capplan`` and ``capplan --help`` stay fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "DataError": "capplan.schema",
    "Trace": "capplan.traffic.trace",
    "read_trace": "capplan.traffic.readers",
    "profile": "capplan.traffic.profile",
    "draw": "capplan.traffic.draw",
    "recorded": "capplan.traffic.draw",
    "Scenario": "capplan.scenario",
    "scenario": "capplan.starter",
    "load_scenario": "capplan.scenario.files",
    "memory_plan": "capplan.replica.memory_plan",
    "allocate": "capplan.budget",
    "RunResult": "capplan.results",
    "simulate": "capplan.simulation",
    "read_measured": "capplan.measured",
    "calibrate": "capplan.calibration",
    "validate": "capplan.validation",
    "frozen_errors": "capplan.fidelity",
    "judge": "capplan.slo",
    "busiest": "capplan.traffic.replay",
    "at_load": "capplan.traffic.replay",
    "per_request": "capplan.results",
    "pool_studies": "capplan.grid",
    "sweep": "capplan.grid",
    "promise_table": "capplan.slo",
    "run_stages": "capplan.stages",
    "LoadRamp": "capplan.stages",
    "limit_table": "capplan.stages",
    "size": "capplan.sizing",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import ``name`` from its home module on first use; AttributeError if there is none."""
    if name not in _HOME:
        msg = f"module 'capplan' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
