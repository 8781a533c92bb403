"""Breakers at work: what they read, when they open and close, and what was noted of it.

The rules are those of :mod:`capplan.scenario.breakers`, the actions those of
:mod:`capplan.simulation.breaker_actions`. Nothing of it is there in a run without breakers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.results.breakers import LAYER, OPEN, VALUE, rule_at
from capplan.scenario.breaker_rules import placements
from capplan.scenario.breakers import Breaker, PerRequest, Watch
from capplan.scenario.metric_names import LATENCIES
from capplan.simulation.breaker_actions import Acting, Door, Throttle, acting
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.metrics import LatencyWindow, Reading, gateway_reading, pool_reading

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.simulation.callers import Callers
    from capplan.simulation.gateway import GatewayHost
    from capplan.simulation.pool import ServingPool

logger = logging.getLogger(__name__)

_ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True)
class Transition:
    """A rule that opened or closed, and what it had read."""

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
        actions: Sequence[Acting],
        clock: Clock,
    ) -> None:
        self.breaker = breaker
        self.name = rule_at(breaker.name, pool)
        self.is_open = False
        self.lower: Sequence[Rule] = ()
        """The rules of the next lower tier; one of them must be open for this one to open."""
        self.higher: Sequence[Rule] = ()
        """The rules of higher tiers; all must be closed for this one to close."""
        self._reading = reading
        self._actions = actions
        self._clock = clock
        self._since_s = math.inf
        """Since when the metric has been where the state would change."""
        self._changed_s = -math.inf

    def check(self) -> Transition | None:
        """Read the metric; open or close if it is time; return the change."""
        now_s, value = self._clock.now, self._reading()
        if self.is_open:
            for action in self._actions:
                action.hold()
        if not self._is_due(value, now_s):
            return None
        self.is_open = not self.is_open
        self._since_s, self._changed_s = math.inf, now_s
        for action in self._actions:
            if self.is_open:
                action.begin()
            else:
                action.end()
        return Transition(now_s, self.name, self.is_open, value)

    def _is_due(self, value: float, now_s: float) -> bool:
        """Return whether the state changes now."""
        breaker = self.breaker
        if self.is_open:
            over, for_s = breaker.released(value), breaker.release.for_s
        else:
            over, for_s = breaker.when.holds(value), breaker.for_s
        self._since_s = min(self._since_s, now_s) if over else math.inf
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
    """All rules of a run, at their check times.

    At one instant, higher tiers are checked first, so that what degrades step by step is put
    back in the reverse order; rules of one tier as they stand in the scenario.

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
        self._clock = clock
        self._throttles = {name: Throttle(pool) for name, pool in pools.items()}
        self._doors = _doors(scenario, gateway=gateway, pools=pools, clock=clock)
        gateway.pools = {
            c.name: self._doors.get(name := scenario.pool_of(c.name).name, pools[name])
            for c in scenario.classes
        }
        self.rules = self._rules(scenario, callers=callers, gateway=gateway, pools=pools)
        for order, rule in enumerate(self.rules):
            _Checks(rule, clock=clock, rank=Rank.CHECK + order, note=self.transitions.append)

    def _rules(
        self,
        scenario: Scenario,
        *,
        callers: Callers,
        gateway: GatewayHost,
        pools: Mapping[str, ServingPool],
    ) -> list[Rule]:
        rules: list[tuple[str, Rule]] = []
        for breaker, name in placed(scenario):
            reading = _reading(
                breaker.when,
                callers=callers,
                gateway=gateway,
                pool=pools[name],
                alone=len(pools) == 1,
                clock=self._clock,
            )
            actions = [
                acting(
                    action,
                    breaker=breaker,
                    pool=pools[name],
                    rules=scenario.pool(name),
                    door=self._doors.get(name),
                    throttle=self._throttles[name],
                    classes=scenario.classes,
                    own=[c.name for c in scenario.classes if scenario.pool_of(c.name).name == name],
                )
                for action in breaker.then
            ]
            rule = Rule(breaker, name, reading=reading, actions=actions, clock=self._clock)
            rules.append((name, rule))
        _bind_tiers(rules)
        return [rule for _, rule in sorted(rules, key=lambda pair: -(pair[1].breaker.tier or 0))]

    def with_rows(self, timeline: pd.DataFrame) -> pd.DataFrame:
        """Return a timeline with each rule's state, and what it had read, at the very moments."""
        import pandas as pd

        rows: list[tuple[float, str, str, str, float]] = [
            (0.0, LAYER, rule.name, OPEN, 0.0) for rule in self.rules
        ]
        for one in self.transitions:
            rows.append((one.time_s, LAYER, one.rule, OPEN, float(one.is_open)))
            rows.append((one.time_s, LAYER, one.rule, VALUE, one.value))
        noted = pd.DataFrame(rows, columns=list(timeline.columns)).astype(timeline.dtypes)
        return pd.concat([timeline, noted], ignore_index=True)


class _Checks:
    """The check times of one rule: k · interval."""

    def __init__(
        self, rule: Rule, *, clock: Clock, rank: int, note: Callable[[Transition], None]
    ) -> None:
        self._rule = rule
        self._clock = clock
        self._rank = rank
        self._note = note
        self._done = 0
        self._schedule()

    def _schedule(self) -> None:
        time_s = (self._done + 1) * self._rule.breaker.check_every_s
        self._clock.at(time_s, self._rank, self._on_time, None)

    def _on_time(self, _: None) -> None:
        self._done += 1
        if changed := self._rule.check():
            self._note(changed)
        self._schedule()


def placed(scenario: Scenario) -> Iterable[tuple[Breaker, str]]:
    """Yield each rule with each pool it acts in, by name."""
    for breaker, pool, told in placements(scenario.breakers, scenario.pools):
        if told is None:
            yield breaker, pool.name
        else:
            logger.info("breaker %s is not in pool %s: %s", breaker.name, pool.name, told)


def _doors(
    scenario: Scenario,
    *,
    gateway: GatewayHost,
    pools: Mapping[str, ServingPool],
    clock: Clock,
) -> dict[str, Door]:
    """Return a door for every pool, if any rule acts on requests."""
    acts = any(isinstance(a, PerRequest) for b, _ in placed(scenario) for a in b.then)
    if not acts:
        return {}
    widths = {pool.name: getattr(pool.batching, "beam_width", 1) for pool in scenario.pools}
    doors: dict[str, Door] = {}
    for name, pool in pools.items():
        doors[name] = Door(pool, gateway=gateway, doors=doors, clock=clock, width=widths[name])
    return doors


def _reading(
    when: Watch,
    *,
    callers: Callers,
    gateway: GatewayHost,
    pool: ServingPool,
    alone: bool,
    clock: Clock,
) -> Reading:
    """Return what a rule of a pool reads; ``alone``: there is no other pool."""
    if when.metric in LATENCIES:
        return LatencyWindow(
            when.metric,
            quantile=when.quantile,
            window_s=when.window_s,
            callers=callers,
            clock=clock,
            request_class=when.request_class,
            pool=pool if when.of == "pool" and not alone else None,
            min_samples=when.min_samples,
        )
    if when.of == "gateway":
        return gateway_reading(when.metric, gateway, clock)
    return pool_reading(when.metric, pool, clock)


def _bind_tiers(rules: Sequence[tuple[str, Rule]]) -> None:
    for pool, rule in rules:
        tier = rule.breaker.tier
        if tier is None:
            continue
        tiers = [(other.breaker.tier or 0, other) for name, other in rules if name == pool]
        below = max((t for t, _ in tiers if 0 < t < tier), default=0)
        rule.lower = [other for t, other in tiers if t == below and below]
        rule.higher = [other for t, other in tiers if t > tier]
