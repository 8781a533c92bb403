"""Capacity planning for AI inference: from a traffic trace to limits a review can sign.

The package is lazy: a name is imported from its module when it is first used, so that
``import capplan`` and ``capplan --help`` stay fast.
"""

import sys
from importlib import import_module
from types import ModuleType
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
    "load_scenario": "capplan.scenario.files",
    "memory_plan": "capplan.replica.memory_plan",
    "allocate": "capplan.budget",
    "service_time": "capplan.budget",
    "RunResult": "capplan.results",
    "simulate": "capplan.simulation",
    "measure": "capplan.live",
    "read_measured": "capplan.measured",
    "calibrate": "capplan.calibration",
    "validate": "capplan.validation",
    "frozen_errors": "capplan.fidelity",
    "judge": "capplan.slo",
    "busiest": "capplan.traffic.replay",
    "at_load": "capplan.traffic.replay",
    "per_request": "capplan.results",
    "pool_studies": "capplan.grid",
    "host_sharing": "capplan.grid",
    "sweep": "capplan.grid",
    "promise_table": "capplan.slo",
    "promise_windows": "capplan.slo",
    "run_stages": "capplan.stages",
    "LoadRamp": "capplan.stages",
    "limit_table": "capplan.stages",
    "size": "capplan.sizing",
    "choose_batching": "capplan.sizing",
    "decide": "capplan.decision",
}

_CALLED = {"scenario": "capplan.starter"}
"""Subpackages that are public functions too, and the home of the function."""

__all__ = list(_HOME | _CALLED)


class _CallablePackage(ModuleType):
    """A subpackage that has the name of a public function: calling it calls the function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Return what the function of the same name returns."""
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_CALLED[name]), name)(*args, **options)


class _Package(ModuleType):
    """The package's module: it makes the subpackages of ``_CALLED`` callable as they come in."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; the import system sets a subpackage this way."""
        if name in _CALLED and isinstance(value, ModuleType):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import ``name`` from its home module on first use; AttributeError if there is none."""
    if name in _CALLED:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        msg = f"module 'capplan' has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({"__version__", *__all__})
