"""Several buckets, cost in tokens, what an answer corrects, and what is used up."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.scenario.rate_limits import Allowance, RequestLimit, RetryBudget, TokenLimit
from capplan.simulation.attempt import Attempt, Request
from capplan.simulation.refusals import RateMeter, TokenBucket, Used, take_all
from capplan.simulation.retries import Budget

TENANTS = [{"name": "x"}, {"name": "y"}]
quiet = settings(max_examples=100)


def attempt_of(prompt_tokens, output_tokens=0):
    return Attempt(
        Request(
            *(0, "r", "chat", "x", "", 0, True, np.nan, np.nan, prompt_tokens, output_tokens, 0.0)
        ),
        attempt=1,
        start_s=0.0,
    )


def test_a_period_begins_anew_at_its_instant_with_any_rounding():
    """The third period of 0.1 s begins at 0.3 s, which is 2.9999999999999996 periods."""
    used = Used(Allowance(name="a", tokens=10, period_s=0.1))
    used.add(10, 0.2)
    assert used.is_gone(0.25)
    assert not used.is_gone(0.3)


def test_a_share_of_first_attempts_that_is_whole_lets_in_no_retry_more():
    """7 % of 100 is 7.000000000000001 in floating point."""
    budget = Budget(RetryBudget(fraction=0.07, min_per_s=0.0))
    for _ in range(100):
        budget.deposit(1.0)
    assert sum(budget.withdraw(2.0) for _ in range(50)) == 7


@pytest.mark.parametrize(("least_rps", "let_in"), [(0.0, 0), (0.1, 1), (0.3, 3)])
def test_a_tenth_of_two_first_attempts_is_no_retry_unless_some_are_granted(least_rps, let_in):
    budget = Budget(RetryBudget(fraction=0.1, min_per_s=least_rps))
    for _ in range(2):
        budget.deposit(1.0)
    assert sum(budget.withdraw(2.0) for _ in range(9)) == let_in


class Leaky:
    """A bucket counted with fractions: what is right."""

    def __init__(self, rate, burst):
        self.rate, self.burst = Fraction(rate), Fraction(burst)
        self.level, self.before = self.burst, Fraction(0)

    def fill(self, now):
        self.level = min(self.burst, self.level + (now - self.before) * self.rate)
        self.before = now


@quiet
@given(
    moves=st.lists(st.tuples(st.integers(0, 200), st.integers(-4, 7)), min_size=1, max_size=60),
    rate=st.sampled_from([0.5, 1.0, 4.0, 16.0]),
    burst=st.integers(1, 6),
)
def test_a_bucket_of_costs_is_leaky_arithmetic_also_below_zero_and_when_given_back(
    moves, rate, burst
):
    """A positive move asks for that many tokens, -1 … -3 gives back, 0 and -4 charge 2."""
    bucket, exact = TokenBucket(rate, burst), Leaky(rate, burst)
    for tick, move in sorted(moves):
        now = Fraction(tick, 64)
        exact.fill(now)
        if move > 0:
            cost = min(move, burst)
            wait_s = max(float((cost - exact.level) / exact.rate), 0)
            assert bucket.wait_s(float(now), cost) == pytest.approx(wait_s, abs=1e-8)
            if wait_s == 0:
                bucket.charge(float(now), cost)
                exact.level -= cost
        else:
            cost = 2 if move in {0, -4} else move
            bucket.charge(float(now), cost)
            exact.level = min(exact.burst, exact.level - cost)


@quiet
@given(
    ticks=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 8)), min_size=1, max_size=60),
    rates=st.tuples(*[st.sampled_from([0.5, 2.0, 8.0])] * 3),
    bursts=st.tuples(*[st.integers(1, 8)] * 3),
    estimate=st.integers(0, 2),
)
def test_an_attempt_takes_from_all_buckets_or_from_none(ticks, rates, bursts, estimate):
    limits = [
        RateMeter(RequestLimit(name="a", rate_rps=rates[0], burst=bursts[0])),
        RateMeter(TokenLimit(name="b", rate_tokens_per_s=rates[1], burst_tokens=bursts[1])),
        RateMeter(
            TokenLimit(
                name="c",
                rate_tokens_per_s=rates[2],
                burst_tokens=bursts[2],
                output_estimate_tokens=estimate,
            )
        ),
    ]
    exact = [Leaky(*pair) for pair in zip(rates, bursts, strict=True)]
    for tick, prompt in sorted(ticks):
        now = Fraction(tick, 64)
        costs = (1, prompt, prompt + estimate)
        for one in exact:
            one.fill(now)
        failure = take_all(limits, attempt_of(prompt), float(now))
        lacks = [
            float((cost - one.level) / one.rate) for one, cost in zip(exact, costs, strict=True)
        ]
        if any(cost > burst for cost, burst in zip(costs, bursts, strict=True)):
            assert failure.status == 413
            assert not failure.can_be_retried
        elif max(lacks) > 0:
            assert failure.status == 429
            assert failure.can_be_retried
            assert failure.retry_after_s == pytest.approx(max(lacks), abs=1e-8)
            worst = failure.reason.partition(":")[2]
            assert lacks["abc".index(worst)] == max(lacks)
        else:
            assert failure is None
            for one, cost in zip(exact, costs, strict=True):
                one.level -= cost


def test_a_tenant_and_a_class_have_buckets_of_their_own(build, trace_of, play):
    scenario = build(
        classes=[{"name": "chat"}, {"name": "batch"}],
        tenants=TENANTS,
        gateway={
            "rate_limits": [
                {"name": "noisy", "tenant": "x", "rate_rps": 2.0, "burst": 3},
                {"name": "deferred", "request_class": "batch", "rate_rps": 1.0},
            ]
        },
    )
    trace = trace_of(
        [0.0] * 12,
        tenant=["x", "y"] * 6,
        request_class=["chat"] * 8 + ["batch"] * 4,
    )
    log = play(scenario, trace).requests
    chat, batch = log[log["request_class"] == "chat"], log[log["request_class"] == "batch"]
    assert chat["reason"].fillna("").tolist() == ["", ""] * 3 + ["rate_limit:noisy", ""]
    # x has used its three, so its first takes nothing from the batch bucket, which y then finds.
    assert batch["reason"].fillna("").tolist() == [
        "rate_limit:noisy", "", "rate_limit:deferred", "rate_limit:deferred",
    ]  # fmt: skip


def test_the_global_limit_stands_beside_those_of_tenants(build, trace_of, play):
    scenario = build(
        tenants=TENANTS,
        gateway={
            "rate_limits": [
                {"rate_rps": 1.0, "burst": 3},
                {"name": "x", "tenant": "x", "rate_rps": 1.0},
            ]
        },
    )
    log = play(scenario, trace_of([0.0] * 6, tenant=["x", "x", "y", "y", "y", "x"])).requests
    # of equal waits, the log names the limit that stands first
    assert log["reason"].fillna("").tolist() == [
        "", "rate_limit:x", "", "", "rate_limit", "rate_limit",
    ]  # fmt: skip


def test_over_a_token_limit_the_tokens_let_in_are_burst_plus_rate_times_time(build, trace_of, play):
    limit = {"name": "t", "rate_tokens_per_s": 500.0, "burst_tokens": 1000, "corrected": False}
    limit["output_estimate_tokens"] = 28
    rng = np.random.default_rng(1)
    scenario = build(gateway={"token_limits": [limit]})
    trace = trace_of(np.arange(4000) / 200, prompt_tokens=rng.integers(2, 172, 4000))
    log = play(scenario, trace).requests
    through = log[log["outcome"] == "succeeded"]
    spent = (through["prompt_tokens"] + 28).sum()
    assert 1000 + 500 * 19.995 - 200 < spent <= 1000 + 500 * 19.995
    assert set(log["reason"].dropna()) == {"token_limit:t"}
    late = log[log["reason"].notna()]
    assert late["prompt_tokens"].mean() > through["prompt_tokens"].mean()


@pytest.mark.parametrize(("corrected", "second"), [(True, 1.25), (False, 2.25)])
def test_an_answer_shorter_than_estimated_gives_tokens_back(
    build, trace_of, play, corrected, second
):
    """100 + 150 booked of 250; the answer of 50 gives 100 back, and 100 tokens take a second."""
    limit = {"name": "t", "rate_tokens_per_s": 100.0, "burst_tokens": 250}
    limit |= {"output_estimate_tokens": 150, "corrected": corrected}
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 9}}],
        gateway={"token_limits": [limit]},
    )
    log = play(scenario, trace_of([0.0, 0.5], output_tokens=50)).requests
    assert log["finish_s"].iloc[0] < 0.5
    come = log[log["outcome"] == "succeeded"]["gateway_in_s"].tolist()
    # full again 2.5 s after it was empty; 1 s earlier where 100 tokens were given back
    assert come == pytest.approx([0.0, second + 0.25], abs=1e-6)


def test_an_answer_longer_than_estimated_is_owed(build, trace_of, play):
    limit = {"name": "t", "rate_tokens_per_s": 100.0, "burst_tokens": 100}
    scenario = build(gateway={"token_limits": [limit]})
    log = play(scenario, trace_of([0.0, 2.4, 2.6], output_tokens=[160, 1, 1])).requests
    assert log["finish_s"].iloc[0] < 2.4
    # 100 + 160 taken of 100: full again after 2.6 s
    assert log["reason"].fillna("").tolist() == ["", "token_limit:t", ""]


def test_what_costs_more_than_the_bucket_holds_is_too_large_for_ever(build, trace_of, play):
    limit = {"name": "t", "rate_tokens_per_s": 100.0, "burst_tokens": 150}
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 5}}],
        gateway={"token_limits": [limit]},
    )
    result = play(scenario, trace_of([0.0, 0.1], prompt_tokens=[151, 150]))
    log = result.requests
    assert log["reason"].fillna("").tolist() == ["request_too_large:t", ""]
    assert log["attempt"].tolist() == [1, 1]


def test_a_used_up_allowance_refuses_without_retry_until_its_period_ends(build, trace_of, play):
    allowance = {"name": "month", "tenant": "x", "tokens": 300, "period_s": 10.0}
    scenario = build(
        classes=[{"name": "chat", "retry": {"max_attempts": 5}}],
        tenants=TENANTS,
        gateway={"allowances": [allowance]},
    )
    trace = trace_of(
        [0.0, 1.0, 2.0, 3.0, 4.0, 10.0], output_tokens=50, tenant=["x", "x", "x", "y", "x", "x"]
    )
    log = play(scenario, trace).requests
    # 100 + 50 twice: gone.
    gone = "quota_exhausted:month"
    assert log["reason"].fillna("").tolist() == ["", "", gone, "", gone, ""]
    assert (log["attempt"] == 1).all()
