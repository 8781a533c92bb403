"""What runs a scenario on a trace: the simulation, or a real server (``capplan.live``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from capplan.results import RunResult
from capplan.scenario import Scenario
from capplan.simulation.run import simulate
from capplan.traffic.trace import Trace


class Backend(Protocol):
    """Runs scenarios on traces."""

    name: str
    """``simulated`` or ``live``."""
    notes: tuple[str, ...]
    """What its runs assume."""

    def run(
        self, scenario: Scenario, *, trace: Trace, seed: int = 0, replication: int = 0
    ) -> RunResult:
        """Return what happens to the trace; DataError if the scenario cannot run."""

    def identity(self) -> Mapping[str, Any]:
        """Return what makes this backend's runs others than those of the same inputs."""


class Simulation:
    """The simulation as a backend; equal inputs give equal runs."""

    name = "simulated"
    notes: tuple[str, ...] = ()

    def run(
        self, scenario: Scenario, *, trace: Trace, seed: int = 0, replication: int = 0
    ) -> RunResult:
        """Return :func:`~capplan.simulation.simulate` of the arguments."""
        return simulate(scenario, trace=trace, seed=seed, replication=replication)

    def identity(self) -> Mapping[str, Any]:
        """Return nothing: the inputs say all."""
        return {}


SIMULATION = Simulation()
_current: ContextVar[Backend] = ContextVar("backend", default=SIMULATION)


def current() -> Backend:
    """Return the backend that runs of a study go to: the simulation, unless it says otherwise."""
    return _current.get()


@contextmanager
def running_on(backend: Backend) -> Iterator[None]:
    """Send the runs of a study to a backend."""
    token = _current.set(backend)
    try:
        yield
    finally:
        _current.reset(token)
