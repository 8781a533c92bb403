"""The response cache: what the gateway answers itself, without any pool."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from capplan.scenario import Scenario
from capplan.scenario.gateway import ResponseCache
from capplan.simulation.attempt import Attempt, Gauge
from capplan.simulation.clock import Clock


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that is kept."""

    made_s: float
    output_tokens: int
    bytes: float


class Answers:
    """The answers that are kept, the least recently used first.

    >>> answers = Answers(ResponseCache(capacity=1, ttl_s=10.0))
    >>> answers.keep("a", 0.0, prompt_tokens=90, output_tokens=10)
    >>> answers.keep("b", 1.0, prompt_tokens=40, output_tokens=10)
    >>> answers.find("a", 2.0) is None, answers.find("b", 2.0).output_tokens, answers.bytes
    (True, 10, 200.0)
    >>> answers.find("b", 11.0) is None, answers.bytes
    (True, 0.0)
    """

    def __init__(self, rules: ResponseCache) -> None:
        self.bytes = 0.0
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._by_age: deque[tuple[float, Hashable]] = deque()
        self._most = math.inf if rules.capacity is None else rules.capacity
        self._ttl_s = math.inf if rules.ttl_s is None else rules.ttl_s
        self._bytes_per_token = rules.bytes_per_token

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Hashable, now_s: float) -> Kept | None:
        """Return the answer kept under a key, now the most recently used; None without one."""
        self.drop_old(now_s)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: Hashable, now_s: float, *, prompt_tokens: int, output_tokens: int) -> None:
        """Keep an answer in place of the one under the same key."""
        self.drop_old(now_s)
        self._drop(key)
        size = (prompt_tokens + output_tokens) * self._bytes_per_token
        self._kept[key] = Kept(now_s, output_tokens, size)
        self.bytes += size
        if self._ttl_s < math.inf:
            self._by_age.append((now_s, key))
        while len(self._kept) > self._most:
            self._drop(next(iter(self._kept)))

    def drop_old(self, now_s: float) -> None:
        """Drop the answers that are too old."""
        while self._by_age and self._by_age[0][0] + self._ttl_s <= now_s:
            made_s, key = self._by_age.popleft()
            if (kept := self._kept.get(key)) is not None and kept.made_s == made_s:
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self.bytes -= kept.bytes


class CachedResponses:
    """The response cache of a run: looks up every attempt that the gateway passes on.

    Attributes
    ----------
    lookup_s
        How long a lookup takes, s.
    lookups, hits
        Attempts that were looked up, and that were found.
    """

    def __init__(
        self,
        rules: ResponseCache,
        *,
        shares: Mapping[str, float],
        clock: Clock,
        draws: np.random.Generator,
    ) -> None:
        self.lookup_s = rules.lookup_s
        self.lookups = self.hits = 0
        self._rules = rules
        self._answers = Answers(rules)
        self._shares = shares
        self._clock = clock
        self._draws = draws

    def keep(self, attempt: Attempt) -> None:
        """Keep an answer, unless it was degraded."""
        if not attempt.degraded:
            self._answers.keep(
                self._key(attempt) or attempt.request.row,
                self._clock.now,
                prompt_tokens=attempt.prompt_tokens,
                output_tokens=attempt.output_tokens,
            )

    def finds(self, attempt: Attempt) -> bool:
        """Return whether an attempt's answer is kept; it then has that answer's length."""
        self.lookups += 1
        found = self._find(attempt)
        self.hits += found
        return found

    def gauges(self) -> Iterable[Gauge]:
        """Return what the timeline shows: name, reading, and whether it is a total."""
        yield "response_cache_bytes", self._bytes, False
        yield "response_cache_entries", lambda: len(self._answers), False
        yield "response_cache_hits_rps", lambda: self.hits, True
        yield "response_cache_lookups_rps", lambda: self.lookups, True

    def _bytes(self) -> float:
        self._answers.drop_old(self._clock.now)
        return self._answers.bytes

    def _find(self, attempt: Attempt) -> bool:
        key = self._key(attempt)
        if key is None:
            share = self._shares[attempt.request.request_class]
            return share > 0 and float(self._draws.random()) < share
        kept = self._answers.find(key, self._clock.now)
        if kept is not None:
            attempt.output_tokens = kept.output_tokens
        return kept is not None

    def _key(self, attempt: Attempt) -> Hashable:
        """Return what identical requests have in common; None if the trace does not say."""
        request, per_id = attempt.request, attempt.prefix_block_tokens
        ids = attempt.prefix_blocks
        if not per_id or len(ids) * per_id < attempt.prompt_tokens:
            return None
        asked = tuple(map(int, ids[: -(-attempt.prompt_tokens // per_id)]))
        owner = request.tenant if self._rules.per_tenant else ""
        return request.request_class, owner, attempt.prompt_tokens, asked


def cached_responses(
    scenario: Scenario, *, clock: Clock, draws: Callable[[], np.random.Generator]
) -> CachedResponses | None:
    """Return the response cache of a scenario; None without one."""
    rules = scenario.gateway.response_cache
    if rules is None:
        return None
    shares = {c.name: c.response_cached_fraction for c in scenario.classes}
    return CachedResponses(rules, shares=shares, clock=clock, draws=draws())
