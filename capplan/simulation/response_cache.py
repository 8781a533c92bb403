"""The response cache: what the gateway answers itself, without any pool."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capplan.scenario.gateway import ResponseCache
from capplan.simulation.attempt import Attempt, Failure
from capplan.simulation.clock import Clock, Rank
from capplan.simulation.timeline import Probe

if TYPE_CHECKING:
    import numpy as np

    from capplan.scenario import Scenario
    from capplan.simulation.gateway import Entrance, GatewayHost
    from capplan.simulation.pool import ServingPool


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer that is kept."""

    made_s: float
    output_tokens: int
    bytes: float


class Answers:
    """The answers that are kept, the least recently asked for first.

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
        """Return the answer kept under a key, as one that was asked for; None without one."""
        self.forget_old(now_s)
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def keep(self, key: Hashable, now_s: float, *, prompt_tokens: int, output_tokens: int) -> None:
        """Keep an answer, in place of what was kept under its key."""
        self.forget_old(now_s)
        self._drop(key)
        size = (prompt_tokens + output_tokens) * self._bytes_per_token
        self._kept[key] = Kept(now_s, output_tokens, size)
        self.bytes += size
        if self._ttl_s < math.inf:
            self._by_age.append((now_s, key))
        while len(self._kept) > self._most:
            self._drop(next(iter(self._kept)))

    def forget_old(self, now_s: float) -> None:
        """Forget what is too old by now."""
        while self._by_age and self._by_age[0][0] + self._ttl_s <= now_s:
            made_s, key = self._by_age.popleft()
            if (kept := self._kept.get(key)) is not None and kept.made_s == made_s:
                self._drop(key)

    def _drop(self, key: Hashable) -> None:
        if (kept := self._kept.pop(key, None)) is not None:
            self.bytes -= kept.bytes


class CachedResponses:
    """The response cache of a run: in front of every pool, and told of every answer.

    Attributes
    ----------
    lookups, hits
        Attempts that were looked up, and that were found.
    """

    def __init__(
        self,
        rules: ResponseCache,
        *,
        shares: Mapping[str, float],
        gateway: GatewayHost,
        clock: Clock,
        draws: np.random.Generator,
    ) -> None:
        self.lookups = self.hits = 0
        self._rules = rules
        self._answers = Answers(rules)
        self._shares = shares
        self._gateway = gateway
        self._clock = clock
        self._draws = draws

    def fronts(self, pools: Mapping[str, Entrance]) -> dict[str, Entrance]:
        """Return what stands before the pool of each class."""
        return {name: _Front(self, pool) for name, pool in pools.items()}

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits at the gateway."""
        return self._gateway.has_waiting

    def answered(self, attempt: Attempt) -> None:
        """Keep an answer on its way back."""
        if not attempt.degraded:
            self._answers.keep(
                self._key(attempt) or attempt.request.row,
                self._clock.now,
                prompt_tokens=attempt.prompt_tokens,
                output_tokens=attempt.output_tokens,
            )
        self._gateway.answered(attempt)

    def failed(self, attempt: Attempt, failure: Failure) -> None:
        """Pass a failure on."""
        self._gateway.failed(attempt, failure)

    def enter(self, attempt: Attempt, pool: Entrance) -> None:
        """Look an attempt up, then answer it or pass it on."""
        if self._rules.lookup_s > 0:
            known_s = self._clock.now + self._rules.lookup_s
            self._clock.at(known_s, Rank.ARRIVE, self._looked_up, (attempt, pool))
        else:
            self._looked_up((attempt, pool))

    def probes(self) -> Iterable[Probe]:
        """Return what the timeline shows."""
        yield Probe("gateway", "", "response_cache_bytes", self._bytes)
        yield Probe("gateway", "", "response_cache_entries", lambda: len(self._answers))
        yield Probe("gateway", "", "response_cache_hits_rps", lambda: self.hits, total=True)
        yield Probe("gateway", "", "response_cache_lookups_rps", lambda: self.lookups, total=True)

    def _bytes(self) -> float:
        self._answers.forget_old(self._clock.now)
        return self._answers.bytes

    def _looked_up(self, which: tuple[Attempt, Entrance]) -> None:
        attempt, pool = which
        if attempt.place != "gateway":  # its caller has left meanwhile
            return
        self.lookups += 1
        if not self._found(attempt):
            pool.arrive(attempt)
            return
        self.hits += 1
        attempt.outcome_layer = "gateway"
        self._gateway.answers(attempt)

    def _found(self, attempt: Attempt) -> bool:
        key = self._key(attempt)
        if key is None:
            share = self._shares[attempt.request.request_class]
            return share > 0 and float(self._draws.random()) < share
        kept = self._answers.find(key, self._clock.now)
        if kept is not None:
            attempt.output_tokens = kept.output_tokens
        return kept is not None

    def _key(self, attempt: Attempt) -> Hashable:
        """Return what requests have in common that ask the same; None where nobody can tell."""
        request, per_id = attempt.request, attempt.prefix_block_tokens
        ids = attempt.prefix_blocks
        if not per_id or len(ids) * per_id < attempt.prompt_tokens:
            return None
        asked = tuple(map(int, ids[: -(-attempt.prompt_tokens // per_id)]))
        owner = request.tenant if self._rules.per_tenant else ""
        return request.request_class, owner, attempt.prompt_tokens, asked


class _Front:
    """The response cache, as it stands before one pool."""

    def __init__(self, cache: CachedResponses, pool: Entrance) -> None:
        self._cache = cache
        self._pool = pool

    def arrive(self, attempt: Attempt) -> None:
        """Take an attempt from the gateway."""
        self._cache.enter(attempt, self._pool)

    def withdraw(self, attempt: Attempt) -> None:
        """Give an attempt up that has been passed on."""
        self._pool.withdraw(attempt)

    def serving(self, attempt: Attempt) -> ServingPool:
        """Return the pool behind."""
        return self._pool.serving(attempt)


def cached_responses(
    scenario: Scenario,
    *,
    gateway: GatewayHost,
    clock: Clock,
    draws: Callable[[], np.random.Generator],
) -> CachedResponses | None:
    """Return the response cache of a scenario; None where it has none."""
    rules = scenario.gateway.response_cache
    if rules is None:
        return None
    return CachedResponses(
        rules,
        shares={c.name: c.response_cached_fraction for c in scenario.classes},
        gateway=gateway,
        clock=clock,
        draws=draws(),
    )
