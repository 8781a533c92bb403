"""A measured server in the place of the simulated gateway: takes attempts, returns their ends."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

from capplan.live.clock import LiveClock
from capplan.live.exchange import Client, Exchange
from capplan.live.prompts import Vocabulary
from capplan.live.target import Target
from capplan.simulation.attempt import Attempt, Failure, Gauge
from capplan.simulation.callers import Callers


class MeasuredServer:
    """Sends each attempt to a server, and tells its caller how it ended.

    Attributes
    ----------
    exchanges
        What each attempt showed on the wire, in the order of sending.
    """

    def __init__(
        self,
        target: Target,
        client: Client,
        words: Vocabulary,
        *,
        callers: Callers,
        clock: LiveClock,
    ) -> None:
        self.exchanges: dict[Attempt, Exchange] = {}
        self._target = target
        self._client = client
        self._words = words
        self._callers = callers
        self._clock = clock
        self._tasks: dict[Attempt, asyncio.Task[None]] = {}

    @property
    def in_flight(self) -> int:
        """Return how many requests the server has not answered."""
        return len(self._tasks)

    def arrive(self, attempt: Attempt) -> None:
        """Send an attempt. A first one intended to start when its request says, however late."""
        if attempt.attempt == 1:
            attempt.intended_start_s = attempt.request.first_start_s
        exchange = self.exchanges[attempt] = Exchange()
        task = asyncio.get_running_loop().create_task(self._send(attempt, exchange))
        self._tasks[attempt] = task

    def withdraw(self, attempt: Attempt) -> None:
        """Close the connection of an attempt whose caller has left."""
        task = self._tasks.pop(attempt, None)
        if task is not None:
            task.cancel()

    def leaves_s(self, start_s: Any, made_s: Any) -> Any:
        """Return when a token reached the caller: it was seen there."""
        return made_s

    def gauges(self) -> Iterable[Gauge]:
        """Yield what the client sees of the server."""
        yield "in_flight", lambda: self.in_flight, False

    async def close(self) -> None:
        """Close all connections, also those of requests that have not ended."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._client.close()

    async def _send(self, attempt: Attempt, exchange: Exchange) -> None:
        try:
            await self._client.send(self._body(attempt), exchange)
        finally:
            attempt.sent_s = exchange.sent_s
            attempt.prefill_end_s = exchange.first_token_s
        del self._tasks[attempt]
        self._clock.happened(self._returned, (attempt, exchange))

    def _returned(self, ended: tuple[Attempt, Exchange]) -> None:
        attempt, exchange = ended
        failure = _failure(exchange)
        if failure is None and not math.isnan(exchange.output_tokens):
            attempt.output_tokens = int(exchange.output_tokens)
        self._callers.returned(attempt, failure)

    def _body(self, attempt: Attempt) -> dict[str, Any]:
        request, target = attempt.request, self._target
        body: dict[str, Any] = {
            **self._words.asked(request, target.api),
            "max_tokens": request.output_tokens,
            "stream": request.streaming,
            **target.extra,
        }
        if request.streaming:
            body["stream_options"] = {"include_usage": True}
        if target.model is not None:
            body["model"] = target.model
        return body


def _failure(exchange: Exchange) -> Failure | None:
    ending = exchange.ending
    if ending is None:
        return None
    refused = ending.reason in {"refused", "bad_request"}
    wait_s = exchange.retry_after_s
    name = None if ending.layer or exchange.status in {None, 200} else str(exchange.status)
    return Failure(
        "rejected" if refused else "failed",
        ending.layer,
        ending.named(name),
        exchange.status,
        0.0 if math.isnan(wait_s) else wait_s,
    )
