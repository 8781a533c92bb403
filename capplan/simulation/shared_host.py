"""A host that pools share: what runs there at once slows each other down.

Processor sharing per resource: while the steps and batches in service demand more of a rate than
the host has, each that uses it runs at capacity / demand of its full speed, and one that uses
several resources at the worst of these. One resource, batches of one request and equal demands of
the whole capacity are egalitarian processor sharing (M/G/1-PS with Poisson arrivals).
Source: Kleinrock, "Queueing Systems" II, 1976, section 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol

from capplan.replica.job import Job
from capplan.scenario import Scenario
from capplan.scenario.hosts import RATES, Host
from capplan.simulation.attempt import Attempt
from capplan.simulation.clock import Clock, Rank

if TYPE_CHECKING:
    from capplan.simulation.timeline import Gauge

Rates = tuple[float, ...]
"""One number for each of :data:`capplan.scenario.hosts.RATES`."""


class Runner(Protocol):
    """Whoever runs a step or batch on a machine."""

    def end_moves(self, end_s: float) -> None:
        """Know that the running step or batch ends at another time."""


class _Work:
    """A step or batch in service: what is left of it at full speed, and how fast it goes."""

    __slots__ = ("demand", "left_s", "since_s", "speed")

    def __init__(self, left_s: float, demand: Rates, since_s: float) -> None:
        self.left_s = left_s
        self.demand = demand
        self.since_s = since_s
        self.speed = 1.0


class Machine:
    """One host, and the steps and batches that run on it now.

    Speeds are settled once an instant, after everything that begins and ends in it, so replicas
    whose steps follow each other without pause do not disturb the others.
    """

    def __init__(self, host: Host, *, clock: Clock) -> None:
        self.name = host.name
        self._clock = clock
        self._capacity = [getattr(host, rate) for rate in RATES]
        self._works: dict[Runner, _Work] = {}
        self._settling = False

    def begin(self, runner: Runner, seconds: float, demand: Rates) -> None:
        """Run a step or batch that takes so long at full speed, from now."""
        self._works[runner] = _Work(seconds, demand, self._clock.now)
        self._changed()

    def end(self, runner: Runner) -> None:
        """Know that the step or batch is done, or lost."""
        if self._works.pop(runner, None) is not None:
            self._changed()

    def left_s(self, runner: Runner) -> float:
        """Return what is left of a step or batch, s at full speed."""
        work = self._works[runner]
        return max(work.left_s - (self._clock.now - work.since_s) * work.speed, 0.0)

    def pressure(self) -> Rates:
        """Return how much longer everything takes that uses each resource; 1 = full speed."""
        totals = [sum(work.demand[i] for work in self._works.values()) for i in range(len(RATES))]
        return tuple(
            1.0 if capacity is None else max(1.0, total / capacity)
            for total, capacity in zip(totals, self._capacity, strict=True)
        )

    def gauges(self) -> Iterable[Gauge]:
        """Yield the metrics of the timeline: name, reading, and whether it is a total."""
        for index, rate in enumerate(RATES):
            yield f"{rate}_pressure", partial(self._pressure_at, index), False

    def _pressure_at(self, index: int) -> float:
        return self.pressure()[index]

    def _changed(self) -> None:
        if not self._settling:
            self._settling = True
            self._clock.at(self._clock.now, Rank.SETTLE, self._settle, None)

    def _settle(self, _: None) -> None:
        self._settling = False
        now_s, pressure = self._clock.now, self.pressure()
        for runner, work in self._works.items():
            used = [p for p, demand in zip(pressure, work.demand, strict=True) if demand > 0]
            speed = 1.0 / max(used, default=1.0)
            if speed == work.speed:
                continue
            work.left_s = self.left_s(runner)
            work.since_s, work.speed = now_s, speed
            runner.end_moves(now_s + work.left_s / speed)


class Share:
    """The place of one replica on a machine.

    ``running`` gives the jobs of the step or batch in service, whose demands add up.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        demands: Mapping[str, Rates],
        running: Callable[[], Iterable[Job]],
    ) -> None:
        self._machine = machine
        self._demands = demands
        self._running = running

    def begin(self, runner: Runner, seconds: float) -> None:
        """Run the step or batch that the engine has just formed."""
        total = [0.0] * len(RATES)
        for job in self._running():
            if isinstance(job, Attempt):
                for i, rate in enumerate(self._demands[job.request.request_class]):
                    total[i] += rate
        self._machine.begin(runner, seconds, tuple(total))

    def left_s(self, runner: Runner) -> float:
        """Return what is left of the step or batch, s at full speed."""
        return self._machine.left_s(runner)

    def end(self, runner: Runner) -> None:
        """Know that the step or batch is done, or lost."""
        self._machine.end(runner)


def demands_of(scenario: Scenario) -> dict[str, Rates]:
    """Return what one request in service demands of each rate, by class."""
    return {c.name: tuple(getattr(c.demand, r) for r in RATES) for c in scenario.classes}
