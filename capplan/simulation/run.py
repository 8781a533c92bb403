"""One run: everything wired together, from a drawn trace to a result."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from itertools import repeat
from typing import Any

import pandas as pd

from capplan.budget import resolved
from capplan.progress import work
from capplan.results import RunResult
from capplan.scenario import Scenario
from capplan.scenario.shapes import ClosedLoop
from capplan.simulation import timeline
from capplan.simulation.attempt import Downstream
from capplan.simulation.autoscaler import ScalingController
from capplan.simulation.breakers import Breakers
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock
from capplan.simulation.connections import Connections
from capplan.simulation.fault_effects import wire as wire_faults
from capplan.simulation.faults import changes_pace
from capplan.simulation.fleet import Fleet, Supply, supplies
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.pool import ServingPool
from capplan.simulation.request_log import RequestLog, requests_of
from capplan.simulation.request_source import request_source
from capplan.simulation.response_cache import cached_responses
from capplan.simulation.shared_host import SharedHost, demands_of, loader_of
from capplan.simulation.steps import EngineKind, poison_of, poisoned_rows
from capplan.traffic.closed import is_closed
from capplan.traffic.streams import stream
from capplan.traffic.trace import Trace


class RandomStream(IntEnum):
    """The random streams of the simulation; never renumber, only append up to 19."""

    BACKOFF = 10
    ROUTING = 11
    SERVICE = 12
    SCALING = 14
    FAULTS = 15
    POISON = 16
    RESPONSES = 17


LOADING_PAYS, COMPILING_PAYS = 1_500_000, 10_000_000
"""Output tokens simulated in a process from which on it pays to load compiled code (0.5 s), and to
compile it first (20 to 30 s, once per version): 20 to 70 of them share a step, which is 14 µs
shorter."""

_simulated: Counter[str] = Counter()


def simulate(
    scenario: Scenario,
    *,
    trace: Trace | None = None,
    seed: int = 0,
    replication: int = 0,
    engine: EngineKind | None = None,
) -> RunResult:
    """Return what happens to a trace under a scenario.

    The run ends when every request has ended and no replica computes, at the latest
    ``scenario.drain_s`` after the last arrival; in a closed loop, after the end of the trace's
    window, when users stop sending. The same scenario, trace, seed and replication give the same
    tables.

    Parameters
    ----------
    scenario
        Layers, pools, faults and callers.
    trace
        The drawn trace; None draws it from the scenario's traffic.
    seed, replication
        Name the random numbers: of the drawn trace, and of backoff, routing and service.
    engine
        How steps of continuous batching are computed: ``fast`` compiled, in pools whose batching
        supports it; ``reference`` in Python, one by one. None = ``fast`` where it pays, by
        :data:`LOADING_PAYS` and :data:`COMPILING_PAYS`. The tables are the same.
    """
    scenario = resolved(scenario)
    started = time.perf_counter()
    if trace is None:
        from capplan.traffic.draw import draw

        trace = draw(scenario, seed=seed, replication=replication)
    with _collected_at_the_end():
        duration_s, log, timeline, versions = _played(
            scenario, trace, seed=seed, replication=replication, engine=engine
        )
    return RunResult(
        scenario=scenario,
        trace=trace,
        requests=log,
        timeline=timeline,
        seed=seed,
        replication=replication,
        duration_s=duration_s,
        wall_s=time.perf_counter() - started,
        versions=versions,
    )


def _played(
    scenario: Scenario, trace: Trace, **options: Any
) -> tuple[float, pd.DataFrame, pd.DataFrame, dict[str, str]]:
    """Return the end of a run, s, its log, timeline and versions by pool; its parts end here."""
    run = _Run(scenario, trace, **options)
    duration_s = run.play()
    known = {name: pool.versions for name, pool in run.pools.items() if pool.versions}
    return duration_s, *run.tables(), known


class _Run:
    """The parts of one run, wired together."""

    def __init__(
        self,
        scenario: Scenario,
        trace: Trace,
        *,
        seed: int,
        replication: int,
        engine: EngineKind | None = None,
    ) -> None:
        self._scenario, self._trace = scenario, trace
        self._draws = partial(stream, seed, replication)
        self.clock = Clock()
        self.last_arrival_s = float(trace.frame["arrival_s"].iloc[-1])
        self.sent_until_s = sent_until_s(trace)
        self.until_s = self.sent_until_s + scenario.drain_s
        self._connections = Connections(scenario.network)
        self.callers = self._new_callers()
        self.gateway = GatewayHost(
            scenario.gateway,
            network=scenario.network,
            connections=self._connections,
            clock=self.clock,
            callers=self.callers,
            cache=cached_responses(
                scenario, clock=self.clock, draws=partial(self._draws, RandomStream.RESPONSES)
            ),
        )
        self.shared_hosts = {
            host.name: SharedHost(host, clock=self.clock) for host in scenario.hosts
        }
        kind = engine or _engine_for(int(trace.frame["output_tokens"].sum()))
        self.pools = self._new_pools(self.gateway, kind)
        self.gateway.pools = {
            c.name: self.pools[scenario.pool_of(c.name).name] for c in scenario.classes
        }
        self.breakers = self._new_breakers()
        wire_faults(
            scenario,
            pools=self.pools,
            callers=self.callers,
            shared_hosts=self.shared_hosts,
            clock=self.clock,
            draws=partial(self._draws, RandomStream.FAULTS),
        )
        self.sampler = self._new_sampler()
        self._make_elastic()

    def _new_callers(self) -> Callers:
        scenario, trace, network_s = self._scenario, self._trace, self._scenario.network.one_way_s
        return Callers(
            request_source(
                requests_of(trace.frame, scenario, block_tokens=trace.prefix_block_tokens),
                closed=is_closed(trace),
                until_s=self.sent_until_s,
                clock=self.clock,
                there_s=partial(there_s, scenario.traffic.shape),
            ),
            log=RequestLog(trace.frame, network_s=network_s, leaves_s=self._leaves_s),
            retries={c.name: c.retry for c in scenario.classes},
            hedges={c.name: c.hedge for c in scenario.classes if c.hedge is not None},
            clock=self.clock,
            network_s=network_s,
            connections=self._connections,
            backoff=self._draws(RandomStream.BACKOFF),
        )

    def _new_pools(self, gateway: Downstream, engine: EngineKind) -> dict[str, ServingPool]:
        scenario = self._scenario
        routing, service = (
            self._draws(which).spawn(len(scenario.pools))
            for which in (RandomStream.ROUTING, RandomStream.SERVICE)
        )
        demands = demands_of(scenario)
        models = {c.name: scenario.model_of(c.name) for c in scenario.classes}
        poisoned = poisoned_rows(scenario, self._trace.frame, self._draws(RandomStream.POISON))
        return {
            pool.name: ServingPool(
                pool,
                clock=self.clock,
                gateway=gateway,
                routing=routing[index],
                service=service[index],
                engine=engine,
                shared_hosts=self.shared_hosts,
                demands=demands,
                models=models,
                changes_pace=changes_pace(scenario, pool),
                poison=poison_of(pool, scenario, poisoned),
            )
            for index, pool in enumerate(scenario.pools)
        }

    def _new_breakers(self) -> Breakers | None:
        if not self._scenario.breakers:
            return None
        return Breakers(
            self._scenario,
            callers=self.callers,
            gateway=self.gateway,
            pools=self.pools,
            clock=self.clock,
        )

    def _new_sampler(self) -> timeline.Sampler:
        pools, hosts = self.pools.values(), self.shared_hosts.values()
        endless = math.isinf(self.sent_until_s)
        return timeline.Sampler(
            timeline.probes(self.callers, self.gateway, pools, hosts),
            clock=self.clock,
            span_s=self.last_arrival_s if endless else self.sent_until_s,
        )

    def _make_elastic(self) -> None:
        """Give every pool with a standby or an autoscaler a fleet and its controller."""
        scenario, sampler = self._scenario, self.sampler
        elastic = [(i, rules) for i, rules in enumerate(scenario.pools) if rules.is_elastic]
        if not elastic:
            return
        supply = supplies(scenario)
        streams = self._draws(RandomStream.SCALING).spawn(len(scenario.pools))
        for index, rules in elastic:
            pool = self.pools[rules.name]
            loads = rules.lifecycle is None or rules.lifecycle.model_load is None
            fleet = Fleet(
                rules,
                pool=pool,
                supply=supply.get(rules.resource_pool or "", Supply()),
                clock=self.clock,
                draws=streams[index],
                note=sampler.changed,
                loader=loader_of(rules, scenario, shared_hosts=self.shared_hosts, clock=self.clock)
                if loads
                else None,
            )
            pool.on_join.append(sampler.joined)
            pool.on_leave.append(sampler.left)
            sampler.add(timeline.gauge_probes("service_queue", rules.name, fleet.gauges()))
            if rules.autoscaler is not None:
                controller = ScalingController(
                    rules.autoscaler, fleet=fleet, pool=pool, callers=self.callers, clock=self.clock
                )
                gauges = controller.gauges()
                sampler.add(timeline.gauge_probes("service_queue", rules.name, gauges))

    def _leaves_s(self, start_s: Any, made_s: Any) -> Any:
        return self.gateway.leaves_s(start_s, made_s)

    def play(self) -> float:
        """Run to the end; return its time, s."""
        self.callers.start(self.gateway)
        clock, span_s = self.clock, max(self.last_arrival_s, 1e-9)
        with work("", reading=lambda: clock.now / span_s):
            duration_s = clock.run_while(self._busy, self.until_s)
        for pool in self.pools.values():
            pool.write()
        return duration_s

    def tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the request log and the timeline; drop the attempts."""
        timeline = self.sampler.frame()
        if self.breakers is not None:
            timeline = self.breakers.with_rows(timeline)
        return self.callers.log.frame(), timeline

    def _busy(self) -> bool:
        callers = self.callers
        if callers.pending or not callers.all_arrived:
            return True
        return not all(pool.idle for pool in self.pools.values())


def sent_until_s(trace: Trace) -> float:
    """Return when callers stop sending: in a closed loop at the window's end, inf without one."""
    if not is_closed(trace):
        return float(trace.frame["arrival_s"].iloc[-1])
    return math.inf if trace.duration_s is None else trace.duration_s


def there_s(shape: Any, user: str, time_s: float) -> float:
    """Return when a drawn user of a closed loop is there next; a recorded one always is."""
    number = user.removeprefix("u")
    if not isinstance(shape, ClosedLoop) or not number.isdigit():
        return time_s
    return shape.there_s(int(number), time_s)


def _engine_for(output_tokens: int) -> EngineKind:
    """Return the faster engine, by how much this process simulates and whether code is compiled."""
    _simulated["output_tokens"] += output_tokens
    if _simulated["output_tokens"] < LOADING_PAYS:
        return "reference"
    from capplan.replica.compiled import jit, steps

    pays = _simulated["output_tokens"] >= COMPILING_PAYS or jit.is_compiled(steps.go_on)
    return "fast" if pays else "reference"


@contextmanager
def _collected_at_the_end() -> Iterator[None]:
    """Collect the objects of a run once, at its end; the parts of a run refer to each other.

    What exists before is frozen meanwhile, so that the one collection walks the run's objects
    alone, and memory stays flat from run to run.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_on:
            gc.enable()


def simulate_many(
    scenario: Scenario | Sequence[Scenario],
    *,
    replications: int,
    seed: int = 0,
    traces: Sequence[Trace] | None = None,
    executor: Executor | None = None,
) -> list[RunResult]:
    """Return independent replications of a run, in order.

    Parameters
    ----------
    scenario
        What is simulated; a sequence has one for each replication.
    replications
        How many, numbered from 0.
    seed
        Names the random numbers together with the replication.
    traces
        One drawn trace per replication; None draws them.
    executor
        Where they run, for example a ``ProcessPoolExecutor``; None = here, one by one.

    Raises
    ------
    ValueError
        When the number of traces is not that of the replications.
    """
    if traces is not None and len(traces) != replications:
        raise ValueError(f"one trace per replication ({replications}), got {len(traces)}")
    run = map if executor is None else executor.map
    numbers = range(replications)
    scenarios = repeat(scenario) if isinstance(scenario, Scenario) else scenario
    return list(run(_replicate, scenarios, traces or repeat(None), repeat(seed), numbers))


def _replicate(scenario: Scenario, trace: Trace | None, seed: int, replication: int) -> RunResult:
    return simulate(scenario, trace=trace, seed=seed, replication=replication)
