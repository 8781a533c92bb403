import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.sizing import rules as q

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


@given(loads, st.floats(0.01, 0.99))
def test_one_server_is_mm1(load, quantile):
    """Source: Kleinrock, "Queueing Systems", vol. 1, 1975: P(W > t) = ρ exp(-(1 - ρ) t / s)."""
    assert q.erlang_c(1, load) == pytest.approx(load)
    wait = q.mmc_wait_quantile_s(1, load, 1.0, quantile)
    beyond = load * math.exp(-(1 - load) * wait)
    assert beyond == pytest.approx(min(load, 1 - quantile))


@given(servers, loads)
def test_waiting_is_likelier_than_blocking_and_falls_with_servers(count, load):
    offered = load * count
    assert q.erlang_b(count, offered) <= q.erlang_c(count, offered) <= 1.0
    assert q.erlang_c(count + 1, offered) <= q.erlang_c(count, offered)


@given(servers, st.floats(1.0, 3.0))
def test_without_capacity_waits_are_infinite(count, load):
    assert q.erlang_c(count, load * count) == 1.0
    assert q.mmc_wait_quantile_s(count, load * count, 1.0, 0.5) == math.inf


def test_fifty_agents_wait_as_the_published_call_centre():
    """48 calls a minute, 50 agents, 1-minute calls: 58.1 s at the 90th percentile.

    Garnett, Mandelbaum and Reiman, "Designing a Call Center with Impatient Customers", 2002,
    table 1, the column without abandonment.
    """
    assert q.mmc_wait_quantile_s(50, 48.0, 1.0, 0.9) * 60 == pytest.approx(58.1, abs=0.2)


def test_ten_thousand_servers_keep_their_digits():
    """C tends to 1 / (1 + β Φ(β) / φ(β)): Halfin and Whitt, Operations Research 29, 1981."""
    offered, beta = 9_900.0, 100.0 / math.sqrt(9_900.0)
    density = math.exp(-(beta**2) / 2) / math.sqrt(2 * math.pi)
    below = (1 + math.erf(beta / math.sqrt(2))) / 2
    assert q.erlang_c(10_000, offered) == pytest.approx(
        density / (density + beta * below), rel=0.02
    )
    assert q.erlang_b(10_000, 10.0) == 0.0


@given(st.floats(0.5, 300.0), st.floats(0.01, 3.0), st.sampled_from([0.9, 0.99, 0.999]))
def test_the_fewest_servers_meet_the_wait_and_one_less_does_not(rate, wait, quantile):
    found = q.servers_for_wait(rate, 1.0, wait, quantile=quantile)
    assert q.mmc_wait_quantile_s(found, rate, 1.0, quantile) <= wait
    if found > 1:
        assert q.mmc_wait_quantile_s(found - 1, rate, 1.0, quantile) > wait


@pytest.mark.parametrize(
    "call",
    [
        lambda: q.erlang_b(-1, 1.0),
        lambda: q.erlang_c(0, 1.0),
        lambda: q.erlang_c(1, math.nan),
        lambda: q.mmc_wait_quantile_s(1, 0.5, 1.0, 1.0),
        lambda: q.servers_for_wait(1.0, 1.0, -1.0),
    ],
)
def test_impossible_arguments_are_errors(call):
    with pytest.raises(ValueError, match="must"):
        call()
