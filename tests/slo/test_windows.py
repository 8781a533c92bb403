"""A promise holds in every window: what breaks one of them, and what is chance."""

import numpy as np
import pytest

from capplan import charts
from capplan.results import per_request
from capplan.scenario.files import load_scenario, with_values
from capplan.simulation import simulate
from capplan.slo import judge, promise_windows
from capplan.stages.violations import breaks_of, margins_of

WINDOW_S = 60.0
P95 = {"ttft_s": 2.0, "quantile": 0.95, "window_s": WINDOW_S}


def reason(verdict, rule="ttft_s"):
    [found] = [r for r in verdict.reasons if r.rule == rule]
    return found


def late(n, first, last, share, seed=7):
    """TTFTs of n requests, ten a second: of those in [first, last) this share comes late."""
    chance = np.random.default_rng(seed).random(n)
    at = np.arange(n) * 0.1
    return np.where((at >= first) & (at < last) & (chance < share), 3.0, 0.5)


def test_a_promise_that_breaks_for_some_minutes_fails_though_the_whole_run_keeps_it(run, scenario):
    asked = scenario(P95)
    result = run(6000, ttft=late(6000, 300, 360, 0.4), asked=asked)
    found = reason(judge(result))
    assert found.outcome == "fail"
    assert found.value == pytest.approx(3.0)
    assert found.value > found.limit
    assert found.window.length_s == WINDOW_S
    assert 290 <= found.window.start_s <= 310
    assert judge(result).to_json()["reasons"][0]["window"]["length_s"] == WINDOW_S


def test_what_a_window_breaks_is_proven_though_the_whole_stage_seems_to_keep_it(run, scenario):
    def breaks(first, last, share):
        result = run(6000, ttft=late(6000, first, last, share), asked=scenario(P95))
        margins = list(margins_of(per_request(result), result.scenario))
        return breaks_of(judge(result), margins)

    [found] = breaks(300, 360, 0.3)
    assert found.share.value < found.allowed_fraction
    assert found.proven
    assert not breaks(0, 600, 0.03)


def test_as_many_late_answers_spread_over_the_run_pass(run, scenario):
    result = run(6000, ttft=late(6000, 0, 600, 0.04), asked=scenario(P95))
    found = reason(judge(result))
    assert (found.outcome, found.window) == ("pass", None)
    worst = promise_windows(result).worst
    assert worst["failed_windows"].tolist() == [0]


@pytest.mark.parametrize("promise", ["availability_fraction", "goodput_fraction"])
def test_shares_hold_in_every_window_too(run, scenario, promise):
    at = np.arange(6000)
    ends = np.where((at >= 3000) & (at < 3100), "failed", "succeeded").astype(object)
    bound = {promise: 0.95, "ttft_s": 9.0, "window_s": WINDOW_S, "quantile": 0.9}
    verdict = judge(run(6000, outcome=ends, asked=scenario(bound)))
    found = reason(verdict, promise)
    assert found.outcome == "fail"
    assert found.value == pytest.approx(1 - 100 / 600)
    assert reason(verdict, "ttft_s").outcome == "fail"  # a failure has no first token
    assert judge(run(6000, asked=scenario(bound))).outcome == "pass"


def test_a_window_with_too_few_requests_breaks_nothing(run, scenario):
    """Ten late answers at p99 are too many of the ten of a minute, and too few to say so."""
    at = np.arange(2000) * 0.1
    start = np.where(at < 190, at, at + np.arange(2000) * 0.0)
    start[-10:] = 260 + np.arange(10.0)
    ttft = np.where(np.arange(2000) >= 1990, 3.0, 0.5)
    quiet = {"intended_start_s": start, "finish_s": start + ttft + 1, "first_token_s": start + ttft}
    asked = scenario({"ttft_s": 2.0, "quantile": 0.99, "window_s": 15.0})
    result = run(2000, ttft=ttft, asked=asked, **quiet)
    windows = promise_windows(result).frame
    broken = windows[windows["broken"] > 0]
    assert set(broken["outcome"]) == {"unknown"}
    assert reason(judge(result)).outcome != "fail"


def test_the_busiest_hour_is_judged_like_the_whole_run(run, scenario):
    """At p95, 6 % of the busy hour and none of the three quiet ones: 3.4 % in all."""
    busy = np.arange(3600.0)
    start = np.concatenate([busy, 3600 + np.arange(0, 10800, 4.0)])
    ttft = np.where((np.arange(start.size) < 3600) & (np.arange(start.size) % 100 < 6), 3.0, 0.5)
    columns = {"intended_start_s": start, "finish_s": start + 4, "first_token_s": start + ttft}
    promises = {"ttft_s": 2.0, "quantile": 0.95, "window_s": 1e6}
    result = run(start.size, ttft=ttft, asked=scenario(promises), **columns)
    found = reason(judge(result))
    assert (found.outcome, found.value) == ("fail", 3.0)
    assert found.window.length_s == 3600.0
    assert found.window.start_s == 0.0
    kept = with_values(scenario(promises), {"classes.chat.promises.quantile": 0.9})
    assert reason(judge(run(start.size, ttft=ttft, asked=kept, **columns))).outcome == "pass"


def test_a_run_no_longer_than_a_window_has_none(run, scenario):
    windows = promise_windows(run(asked=scenario({"ttft_s": 2.0})))
    assert list(windows.defaults) == ["chat"]
    assert windows.frame.empty
    assert windows.worst["windows"].tolist() == [0]
    assert windows.summary()


def test_independent_breaks_at_the_promised_share_alarm_in_at_most_one_run_of_twenty(run, scenario):
    """The least favourable case: as many requests break the promise as may, by chance alone."""
    asked, alarms = scenario({**P95, "window_s": 20.0}), 0
    for seed in range(60):
        result = run(2000, ttft=late(2000, 0, 200, 0.05, seed=seed), asked=asked)
        windows = promise_windows(result)
        assert len(windows.frame) > 40
        alarms += int((windows.worst["failed_windows"] > 0).any())
    assert alarms <= 3


def test_a_stationary_service_within_its_promise_raises_no_alarm():
    """Waits come in clusters; a fifth between the tail and the promise is room for them."""
    base = load_scenario("benchmark", values={"requests": 4000})
    runs = [simulate(base, seed=seed) for seed in range(10)]
    tail = np.mean([per_request(r)["ttft_s"].quantile(0.95) for r in runs])

    def alarms(limit):
        promises = {"ttft_s": limit, "quantile": 0.95, "window_s": 10.0}
        name = base.classes[0].name
        asked = with_values(base, {"classes": [{"name": name, "promises": promises}]})
        found = [promise_windows(r, asked).worst["failed_windows"].sum() > 0 for r in runs]
        return sum(found)

    assert alarms(1.2 * tail) == 0
    assert alarms(0.7 * tail) == 10


def test_windows_are_drawn_and_shown(run, scenario):
    result = run(6000, ttft=late(6000, 300, 360, 0.4), asked=scenario(P95))
    windows = promise_windows(result)
    table = windows.table()
    assert table["failed_windows"].max() > 0
    drawn = windows.over_time()
    assert len(drawn) <= 300
    assert drawn["of_allowed"].max() > 1
    assert list(drawn["request_class"].cat.categories) == [c.name for c in result.scenario.classes]
    assert charts.promises_over_time(drawn).to_dict()
