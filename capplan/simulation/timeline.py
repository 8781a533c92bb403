"""The timeline of a run: the metrics of each layer, sampled at even intervals.

A value holds from its time until the next row of its metric. Levels (``length``, ``in_flight``, …)
are read at the end of the instant; rates, fractions and means are those of the interval that begins
there.

=============== ================== =========================================================
layer           ``replica``        metrics
=============== ================== =========================================================
caller          empty              in_flight, arrivals_rps (attempts), succeeded_rps,
                                   rejected_rps, timed_out_rps, failed_rps; where callers try
                                   again retries_rps, with a retry budget retries_dropped_rps,
                                   where they hedge hedges_rps, cancelled_rps; where the load
                                   generator has limits generator_waiting (not sent yet)
gateway         empty              length, in_flight, status_<code>_rps (400, 429, 502, 503
                                   and those of the limits that are set);
                                   with a response cache response_cache_bytes and _entries (what
                                   it keeps), response_cache_hits_rps and _lookups_rps
service_queue   name of the pool   length, in_flight (of its replicas), replicas, refused_rps
scheduler_queue name of a replica  length, refused_rps, preemptions_per_s
prefill         name of a replica  running, tokens_per_s
decode          name of a replica  running, tokens_per_s, in_flight, up, kv_usage_fraction,
                                   busy_fraction, step_time_s, batch_size (means per step);
                                   with contiguous KV kv_internal_fragmentation_fraction (of
                                   what is reserved), kv_external_fragmentation_fraction (free
                                   space outside the largest hole); with prefix caching
                                   kv_cached_fraction (held by the cache alone, free when needed);
                                   with several models resident_models, loads_per_s,
                                   evictions_per_s, loading_fraction (of the time), and
                                   waiting_for_model in scheduler_queue (part of its length)
host            name of a host     compute_units_pressure, io_bytes_per_s_pressure,
                that pools share   network_bytes_per_s_pressure (how much longer all that use it
                                   take; 1 = full speed)
=============== ================== =========================================================

A gateway with limits by tenant, class or connection has also in_flight_<tenant> and length_<tenant>
of each tenant with a quota, busy_workers (with overhead_concurrency), connections_open and
connections_waiting (in the backlog), and refused_<reason>_rps for each limit that is set.

An elastic pool has in service_queue also replicas_desired, replicas_asked (that
wait for accelerators), replicas_starting, replicas_standby, replicas_draining and replicas_paid (a
mean over the interval; standby at its share of the price), and of an autoscaler scaling_<metric>
(its last reading); and each of its replicas in decode its
``phase``, whose rows stand at the moments of the changes: the position in ``schema.PHASES``. A
replica that joins later has rows from then on, and when it has left a last one, NaN.

Breakers have rows in a layer of their own, ``breakers``, with ``rule@pool`` as ``replica``:
breaker_open (0 or 1) and breaker_value (what the rule had read), at the moments of the changes.

``kv_usage_fraction`` is absent where there are no KV blocks; a mean over an interval without
a step is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from capplan.replica.kv_layouts import ContiguousSpace
from capplan.replica.multi_model import ResidentEngine
from capplan.replica.prefix_cache import cache_of
from capplan.schema import PHASES, TIMELINE, names
from capplan.simulation.attempt import Gauge
from capplan.simulation.callers import Callers
from capplan.simulation.clock import Clock, Events, Rank
from capplan.simulation.gateway import GatewayHost
from capplan.simulation.pool import ServingPool
from capplan.simulation.replica import Replica
from capplan.simulation.shared_host import SharedHost

MOST_SAMPLES = 600
FIRST_SAMPLES = 300
LEAST = 1e-9
"""A smaller growth of a divisor is rounding."""

Reading = Callable[[], float]
Series = tuple[tuple[str, str, str], "np.ndarray", "np.ndarray"]
"""(layer, replica, metric), times and values."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How one metric is read: a level, or a total that becomes a rate or a mean.

    With ``per`` None and ``total`` True the growth of the total is divided by the time, with
    another total in ``per`` by that one's growth.
    """

    layer: str
    replica: str
    metric: str
    read: Reading
    total: bool = False
    per: Reading | None = None

    @property
    def readings(self) -> tuple[Reading, ...]:
        """Return what is read, in order."""
        return (self.read,) if self.per is None else (self.read, self.per)


class _Track:
    """One probe, the columns of its readings, and the lifetime of what it reads."""

    __slots__ = ("born_s", "column", "first", "left_s", "per_column", "probe")

    def __init__(self, probe: Probe, column: int, *, born_s: float = -math.inf) -> None:
        self.probe = probe
        self.column = column
        self.per_column = None if probe.per is None else column + 1
        self.born_s = born_s
        self.left_s = math.inf
        self.first = tuple(read() for read in probe.readings) if born_s > -math.inf else ()
        """The readings at its birth, from which totals grow."""

    @property
    def columns(self) -> tuple[int, ...]:
        return (self.column,) if self.per_column is None else (self.column, self.per_column)


class Sampler:
    """Reads all probes at even intervals, at most :data:`MOST_SAMPLES` times.

    Beyond that, every second reading is dropped and the interval doubles. A replica that joins
    during the run has rows from then on, and a last row, NaN, when it leaves.
    """

    def __init__(self, probes: Iterable[Probe], *, clock: Clock, span_s: float) -> None:
        self._readings: list[Reading] = []
        self._tracks = [self._track(probe) for probe in probes]
        self._events: list[tuple[float, str, int]] = []
        self.clock = clock
        self._interval_s = max(span_s, 1e-3) / FIRST_SAMPLES
        self._times: list[float] = []
        self._rows: list[list[float]] = []
        self._sampled = 0
        clock.process(self._sample())

    def add(self, probes: Iterable[Probe]) -> None:
        """Add probes at the beginning of the run."""
        self._tracks.extend(self._track(probe) for probe in probes)

    def joined(self, replica: Replica) -> None:
        """Read a replica that joins from now on."""
        born_s, clock = self.clock.now, self.clock
        for probe in _replica_probes(replica, there_s=lambda: clock.now - born_s):
            self._tracks.append(self._track(probe, born_s=born_s))

    def left(self, replica: Replica) -> None:
        """Stop reading a replica that leaves; keep only its last readings."""
        for track in self._tracks:
            if track.probe.replica == replica.name and track.left_s == math.inf:
                track.left_s = self.clock.now
                for column in track.columns:
                    self._readings[column] = partial(float, self._readings[column]())

    def changed(self, replica: str, phase: str) -> None:
        """Record that a replica enters another phase (``schema.PHASES``) now."""
        self._events.append((self.clock.now, replica, PHASES.index(phase)))

    def _track(self, probe: Probe, *, born_s: float = -math.inf) -> _Track:
        track = _Track(probe, len(self._readings), born_s=born_s)
        self._readings.extend(probe.readings)
        return track

    def _sample(self) -> Events:
        while True:
            yield self.clock.until(self._sampled * self._interval_s, Rank.SAMPLE)
            self._read()
            if len(self._times) > MOST_SAMPLES:
                del self._times[1::2], self._rows[1::2]
                self._interval_s *= 2
            self._sampled = len(self._times)

    def _read(self) -> None:
        self._times.append(self.clock.now)
        self._rows.append([read() for read in self._readings])

    def frame(self) -> pd.DataFrame:
        """Read once more, at the end of the run; return the timeline (``schema.TIMELINE``)."""
        if not self._times or self.clock.now > self._times[-1]:
            self._read()
        times = np.array(self._times)
        table = self._table()
        series = [_series(track, times, table) for track in self._tracks]
        series = [one for one in series if len(one[1])] + list(self._phases())
        counts = [len(t) for _, t, _ in series]
        labels = {
            name: pd.array([label[i] for label, _, _ in series], dtype="str").take(
                np.repeat(np.arange(len(series)), counts)
            )
            for i, name in enumerate(("layer", "replica", "metric"))
        }
        values = {
            "time_s": np.concatenate([t for _, t, _ in series]),
            "value": np.concatenate([v for _, _, v in series]),
        }
        return pd.DataFrame(labels | values)[names(TIMELINE)]

    def _table(self) -> np.ndarray:
        """Return the readings as a table; NaN before a probe was added."""
        width = len(self._readings)
        if len(self._rows[0]) == width:
            return np.array(self._rows, dtype=np.float64)
        table = np.full((len(self._rows), width), np.nan)
        for row, values in zip(table, self._rows, strict=True):
            row[: len(values)] = values
        return table

    def _phases(self) -> Iterable[Series]:
        for replica in dict.fromkeys(name for _, name, _ in self._events):
            own = [(time, value) for time, name, value in self._events if name == replica]
            times, values = np.array(own, dtype=np.float64).T
            yield ("decode", replica, "phase"), times, values


def _series(track: _Track, times: np.ndarray, table: np.ndarray) -> Series:
    """Return one probe's rows: its label, times and values."""
    probe = track.probe
    label = (probe.layer, probe.replica, probe.metric)
    begin = int(np.searchsorted(times, track.born_s))
    end = int(np.searchsorted(times, track.left_s))
    gone = times[end : end + 1]
    if not probe.total:
        values = np.append(table[begin:end, track.column], np.full(len(gone), np.nan))
        return label, np.append(times[begin:end], gone), values
    begin = max(begin - 1, 0) if track.first else begin
    at = times[begin : end + 1]
    read = [table[begin : end + 1, column] for column in track.columns]
    if track.first and len(at) and at[0] < track.born_s:
        for column, first in zip(read, track.first, strict=True):
            column[0] = first
    grown, by = np.diff(read[0]), np.diff(at if track.per_column is None else read[1])
    # a step that was cut short or sped up reverses what was booked at its start: no mean then
    means = np.full(len(grown), np.nan)
    least = 0.0 if track.per_column is None else LEAST
    np.divide(grown, by, out=means, where=(by > least) & (grown >= 0))
    return label, np.append(at[:-1], gone), np.append(means, np.full(len(gone), np.nan))


def gauge_probes(layer: str, replica: str, gauges: Iterable[Gauge]) -> Iterable[Probe]:
    """Return the probes of the metrics that a part of the run shows."""
    return (Probe(layer, replica, name, read, total=total) for name, read, total in gauges)


def probes(
    callers: Callers,
    gateway: GatewayHost,
    pools: Iterable[ServingPool],
    shared_hosts: Iterable[SharedHost] = (),
) -> Iterable[Probe]:
    """Return the probes of a run."""
    yield from gauge_probes("caller", "", callers.gauges())
    yield from gauge_probes("gateway", "", gateway.gauges())
    for pool in pools:
        yield from gauge_probes("service_queue", pool.name, pool.gauges())
        for replica in pool.replicas:
            yield from _replica_probes(replica)
    for host in shared_hosts:
        yield from gauge_probes("host", host.name, host.gauges())


def _replica_probes(replica: Replica, *, there_s: Reading | None = None) -> Iterable[Probe]:
    """Yield the probes of a replica; ``there_s`` returns its age if it joined during the run."""
    engine, name = replica.engine, replica.name
    queue, decode = "scheduler_queue", "decode"
    yield Probe(queue, name, "length", lambda: len(engine.waiting))
    yield Probe(queue, name, "refused_rps", lambda: replica.refused, total=True)
    yield Probe(queue, name, "preemptions_per_s", lambda: engine.preemptions, total=True)
    yield Probe("prefill", name, "running", lambda: engine.prefilling)
    yield Probe("prefill", name, "tokens_per_s", lambda: engine.prefill_tokens, total=True)
    yield Probe(decode, name, "running", lambda: engine.decoding)
    yield Probe(decode, name, "tokens_per_s", lambda: engine.output_tokens, total=True)
    yield Probe(decode, name, "in_flight", lambda: replica.in_flight)
    yield Probe(decode, name, "up", lambda: replica.up)
    if engine.has_kv:
        yield Probe(decode, name, "kv_usage_fraction", lambda: engine.kv_usage_fraction)
    space = getattr(engine, "kv", None)
    if cache := cache_of(engine):
        yield Probe(decode, name, "kv_cached_fraction", lambda: cache.cached_fraction)
    if isinstance(space, ContiguousSpace):
        for which in ("internal", "external"):
            wasted = partial(getattr, space, f"{which}_fragmentation_fraction")
            yield Probe(decode, name, f"kv_{which}_fragmentation_fraction", wasted)
    if isinstance(engine, ResidentEngine):
        yield from _model_probes(engine, name)
    yield Probe(decode, name, "busy_fraction", lambda: replica.busy_s, total=True, per=there_s)
    for metric, read in (
        ("step_time_s", lambda: replica.begun_s),
        ("batch_size", lambda: engine.sequences),
    ):
        yield Probe(decode, name, metric, read, total=True, per=lambda: engine.steps)


def _model_probes(engine: ResidentEngine, name: str) -> Iterable[Probe]:
    decode = "decode"
    yield Probe("scheduler_queue", name, "waiting_for_model", lambda: engine.waiting_for_model)
    yield Probe(decode, name, "resident_models", lambda: len(engine.resident))
    yield Probe(decode, name, "loads_per_s", lambda: engine.loads, total=True)
    yield Probe(decode, name, "evictions_per_s", lambda: engine.evictions, total=True)
    yield Probe(decode, name, "loading_fraction", lambda: engine.load_s, total=True)
