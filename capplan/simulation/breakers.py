"""Breakers during a run: what they read, when they open and close, and their transitions.

The rules are those of :mod:`capplan.scenario.breakers`, the effects of their actions those of
:mod:`capplan.simulation.breaker_actions`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pandas as pd

from capplan.results.breakers import LAYER, OPEN, VALUE, rule_at
from capplan.scenario import Scenario
from capplan.scenario.breaker_rules import placements
from capplan.scenario.breakers import Breaker, PerRequest
from capplan.scenario.metric_names import LATENCIES
from capplan.simulation.breaker_actions import (
    ActionEffect,
    BreakerEntrance,
    Place,
    Throttle,
    effect_of,
)
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock, Events, Rank
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.metrics import LatencyWindow, Reading, gateway_reading, pool_reading
from capplan.simulation.pool import ServingPool

logger = logging.getLogger(__name__)

_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True)
class Transition:
    """A rule that opened or closed, and the metric that it read."""

    time_s: float
    rule: str
    is_open: bool
    value: float


class Rule:
    """One rule in one pool, and its state."""

    def __init__(
        self,
        breaker: Breaker,
        pool: str,
        *,
        reading: Reading,
        effects: Sequence[ActionEffect],
        clock: Clock,
    ) -> None:
        self.breaker = breaker
        self.pool = pool
        self.name = rule_at(breaker.name, pool)
        self.is_open = False
        self.lower: Sequence[Rule] = ()
        """The rules of the next lower tier; one of them must be open before this one opens."""
        self.higher: Sequence[Rule] = ()
        """The rules of higher tiers; all must be closed before this one closes."""
        self._reading = reading
        self._effects = effects
        self._clock = clock
        self._since_s = math.inf
        """Since when the metric is where the state would change."""
        self._changed_s = -math.inf

    def check(self) -> Transition | None:
        """Read the metric; open or close if it is time; return the change."""
        now_s, value = self._clock.now, self._reading()
        if self.is_open:
            for effect in self._effects:
                effect.hold()
        if not self._is_due(value, now_s):
            return None
        self.is_open = not self.is_open
        self._since_s, self._changed_s = math.inf, now_s
        for effect in self._effects:
            if self.is_open:
                effect.begin()
            else:
                effect.end()
        return Transition(now_s, self.name, self.is_open, value)

    def _is_due(self, value: float, now_s: float) -> bool:
        """Return whether the state changes now."""
        breaker = self.breaker
        if self.is_open:
            met, for_s = breaker.released(value), breaker.release.for_s
        else:
            met, for_s = breaker.when.holds(value), breaker.for_s
        self._since_s = min(self._since_s, now_s) if met else math.inf
        open_s = now_s - self._changed_s
        if open_s < breaker.cool_down_s - _ROUNDING_S:
            return False
        long_enough = now_s - self._since_s >= for_s - _ROUNDING_S
        if not self.is_open:
            return long_enough and self._may_open(now_s)
        longest_s = math.inf if breaker.release.after_s is None else breaker.release.after_s
        expired = open_s >= longest_s - _ROUNDING_S
        return (long_enough or expired) and not any(rule.is_open for rule in self.higher)

    def _may_open(self, now_s: float) -> bool:
        if self.breaker.tier is None or not self.lower:
            return True
        return any(rule.is_open and rule._changed_s < now_s for rule in self.lower)


class Breakers:
    """All rules of a run, checked at multiples of their ``check_every_s``.

    At one instant, higher tiers are checked first, so that tiers close in the reverse order of
    opening; rules of one tier are checked in the order of the scenario.

    Attributes
    ----------
    rules
        In the order of checking.
    transitions
        Every opening and closing so far.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        callers: Callers,
        gateway: GatewayHost,
        pools: Mapping[str, ServingPool],
        clock: Clock,
    ) -> None:
        self.transitions: list[Transition] = []
        self._scenario = scenario
        self._callers = callers
        self._gateway = gateway
        self._pools = pools
        self._clock = clock
        placed = list(_placed(scenario))
        entrances = self._entrances(placed)
        gateway.pools = {
            c.name: entrances.get(name := scenario.pool_of(c.name).name, pools[name])
            for c in scenario.classes
        }
        places = {name: self._place(name, entrances.get(name)) for name in pools}
        rules = [self._rule(breaker, places[name]) for breaker, name in placed]
        _bind_tiers(rules)
        self.rules = sorted(rules, key=lambda rule: -(rule.breaker.tier or 0))
        for order, rule in enumerate(self.rules):
            clock.process(self._check(rule, Rank.CHECK + order))

    def with_rows(self, timeline: pd.DataFrame) -> pd.DataFrame:
        """Return a timeline with the state of each rule and its metric at every transition."""
        rows: list[tuple[float, str, str, str, float]] = [
            (0.0, LAYER, rule.name, OPEN, 0.0) for rule in self.rules
        ]
        for one in self.transitions:
            rows.append((one.time_s, LAYER, one.rule, OPEN, float(one.is_open)))
            rows.append((one.time_s, LAYER, one.rule, VALUE, one.value))
        added = pd.DataFrame(rows, columns=list(timeline.columns)).astype(timeline.dtypes)
        return pd.concat([timeline, added], ignore_index=True)

    def _check(self, rule: Rule, rank: int) -> Events:
        for number in count(1):
            yield self._clock.until(number * rule.breaker.check_every_s, rank)
            if change := rule.check():
                self.transitions.append(change)

    def _entrances(self, placed: Iterable[tuple[Breaker, str]]) -> dict[str, BreakerEntrance]:
        """Return an entrance for every pool, if any rule acts on requests."""
        entrances: dict[str, BreakerEntrance] = {}
        if any(isinstance(action, PerRequest) for rule, _ in placed for action in rule.then):
            for rules in self._scenario.pools:
                entrances[rules.name] = BreakerEntrance(
                    self._pools[rules.name],
                    gateway=self._gateway,
                    entrances=entrances,
                    clock=self._clock,
                    beam_width=getattr(rules.batching, "beam_width", 1),
                )
        return entrances

    def _place(self, name: str, entrance: BreakerEntrance | None) -> Place:
        scenario = self._scenario
        return Place(
            pool=self._pools[name],
            rules=scenario.pool(name),
            gateway=self._gateway,
            entrance=entrance,
            throttle=Throttle(self._pools[name]),
            classes=scenario.classes,
            own=[c.name for c in scenario.classes if scenario.pool_of(c.name).name == name],
        )

    def _rule(self, breaker: Breaker, place: Place) -> Rule:
        return Rule(
            breaker,
            place.pool.name,
            reading=self._reading(breaker, place.pool),
            effects=[effect_of(a, rule=breaker.name, place=place) for a in breaker.then],
            clock=self._clock,
        )

    def _reading(self, breaker: Breaker, pool: ServingPool) -> Reading:
        """Return the metric that a rule of a pool reads."""
        when, clock = breaker.when, self._clock
        if when.metric in LATENCIES:
            return LatencyWindow(
                when.metric,
                quantile=when.quantile,
                window_s=when.window_s,
                callers=self._callers,
                clock=clock,
                request_class=when.request_class,
                pool=pool if when.of == "pool" and len(self._pools) > 1 else None,
                min_samples=when.min_samples,
            )
        if when.of == "gateway":
            return gateway_reading(when.metric, self._gateway, clock)
        return pool_reading(when.metric, pool, clock)


def _placed(scenario: Scenario) -> Iterable[tuple[Breaker, str]]:
    """Yield each rule with the name of each pool in which it acts."""
    for breaker, pool, why_not in placements(scenario.breakers, scenario.pools):
        if why_not is None:
            yield breaker, pool.name
        else:
            logger.info("breaker %s is not in pool %s: %s", breaker.name, pool.name, why_not)


def _bind_tiers(rules: Sequence[Rule]) -> None:
    for rule in rules:
        tier = rule.breaker.tier
        if tier is None:
            continue
        tiers = [(other.breaker.tier or 0, other) for other in rules if other.pool == rule.pool]
        below = max((t for t, _ in tiers if 0 < t < tier), default=0)
        rule.lower = [other for t, other in tiers if t == below and below]
        rule.higher = [other for t, other in tiers if t > tier]
