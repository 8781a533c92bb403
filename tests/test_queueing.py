import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan import queueing as q

servers = st.integers(1, 200)
loads = st.floats(0.01, 0.99)


def direct_erlang_b(count, offered):
    """Erlang's formula as it stands in textbooks: a^c / c! over the sum of a^k / k!."""
    terms = [offered**k / math.factorial(k) for k in range(count + 1)]
    return terms[-1] / sum(terms)


@given(st.integers(0, 60), st.floats(0.01, 80.0))
def test_erlang_b_by_recursion_equals_the_formula(count, offered):
    assert q.erlang_b(count, offered) == pytest.approx(direct_erlang_b(count, offered), rel=1e-9)


@pytest.mark.parametrize(
    ("count", "offered", "blocked"),
    [(1, 1.0, 0.5), (2, 1.0, 0.2), (10, 4.461, 0.01), (20, 12.03, 0.01), (100, 84.064, 0.01)],
)
def test_erlang_b_agrees_with_the_published_tables(count, offered, blocked):
    assert q.erlang_b(count, offered) == pytest.approx(blocked, rel=2e-3)


@given(loads)
def test_one_server_is_mm1(load):
    assert q.erlang_c(1, load) == pytest.approx(load)
    assert q.mmc_mean_wait_s(1, load, 1.0) == pytest.approx(load / (1 - load))
    assert q.mg1_mean_wait_s(load, 1.0, 1.0) == pytest.approx(load / (1 - load))
    assert q.md1_mean_wait_s(load, 1.0) == pytest.approx(load / (1 - load) / 2)


@settings(max_examples=20)
@given(servers, loads, st.floats(0.1, 10.0))
def test_the_mean_wait_is_the_integral_of_the_tail(count, load, service):
    rate = load * count / service
    probabilities = (np.arange(1000) + 0.5) / 1000
    waits = [q.mmc_wait_quantile_s(count, rate, service, p) for p in probabilities]
    mean = q.mmc_mean_wait_s(count, rate, service)
    assert np.mean(waits) == pytest.approx(mean, rel=0.02, abs=1e-3 * service)


@given(servers, loads)
def test_waiting_is_likelier_than_blocking_and_falls_with_servers(count, load):
    offered = load * count
    assert q.erlang_b(count, offered) <= q.erlang_c(count, offered) <= 1.0
    assert q.erlang_c(count + 1, offered) <= q.erlang_c(count, offered)
    assert q.mmc_mean_wait_s(count + 1, offered, 1.0) <= q.mmc_mean_wait_s(count, offered, 1.0)


@given(servers, st.floats(1.0, 3.0))
def test_without_capacity_waits_are_infinite(count, load):
    rate = load * count
    assert q.erlang_c(count, rate) == 1.0
    assert q.mmc_mean_wait_s(count, rate, 1.0) == math.inf
    assert q.mmc_wait_quantile_s(count, rate, 1.0, 0.5) == math.inf
    assert q.ggc_mean_wait_s(count, rate, 1.0, arrival_cv=0.0, service_cv=0.0) == math.inf


@given(loads, st.floats(0.0, 3.0))
def test_allen_cunneen_is_pollaczek_khinchine_for_poisson_arrivals_to_one_server(load, cv):
    exact = q.mg1_mean_wait_s(load, 1.0, cv)
    assert q.ggc_mean_wait_s(1, load, 1.0, arrival_cv=1.0, service_cv=cv) == pytest.approx(exact)


def test_ten_thousand_servers_keep_their_digits():
    offered = 9_900.0
    limit = q.halfin_whitt((10_000 - offered) / math.sqrt(offered))
    assert q.erlang_c(10_000, offered) == pytest.approx(limit, rel=0.02)
    assert q.erlang_b(10_000, 10.0) == 0.0
    assert math.isfinite(q.mmc_wait_quantile_s(10_000, offered, 1.0, 0.99))


@given(st.floats(0.1, 2.0))
def test_erlang_c_approaches_halfin_and_whitts_limit(beta):
    offered = 1e4
    count = q.square_root_staffing(offered, beta)
    actual = (count - offered) / math.sqrt(offered)
    assert q.erlang_c(count, offered) == pytest.approx(q.halfin_whitt(actual), rel=0.05)


@given(st.floats(0.5, 300.0), st.floats(0.01, 3.0), st.sampled_from([0.9, 0.99, 0.999]))
def test_the_fewest_servers_meet_the_wait_and_one_less_does_not(rate, wait, quantile):
    found = q.servers_for_wait(rate, 1.0, wait, quantile=quantile)
    assert q.mmc_wait_quantile_s(found, rate, 1.0, quantile) <= wait
    if found > 1:
        assert q.mmc_wait_quantile_s(found - 1, rate, 1.0, quantile) > wait


def birth_death(count, rate, service, patience, states=4000):
    """Erlang A from its balance equations, state by state, in plain arithmetic."""
    log = [0.0]
    for n in range(1, states):
        leave = min(n, count) / service + max(n - count, 0) / patience
        log.append(log[-1] + math.log(rate / leave))
    weight = np.exp(np.array(log) - max(log))
    weight /= weight.sum()
    n = np.arange(states)
    return weight[count:].sum(), float(weight @ np.maximum(n - count, 0))


@given(
    st.integers(1, 60),
    st.floats(0.1, 2.0),
    st.floats(0.2, 5.0),
    st.floats(0.05, 20.0),
)
def test_erlang_a_solves_its_balance_equations(count, load, service, patience):
    rate = load * count / service
    waiting, queue = birth_death(count, rate, service, patience)
    found = q.erlang_a(count, rate, service, patience)
    assert found["wait_share"] == pytest.approx(waiting, rel=1e-6)
    assert found["mean_queue"] == pytest.approx(queue, rel=1e-6, abs=1e-12)
    assert found["mean_wait_s"] == pytest.approx(queue / rate, rel=1e-6, abs=1e-12)


def test_erlang_a_of_the_published_call_centre():
    """48 calls a minute, 50 agents, 1-minute calls, 2-minute patience.

    Garnett, Mandelbaum and Reiman, "Designing a Call Center with Impatient Customers", 2002,
    table 1: 3.1 % abandon, mean wait 3.7 s (3.6), 3 in the queue, agents 93 % busy; without
    abandonment 20.8 s, 17 in the queue and 96 %.
    """
    found = q.erlang_a(50, 48.0, 1.0, 2.0)
    assert found["abandon_share"] == pytest.approx(0.031, abs=5e-4)
    assert found["mean_wait_s"] * 60 == pytest.approx(3.7, abs=0.11)
    assert found["mean_queue"] == pytest.approx(3.0, abs=0.5)
    assert found["busy_fraction"] == pytest.approx(0.93, abs=5e-3)
    assert q.mmc_mean_wait_s(50, 48.0, 1.0) * 60 == pytest.approx(20.8, abs=0.1)
    assert q.mmc_wait_quantile_s(50, 48.0, 1.0, 0.9) * 60 == pytest.approx(58.1, abs=0.2)
    assert q.erlang_a_wait_quantile_s(50, 48.0, 1.0, 2.0, 0.9) * 60 == pytest.approx(12.5, abs=0.2)


@given(st.integers(1, 50), st.floats(0.1, 0.9))
def test_without_impatience_erlang_a_becomes_erlang_c(count, load):
    rate = load * count
    found = q.erlang_a(count, rate, 1.0, 1e7)
    assert found["wait_share"] == pytest.approx(q.erlang_c(count, rate), rel=1e-3)
    assert found["mean_wait_s"] == pytest.approx(q.mmc_mean_wait_s(count, rate, 1.0), rel=1e-3)
    assert found["abandon_share"] < 1e-4
    for quantile in (0.5, 0.99):
        patient = q.erlang_a_wait_quantile_s(count, rate, 1.0, 1e7, quantile)
        assert patient == pytest.approx(
            q.mmc_wait_quantile_s(count, rate, 1.0, quantile), rel=1e-2, abs=1e-6
        )


@given(st.integers(1, 50), st.floats(0.1, 2.0))
def test_without_patience_erlang_a_becomes_erlang_b(count, load):
    rate = load * count
    found = q.erlang_a(count, rate, 1.0, 1e-9)
    assert found["abandon_share"] == pytest.approx(q.erlang_b(count, rate), rel=1e-6)


@settings(max_examples=20)
@given(st.integers(1, 50), st.floats(0.1, 1.5), st.floats(0.1, 5.0))
def test_the_mean_wait_of_erlang_a_is_the_integral_of_its_tail(count, load, patience):
    rate = load * count
    probabilities = (np.arange(200) + 0.5) / 200
    waits = [q.erlang_a_wait_quantile_s(count, rate, 1.0, patience, p) for p in probabilities]
    mean = q.erlang_a(count, rate, 1.0, patience)["mean_wait_s"]
    assert np.mean(waits) == pytest.approx(mean, rel=0.05, abs=2e-3)


def test_overload_with_endless_patience_abandons_what_cannot_be_served():
    found = q.erlang_a(10_000, 20_000.0, 1.0, 1e6)
    assert found["abandon_share"] == pytest.approx(0.5, rel=1e-6)
    assert found["busy_fraction"] == pytest.approx(1.0, rel=1e-6)
    assert found["mean_wait_s"] == pytest.approx(0.5e6, rel=1e-6)


def test_the_sum_and_the_integral_agree(monkeypatch):
    exact = q.erlang_a(20, 30.0, 1.0, 50.0)
    monkeypatch.setattr(q, "_STATES", 10)
    for name, value in q.erlang_a(20, 30.0, 1.0, 50.0).items():
        assert value == pytest.approx(exact[name], rel=1e-9)


def test_ten_thousand_servers_with_abandonment_take_no_time_and_no_overflow():
    found = q.erlang_a(10_000, 10_000.0, 1.0, 30.0)
    assert 0 < found["wait_share"] < 1
    assert math.isfinite(q.erlang_a_wait_quantile_s(10_000, 10_000.0, 1.0, 30.0, 0.999))


@pytest.mark.parametrize(
    "call",
    [
        lambda: q.erlang_b(-1, 1.0),
        lambda: q.erlang_c(0, 1.0),
        lambda: q.erlang_c(1, math.nan),
        lambda: q.mmc_mean_wait_s(1, -1.0, 1.0),
        lambda: q.mmc_wait_quantile_s(1, 0.5, 1.0, 1.0),
        lambda: q.erlang_a(1, 1.0, 1.0, 0.0),
        lambda: q.erlang_a(1, 1.0, 1.0, math.inf),
        lambda: q.littles_law(-1.0, 1.0),
    ],
)
def test_impossible_arguments_are_errors(call):
    with pytest.raises(ValueError, match="must"):
        call()


def test_no_arrivals_wait_for_nobody():
    assert set(q.erlang_a(3, 0.0, 1.0, 1.0).values()) == {0.0}
    assert q.mmc_mean_wait_s(3, 0.0, 1.0) == 0.0
