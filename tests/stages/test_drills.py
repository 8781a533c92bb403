"""The drills show the truth that stands in their heads."""

import pytest

from capplan.bundled import data_path
from capplan.results import headline, per_request
from capplan.scenario.files import load_scenario
from capplan.simulation import simulate
from capplan.slo import judge
from capplan.stages import run_stages

NAMES = sorted(path.stem for path in data_path("scenarios", "drills").glob("*.yaml"))
BLIP_END_S = 120.0


def run(name, **values):
    scenario = load_scenario(f"drills/{name}", values=values)
    return simulate(scenario, seed=1)


def good_after(result, start_s):
    table = per_request(result)
    return float(table.loc[table["intended_start_s"] >= start_s, "good"].mean())


def test_every_drill_is_described():
    text = data_path("scenarios", "drills", "README.md").read_text()
    assert NAMES
    assert [name for name in NAMES if f"`{name}.yaml`" not in text] == []


def test_an_unlimited_queue_is_fully_busy_and_answers_none_in_time():
    figures = headline(run("infinite-queue"))
    assert figures["accelerator_busy_fraction"] > 0.99
    assert figures["goodput_rps"] < 0.01
    assert figures["outcomes"]["timed_out"] == figures["offered"]
    assert figures["wasted_token_fraction"] == 1.0


def test_a_bounded_queue_holds_the_goodput_that_the_replica_can_do():
    figures = headline(run("bounded-queue"))
    assert figures["goodput_rps"] == pytest.approx(10.0, rel=0.05)
    assert figures["outcomes"]["timed_out"] == 0
    assert figures["outcomes"]["rejected"] > 0


def test_naive_retries_keep_a_blip_alive_after_the_load_is_back():
    result = run("retry-storm")
    assert good_after(result, 0) > 0
    assert good_after(result, BLIP_END_S + 60) < 0.01
    late = per_request(result)
    late = late[late["intended_start_s"] > BLIP_END_S + 60]
    assert late["attempts"].mean() > 5


def test_a_retry_budget_with_jitter_and_retry_after_lets_it_end():
    result = run("retry-budget")
    assert good_after(result, BLIP_END_S + 60) > 0.99
    assert headline(result)["retry_amplification"] < 1.2
    assert result.requests["attempt"].max() > 2


def test_it_is_the_budget_that_lets_it_end():
    without = run("retry-budget", **{"classes.chat.retry.budget": None})
    assert good_after(without, BLIP_END_S + 60) < 0.1
    budget = {"fraction": 0.2, "min_per_s": 0.1, "window_s": 10.0}
    alone = run("retry-storm", **{"classes.chat.retry.budget": budget})
    assert good_after(alone, BLIP_END_S + 60) > 0.99


def test_the_second_wave_stands_on_the_timeline():
    waves = {}
    for name in ("retry-storm", "retry-budget"):
        result = run(name)
        timeline = result.timeline[result.timeline["metric"] == "retries_rps"]
        late = timeline[timeline["time_s"].between(BLIP_END_S + 60, 590)]
        waves[name] = late["value"].mean()
    assert waves["retry-storm"] > 10
    assert waves["retry-budget"] < 0.1


@pytest.mark.parametrize(("name", "back"), [("retry-storm", False), ("retry-budget", True)])
def test_the_acceptance_tells_whether_it_comes_back(name, back):
    found = run_stages(load_scenario(f"drills/{name}"), seed=1)
    assert found.recovery.converged is back
    failed = {r.rule for r in found.verdict.reasons if r.outcome == "fail"}
    if back:
        assert not failed & {"backlog_drains", "errors_back", "answers_back"}
    else:
        assert failed >= {"backlog_drains", "errors_back", "answers_back", "retries_stop"}
        assert found.verdict.outcome == "fail"


def test_a_mean_looks_fine_while_one_in_a_hundred_waits_for_seconds():
    result = run("hidden-tail")
    figures = headline(result)
    assert figures["e2e_s"]["mean"] < 0.1
    [broken] = [r for r in judge(result).reasons if r.rule == "e2e_s"]
    assert broken.outcome == "fail"
    assert broken.value == pytest.approx(5.0)


def test_who_wins_over_a_slow_link_depends_on_the_load():
    """Alone, a request is faster on more accelerators; together, more replicas serve more."""
    points = {}
    for tensor_parallel in (1, 4, 8):
        for rate in (1.0, 40.0):
            values = {
                "pools.llm.tensor_parallel": tensor_parallel,
                "pools.llm.replicas": 8 // tensor_parallel,
                "traffic.shape.rate_rps": rate,
                "traffic.duration_s": 60.0,
            }
            figures = headline(run("slow-link", **values))
            points[tensor_parallel, rate] = figures
    alone = [points[n, 1.0]["e2e_s"]["mean"] for n in (1, 4, 8)]
    assert alone == sorted(alone, reverse=True)
    together = [points[n, 40.0]["goodput_fraction"] for n in (1, 4, 8)]
    assert together == sorted(together, reverse=True)
    assert together[0] > 2 * together[1]
    assert together[2] < 0.1
    assert points[8, 40.0]["e2e_s"]["mean"] > points[1, 40.0]["e2e_s"]["mean"]


def good_of(result, tenant):
    table = per_request(result)
    return float(table.loc[table["tenant"] == tenant, "good"].mean())


@pytest.mark.parametrize(
    ("name", "isolated", "quiet"), [("noisy-tenant", "fail", 0.2), ("tenant-limit", "pass", 1.0)]
)
def test_a_limit_for_each_tenant_isolates_the_quiet_one(name, isolated, quiet):
    assert good_of(run(name), "quiet") == pytest.approx(quiet, abs=0.2)
    found = run_stages(load_scenario(f"drills/{name}"), seed=1)
    [reason] = [r for r in found.verdict.reasons if r.rule == "tenant_isolation"]
    assert (reason.outcome, reason.value) == (isolated, "loud")
    acted = {p.boundary.field for p in found.protections if p.acted}
    assert ("gateway.rate_limits.loud.rate_rps" in acted) is (isolated == "pass")
    assert "gateway.rate_limits.quiet.rate_rps" not in acted


def test_a_quota_isolates_the_quiet_tenant_and_leaves_nothing_idle():
    """The loud one gets nearly what 2.4/s leave of 10/s for 300 s, not 4/s as with its limit."""
    result = run("tenant-quota")
    assert good_of(result, "quiet") > 0.9
    answered = result.requests[result.requests["outcome"] == "succeeded"]
    assert 0.93 < (answered["tenant"] == "loud").sum() / (7.6 * 300) < 1.03
    found = run_stages(load_scenario("drills/tenant-quota"), seed=1)
    [reason] = [r for r in found.verdict.reasons if r.rule == "tenant_isolation"]
    assert (reason.outcome, reason.value) == ("pass", "loud")
    assert "gateway.quotas" in {p.boundary.field for p in found.protections if p.acted}


def level(result, metric, replica="llm"):
    rows = result.timeline.query("metric == @metric and replica == @replica")
    return rows.set_index("time_s")["value"]


def test_the_slowest_replica_sets_the_tail_and_the_median_does_not_tell():
    figures = headline(run("slow-replica"))
    assert figures["e2e_s"]["p50"] == pytest.approx(0.1)
    assert figures["e2e_s"]["p90"] == pytest.approx(0.5)
    assert figures["goodput_fraction"] == pytest.approx(0.75, abs=0.001)
    assert figures["accelerator_busy_fraction"] == pytest.approx(0.3, abs=0.001)
    by_load = headline(run("slow-replica", **{"pools.llm.router.policy": "least_in_flight"}))
    assert by_load["goodput_fraction"] == pytest.approx(0.75, abs=0.001)


def test_a_lost_machine_leaves_the_line_that_arithmetic_tells():
    result = run("node-loss")
    assert headline(result)["outcomes"]["failed"] == 2
    replicas = level(result, "replicas")
    step_s = replicas.index[1]
    away = replicas[replicas < 4]
    assert set(away) == {2}
    assert away.index[0] == pytest.approx(100, abs=step_s)
    assert away.index[-1] == pytest.approx(160, abs=step_s)
    line = level(result, "length")
    assert line.max() == pytest.approx(240, abs=4)
    assert line[line > 0].index.max() == pytest.approx(175, abs=2 * step_s)
    waits = result.requests.eval("scheduler_queue_in_s - service_queue_in_s")
    assert waits.max() == pytest.approx(10, abs=0.1)
    assert result.requests["intended_start_s"][waits.idxmax()] == pytest.approx(150, abs=1)


def test_after_a_reload_every_replica_computes_every_prefix_once_more():
    log = run("cold-cache").requests
    missed = log[log["cached_tokens"] == 0]
    after = missed["intended_start_s"] > 300
    for part in (missed[~after], missed[after]):
        assert part.groupby(["replica", "tenant"]).size().tolist() == [1] * 10
    found = log["cached_tokens"] > 0
    assert set(log["cached_tokens"][found]) == {1600}
    alone = (log["finish_s"] - log["batch_in_s"]).round(9)
    assert set(alone[found]) == {0.02}
    assert set(alone[~found]) == {1.62}


def test_a_load_and_the_survivor_slow_each_other_by_what_the_disk_lacks():
    result = run("shared-disk")
    replicas = level(result, "replicas", "vector")
    back_s = replicas[replicas < 2].index.max()
    assert back_s == pytest.approx(110 + 37.5, abs=replicas.index[1])
    log = result.requests
    e2e_s = log["finish_s"] - log["intended_start_s"]
    loading = log["intended_start_s"].between(110.5, 146.5)
    assert e2e_s[loading].to_numpy() == pytest.approx(0.15)
    assert e2e_s[log["intended_start_s"] > 150].to_numpy() == pytest.approx(0.1)
