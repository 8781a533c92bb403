"""Closed forms of queueing theory for M/M/c: what a search for the number of replicas starts from.

Rates are per second, times in seconds; ``servers`` can be 10,000 and more: nothing here builds a
factorial. A queue that is not stable has an infinite wait, which is a value, not an error.
"""

from __future__ import annotations

import math


def erlang_b(servers: int, offered: float) -> float:
    """Return the share of arrivals that find all servers busy in M/G/c/c (lost calls).

    ``offered`` is λ / μ (erlangs). B(0) = 1, B(c) = a B(c-1) / (c + a B(c-1)).
    Source: Gross, Shortle, Thompson and Harris, "Fundamentals of Queueing Theory", 4th ed., 2008,
    section 2.5 (Erlang's loss formula).

    >>> round(erlang_b(10, 5.0), 6)
    0.018385
    """
    _servers(servers, least=0)
    _not_negative(offered=offered)
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = offered * blocked / (n + offered * blocked)
    return blocked


def erlang_c(servers: int, offered: float) -> float:
    """Return the share of arrivals that wait in M/M/c; 1 where the queue is not stable.

    C = B / (1 - ρ (1 - B)) with ρ = a / c and Erlang's B.
    Source: Gross et al. 2008, section 2.3, rewritten in terms of Erlang's B.

    >>> round(erlang_c(10, 5.0), 6)
    0.036105
    >>> erlang_c(1, 0.7)
    0.7
    """
    _servers(servers)
    _not_negative(offered=offered)
    if offered >= servers:
        return 1.0
    blocked = erlang_b(servers, offered)
    return blocked / (1 - offered / servers * (1 - blocked))


def mmc_wait_quantile_s(
    servers: int, rate_rps: float, service_s: float, quantile: float = 0.99
) -> float:
    """Return a quantile of the wait in M/M/c, from P(W > t) = C exp(-(c μ - λ) t).

    Source: Gross et al. 2008, section 2.3, the waiting-time distribution of M/M/c.

    >>> round(mmc_wait_quantile_s(1, 0.5, 1.0, 0.75), 4), mmc_wait_quantile_s(1, 0.5, 1.0, 0.5)
    (1.3863, 0.0)
    """
    _quantile(quantile)
    offered = _offered(servers, rate_rps, service_s)
    if offered >= servers:
        return math.inf
    waiting = erlang_c(servers, offered)
    if waiting <= 1 - quantile:
        return 0.0
    return math.log(waiting / (1 - quantile)) * service_s / (servers - offered)


def servers_for_wait(
    rate_rps: float, service_s: float, wait_s: float, *, quantile: float = 0.99
) -> int:
    """Return the fewest servers whose M/M/c wait stays within ``wait_s`` at a quantile.

    >>> servers_for_wait(9.0, 1.0, 1.0, quantile=0.9)
    11
    """
    _not_negative(wait_s=wait_s)
    servers = math.floor(_offered(1, rate_rps, service_s)) + 1
    if mmc_wait_quantile_s(servers, rate_rps, service_s, quantile) <= wait_s:
        return servers
    step = 1  # gallop up, then halve: the wait falls with every server
    while mmc_wait_quantile_s(servers + step, rate_rps, service_s, quantile) > wait_s:
        step *= 2
    low, high = servers + step // 2, servers + step
    while high - low > 1:
        middle = (low + high) // 2
        enough = mmc_wait_quantile_s(middle, rate_rps, service_s, quantile) <= wait_s
        low, high = (low, middle) if enough else (middle, high)
    return high


def _offered(servers: int, rate_rps: float, service_s: float) -> float:
    _servers(servers)
    _not_negative(rate_rps=rate_rps, service_s=service_s)
    return rate_rps * service_s


def _servers(servers: int, *, least: int = 1) -> None:
    if servers < least:
        msg = f"servers must be at least {least}, got {servers}"
        raise ValueError(msg)


def _quantile(quantile: float) -> None:
    if not 0 < quantile < 1:
        msg = f"quantile must lie strictly between 0 and 1, got {quantile}"
        raise ValueError(msg)


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            msg = f"{name} must not be negative, got {value}"
            raise ValueError(msg)
