"""Closed forms of queueing theory, used to cross-check simulations and to start a search.

Rates are per second, times in seconds; ``servers`` can be 10,000 and more: nothing here builds a
factorial. A queue that is not stable has an infinite wait, which is a value, not an error.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

_STATES = 5_000_000
"""Most states of a waiting line that are summed one by one; beyond, an integral takes over."""
_ERLANG_A = ("wait_share", "abandon_share", "mean_wait_s", "mean_queue", "busy_fraction")


def littles_law(rate_rps: float, time_s: float) -> float:
    """Return the mean number inside, L = λ W.

    Source: Little, "A Proof for the Queuing Formula: L = λW", Operations Research 9, 1961.

    >>> littles_law(5.0, 2.0)
    10.0
    """
    _not_negative(rate_rps=rate_rps, time_s=time_s)
    return rate_rps * time_s


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


def mmc_mean_wait_s(servers: int, rate_rps: float, service_s: float) -> float:
    """Return the mean wait in the queue of M/M/c, W = C / (c μ - λ); inf if it is not stable.

    Source: Gross et al. 2008, section 2.3.

    >>> round(mmc_mean_wait_s(1, 0.5, 1.0), 6)
    1.0
    """
    offered = _offered(servers, rate_rps, service_s)
    if offered >= servers:
        return math.inf
    return erlang_c(servers, offered) * service_s / (servers - offered)


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


def md1_mean_wait_s(rate_rps: float, service_s: float) -> float:
    """Return the mean wait in M/D/1, ρ s / (2 (1 - ρ)): half that of M/M/1.

    Source: :func:`mg1_mean_wait_s` with a coefficient of variation of zero.

    >>> md1_mean_wait_s(0.5, 1.0)
    0.5
    """
    return mg1_mean_wait_s(rate_rps, service_s, service_cv=0.0)


def mg1_mean_wait_s(rate_rps: float, service_s: float, service_cv: float) -> float:
    """Return the mean wait in M/G/1, ρ s (1 + cv²) / (2 (1 - ρ)); inf if it is not stable.

    Source: Pollaczek and Khinchine; Kleinrock, "Queueing Systems", vol. 1, 1975, section 5.6.

    >>> mg1_mean_wait_s(0.5, 1.0, service_cv=1.0)
    1.0
    """
    load = _offered(1, rate_rps, service_s)
    _not_negative(service_cv=service_cv)
    if load >= 1:
        return math.inf
    return load * service_s * (1 + service_cv**2) / (2 * (1 - load))


def ggc_mean_wait_s(
    servers: int, rate_rps: float, service_s: float, *, arrival_cv: float, service_cv: float
) -> float:
    """Return the approximate mean wait in G/G/c: that of M/M/c times (cva² + cvs²) / 2.

    Exact for M/M/c and, with one server, for M/G/1. For M/G/c give ``arrival_cv=1``.
    Source: Allen, "Probability, Statistics, and Queueing Theory", 2nd ed., 1990, chapter 5
    (the Allen-Cunneen approximation).

    >>> round(ggc_mean_wait_s(1, 0.5, 1.0, arrival_cv=1.0, service_cv=0.0), 6)
    0.5
    """
    _not_negative(arrival_cv=arrival_cv, service_cv=service_cv)
    factor = (arrival_cv**2 + service_cv**2) / 2
    wait = mmc_mean_wait_s(servers, rate_rps, service_s)
    return wait if math.isinf(wait) else wait * factor


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


def square_root_staffing(offered: float, beta: float) -> int:
    """Return a + β √a servers, rounded up.

    Source: Halfin and Whitt, "Heavy-Traffic Limits for Queues with Many Exponential Servers",
    Operations Research 29, 1981; Erlang knew the rule in 1924.

    >>> square_root_staffing(100.0, 1.0)
    110
    """
    _not_negative(offered=offered)
    return max(1, math.ceil(offered + beta * math.sqrt(offered) - 1e-9))


def halfin_whitt(beta: float) -> float:
    """Return the limit of Erlang's C at a + β √a servers: 1 / (1 + β Φ(β) / φ(β)).

    Source: Halfin and Whitt 1981, proposition 1.

    >>> round(halfin_whitt(1.0), 4)
    0.2234
    """
    from scipy.special import ndtr

    if beta <= 0:
        return 1.0
    density = math.exp(-(beta**2) / 2) / math.sqrt(2 * math.pi)
    return density / (density + beta * float(ndtr(beta))) if density > 0 else 0.0


def erlang_a(
    servers: int, rate_rps: float, service_s: float, patience_s: float
) -> dict[str, float]:
    """Return the steady state of M/M/c+M, whose waiting callers leave after a mean patience.

    Returns
    -------
    dict
        ``wait_share`` (share that waits), ``abandon_share`` (share that leaves unserved),
        ``mean_wait_s`` (of all callers, served or not), ``mean_queue`` and ``busy_fraction``. The
        queue is stable at any load, as long as patience is finite.

    Source: Palm 1946; Mandelbaum and Zeltyn, "Service Engineering in Action: The Palm/Erlang-A
    Queue, with Applications to Call Centers", 2007 (its birth-death equations).

    >>> found = erlang_a(1, 1.0, 1.0, 1.0)  # c μ = θ: the number inside is Poisson(1)
    >>> round(found["wait_share"], 6), round(1 - found["abandon_share"], 6)
    (0.632121, 0.632121)
    """
    offered = _patient(servers, rate_rps, service_s, patience_s)
    if rate_rps == 0:
        return dict.fromkeys(_ERLANG_A, 0.0)
    x, y = servers * patience_s / service_s, rate_rps * patience_s
    weights = _log_line(x, y)
    if weights is None:
        log_line, queue = _log_line_integral(x, y), None
    else:
        log_line = _log_sum(weights)
        queue = float(np.exp(weights - log_line) @ np.arange(weights.size))
    blocked = erlang_b(servers, offered)
    log_waiting = math.log(blocked) + log_line if blocked > 0 else -math.inf
    waiting = 1 / (1 + math.exp(min(700.0, math.log1p(-blocked) - log_waiting)))
    if queue is None:  # with A the sum of the line's weights, λ θ' P(abandon | wait)
        queue = math.exp(-log_line) * x + y - x
    mean_queue = waiting * queue
    abandon = mean_queue / patience_s / rate_rps
    busy = offered * (1 - abandon) / servers
    found = (waiting, abandon, mean_queue / rate_rps, mean_queue, busy)
    return dict(zip(_ERLANG_A, found, strict=True))


def erlang_a_wait_quantile_s(
    servers: int, rate_rps: float, service_s: float, patience_s: float, quantile: float = 0.99
) -> float:
    """Return a quantile of the time in the queue in M/M/c+M, served or given up.

    P(W > t) = P(wait) exp(-t/θ') γ(x, y e^(-t/θ')) / γ(x, y) with θ' the mean patience,
    x = c θ' / s and y = λ θ': the offered wait exceeds t and the caller is still there.
    Source: Mandelbaum and Zeltyn 2007; Zeltyn and Mandelbaum, "Call centers with
    impatient customers: many-server asymptotics of the M/M/n+G queue", Queueing Systems 51, 2005.

    >>> round(erlang_a_wait_quantile_s(1, 1.0, 1.0, 1.0, 0.9), 4)
    1.0678
    """
    _quantile(quantile)
    _patient(servers, rate_rps, service_s, patience_s)
    waiting = erlang_a(servers, rate_rps, service_s, patience_s)["wait_share"]
    if waiting <= 1 - quantile:
        return 0.0
    target = math.log((1 - quantile) / waiting)
    x, y = servers * patience_s / service_s, rate_rps * patience_s
    whole = _log_line_any(x, y)

    def excess(t: float) -> float:
        """Return log P(W > t | W > 0) minus the target: falls with t."""
        left = y * math.exp(-t / patience_s)
        offered = -x * t / patience_s + (y - left) + _log_line_any(x, left) - whole
        return offered - t / patience_s - target

    high = service_s
    while excess(high) > 0:
        high *= 2
    return _root(excess, high)


def _root(falling: object, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(falling, 0.0, high, xtol=1e-12 * high, rtol=1e-12))


def _log_line(x: float, y: float) -> npt.NDArray[np.float64] | None:
    """Return log(y^j / ((x+1) … (x+j))), j = 0, 1, …, until negligible: weights of the line.

    None if more than ``_STATES`` of them matter.
    """
    peak = max(0.0, y - x)
    # past the peak the weights fall at least like a normal and at least geometrically
    spread = 9.0 * math.sqrt(2 * max(x, y) + 1) + 45.0
    count = math.ceil(peak + min(spread, _geometric(x, y)) + 45.0)
    if count > _STATES:
        return None
    steps = math.log(y) - np.log(x + np.arange(1, count)) if y > 0 else np.full(count - 1, -np.inf)
    return np.concatenate(([0.0], np.cumsum(steps)))


def _geometric(x: float, y: float) -> float:
    """Return after how many states the weights have fallen by e^-45, if y < x."""
    return 45.0 / math.log(x / y) if 0 < y < x else math.inf


def _log_sum(weights: npt.NDArray[np.float64]) -> float:
    top = float(weights.max())
    return top + math.log(float(np.exp(weights - top).sum()))


def _log_line_integral(x: float, y: float) -> float:
    """Return the log of the sum of the line's weights, x e^y y^-x γ(x, y), by the gamma function.

    Source: Mandelbaum and Zeltyn 2007, the function A(x, y).
    """
    from scipy.special import gammainc, gammaln

    part = float(gammainc(x, y))
    return y - x * math.log(y) + float(gammaln(x + 1)) + math.log(part)


def _log_line_any(x: float, y: float) -> float:
    weights = _log_line(x, y)
    return _log_line_integral(x, y) if weights is None else _log_sum(weights)


def _offered(servers: int, rate_rps: float, service_s: float) -> float:
    _servers(servers)
    _not_negative(rate_rps=rate_rps, service_s=service_s)
    return rate_rps * service_s


def _patient(servers: int, rate_rps: float, service_s: float, patience_s: float) -> float:
    offered = _offered(servers, rate_rps, service_s)
    if not 0 < patience_s < math.inf or service_s <= 0:
        msg = f"patience_s and service_s must be positive and finite, got {patience_s}, {service_s}"
        raise ValueError(msg)
    return offered


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
