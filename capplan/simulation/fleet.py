"""The replicas of an elastic pool: asked, provisioning, pulling, loading, up, draining, gone.

Accelerators come from a supply that several pools may share. While it is empty, fleets wait in
the order of asking until others give some back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from capplan.scenario import Scenario
from capplan.scenario.autoscaling import NOTHING, Lifecycle
from capplan.scenario.pools import Pool
from capplan.scenario.times import Duration, FixedTime
from capplan.simulation.attempt import Gauge
from capplan.simulation.clock import Alarm, Clock, Rank
from capplan.simulation.pool import ServingPool
from capplan.simulation.replica import Replica
from capplan.simulation.shared_host import Load, Loader
from capplan.traffic.laws import Z95

Note = Callable[[str, str], None]
"""Records a replica's name and the phase (``schema.PHASES``) that it enters now."""

STARTING = ("provisioning", "pulling", "loading")
ALIVE = ("asked", *STARTING, "up")
"""Phases of the replicas that count towards the target."""
PAID = (*STARTING, "up", "draining")


class Supply:
    """The free accelerators, and the fleets that wait for some."""

    def __init__(self, accelerators: float = math.inf) -> None:
        self.free = accelerators
        self._waiting: deque[Fleet] = deque()

    def take(self, accelerators: int) -> bool:
        """Take accelerators; False if too few are free."""
        if accelerators > self.free:
            return False
        self.free -= accelerators
        return True

    def give(self, accelerators: int) -> None:
        """Give accelerators back, and serve the waiting fleets in the order of asking."""
        self.free += accelerators
        while self._waiting and self._waiting[0].provision_next():
            self._waiting.popleft()

    def wait(self, fleet: Fleet) -> None:
        """Queue a fleet that wants one more replica."""
        self._waiting.append(fleet)


class Member:
    """One replica of a fleet, from the request for it to its end."""

    __slots__ = ("alarm", "is_warm", "name", "phase", "replica")

    def __init__(self, name: str, phase: str, replica: Replica | None = None) -> None:
        self.name = name
        self.phase = phase
        self.replica = replica
        self.alarm: Alarm | Load | None = None
        """What ends its phase."""
        self.is_warm = phase == "standby"


class Fleet:
    """Starts and stops the replicas of one pool until their number is the target.

    Attributes
    ----------
    target
        How many replicas are wanted, in service or starting.
    asked, refused
        How many were asked of the supply since the start, and how often it was empty.
    """

    def __init__(
        self,
        rules: Pool,
        *,
        pool: ServingPool,
        supply: Supply,
        clock: Clock,
        draws: np.random.Generator,
        note: Note,
        loader: Loader | None = None,
    ) -> None:
        self.target = rules.replicas
        self.asked = self.refused = 0
        self._rules = rules
        self._each = rules.accelerators_per_replica
        self._life = rules.lifecycle or _by_cold_start(rules)
        self._pool = pool
        self._supply = supply
        self._clock = clock
        self._draws = draws
        self._note = note
        self._loader = loader
        self._paid_s, self._paid_until_s = 0.0, 0.0
        self._lent = 0
        self.members: list[Member] = []
        for replica in pool.replicas:
            self._supply.take(self._each)
            self._enter(Member(replica.name, "up", replica))
        for _ in range(0 if rules.standby is None else rules.standby.replicas):
            self._supply.take(self._each)
            self._enter(Member(pool.next_name(), "standby"))
        pool.fleet = self
        pool.on_leave.append(self._replica_left)

    @property
    def serving(self) -> list[Member]:
        """Return the replicas in service."""
        there = self._pool.in_service
        return [m for m in self.members if m.replica in there]

    def count(self, *phases: str) -> int:
        """Return how many replicas are in one of these phases."""
        return sum(member.phase in phases for member in self.members)

    @property
    def paid_s(self) -> float:
        """Return the replica-seconds to pay for until now."""
        return self._paid_s + self._paid_now() * (self._clock.now - self._paid_until_s)

    def scale_to(self, target: int) -> None:
        """Set the target."""
        self.target = target
        missing = target - self.count(*ALIVE)
        for _ in range(missing):
            self._ask()
        for _ in range(-missing):
            self._release()

    def start_standby(self) -> int:
        """Put the warm replicas into service, up to the autoscaler's most; return how many."""
        warm, scaler = self.count("standby"), self._rules.autoscaler
        if scaler is not None:  # it would take those beyond its most back at its next look
            warm = min(warm, max(scaler.max_replicas - self.target, 0))
        self._lent += warm
        self.scale_to(self.target + warm)
        return warm

    def stop_standby(self) -> int:
        """Reduce the target by what :meth:`start_standby` added; return by how many.

        An autoscaler, if there is one, reduces it instead.
        """
        if self._rules.autoscaler is not None:
            return 0
        back, self._lent = self._lent, 0
        self.scale_to(max(self.target - back, 0))
        return back

    def provision_next(self) -> bool:
        """Provision the first member that waits; False if the supply lacks accelerators."""
        member = next((m for m in self.members if m.phase == "asked"), None)
        if member is not None and not self._supply.take(self._each):
            return False
        if member is not None:
            self._provision(member)
        return True

    def gauges(self) -> Iterable[Gauge]:
        """Yield the metrics of the timeline: name, reading, and whether it is a total."""
        yield "replicas_desired", lambda: self.target, False
        yield "replicas_asked", lambda: self.count("asked"), False
        yield "replicas_starting", lambda: self.count(*STARTING), False
        yield "replicas_standby", lambda: self.count("standby"), False
        yield "replicas_draining", lambda: self.count("draining"), False
        yield "replicas_paid", lambda: self.paid_s, True

    def _replica_left(self, replica: Replica) -> None:
        """Give back what a replica held, or keep it warm."""
        member = next((m for m in self.members if m.replica is replica), None)
        if member is not None:
            self._end(member)

    def _enter(self, member: Member) -> None:
        self._account()
        self.members.append(member)
        self._note(member.name, member.phase)

    def _move(self, member: Member, phase: str) -> None:
        self._account()
        member.phase = phase
        self._note(member.name, phase)

    def _ask(self) -> None:
        self.asked += 1
        warm = next((m for m in self.members if m.phase == "standby"), None)
        if warm is not None and self._rules.standby is not None:
            self._move(warm, "loading")
            self._later(warm, self._rules.standby.ready, self._ready)
            return
        member = Member(self._pool.next_name(), "asked")
        self._enter(member)
        if self._supply.take(self._each):
            self._provision(member)
        else:
            self.refused += 1
            self._supply.wait(self)

    def _provision(self, member: Member) -> None:
        self._move(member, "provisioning")
        self._later(member, self._life.provisioning, self._pull)

    def _pull(self, member: Member) -> None:
        self._move(member, "pulling")
        self._later(member, self._life.image_pull, self._load)

    def _load(self, member: Member) -> None:
        self._move(member, "loading")
        if self._loader is None:
            self._later(member, self._life.model_load or NOTHING, self._ready)
        else:
            number = self._pool.number_of(member.name)
            member.alarm = self._loader.load(number, lambda: self._ready(member))

    def _ready(self, member: Member) -> None:
        member.alarm = None
        self._move(member, "up")
        member.replica = self._pool.join(member.name)

    def _release(self) -> None:
        """Remove the replica whose loss costs least: the newest in the earliest phase."""
        for phase in ALIVE:
            left = [m for m in reversed(self.members) if m.phase == phase]
            down = [m for m in left if m.replica is not None and not m.replica.up]
            if left:
                self._dismiss((down or left)[0])
                return

    def _dismiss(self, member: Member) -> None:
        if member.replica is None and member.is_warm:
            self._halt(member)
            self._move(member, "standby")
        elif member.replica is None:
            self._end(member)
        elif not member.replica.up:
            self._stop(member)
        else:
            self._move(member, "draining")
            end_s = self._clock.now + self._life.grace_period_s
            member.alarm = self._clock.alarm(end_s, Rank.FAULT, lambda _: self._stop(member))
            self._pool.drain(member.replica)

    def _stop(self, member: Member) -> None:
        if member.replica is not None:
            self._pool.remove(member.replica)

    def _halt(self, member: Member) -> None:
        if member.alarm is not None:
            member.alarm.cancel()
            member.alarm = None

    def _end(self, member: Member) -> None:
        self._halt(member)
        held, replica = member.phase != "asked", member.replica
        loaded = replica is not None and replica.draining
        self._account()
        self.members.remove(member)
        self._note(member.name, "gone")
        if loaded and self._standby_is_short():
            self._enter(Member(self._pool.next_name(), "standby"))
        elif held:
            self._supply.give(self._each)

    def _standby_is_short(self) -> bool:
        standby = self._rules.standby
        return standby is not None and self.count("standby") < standby.replicas

    def _later(self, member: Member, law: Duration, then: Callable[[Member], None]) -> None:
        at_s = self._clock.now + drawn_s(law, self._draws)
        member.alarm = self._clock.alarm(at_s, Rank.FAULT, lambda _: then(member))

    def _paid_now(self) -> float:
        standby = self._rules.standby
        warm = 0.0 if standby is None else standby.price_fraction * self.count("standby")
        return self.count(*PAID) + warm

    def _account(self) -> None:
        self._paid_s, self._paid_until_s = self.paid_s, self._clock.now


def _by_cold_start(rules: Pool) -> Lifecycle:
    """Return the lifecycle that a pool's ``cold_start_s`` stands for.

    A pool without it has no autoscaler: only its standby replicas ever start.
    """
    if rules.cold_start_s is None:
        return Lifecycle()
    return Lifecycle(model_load=FixedTime(seconds=rules.cold_start_s))


def drawn_s(law: Duration, draws: np.random.Generator) -> float:
    """Return a time by a law, s: exp(ln p50 + z · ln(p95 / p50) / z95), or the fixed one.

    Either draws one number, so the laws of other parts do not change these times.
    """
    z = float(draws.standard_normal())
    if isinstance(law, FixedTime):
        return law.seconds
    return law.p50_s * math.exp(math.log(law.p95_s / law.p50_s) / Z95 * z)


def supplies(scenario: Scenario) -> dict[str, Supply]:
    """Return what each resource pool has left beside the pools of fixed size."""
    return {
        shared.name: Supply(
            shared.accelerators
            - sum(
                pool.accelerators
                for pool in scenario.pools
                if pool.resource_pool == shared.name and not pool.is_elastic
            )
        )
        for shared in scenario.resource_pools
    }
