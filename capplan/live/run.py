"""One measured run: the scenario's callers send a drawn trace to a real server."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from capplan.live.clock import LiveClock
from capplan.live.exchange import Client, Exchange
from capplan.live.prompts import Vocabulary, vocabulary
from capplan.live.server import MeasuredServer
from capplan.live.target import Target
from capplan.live.telemetry import Telemetry
from capplan.progress import work
from capplan.results import RunResult
from capplan.results.client_record import ClientRecord
from capplan.scenario import Scenario
from capplan.scenario.layers import Network
from capplan.schema import DataError
from capplan.simulation import timeline
from capplan.simulation.attempt import Attempt
from capplan.simulation.callers import Callers
from capplan.simulation.connections import Connections
from capplan.simulation.request_log import RequestLog, requests_of
from capplan.simulation.request_source import request_source
from capplan.simulation.run import RandomStream, sent_until_s, there_s
from capplan.traffic.closed import is_closed
from capplan.traffic.draw import draw
from capplan.traffic.streams import stream
from capplan.traffic.trace import Trace

T = TypeVar("T")
EXCHANGES = (
    *("request_id", "attempt", "intended_start_s", "sent_s", "connect_s", "reconnects"),
    *("finish_s", "status"),
    *("chunks", "prompt_tokens", "output_tokens", "cached_tokens", "itl_p50_s", "itl_p99_s"),
    *("finish_reason", "detail"),
)
"""Columns of what attempts showed on the wire: times from the start of the run; tokens as the
server counted; ``itl_*`` of the gaps between chunks; ``detail`` in the words of the server."""
NOTE = (
    "Measured on a real server: the scenario's gateway, queues, breakers and autoscalers describe "
    "it and were not enforced."
)
NOT_SHOWN = ("prefill_end_s", "decode_end_s", "network_s", "wasted_tokens")
"""Columns of the request log that a server does not show."""


def measure(
    scenario: Scenario,
    target: Target | str,
    *,
    trace: Trace | None = None,
    seed: int = 0,
    drain_s: float | None = None,
    confirmed: bool = False,
    cold_start_s: float = math.nan,
) -> RunResult:
    """Return what happens to a trace on a real server: the request log and timeline of a run.

    The callers are those of the simulation: they send when the trace says and never wait for an
    answer to send (closed loops do, as their users would), leave at their deadline, try again and
    hedge as the scenario says. What a server does not show is NaN.

    Parameters
    ----------
    scenario
        Its traffic and callers; its pools and gateway describe the server and are not simulated.
    target
        The server, or its URL.
    trace
        The drawn trace; None draws it from the scenario's traffic.
    seed
        Of the trace and the backoff. Prompts differ from run to run, or the server's prefix cache
        would hold those of the run before.
    drain_s
        How long after the last arrival answers are waited for; None = ``scenario.drain_s``.
    confirmed
        Whether a server outside loopback and private networks may be loaded.
    cold_start_s
        How long the server took to start for this run, s; NaN = it was there.

    Raises :class:`capplan.schema.DataError` for a scenario with faults, and for a server that is
    not private without ``confirmed``, cannot be reached, or does not tell its tokens. An interrupt
    (Ctrl-C) stops sending, waits for what is in flight, and returns what was measured, marked as
    partial.
    """
    target = Target(url=target) if isinstance(target, str) else target
    if scenario.faults:
        raise DataError("no faults on a real server", field="faults", value=len(scenario.faults))
    if not (target.is_private or confirmed):
        rule = "a server on loopback or in a private network, or --yes-this-is-my-server"
        raise DataError(rule, field="url", value=target.url)
    trace = draw(scenario, seed=seed) if trace is None else trace
    trace = replace(trace, notes=(*trace.notes, *(() if NOTE in trace.notes else (NOTE,))))
    wait_s = scenario.drain_s if drain_s is None else drain_s
    return _outside_a_loop(
        lambda: _measured(
            scenario, target, trace, seed=seed, drain_s=wait_s, cold_start_s=cold_start_s
        )
    )


def _outside_a_loop(start: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what a coroutine returns; in a notebook, where a loop runs, in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(start())
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(start())).result()


async def _measured(
    scenario: Scenario,
    target: Target,
    trace: Trace,
    *,
    seed: int,
    drain_s: float,
    cold_start_s: float,
) -> RunResult:
    words = await vocabulary(target)
    run = _LiveRun(scenario, target, trace, words, seed=seed)
    try:
        await run.play(drain_s)
    finally:
        await run.server.close()
    return run.result(cold_start_s)


class _LiveRun:
    """The parts of one run, wired together."""

    def __init__(
        self, scenario: Scenario, target: Target, trace: Trace, words: Vocabulary, *, seed: int
    ) -> None:
        self._scenario, self._trace, self._seed = scenario, trace, seed
        self._target, self._started = target, datetime.now(UTC)
        self.clock = LiveClock()
        self.interrupted = False
        self._sent_until_s = sent_until_s(trace)
        self._source = request_source(
            requests_of(trace.frame, scenario, block_tokens=trace.prefix_block_tokens),
            closed=is_closed(trace),
            until_s=self._sent_until_s,
            clock=self.clock,
            there_s=partial(there_s, scenario.traffic.shape),
        )
        self.callers = Callers(
            self._source,
            log=RequestLog(trace.frame, network_s=0.0, leaves_s=lambda start_s, made_s: made_s),
            retries={c.name: c.retry for c in scenario.classes},
            hedges={c.name: c.hedge for c in scenario.classes if c.hedge is not None},
            clock=self.clock,
            network_s=0.0,
            connections=Connections(Network()),
            backoff=stream(seed, 0, RandomStream.BACKOFF),
        )
        fresh = scenario.network.connections == "fresh"
        words = replace(words, salt=int(self._started.timestamp() * 1e6))
        client = Client(target, read_s=self.clock.read, fresh=fresh)
        self.server = MeasuredServer(target, client, words, callers=self.callers, clock=self.clock)
        self._telemetry = Telemetry(target, self.clock.read)
        self._sampler = timeline.Sampler(
            [
                *timeline.gauge_probes("caller", "", self.callers.gauges()),
                *timeline.gauge_probes("gateway", "", self.server.gauges()),
            ],
            clock=self.clock,
            span_s=float(trace.frame["arrival_s"].iloc[-1]),
        )

    async def play(self, drain_s: float) -> None:
        """Run to the end, or to an interrupt."""
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()
        self.callers.start(self.server)  # type: ignore[arg-type]
        until_s = self._sent_until_s + drain_s
        span_s = max(self._sent_until_s, 1e-9)
        with _on_interrupt(self._interrupt), work("", reading=lambda: self.clock.read() / span_s):
            scraping = asyncio.create_task(self._telemetry.run())
            try:
                self.duration_s = await self.clock.play(self._busy, until_s)
            finally:
                scraping.cancel()
        self._cpu_s = time.process_time() - self._cpu_s
        self._wall_s = time.perf_counter() - self._wall_s

    def _busy(self) -> bool:
        return bool(self.callers.pending) or not self.callers.all_arrived

    def _interrupt(self) -> None:
        """Stop sending; at the second interrupt, stop at once."""
        if self.interrupted:
            self.clock.stop()
        self.interrupted = True
        self._source.stop()

    def result(self, cold_start_s: float) -> RunResult:
        """Return the run as a result, with what the client saw beside it."""
        trace, exchanges = self._trace, exchange_table(self.server.exchanges)
        requests = _as_seen(self.callers.log.frame(), exchanges)
        return RunResult(
            scenario=self._scenario,
            trace=trace,
            requests=requests,
            timeline=self._timeline(),
            seed=self._seed,
            duration_s=self.duration_s,
            backend="live",
            wall_s=self._wall_s,
            client=ClientRecord(
                exchanges=exchanges,
                asked_rps=math.nan if is_closed(trace) else _rate(trace.frame["arrival_s"]),
                achieved_rps=_rate(exchanges["sent_s"]),
                cpu_fraction=self._cpu_s / self._wall_s,
                target=self._target.identity(),
                started=self._started,
                partial=self.interrupted,
                cold_start_s=cold_start_s,
            ),
        )

    def _timeline(self) -> pd.DataFrame:
        """Return what the client saw, and the metrics of the server if there is one pool."""
        seen = self._sampler.frame()
        if len(self._scenario.pools) > 1:
            return seen
        scraped = self._telemetry.frame(f"{self._scenario.pools[0].name}-0")
        return pd.concat([seen, scraped.astype(seen.dtypes)], ignore_index=True)


@contextmanager
def _on_interrupt(call: Callable[[], None]) -> Iterator[None]:
    """Call ``call`` at SIGINT in place of KeyboardInterrupt, where that is possible."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop.add_signal_handler(signal.SIGINT, call)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def exchange_table(exchanges: dict[Attempt, Exchange]) -> pd.DataFrame:
    """Return what each attempt showed on the wire (:data:`EXCHANGES`), in the log's order."""
    ordered = sorted(exchanges, key=lambda attempt: (attempt.request.row, attempt.attempt))
    rows = []
    for attempt in ordered:
        found = exchanges[attempt]
        gaps = np.diff(found.chunk_s)
        p50, p99 = np.quantile(gaps, [0.5, 0.99]) if len(gaps) else (math.nan, math.nan)
        rows.append(
            (
                attempt.request.request_id, attempt.attempt, attempt.intended_start_s, found.sent_s,
                found.connect_s, found.reconnects, found.finish_s, found.status, len(found.chunk_s),
                found.prompt_tokens, found.output_tokens, found.cached_tokens, p50, p99,
                found.finish_reason, found.detail,
            )
        )  # fmt: skip
    return pd.DataFrame(rows, columns=list(EXCHANGES)).astype({"status": "Int64"})


def _as_seen(requests: pd.DataFrame, exchanges: pd.DataFrame) -> pd.DataFrame:
    """Return the request log with tokens as the server counted; what it does not show is NaN."""
    shown = requests.assign(**dict.fromkeys(NOT_SHOWN, math.nan))
    prompt = exchanges["prompt_tokens"]
    shown["prompt_tokens"] = prompt.where(prompt.notna(), requests["prompt_tokens"])
    shown["output_tokens"] = exchanges["output_tokens"]
    shown["cached_tokens"] = exchanges["cached_tokens"]
    shown["outcome_layer"] = requests["outcome_layer"].where(requests["outcome_layer"] != "")
    return shown


def _rate(times_s: pd.Series[float]) -> float:
    span_s = float(times_s.max() - times_s.min())
    return (len(times_s) - 1) / span_s if span_s > 0 else math.nan
