"""What bends a comparison with a measured run: the first minute, limits, stalls, its own noise."""

import json

import numpy as np
import pandas as pd
import pytest

from capplan.encoding import to_text
from capplan.measured import read_measured
from capplan.schema import DataError
from capplan.validation import validate
from capplan.validation.stalls import LEAST_SLOW, LEVEL, find_comb, slow_rows


def arrivals(rng, *, n=3000, rate_rps=7.5):
    return np.cumsum(rng.exponential(1 / rate_rps, n))


def random_rows(rng, start, slow=60):
    return np.sort(rng.choice(len(start), slow, replace=False))


def rows_after(start, teeth, within_s):
    """Return the first arrival within so many seconds after each tooth."""
    rows = np.searchsorted(start, teeth)
    near = (rows < len(start)) & (start[np.minimum(rows, len(start) - 1)] - teeth < within_s)
    return np.unique(rows[near])


def wandering(rng, period_s, until_s, jitter=0.03):
    """Return the moments of stalls whose period varies from one to the next."""
    gaps = period_s * (1 + jitter * rng.standard_normal(int(until_s / period_s)))
    return np.cumsum(gaps)


@pytest.mark.parametrize(("period_s", "share"), [(0.8, 0.5), (2.8, 0.5), (11.0, 1.0)])
def test_a_wandering_comb_is_found_with_its_period(period_s, share):
    rng = np.random.default_rng(1)
    start = arrivals(rng, n=9000)
    comb = rows_after(start, wandering(rng, period_s, start[-1]), 0.05)
    kept = np.sort(rng.choice(comb, int(share * comb.size), replace=False))
    rows = np.unique(np.concatenate([kept, random_rows(rng, start, 5)]))
    found = find_comb(start, rows, draws=199)
    assert found.p_value <= LEVEL
    assert found.period_s == pytest.approx(period_s, rel=0.05)
    assert found.whole_fraction > 0.4


def false_alarms(draw, runs=60, level=0.05):
    return sum(find_comb(*draw(np.random.default_rng(s)), draws=39).p_value <= level
               for s in range(runs)) / runs  # fmt: skip


def test_random_slow_requests_are_no_comb():
    def draw(rng):
        start = arrivals(rng, n=1500)
        return start, random_rows(rng, start, 40)

    assert false_alarms(draw) <= 0.1  # 0.05 expected


def test_neither_regular_arrivals_nor_bursts_nor_a_rough_hour_are_a_comb():
    def bursts(rng):
        start = arrivals(rng, n=3000)
        first = rng.uniform(0, start[-1], 14)
        moments = np.concatenate([first, *(first + rng.exponential(3.0, (2, 14)))])
        return start, np.unique(np.searchsorted(start, moments[moments < start[-1]]))

    def regular(rng):
        start = np.arange(1500) * 0.4
        return start, random_rows(rng, start, 40)

    def rough(rng):
        start = arrivals(rng, n=1500)
        return start, np.sort(rng.choice(np.arange(700, 1100), 40, replace=False))

    assert false_alarms(regular) <= 0.1
    assert false_alarms(rough) <= 0.1
    assert false_alarms(bursts) <= 0.1


def test_slow_is_far_above_the_neighbours_not_a_drift():
    rng = np.random.default_rng(0)
    late = np.linspace(0.0, 1.0, 2000) + 0.002 * rng.standard_normal(2000)
    late[[400, 900]] += 0.05
    excess, slow = slow_rows(late, 0.001)
    assert np.flatnonzero(slow).tolist() == [400, 900]
    assert excess[400] == pytest.approx(0.05, abs=0.01)
    assert not slow_rows(late, 0.1)[1].any()


@pytest.fixture
def stalled(measured, requests, write):
    """Return a run whose front end stalls 60 ms every 3 s, measured by simulation otherwise."""
    rows = requests(1500, 12.0).assign(output_tokens=8)
    seen = measured(rows).requests
    rng = np.random.default_rng(0)
    teeth = wandering(rng, 3.0, seen["start_s"].max())
    until = np.append(teeth, np.inf)[np.searchsorted(teeth, seen["start_s"] - 0.06)] + 0.06
    wait = np.where(until - 0.06 <= seen["start_s"], until - seen["start_s"], 0.0)
    noise = 1 + 0.02 * rng.standard_normal(len(seen))
    table = pd.DataFrame(
        {
            "intended_start_s": seen["start_s"],
            "prompt_tokens": seen["prompt_tokens"],
            "output_tokens": seen["output_tokens"],
            "ttft_s": seen["ttft_s"] * noise + wait,
            "e2e_s": seen["e2e_s"] + seen["ttft_s"] * (noise - 1) + wait,
        }
    )
    return write(table, name="stalled"), wait > 0


def test_stalls_are_found_and_the_run_is_right_without_them(stalled):
    run, during = stalled
    found = validate(run, request_overhead_s=0.0)
    assert found.stalls.found
    assert found.stalls.comb.period_s == pytest.approx(3.0, rel=0.05)
    assert 0.03 < found.stalls.longest_s < 0.07
    left = found.without["stalls"]
    assert left.left_out_fraction == pytest.approx(during.mean(), abs=0.01)
    assert found.latencies["ttft_s"]["p99"].error_fraction < -0.15
    assert abs(left.latencies["ttft_s"]["p99"].error_fraction) < 0.08
    document = json.loads(to_text(found.to_json()))
    assert document["stalls"]["found"] is True
    assert document["without"]["stalls"]["metrics"]["ttft_s"]["p99"]["measured"] < 0.1
    assert "error_without_stalls_fraction" in found.table()
    assert "Periodic stalls" in str(found)


def test_without_slow_requests_stalls_are_unknown_and_nothing_is_left_out(measured, requests):
    found = validate(measured(requests(150, 8.0)), request_overhead_s=0.0)
    assert found.stalls.found is None
    assert found.stalls.slow < LEAST_SLOW
    assert "stalls" not in found.without
    assert found.to_json()["stalls"]["period_s"] is None


def test_the_first_minute_is_left_out_beside_the_whole(write, requests):
    rows = requests(1000, 8.0)
    cold = rows["intended_start_s"] < 60.0
    found = validate(write(rows.assign(ttft_s=0.1 + 0.4 * cold)))
    warm = found.without["first_60_s"]
    assert warm.n == int((rows["intended_start_s"] - rows["intended_start_s"].min() >= 60).sum())
    assert found.latencies["ttft_s"]["p90"].measured == pytest.approx(0.5)
    assert warm.latencies["ttft_s"]["p90"].measured == pytest.approx(0.1)
    short = validate(write(requests(40, 4.0))).without["first_60_s"]
    assert (short.n, short.left_out_fraction) == (0, 1.0)
    assert np.isnan(short.latencies["ttft_s"]["mean"].error_fraction)


@pytest.mark.parametrize(
    ("field", "server"),
    [
        ("max_num_seqs", {"max_num_seqs": 8}),
        ("client_max_in_flight", {"client_max_in_flight": 4}),
        ("kv_blocks", {"kv_blocks": 250}),
    ],
)
def test_a_run_at_a_limit_is_flagged_and_judged_without_it(measured, requests, field, server):
    burst = requests(200, 200.0, seed=1)
    rows = pd.concat(
        [requests(100, 2.0), burst.assign(intended_start_s=80 + burst.intended_start_s)]
    )
    run = measured(rows, **server)
    law = {"kind": "calibrated", "dense_scale": 1.1}
    slow = validate(run, step_time=law, request_overhead_s=0.0)
    limit = next(one for one in slow.caps if one.field == field)
    assert limit.predicted_fraction > 0.3
    assert field in str(slow)
    left = slow.without["at_cap"]
    assert 0 < left.n < slow.n
    ours, theirs = (x["ttft_s"]["mean"].error_fraction for x in (slow.latencies, left.latencies))
    assert abs(theirs) < abs(ours)


def test_a_run_below_its_limits_is_not_flagged(measured, requests):
    found = validate(measured(requests(150, 8.0), max_num_seqs=64), request_overhead_s=0.0)
    assert found.caps == ()
    assert set(found.without) == {"first_60_s"}
    assert found.to_json()["caps"] == []


def test_a_small_error_of_tpot_is_a_large_one_of_ttft_at_a_limit(measured, requests):
    run = measured(requests(300, 60.0), max_num_seqs=16)
    found = validate(run, step_time={"kind": "calibrated", "dense_scale": 0.97})
    tpot, ttft = (abs(found.latencies[n]["p50"].error_fraction) for n in ("tpot_s", "ttft_s"))
    assert ttft > tpot
    assert found.caps


def test_errors_stand_beside_what_a_repeat_differs_by(measured, write, requests):
    rows = requests(150, 8.0)
    first = measured(rows)
    again = write(
        rows.assign(ttft_s=first.requests["ttft_s"] * 1.1, e2e_s=first.requests["e2e_s"]),
        name="again",
    )
    found = validate(first, repeat=again, request_overhead_s=0.0)
    table = found.table().set_index(["metric", "figure"])["repeat_differs_fraction"]
    assert table["ttft_s", "p50"] == pytest.approx(0.1)
    assert table["e2e_s", "p99"] == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(table["in_flight", ""])
    assert found.to_json()["repeat"]["measured"] == "again"
    assert validate(first).to_json()["repeat"] is None


def test_another_load_or_server_is_no_repeat(measured, write, requests):
    first = measured(requests(150, 8.0))
    with pytest.raises(DataError, match=r"other: rate_rps: .* a repeat"):
        validate(first, repeat=write(requests(150, 12.0), name="other"))
    with pytest.raises(DataError, match=r"other: max_num_seqs: .*got 9"):
        validate(first, repeat=write(requests(150, 8.0), name="other", max_num_seqs=9))


H100 = "vllm-h100-llama-2-"
BELOW_LIMITS = (
    f"{H100}70b-hf-tp4-codegen", f"{H100}70b-tp4-general", f"{H100}7b-tp1-general",
    f"{H100}7b-tp1-roleplay", "vllm-h100-qwen3-14b-w5_sweep-agg6", "vllm-rtx4090-llama-3.1-8b",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BELOW_LIMITS)
def test_no_stall_is_found_in_runs_that_have_none(shared_data, name):
    assert not validate(read_measured(shared_data / "measured" / name)).stalls.found


@pytest.mark.slow
def test_the_slow_first_tokens_of_codegen_are_periodic_stalls(shared_data):
    found = validate(read_measured(shared_data / f"measured/{H100}7b-tp1-codegen"))
    assert found.stalls.comb.p_value <= LEVEL
    assert found.stalls.comb.period_s == pytest.approx(2.8, rel=0.02)
    assert found.latencies["ttft_s"]["p99"].error_fraction < -0.2
    assert abs(found.without["stalls"].latencies["ttft_s"]["p99"].error_fraction) < 0.08
