"""One attempt on the wire: a request to an OpenAI-compatible server and what came back, when."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import aiohttp
from sseclient import SSEClient

from capplan.live.target import Target
from capplan.scenario.answers import Answers, ending_of
from capplan.scenario.ending import Ending

LONGEST_DETAIL = 200
"""Characters of a server's error that are kept."""
EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""Source: WHATWG, "HTML Living Standard", section 9.2.5 (an event ends at an empty line)."""


@dataclass(slots=True, eq=False)
class Exchange:
    """What one attempt showed. Times count from the start of the run, s; NaN = it did not happen.

    Attributes
    ----------
    sent_s, finish_s
        When the client began to send, and when the answer or the connection ended.
    connect_s
        How long it took to open the connection; 0 on one that was open.
    reused, reconnects
        Whether the connection was open before, and how many such ones the server had closed.
    chunk_s
        When each chunk with text arrived. A chunk holds one token or several.
    text
        The answer as far as it came.
    status, retry_after_s
        HTTP status, also one inside a stream; NaN without a Retry-After.
    prompt_tokens, output_tokens, cached_tokens
        As the server counted; NaN if it did not.
    finish_reason
        Why the answer ended, as the server says; empty = it did not say.
    ending, detail
        What it means for the caller (None = a success), and the words of the server.
    """

    sent_s: float = math.nan
    finish_s: float = math.nan
    connect_s: float = 0.0
    reused: bool = False
    reconnects: int = 0
    chunk_s: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    status: int | None = None
    retry_after_s: float = math.nan
    prompt_tokens: float = math.nan
    output_tokens: float = math.nan
    cached_tokens: float = math.nan
    finish_reason: str = ""
    ending: Ending | None = None
    detail: str = ""

    @property
    def first_token_s(self) -> float:
        """Return when the first chunk with text arrived."""
        return self.chunk_s[0] if self.chunk_s else math.nan

    def refused(self, status: int, detail: object) -> None:
        """Record a status that is no success."""
        self.status, self.ending = status, ending_of(status)
        self.detail = str(detail)[:LONGEST_DETAIL]


class Client:
    """Sends requests to a target over connections of its own.

    ``read_s`` returns the time of the run; ``fresh`` opens a connection for each request.
    """

    def __init__(self, target: Target, *, read_s: Callable[[], float], fresh: bool = False) -> None:
        self._target = target
        self._read_s = read_s
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(self._reuses)
        trace.on_connection_create_start.append(self._connects)
        trace.on_connection_create_end.append(self._connected)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=fresh),
            timeout=aiohttp.ClientTimeout(total=None),
            headers=target.all_headers(),
            trace_configs=[trace],
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def send(self, body: Mapping[str, Any], exchange: Exchange) -> None:
        """Send a request; write what comes back into ``exchange`` as it comes.

        If the caller leaves, the task is cancelled and with it the connection closed; what had come
        by then stays in the exchange.
        """
        exchange.sent_s = self._read_s()
        try:
            while not await self._answered(body, exchange):
                exchange.reconnects += 1
        except aiohttp.ClientConnectorError as err:
            exchange.ending, exchange.detail = Answers.unreachable, str(err)
        except (aiohttp.ClientError, ConnectionError) as err:
            exchange.ending, exchange.detail = Answers.cut_off, str(err) or type(err).__name__
        except (ValueError, KeyError, TypeError, LookupError) as err:
            exchange.ending, exchange.detail = Answers.unreadable, repr(err)[:LONGEST_DETAIL]
        finally:
            exchange.finish_s = self._read_s()
        if exchange.ending is None and not exchange.chunk_s:
            exchange.ending, exchange.detail = Answers.unreadable, "an answer without a token"

    async def _answered(self, body: Mapping[str, Any], exchange: Exchange) -> bool:
        """Send once and take the answer; return False if an idle connection had been closed.

        A server may close a connection that it has kept open while a request is on its way; no part
        of that request has been answered, so it goes out again, as curl and browsers do.
        """
        try:
            async with self._session.post(
                self._target.address, json=body, trace_request_ctx=exchange
            ) as response:
                exchange.status = response.status
                exchange.retry_after_s = retry_after_s(response.headers.get("Retry-After"))
                if response.status != 200:  # noqa: PLR2004
                    exchange.refused(response.status, await response.text())
                elif response.content_type == "text/event-stream":
                    await self._take_stream(response, exchange)
                else:
                    self._take(json.loads(await response.read()), exchange)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if exchange.reused and exchange.status is None:
                return False
            raise
        return True

    async def _take_stream(self, response: aiohttp.ClientResponse, exchange: Exchange) -> None:
        """Take an answer event by event; one that ends before the server says so is cut off."""
        async for events in _events(response.content):
            for event in SSEClient(iter([events])).events():
                if event.data == "[DONE]":
                    return
                self._take(json.loads(event.data), exchange)
                if exchange.ending is not None:
                    return
        if not exchange.finish_reason:
            exchange.ending, exchange.detail = Answers.cut_off, "the stream ended before [DONE]"

    def _take(self, message: Mapping[str, Any], exchange: Exchange) -> None:
        """Take a whole answer, or one event of a stream."""
        if error := message.get("error"):
            code = error.get("code") if isinstance(error, Mapping) else None
            exchange.refused(code if isinstance(code, int) and code >= 400 else 500, error)  # noqa: PLR2004
            return
        for choice in message.get("choices", ()):
            said = choice.get("delta") or choice.get("message") or {}
            if text := choice.get("text") or said.get("content") or said.get("reasoning_content"):
                exchange.chunk_s.append(self._read_s())
                exchange.text.append(text)
            exchange.finish_reason = choice.get("finish_reason") or exchange.finish_reason
        if usage := message.get("usage"):
            cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            exchange.prompt_tokens = _number(usage.get("prompt_tokens"))
            exchange.output_tokens = _number(usage.get("completion_tokens"))
            exchange.cached_tokens = _number(cached)

    async def _reuses(self, _: Any, context: SimpleNamespace, __: Any) -> None:
        context.trace_request_ctx.reused = True

    async def _connects(self, _: Any, context: SimpleNamespace, __: Any) -> None:
        exchange: Exchange = context.trace_request_ctx
        exchange.reused = False
        exchange.connect_s = -self._read_s()

    async def _connected(self, _: Any, context: SimpleNamespace, __: Any) -> None:
        exchange: Exchange = context.trace_request_ctx
        exchange.connect_s += self._read_s()


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the bytes of whole events, as soon as they are there."""
    left = b""
    async for chunk in content.iter_any():
        left += chunk
        ends = [left.rfind(mark) + len(mark) for mark in EVENT_ENDS if mark in left]
        if ends:
            yield left[: max(ends)]
            left = left[max(ends) :]


def retry_after_s(value: str | None) -> float:
    """Return the seconds of a Retry-After header, given as a number or as a date; NaN if neither.

    Source: RFC 9110, "HTTP Semantics", 2022, section 10.2.3.

    >>> retry_after_s("7"), retry_after_s(None), retry_after_s("soon")
    (7.0, nan, nan)
    """
    if value is None:
        return math.nan
    if value.strip().isdigit():
        return float(value)
    try:
        at = parsedate_to_datetime(value)
    except ValueError:
        return math.nan
    return max((at - datetime.now(UTC)).total_seconds(), 0.0)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
