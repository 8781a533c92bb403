import json
import math
from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.budget import varied
from capplan.replica.step_error import with_step_times
from capplan.scenario.files import load_scenario, with_values
from capplan.sizing import Loss, size
from capplan.sizing.loss import Outage, missed, outage_of, recovery_s, with_loss
from capplan.sizing.reasons import own_reason
from capplan.sizing.table import ROWS, _peak, protective_action
from capplan.stages.failure_stage import replacement_s

SERVICE_S = 0.1


def small(rate_rps=25.0, **values):
    """A pool of M/M/1 replicas, ten a second each, that promises an E2E of a second at p95."""
    base = load_scenario(
        "benchmark",
        values={
            "classes": [
                {
                    "name": "chat",
                    "owner": "chat",
                    "streaming": False,
                    "promises": {"e2e_s": 1.0, "quantile": 0.95, "min_samples": 200},
                    "prompt_tokens": {"kind": "lognormal", "p50_tokens": 100, "p95_tokens": 300},
                    "output_tokens": {"kind": "fixed", "tokens": 1},
                }
            ],
            "requests": 800,
            "stages": {"burst_s": 5.0, "every_s": 20.0},
            "traffic.shape": {"kind": "steady", "rate_rps": rate_rps},
            "pools": [
                {
                    "name": "llm",
                    "owner": "llm",
                    "price_usd_per_accelerator_hour": 2.0,
                    "queue": {"owner": "llm", "wait_limit_s": 30.0},
                    "router": {"max_in_flight": 1},
                    "batching": {
                        "kind": "dynamic",
                        "max_batch_size": 1,
                        "scheduler": {"owner": "llm", "wait_limit_s": 30.0},
                        "service": {"base_s": SERVICE_S, "exponential": True},
                    },
                }
            ],
        },
    )
    return with_values(base, values) if values else base


PATIENT = {"e2e_s": 60.0, "quantile": 0.95, "min_samples": 200}


@pytest.fixture(scope="module")
def sized():
    return size(small(), lose=(0, 1))


@pytest.fixture(scope="module")
def patient():
    return size(small(**{"classes.chat.promises": PATIENT}), lose=(0, 1))


def test_the_number_found_is_the_fewest_that_holds(sized):
    fewest = sized.replicas[0]
    assert fewest >= 3  # 25/s at 10/s each
    below = [r for r in sized.rejected if (r.lose.count, r.replicas) == (0, fewest - 1)]
    assert len(below) == 1
    assert below[0].reason
    assert below[0].rule in {"e2e_s", "stability", "success_only"}


def test_every_number_tried_is_on_the_record_once(sized):
    frame = sized.frame()
    assert not frame.duplicated(["replicas", "lost", "request_class"]).any()
    held = frame.groupby(["lost", "replicas"])["holds"].first()
    for lost, fewest in sized.replicas.items():
        assert all(held[lost][n] == (n >= fewest) for n in held[lost].index)
    assert set(frame["offered"]) == {800}  # the same requests against each of them


def test_rules_of_thumb_stand_beside_and_are_tried(sized):
    by_name = {(r.name, r.lose): r for r in sized.rules}
    assert set(by_name) == {(n, k) for n in ("erlang_c", "peak_times_1.2") for k in (0, 1)}
    erlang = by_name["erlang_c", 0]
    assert erlang.replicas == sized.replicas[0]  # the pool is an M/M/c queue
    assert erlang.holds is True
    assert by_name["erlang_c", 1].holds is True


def test_the_document_is_json_with_the_rows_of_the_contract(sized):
    document = sized.to_json()
    json.dumps(document, allow_nan=False)
    assert {"capacity_table", "failure_margin", "rejected", "verdict"} <= set(document)
    rows = {row["row"]: row for row in document["capacity_table"]}
    assert list(rows) == [
        "stable load",
        "acceptable peak",
        "burst protection",
        "failure degradation",
    ]
    keys = {"class_group", "outcome", "load_rps", "judged_rps", "replicas", "accelerators",
            "memory_bytes", "promises", "protective_action", "evidence"}  # fmt: skip
    assert all(keys <= set(row) for row in rows.values())
    assert rows["stable load"]["load_rps"] == pytest.approx(25.0, rel=0.1)
    assert rows["stable load"]["memory_bytes"] is None  # no accelerator was named
    assert rows["burst protection"]["load_rps"] is None
    assert rows["failure degradation"]["replicas"] == sized.replicas[1]
    margin = document["failure_margin"]
    assert [row["lose"]["count"] for row in margin] == [0, 1]
    assert margin[1]["cost_usd_per_hour"] == 2.0 * sized.replicas[1]
    assert margin[1]["protected"] == ["chat"]


def rows_of(found):
    return found.capacity_table.set_index("row")


def test_a_burst_that_is_served_is_shown_at_its_load(patient):
    """Requests that may wait for a minute outlast five seconds at twice the peak."""
    row = rows_of(patient).loc["burst protection"]
    assert row["outcome"] == "pass"
    assert row["load_rps"] == pytest.approx(2 * 25.0, rel=0.2)


def test_a_burst_that_breaks_a_promise_is_a_fail_at_the_load_it_was_judged_at(sized):
    row = rows_of(sized).loc["burst protection"]
    assert row["outcome"] == "fail"
    assert math.isnan(row["load_rps"])  # nothing is carried
    assert row["judged_rps"] == pytest.approx(2 * 25.0, rel=0.2)
    [reason] = [r for r in sized.verdict.decisive if r.rule == "burst_protection"]
    assert "broken: chat breaks" in reason.evidence
    shown = sized.limits().set_index("row").loc["burst protection"]
    assert (shown["outcome"], shown["load_rps"]) == ("fail", row["judged_rps"])


def test_more_replicas_than_the_fewest_are_judged_as_they_are(sized):
    plenty = size(small(**{"pools.llm.replicas": 9}), lose=(0, 1))
    assert plenty.replicas == sized.replicas
    assert set(plenty.capacity_table["replicas"]) == {9}  # every row is about the plan as given
    assert set(plenty.capacity_table["outcome"]) == {"pass"}
    assert plenty.verdict.outcome == "pass"


@pytest.mark.parametrize("n", [1, 3])
def test_too_few_replicas_of_the_scenario_are_a_fail_that_names_the_number_needed(n, sized):
    found = size(small(**{"pools.llm.replicas": n}), lose=(0, 1))
    needed = sized.replicas[1]
    own = {r.limit: r for r in found.verdict.reasons if r.rule == "own_replicas"}
    assert own[needed].outcome == "fail"
    assert own[needed].next_action == f"set pools.llm.replicas to {needed}"
    assert found.verdict.outcome == "fail"
    there = "There is 1 replica" if n == 1 else f"There are {n} replicas"
    front = f"{there} of llm, needed are {needed} (1 lost for good), because with "
    assert found.to_json()["answer"].startswith(f"{front}{needed - 1}, chat: ")
    assert found.to_json()["own_replicas"] == n


def test_enough_replicas_of_the_scenario_are_judged_for_each_loss(sized):
    enough = size(small(**{"pools.llm.replicas": sized.replicas[1]}), lose=(0, 1))
    own = [r for r in enough.verdict.reasons if r.rule == "own_replicas"]
    assert [(r.outcome, r.value) for r in own] == [("pass", sized.replicas[1])] * 2
    one_less = size(small(**{"pools.llm.replicas": sized.replicas[0]}), lose=(0, 1))
    outcomes = [r.outcome for r in one_less.verdict.reasons if r.rule == "own_replicas"]
    assert outcomes == ["pass", "fail"]


def test_an_autoscaler_that_may_reach_the_number_leaves_it_open(sized):
    point, pool = sized.chosen[Loss(count=1)], sized.scenario.pool()
    few = next(p for p in sized.points if not p.holds)
    metric = {"metric": "queue_length", "source": "external", "target": 5.0}
    for most, outcome in [(9, "unknown"), (1, "fail")]:
        scaler = {"max_replicas": most, "metrics": [metric]}
        scaled = small(**{"pools.llm.cold_start_s": 5.0, "pools.llm.autoscaler": scaler})
        assert own_reason(few, scaled.pool(), point, few.lose).outcome == outcome
    assert own_reason(few, pool, None, few.lose).outcome == "fail"


def test_a_loss_alone_is_sized_by_several_processes():
    scenario = small(requests=300, **{"pools.llm.replicas": 6})
    one, two = (size(scenario, lose=1, replications=2, jobs=jobs) for jobs in (1, 2))
    assert one.to_json() == two.to_json()
    assert rows_of(one).loc["stable load", "replicas"] == 6


def test_a_question_about_no_loss_can_pass():
    found = size(small(**{"pools.llm.replicas": 9}), lose=0)
    assert rows_of(found)["outcome"].to_dict() == {
        "stable load": "pass",
        "acceptable peak": "pass",
        "burst protection": "pass",
        "failure degradation": "not asked",
    }
    assert found.verdict.outcome == "pass"
    assert "Not known" not in found.summary()


def test_users_who_wait_for_their_answers_bring_no_burst():
    users = {"kind": "closed", "users": 3, "think": {"kind": "fixed", "seconds": 0.2}}
    found = size(small(**{"traffic.shape": users}), lose=(0, 1))
    assert rows_of(found).loc["burst protection", "outcome"] == "does not apply"
    assert "burst_protection" not in {r.rule for r in found.verdict.reasons}


def test_a_busiest_minute_that_surely_misses_its_share_is_broken(sized):
    point = sized.chosen[Loss(count=0)]
    outcomes = [
        _peak(replace(point, peak_good_fraction=share, peak_requests=n), sized.scenario).outcome
        for share, n in [(0.97, 200), (0.93, 200), (0.80, 200), (math.nan, 0)]
    ]
    assert outcomes == ["pass", "unknown", "fail", "unknown"]  # asked: 95 %


def test_the_verdict_says_what_was_found(sized):
    found = [r for r in sized.verdict.reasons if r.rule == "failure_margin"]
    assert {r.outcome for r in found} == {"pass"}
    assert [r.value for r in found] == list(sized.replicas.values())


def test_the_summary_names_the_numbers_and_the_verdict(sized):
    fewest = sized.replicas[0]
    assert f"**{fewest}** with none lost and **{fewest + 1}** with 1 lost" in sized.summary()
    assert str(sized.verdict) in sized.summary()


def test_a_sizing_shows_what_a_loss_takes_what_was_rejected_and_the_rules(sized):
    assert sized.table()["replicas"].tolist() == list(sized.replicas.values())
    assert len(sized.limits()) == len(ROWS)
    assert len(sized.rejections()) == len(sized.rejected)
    assert len(sized.answers()) == len(sized.chosen) + len(sized.rules)
    assert sized.chart(lost=1).to_dict()
    assert set(sized.goodput()["lost"]) == {0, 1}


def test_the_loss_can_be_run_again_as_it_was_judged(sized):
    scenario = sized.losing(1)
    assert scenario.pool().replicas == sized.replicas[1]
    [crash] = scenario.faults
    assert (crash.at_s, crash.count) == (sized.outages[1][0].at_s, 1)
    assert not sized.losing(0).faults
    low, high = sized.around(1)
    assert low <= crash.at_s <= high
    assert "1 of 4 replicas crash" in sized.moment(1)
    assert "nothing to show" in sized.moment(0)
    with pytest.raises(ValueError, match="one of 0 and 1, got 2"):
        sized.losing(2)


def test_thin_evidence_does_not_ask_for_replicas_but_for_a_retest(patient):
    asked = PATIENT | {"error_rate_fraction": 0.001}
    found = size(small(**{"classes.chat.promises": asked}), lose=0)
    assert found.replicas[0] == patient.replicas[0]
    thin = [r for r in found.verdict.reasons if r.rule == "error_rate_fraction"]
    assert {r.outcome for r in thin} == {"retest"}  # 0 of 800 leaves room for more than 0.1 %


def test_a_limit_in_front_of_the_pool_is_a_fail_that_no_replica_mends():
    limited = small(
        **{
            "gateway.rate_limits": {"rate_rps": 5.0, "burst": 1},
            "classes.chat.promises.error_rate_fraction": 0.01,
        }
    )
    found = size(limited, lose=0, n_max=8)
    assert found.replicas == {0: None}
    assert found.verdict.outcome == "fail"
    assert "no number up to 8 suffices (none lost), because with 8, chat: " in found.answer
    assert [r.limit for r in found.verdict.decisive if r.rule == "failure_margin"] == [8]
    assert {r.replicas for r in found.rejected} >= {1, 2, 8}
    assert found.failure_margin["shed"].tolist() == [["chat"]]
    assert found.failure_margin["cost_usd_per_hour"].isna().all()
    assert found.capacity_table["load_rps"].isna().all()


def test_cost_does_not_steer_the_search_but_decides_the_verdict():
    dear = small(**{"classes.chat.promises.cost_usd_per_success": 1e-9})
    found = size(dear, lose=0)
    assert found.replicas == size(small(), lose=0).replicas
    assert found.verdict.outcome == "fail"
    assert "cost_usd_per_success" in {r.rule for r in found.verdict.decisive}


def test_no_more_is_tried_than_the_resource_pool_holds():
    standby = {"replicas": 1, "ready": {"kind": "fixed", "seconds": 5.0}}
    asked = small(
        requests=200,
        **{
            "resource_pools": [{"name": "a100", "accelerators": 3}],
            "pools.llm.resource_pool": "a100",
            "pools.llm.standby": standby,
            "classes.chat.promises.min_samples": 20,
        },
    )
    found = size(asked, lose=(0, 1))
    assert found.n_max == 2
    assert found.replicas == {0: None, 1: None}
    assert "a100" in found.verdict.reasons[0].next_action


@pytest.mark.parametrize("lose", [Loss(count=1), Loss(count=1, at_s=10.0)])
def test_the_number_asked_about_is_not_scaled(lose):
    metric = {"metric": "queue_length", "source": "external", "target": 5.0}
    scaler = {"max_replicas": 9, "metrics": [metric]}
    scaled = small(**{"pools.llm.cold_start_s": 5.0, "pools.llm.autoscaler": scaler})
    changed = with_loss(scaled, scaled.pool(), 4, lose)
    assert changed.pool().autoscaler is None


def test_a_short_loss_is_waited_out_by_the_number_that_holds_without_it(patient):
    """Two seconds at 5/s too few leave a backlog of seconds, which patient callers wait out."""
    found = size(small(**{"classes.chat.promises": PATIENT, "pools.llm.cold_start_s": 2.0}))
    assert found.replicas == {0: 3, 1: 3}
    assert patient.replicas == {0: 3, 1: 4}  # nothing returns: it is as if it were never there
    margin = found.failure_margin.set_index(found.failure_margin["lose"].map(lambda x: x["count"]))
    assert margin.loc[1, "down_s"] == 2.0
    assert margin.loc[1, "missed"]["chat"]["failed"] == 1  # the one that ran in the lost replica
    assert margin.loc[1, "missed_without"]["chat"]["missed"] == 0


def batched(**values):
    """A pool of which each replica serves up to 60 requests in 1.5 s, at 25/s."""
    batch = {"max_batch_size": 60, "service": {"base_s": 1.5, "exponential": False}}
    fields = {f"pools.llm.batching.{name}": value for name, value in batch.items()}
    return small(**fields | {"pools.llm.router.max_in_flight": 60} | values)


def test_a_crash_that_fails_what_runs_needs_more_than_the_replicas_it_takes():
    """A crash fails what a replica serves: the fewer there are, the larger that share is."""
    asked = PATIENT | {"availability_fraction": 0.97}
    found = size(batched(**{"classes.chat.promises": asked, "pools.llm.cold_start_s": 2.0}))
    assert found.replicas[0] == 1
    assert found.replicas[1] > 2
    rejected = {(r.lose.count, r.replicas): r for r in found.rejected}
    assert "the loss at" in rejected[1, 2].reason
    point = next(p for p in found.points if (p.replicas, p.lose.count) == (2, 1))
    assert "availability_fraction" in {r.rule for r in point.against}


def test_a_loss_counts_in_the_part_around_it_not_in_the_average_of_the_run():
    asked = {"e2e_s": 1.0, "quantile": 0.85, "min_samples": 100}
    long = small(requests=6000, **{"classes.chat.promises": asked, "pools.llm.cold_start_s": 10.0})
    found = size(long, lose=(0, 1))
    point = next(p for p in found.points if (p.replicas, p.lose.count) == (found.replicas[0], 1))
    assert not point.holds
    good = point.figures.set_index("request_class").loc["chat", "good_fraction"]
    assert good > 0.85  # over the run the promise is kept


@pytest.mark.parametrize(
    ("values", "stated"),
    [
        ({}, None),
        ({"pools.llm.cold_start_s": 7.0}, 7.0),
        ({"stages.down_s": 3.0, "pools.llm.cold_start_s": 7.0}, 3.0),
        (
            {
                "pools.llm.lifecycle": {
                    "provisioning": {"kind": "fixed", "seconds": 4.0},
                    "model_load": {"kind": "lognormal", "p50_s": 2.0, "p95_s": 5.0},
                },
                "pools.llm.cold_start_s": 7.0,
            },
            9.0,
        ),
    ],
)
def test_a_lost_replica_is_away_for_as_long_as_the_scenario_states(values, stated):
    scenario = small(**values)
    assert replacement_s(scenario, scenario.pool())[0] == stated


def served(start, *, bad=()):
    good = [0.0 if i in bad else 1.0 for i in range(len(start))]
    columns = {"request_class": "chat", "intended_start_s": start, "outcome": "succeeded"}
    return pd.DataFrame(columns | {"good": good})


def test_a_loss_strikes_the_busiest_stretch_and_is_judged_over_enough_requests():
    start = sorted([*range(100), 50.2, 50.4, 50.6, 51.2])
    one = outage_of(served(start), Loss(count=1, down_s=2.0), {"chat": 20})
    assert (one.at_s, one.until_s) == (50, 52)
    low, high = one.window_s
    assert low == 50
    assert sum(low <= t <= high for t in start) == 20
    late = outage_of(served(start), Loss(count=1, at_s=98.0, down_s=2.0), {"chat": 20})
    assert sum(late.window_s[0] <= t <= late.window_s[1] for t in start) == 20
    with pytest.raises(ValueError, match=r"at_s must be at most 99 s"):
        outage_of(served(start), Loss(count=1, at_s=120.0), {})


def test_recovery_is_when_no_more_requests_miss_a_promise_than_without_the_loss():
    start = [0.1 * i for i in range(1000)]
    outage = Outage(at_s=20.0, until_s=30.0, window_s=(20.0, 40.0))
    cases = {
        (): 0.0,
        tuple(range(200, 251)): pytest.approx(5.0),
        tuple(range(200, 1000)): pytest.approx(math.nan, nan_ok=True),
    }
    for bad, expected in cases.items():
        lossy, whole = served(start, bad=bad), served(start)
        assert recovery_s([lossy], [whole], [outage]) == expected
    few = served(start, bad=[200, 320])
    assert recovery_s([few], [served(start)], [outage], allowed=0.05) == 0.0
    always = served(start, bad=range(0, 1000, 2))
    assert recovery_s([always], [always], [outage]) == 0.0  # the loss is not what breaks it
    found = missed([served(start, bad=range(200, 251))], [outage], ["chat"])
    assert (found["chat"]["offered"], found["chat"]["missed"]) == (201, 51)


def test_every_row_of_the_table_is_about_the_same_replicas(sized):
    enough_for_none = size(small(**{"pools.llm.replicas": sized.replicas[0]}), lose=(0, 1))
    assert set(enough_for_none.capacity_table["replicas"]) == {sized.replicas[1]}


def test_more_processes_give_the_same_numbers():
    scenario = small()
    one, two = (size(scenario, lose=0, replications=2, jobs=jobs) for jobs in (1, 2))
    assert one.to_json() == two.to_json()


@settings(max_examples=6)
@given(st.sampled_from([12.0, 25.0, 40.0]), st.integers(0, 3))
def test_more_load_never_needs_fewer(rate, seed):
    low = size(small(rate, requests=400), lose=0, seed=seed).replicas[0]
    high = size(small(rate * 1.5, requests=400), lose=0, seed=seed).replicas[0]
    assert low <= high


@pytest.mark.parametrize(
    "arguments",
    [
        {"lose": -1},
        {"lose": ()},
        {"n_max": 0},
        {"lose": 2, "n_max": 2},
        {"replications": 0},
        {"traces": []},
        {"jobs": 0},
    ],
)
def test_counts_that_make_no_sense_are_errors(arguments):
    with pytest.raises(ValueError, match="at least"):
        size(small(), **arguments)


def test_a_number_with_too_few_requests_is_unknown_not_capacity():
    asked = {"classes.chat.promises.min_samples": 5000, "pools.llm.replicas": 9}
    few = size(small(**asked), lose=(0, 1))
    assert few.replicas == {0: None, 1: None}
    assert "how many are needed is not shown (none lost), because " in few.answer
    assert few.verdict.outcome == "unknown"
    assert few.capacity_table["replicas"].isna().all()
    assert few.capacity_table["load_rps"].isna().all()
    assert [row["protected"] for row in few.to_json()["failure_margin"]] == [[], []]


def test_a_run_that_judges_no_request_shows_no_number():
    found = size(small(requests=20, warmup_s=600.0), lose=0)
    assert [point.open for point in found.chosen.values() if point] != [()]
    assert found.verdict.outcome == "unknown"
    assert found.replicas == {0: None}


def test_a_promise_that_serving_alone_breaks_ends_the_search_with_its_cause():
    """No number mends it: the budget says so, and the most replicas prove it."""
    long = {"kind": "fixed", "tokens": 20000}
    asked = load_scenario(
        "benchmark",
        values={
            "requests": 200,
            "classes.benchmark.prompt_tokens": long,
            "classes.benchmark.promises": {"ttft_s": 0.01, "quantile": 0.9, "min_samples": 50},
        },
    )
    found = size(asked, lose=(0, 1), n_max=16)
    assert {p.replicas for p in found.points} == {1, 16}
    assert found.replicas == {0: None, 1: None}
    assert "serving one request of benchmark" in found.answer
    [first, *_] = [r for r in found.verdict.reasons if r.rule == "failure_margin"]
    assert "faster steps" in first.next_action


def test_a_limit_that_more_replicas_do_not_mend_ends_the_search_early():
    limited = {"gateway.rate_limits": {"rate_rps": 5.0, "burst": 1}}
    found = size(small(requests=400, **limited), lose=0, n_max=64)
    assert {p.replicas for p in found.points} <= {1, 2, 4, 8, 64}
    assert found.replicas == {0: None}


def test_the_progress_of_a_sizing_rises_to_its_end(monkeypatch):
    from capplan import progress

    seen = []
    counted = progress.Work.step

    def step(self, name=""):
        counted(self, name)
        seen.append(progress.fraction_of(list(progress._under_way)))

    monkeypatch.setattr(progress.Work, "step", step)
    found = size(small(requests=400), lose=(0, 1))
    assert len(seen) == len(found.points) + 1  # and the bursts
    assert all(0 < one <= 1 for one in seen)


def test_the_bursts_are_served_by_the_number_that_the_table_is_about_without_its_autoscaler():
    metric = {"metric": "queue_length", "source": "external", "target": 5.0}
    scaler = {"max_replicas": 9, "metrics": [metric]}
    asked = {"pools.llm.cold_start_s": 1.0, "pools.llm.replicas": 4}
    fixed = size(small(**asked), lose=0)
    scaled = size(small(**asked | {"pools.llm.autoscaler": scaler}), lose=0)
    rows = [rows_of(one).loc["burst protection"] for one in (fixed, scaled)]
    assert rows[0]["outcome"] == rows[1]["outcome"]
    shares = [row["evidence"].partition(" in the bursts")[0] for row in rows]
    assert shares[0] == shares[1]
    assert "in the bursts are good" in rows[0]["evidence"]
    assert any("does not act" in note for note in scaled.notes)


def test_derived_limits_of_the_table_are_those_at_its_replicas():
    derived = {"owner": "llm", "length": "derived", "wait_limit_s": "derived"}
    scenario = small(gateway={"concurrency": "derived", "queue": derived})
    found = size(scenario, lose=0)
    [replicas] = set(found.capacity_table["replicas"].dropna())
    assert replicas > scenario.pool().replicas
    [shown] = set(found.capacity_table["protective_action"][:3])
    at_size = varied(scenario, {"pools.llm.replicas": int(replicas)})
    assert shown == protective_action(at_size, at_size.pool(), None)
    as_it_is = varied(scenario, {})
    assert shown != protective_action(as_it_is, as_it_is.pool(), None)


def test_a_retest_of_the_fewest_decides_only_if_the_plan_has_so_few():
    fewest = size(small(26.5, **{"pools.llm.replicas": 3}), lose=0)
    assert fewest.replicas == {0: 3}
    assert "retest" in {reason.outcome for reason in fewest.verdict.reasons}
    more = size(small(26.5, **{"pools.llm.replicas": 8}), lose=0)
    assert more.replicas == {0: 3}
    assert more.verdict.outcome == "pass"
    assert "a retest is left" in more.answer


def test_without_requests_to_judge_the_recovery_is_unknown():
    found = size(small(warmup_s=1e5), lose={0, 1})
    [row] = [r for r in found.failure_margin.to_dict("records") if r["lose"]["count"]]
    assert math.isnan(row["recovery_s"])
    assert found.verdict.outcome != "pass"


def test_whether_the_number_of_a_rule_holds_is_known_only_if_it_was_simulated(sized):
    simulated = {(p.replicas, p.lose.count): p.holds for p in sized.points}
    known = {(r.replicas, r.lose): r.holds for r in sized.rules if (r.replicas or 0) > r.lose}
    assert known
    assert known == {key: simulated.get(key) for key in known}


@pytest.mark.parametrize(("rate_rps", "factor"), [(25.0, 1.08), (27.0, 0.92)])
def test_a_law_8_percent_off_states_numbers_that_hold_that_of_the_true_one(rate_rps, factor):
    law = small(rate_rps)
    found = size(with_values(law, {"pools.llm.batching.service.error_fraction": 0.08}), lose=0)
    true = size(with_step_times(law, {"llm": factor}), lose=0).replicas[0]
    low, high = found.to_json()["within_step_time_error"]["replicas"]
    assert true != found.replicas[0]
    assert {true, found.replicas[0]} == {low, high}


@pytest.mark.parametrize(("replicas", "outcome"), [(0, "retest"), (1, "pass")])
def test_replicas_that_the_true_law_may_find_too_few_are_no_pass(replicas, outcome):
    stated = {"pools.llm.batching.service.error_fraction": 0.3}
    fewest = size(small(30.0), lose=0).replicas[0]
    found = size(small(30.0, **stated, replicas=fewest + replicas), lose=0)
    assert found.within.high == fewest + 1
    [own] = [r for r in found.verdict.reasons if r.rule == "own_replicas"]
    assert own.outcome == outcome


def test_an_unknown_error_leaves_the_numbers_unknown(sized):
    assert sized.to_json()["within_step_time_error"] is None
    assert any("error of step times" in note for note in sized.notes)
