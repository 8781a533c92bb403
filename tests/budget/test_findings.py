"""Each finding: a scenario that triggers it, and the one without it that does not."""

import math

import pytest

from capplan.budget import allocate, apply
from capplan.budget.findings import TOLERANCE_FRACTION
from capplan.scenario.files import validate, with_values


@pytest.fixture(scope="module")
def clean(raw):
    """Return a scenario without any finding: the small one with its budget applied."""
    scenario = validate(raw, where="small")
    return apply(scenario, allocate(scenario))


def rules(scenario):
    return {f.rule for f in allocate(scenario).findings}


def finding(scenario, rule):
    return next(f for f in allocate(scenario).findings if f.rule == rule)


def test_a_scenario_with_its_budget_applied_passes(clean):
    budget = allocate(clean)
    assert budget.findings == ()
    assert budget.outcome == "pass"


AUTOSCALER = {"min_replicas": 1, "metrics": [{"metric": "in_flight", "target": 1.0}]}
BROKEN = {
    "missing_promise": {"classes.chat.promises.tpot_s": None},
    "infeasible": {"classes.batch.promises.e2e_s": 0.2},
    "tpot": {"classes.chat.promises.tpot_s": 0.0101},
    "below_batch_window": {"pools.labels.batching.max_queue_delay_s": 9.5},
    "waits_exceed_promise": {"pools.llm.queue.wait_limit_s": 20.0},
    "double_queue": {
        "pools.llm.queue.wait_limit_s": 20.0,
        "pools.llm.batching.scheduler.wait_limit_s": 20.0,
    },
    "attempt_timeout_below_waits": {"classes.chat.retry": {"attempt_timeout_s": 0.5}},
    "no_owner": {"gateway.owner": ""},
    "retries_exceed_deadline": {
        "classes.chat.retry": {"max_attempts": 3, "attempt_timeout_s": 6.0, "backoff_s": 2.0}
    },
    "retries_without_timeout": {"classes.chat.retry": {"max_attempts": 2}},
    "overload": {"traffic.shape.rate_rps": 400.0},
    "overload_until_scaled": {
        "traffic.shape.rate_rps": 400.0,
        "pools.llm.cold_start_s": 60.0,
        "pools.llm.autoscaler": AUTOSCALER | {"max_replicas": 99},
    },
    "swaps": {
        "pools.llm.models": [{"name": name, "kv_fraction": 0.6, "load_s": 1.0} for name in "xy"],
        "classes.batch.pool": "llm",
        "classes.batch.model": "y",
    },
    "unlimited": {"pools.llm.queue.wait_limit_s": None},
    "differs_from_budget": {"pools.llm.queue.wait_limit_s": 0.1},
}


def scaled(clean, most):
    rules = AUTOSCALER | {"max_replicas": most}
    return with_values(clean, BROKEN["overload_until_scaled"] | {"pools.llm.autoscaler": rules})


def test_an_autoscaler_that_may_bring_enough_replicas_leaves_an_overload_open(clean):
    needed = finding(with_values(clean, BROKEN["overload"]), "overload").next_action
    enough = int(needed.split()[2])
    found = finding(scaled(clean, enough), "overload_until_scaled")
    assert (found.outcome, found.field) == ("unknown", "pools.llm.replicas")
    assert f"{enough} replicas" in found.next_action
    others = [f.field for f in allocate(scaled(clean, enough)).findings if f.rule == "overload"]
    assert others == ["pools.labels.replicas"]
    short = finding(scaled(clean, enough - 1), "overload")
    assert (short.outcome, short.field) == ("fail", "pools.llm.autoscaler.max_replicas")
    assert short.limit == pytest.approx(found.limit * (enough - 1) / clean.pool("llm").replicas)


def test_a_gateway_admits_what_all_replicas_of_an_autoscaler_hold(clean):
    few, many = (allocate(scaled(clean, most)).settings for most in (2, 6))
    held = few["pools.llm.router.max_in_flight"]
    waits = [s["pools.llm.queue.length"] for s in (few, many)]
    more = many["gateway.concurrency"] - few["gateway.concurrency"]
    assert more == (6 - 2) * held + waits[1] - waits[0]
    assert waits[1] == pytest.approx(3 * waits[0], rel=0.02), "six replicas drain as fast as that"


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found_with_a_next_action(clean, rule):
    found = finding(with_values(clean, BROKEN[rule]), rule)
    assert found.next_action
    assert found.field


def test_every_rule_but_the_unknown_rate_has_a_scenario_here():
    from pathlib import Path

    from capplan.budget import findings, queue_findings

    modules = (findings, queue_findings)
    text = "".join(Path(m.__file__).read_text(encoding="utf-8") for m in modules)
    stated = {line.split('"')[1] for line in text.splitlines() if 'rule="' in line}
    assert stated == {*BROKEN, "unknown_rate"}


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"classes.chat.promises.tpot_s": None}, "unknown"),
        ({"gateway.owner": ""}, "blocked"),
        ({"traffic.shape.rate_rps": 400.0}, "fail"),
        ({"gateway.owner": "", "traffic.shape.rate_rps": 400.0}, "blocked"),
        ({"pools.llm.queue.wait_limit_s": 0.1}, "retest"),
    ],
)
def test_the_most_severe_finding_decides(clean, values, outcome):
    budget = allocate(with_values(clean, values))
    assert (budget.outcome, budget.findings[0].outcome) == (outcome, outcome)


def test_an_attempt_may_last_as_long_as_its_waits_and_its_answer(clean):
    [own] = [c for c in allocate(clean).classes if c.request_class == "chat"]
    service = own.network_s + own.gateway_s + own.prefill_s
    service += (own.output_tokens - 1) * own.tpot_s
    assert own.attempt_s == pytest.approx(service)
    longest = clean.pool("llm").batching.scheduler.wait_limit_s + service

    def at(timeout_s):
        return with_values(clean, {"classes.chat.retry.attempt_timeout_s": timeout_s})

    found = finding(at(longest * 0.99), "attempt_timeout_below_waits")
    assert (found.outcome, found.limit) == ("fail", pytest.approx(longest))
    assert found.field == "classes.chat.retry.attempt_timeout_s"
    assert "attempt_timeout_below_waits" not in rules(at(longest * 1.01))


def test_an_infeasible_class_states_the_excess_and_the_feasible_quantiles(raw):
    scenario = validate(raw, where="small")
    long = with_values(
        scenario,
        {
            "classes.chat.prompt_tokens": {
                "kind": "lognormal", "p50_tokens": 1000, "p95_tokens": 90_000,
            },
            "traffic.shape.rate_rps": 0.1,
        },
    )  # fmt: skip
    budget = allocate(long)
    chat = budget.by_class("chat")
    found = finding(long, "infeasible")
    assert found.value - found.limit == pytest.approx(-chat.remaining_s)
    assert 0.5 < chat.feasible_prompt_quantile < 0.95
    assert f"prompt quantile ≤ {chat.feasible_prompt_quantile:.2f}" in found.next_action
    assert math.isnan(chat.feasible_output_quantile), "TTFT does not depend on the output"


def test_no_limit_follows_from_an_infeasible_class_alone(clean):
    no_time = {"classes.batch.promises.e2e_s": 0.12}  # its least batch takes 0.11 s
    budget = allocate(with_values(clean, no_time))
    assert not [path for path in budget.settings if path.startswith("pools.labels.queue")]
    assert "pools.llm.queue.length" in budget.settings


@pytest.mark.parametrize("path", ["pools.llm.queue", "pools.labels.queue", "gateway.queue"])
def test_waits_up_to_what_is_lost_are_no_finding_and_just_past_it_are(clean, path):
    classes = {c.request_class: c.longest_wait_s for c in allocate(clean).classes}
    own = {"pools.llm.queue": "chat", "pools.labels.queue": "batch"}
    longest = classes.get(own.get(path), max(classes.values()))
    for wait, found in ((longest * (1 - 1e-6), False), (longest * (1 + 1e-6), True)):
        at_the_edge = with_values(clean, {f"{path}.wait_limit_s": wait})
        assert ("waits_exceed_promise" in rules(at_the_edge)) is found


def test_one_queue_for_the_whole_wait_is_no_double_queue(clean):
    longest = allocate(clean).by_class("chat").longest_wait_s
    both = [
        "pools.llm.queue.wait_limit_s",
        "pools.llm.batching.scheduler.wait_limit_s",
    ]
    one = with_values(clean, {both[0]: longest, both[1]: longest / 2})
    assert "double_queue" not in rules(one)
    assert "double_queue" in rules(with_values(clean, dict.fromkeys(both, longest)))


def test_a_class_that_gives_up_earlier_than_others_in_its_queue_is_no_finding(clean):
    """The queue's limit is that of the class that waits longest; the other leaves by itself."""
    patient = {**clean.request_class("chat").model_dump(exclude_unset=True), "name": "patient"}
    values = {"classes": [*clean.classes, patient]}
    both = with_values(clean, values | {"classes.chat.retry.attempt_timeout_s": 5.0})
    applied = apply(both, allocate(both))
    waits = applied.pool("llm").batching.scheduler.wait_limit_s
    assert waits > 5.0
    assert "attempt_timeout_below_waits" not in rules(applied)
    short = {"classes.chat.retry.attempt_timeout_s": 0.5}
    assert "attempt_timeout_below_waits" in rules(with_values(applied, short)), "below its service"


def test_what_fills_every_replica_is_no_tight_limit(clean):
    path = "pools.llm.router.max_in_flight"
    places = clean.pool("llm").batching.max_num_seqs
    assert "differs_from_budget" not in rules(with_values(clean, {path: places}))
    assert "differs_from_budget" in rules(with_values(clean, {path: places // 2}))


def test_unlimited_queues_in_series_are_a_double_queue(clean):
    both = {"pools.llm.queue.wait_limit_s": None, "pools.llm.batching.scheduler.wait_limit_s": None}
    assert {"unlimited", "double_queue"} <= rules(with_values(clean, both))


def test_a_queue_that_never_holds_a_request_needs_no_owner(clean):
    passing = {
        "gateway.owner": "",
        "gateway.concurrency": None,
        "pools.llm.router.max_in_flight": None,
        "pools.labels.router.max_in_flight": None,
    }
    found = rules(with_values(clean, passing))
    assert "no_owner" not in found
    assert "unlimited" in found, "but the number in flight has no limit"


def test_retries_that_end_in_time_are_no_finding(clean):
    retry = {"max_attempts": 2, "attempt_timeout_s": 6.0, "backoff_s": 2.0}
    found = rules(with_values(clean, {"classes.chat.retry": retry}))
    assert not found & {"retries_exceed_deadline", "retries_without_timeout"}


def test_a_limit_within_the_tolerance_is_the_budgets(clean):
    path = "pools.labels.queue.wait_limit_s"
    stated = allocate(clean).settings[path]
    near = with_values(clean, {path: stated * (1 - 0.9 * TOLERANCE_FRACTION)})
    far = with_values(clean, {path: stated * (1 - 1.1 * TOLERANCE_FRACTION)})
    assert "differs_from_budget" not in rules(near)
    assert "differs_from_budget" in rules(far)


def test_a_looser_limit_fails_and_another_retry_after_is_a_retest(clean):
    looser = with_values(clean, {"pools.llm.batching.scheduler.length": 500_000})
    assert finding(looser, "differs_from_budget").outcome == "fail"
    later = with_values(clean, {"pools.llm.queue.retry_after_s": 60.0})
    assert finding(later, "differs_from_budget").outcome == "retest"


def test_a_trace_of_one_request_has_no_rate(small):
    from capplan.traffic.draw import draw
    from capplan.traffic.trace import from_frame

    one = from_frame(draw(small).frame.head(1))
    budget = allocate(small, trace=one)
    assert {f.rule for f in budget.findings} >= {"unknown_rate"}
    assert math.isnan(budget.classes[0].in_flight)


def test_overload_states_the_replicas_needed(clean):
    found = finding(with_values(clean, {"traffic.shape.rate_rps": 400.0}), "overload")
    replicas = int(found.next_action.split()[2])
    enough = {"traffic.shape.rate_rps": 400.0, f"{found.field}": replicas}
    assert not [
        f
        for f in allocate(with_values(clean, enough)).findings
        if f.rule == "overload" and f.field == found.field
    ]
