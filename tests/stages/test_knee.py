"""The knee against closed forms, and how often its interval holds the true one."""

import heapq
import math

import numpy as np
import pytest

from capplan.stages.knee import BATCHES, knee_at, knee_interval

SEEDS = 40


def waits_with(servers, load, gaps, service):
    """Return the time in the system of M/M/c, first come first served, with unit service."""
    free = [0.0] * servers
    arrived = np.cumsum(gaps / load)
    times = np.empty(len(gaps))
    for i, (at, took) in enumerate(zip(arrived.tolist(), service.tolist(), strict=True)):
        done = max(at, heapq.heappop(free)) + took
        heapq.heappush(free, done)
        times[i] = done - at
    return times


def ramp(servers, seed, *, n=2000):
    """Return loads 1.1 apart from a fifth of the capacity to beyond it, and their batches."""
    rng = np.random.default_rng(seed)
    gaps, service = rng.exponential(size=(2, n + 400))
    loads = servers * 0.3 * 1.12 ** np.arange(12)
    table = np.ones((len(loads), BATCHES, 3))
    for row, load in zip(table, loads, strict=True):
        row[:, 2] = waits_with(servers, load, gaps, service)[400:].reshape(BATCHES, -1).mean(axis=1)
    return loads, table


def true_knee(servers):
    """Return the load of the greatest λ / T of M/M/c, by Erlang's C formula."""

    def power(load):
        lost = 1.0
        for k in range(1, servers + 1):
            lost = load * lost / (k + load * lost)
        waits = lost / (1 - load / servers * (1 - lost))
        return load / (1 + waits / (servers - load))

    return max(np.linspace(0.05, 0.999, 4000) * servers, key=power)


@pytest.mark.parametrize(("servers", "used"), [(1, 0.50), (2, 0.57), (8, 0.74)])
def test_the_closed_form_is_that_of_the_table(servers, used):
    assert true_knee(servers) / servers == pytest.approx(used, abs=0.01)


@pytest.mark.parametrize(("servers", "width"), [(1, 0.4), (8, 0.25)])
def test_the_interval_holds_the_true_knee_and_is_narrow(servers, width):
    true = true_knee(servers)
    rng = np.random.default_rng(1)
    found = [knee_interval(*ramp(servers, seed), rng=rng) for seed in range(SEEDS)]
    held = [low <= true <= high for _, low, high, _ in found]
    assert np.mean(held) >= 0.88
    assert np.mean([(high - low) / true for _, low, high, _ in found]) < width
    assert all(low <= at <= high for at, low, high, _ in found)


def test_the_knee_does_not_depend_on_where_the_ramp_ends():
    def power(loads):
        return loads * (10 - loads)

    for low, high in ((1.0, 9.0), (2.0, 9.9), (4.0, 7.0)):
        loads = np.linspace(low, high, 13)
        assert knee_at(loads, power(loads)) == pytest.approx(5.0)


def test_a_ramp_that_does_not_reach_the_knee_or_begins_beyond_it_has_none():
    loads = np.linspace(1.0, 4.0, 9)
    assert math.isnan(knee_at(loads, loads * (10 - loads)))
    beyond = np.linspace(6.0, 9.0, 9)
    assert math.isnan(knee_at(beyond, beyond * (10 - beyond)))


def test_failures_count_as_throughput_that_is_lost():
    """Past saturation successes are as quick as the limit on their wait: the power falls only
    because fewer of the requests succeed."""
    loads = np.array([4.0, 6.0, 8.0, 10.0, 20.0, 40.0])
    share = np.minimum(1.0, 8.0 / loads)
    table = np.ones((6, BATCHES, 3))
    table[:, :, 1] = share[:, None]
    table[:, :, 2] = (share * np.array([1.0, 1.0, 1.1, 1.5, 2.0, 2.0]))[:, None]
    at, low, high, _ = knee_interval(loads, table, rng=np.random.default_rng(1))
    assert 6.0 < low <= at <= high < 10.0
