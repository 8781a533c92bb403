"""The budget against figures worked out by hand, and what must hold for every scenario."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capplan.budget import WAITING, allocate, apply, service_time, with_shares
from capplan.scenario.files import load_scenario, validate, with_values
from capplan.traffic.draw import draw
from capplan.traffic.profile import profile


def test_a_streaming_class_is_budgeted_on_ttft(small):
    chat = allocate(small).by_class("chat")
    assert chat.basis == "ttft_s"
    assert chat.network_s == pytest.approx(0.04)
    assert chat.gateway_s == pytest.approx(0.02 + 0.1 * 1.0)
    assert chat.decode_s == 0.0
    # One prefill step of 512 tokens beside the n sequences that run at 3 requests/s a replica.
    n = chat.rate_rps / 2 * 101 * chat.tpot_s
    assert chat.prefill_s == pytest.approx(0.01 + 512e-5 + 1e-4 * n, rel=1e-6)
    assert chat.remaining_s == pytest.approx(1.0 - 0.04 - 0.12 - chat.prefill_s)


def test_time_per_token_holds_littles_law_over_the_batch(small):
    chat = allocate(small).by_class("chat")
    n = chat.rate_rps / 2 * 101 * chat.tpot_s
    added = 512e-5
    assert chat.tpot_s == pytest.approx(0.01 + 1e-4 * n + n / 101 * added, rel=1e-6)


def test_a_class_that_does_not_stream_is_budgeted_on_e2e_with_a_full_batch_as_its_service(small):
    batch = allocate(small).by_class("batch")
    assert (batch.basis, batch.promise_s) == ("e2e_s", 10.0)
    assert batch.prefill_s == pytest.approx(0.1 + 8 * 0.01)
    assert batch.remaining_s == pytest.approx(10 - 0.04 - 0.02 - 1.0 - 0.18)
    assert batch.window_s == 0.05


def test_a_tight_deadline_takes_the_place_of_ttft(small):
    tight = with_values(small, {"classes.chat.promises.deadline_s": 1.7})
    chat = allocate(tight).by_class("chat")
    assert chat.basis == "deadline_s"
    assert chat.decode_s == pytest.approx(100 * chat.tpot_s)


def test_limits_end_the_wait_at_which_even_the_least_request_is_lost(small):
    budget = allocate(small)
    chat, batch = budget.by_class("chat"), budget.by_class("batch")
    least_s = 0.01 + 1e-5  # one step that prefills one token
    assert chat.lost_by == "deadline_s"
    assert chat.longest_wait_s == pytest.approx(20 - 0.04 - 0.02 - 0.1 * 20 - least_s)
    assert batch.lost_by == "e2e_s", "it states no deadline"
    assert batch.longest_wait_s == pytest.approx(10 - 0.04 - 0.02 - 1.0 - 0.11)
    limits = {(x.pool, x.layer): x for x in budget.limits}
    for pool, own in (("llm", chat), ("labels", batch)):
        found = limits[pool, "scheduler_queue"].wait_limit_s
        assert found == pytest.approx(own.longest_wait_s, rel=0.01)
        assert found <= own.longest_wait_s
    assert limits["", "gateway_queue"].wait_limit_s == pytest.approx(
        (chat.longest_wait_s - chat.window_s) / 3, rel=0.01
    ), "the class that may wait longest: another's caller leaves at its own deadline"


def test_an_inner_queue_may_use_what_the_outer_ones_left(small):
    waits = [x.wait_limit_s for x in allocate(small).limits if x.layer != "batch_window"]
    gateway, llm, llm_scheduler, labels, labels_scheduler = waits
    assert gateway < llm < llm_scheduler
    assert labels < labels_scheduler
    assert llm == pytest.approx(2 * gateway, rel=0.01)


def test_a_limit_from_the_promise_ends_what_is_late_for_it(small):
    late = with_values(small, {"budget.limits_from": "promise"})
    chat = allocate(late).by_class("chat")
    assert (chat.lost_by, chat.remaining_s) == ("ttft_s", allocate(small).classes[0].remaining_s)
    assert chat.longest_wait_s == pytest.approx(1.0 - 0.04 - 0.02 - 0.1 - 0.01 - 1e-5)


def test_an_attempt_that_times_out_ends_its_wait_before_its_service(small):
    own = allocate(small).by_class("chat")
    retry = {"max_attempts": 2, "attempt_timeout_s": 6.0}
    chat = allocate(with_values(small, {"classes.chat.retry": retry})).by_class("chat")
    assert chat.lost_by == "attempt_timeout_s"
    assert chat.longest_wait_s == pytest.approx(6.0 - own.attempt_s)


def test_a_queue_holds_what_drains_in_time_if_all_are_short(small):
    budget = allocate(small)
    limits = {(x.pool, x.layer): x for x in budget.limits}
    queue = limits["labels", "service_queue"]
    assert queue.drain_rps == pytest.approx(8 / 0.18)
    assert queue.length == pytest.approx(queue.wait_limit_s * 8 / 0.18, rel=0.01)
    assert (queue.status, queue.retry_after_s) == (503, math.ceil(queue.share_s))
    gateway = limits["", "gateway_queue"]
    assert gateway.request_class == "chat", "the strictest class has the smallest share"
    assert gateway.status == 429
    laws = {"kind": "lognormal", "p50_tokens": 101, "p95_tokens": 400}
    varied = allocate(with_values(small, {"classes.chat.output_tokens": laws}))
    llm = {(x.pool, x.layer): x for x in varied.limits}["llm", "service_queue"]
    assert llm.length > 2 * llm.wait_limit_s * llm.drain_rps, "short answers drain faster"


def test_engine_flags_carry_the_same_limits(small):
    budget = allocate(small)
    flags = {(x.pool, x.layer): x.flags for x in budget.limits}
    vllm, triton = flags["llm", "scheduler_queue"], flags["labels", "scheduler_queue"]
    assert vllm["--max-num-seqs"] == budget.settings["pools.llm.batching.max_num_seqs"] == 16
    assert vllm["--max-num-queued-reqs"] == budget.settings["pools.llm.router.max_in_flight"]
    assert triton["max_queue_size"] == budget.settings["pools.labels.batching.scheduler.length"]
    assert flags["labels", "batch_window"] == {"max_queue_delay_microseconds": 50_000}
    wait_s = budget.settings["pools.llm.batching.scheduler.wait_limit_s"]
    step_s = 0.01 + 1024 * 1e-5
    assert vllm["--max-num-queued-tokens"] == math.ceil(wait_s * 1024 / step_s)


def test_a_prefix_cache_leaves_tokens_in_the_queue_without_a_limit(small):
    cached = with_values(small, {"pools.llm.batching.prefix_caching": True})
    flags = {(x.pool, x.layer): x.flags for x in allocate(cached).limits}["llm", "scheduler_queue"]
    assert "--max-num-queued-reqs" in flags
    assert "--max-num-queued-tokens" not in flags


def test_concurrency_is_what_lies_behind_the_gateway(small):
    settings = allocate(small).settings
    behind = sum(
        settings[f"pools.{name}.queue.length"]
        + replicas * settings[f"pools.{name}.router.max_in_flight"]
        for name, replicas in (("llm", 2), ("labels", 1))
    )
    assert settings["gateway.concurrency"] == behind


def test_a_tpot_promise_limits_the_sequences_of_a_replica(small):
    tight = with_values(small, {"classes.chat.promises.tpot_s": 0.0112})
    limit = allocate(tight).settings["pools.llm.batching.max_num_seqs"]
    assert 1 <= limit < 16
    per_sequence = 1e-4 + 512e-5 / 101
    assert limit == math.floor(round((0.0112 - 0.01) / per_sequence, 9))


def test_readings_in_flight_stand_beside_each_other(small):
    budget = allocate(small)
    chat = budget.by_class("chat")
    assert chat.in_flight == pytest.approx(chat.rate_rps * chat.mean_response_s)
    assert chat.in_flight_upper == pytest.approx(6.0 * 20.0)
    assert set(budget.readings()["request_class"]) == {"chat", "batch"}


@pytest.mark.parametrize("name", ["chat-service", "benchmark"])
def test_littles_law_has_one_reading_in_profile_and_budget(name):
    scenario = load_scenario(name, values={"requests": 1500})
    trace = draw(scenario, seed=1)
    budget = allocate(scenario, trace=trace)
    found = profile(trace, service_time_s=service_time(scenario, trace))
    assert found.service.origin == "scenario"
    total = sum(c.in_flight for c in budget.classes)
    assert found.overall.concurrency == pytest.approx(total, rel=1e-6)
    for c in budget.classes:
        assert found.by_class[c.request_class].mean_service_s == pytest.approx(c.mean_response_s)
    fixed = profile(trace)
    assert fixed.service.origin == "default"
    assert fixed.overall.concurrency != pytest.approx(total, rel=0.1)


def test_a_longer_answer_takes_longer():
    scenario = load_scenario("chat-service", values={"requests": 1500})
    trace = draw(scenario, seed=1)
    frame = trace.frame.assign(service_s=service_time(scenario, trace).seconds)
    chat = frame[frame["request_class"] == "chat"]
    assert chat["service_s"].corr(chat["output_tokens"]) > 0.9
    assert chat["service_s"].min() > 0


def test_all_requests_of_a_whole_batch_take_the_same_time(small):
    trace = draw(small, seed=1)
    frame = trace.frame.assign(service_s=service_time(small, trace).seconds)
    batch = frame[frame["request_class"] == "batch"]["service_s"]
    assert batch.nunique() == 1
    mean_s = allocate(small, trace=trace).by_class("batch").mean_response_s
    assert batch.iloc[0] == pytest.approx(mean_s)


def test_requests_without_class_take_the_time_of_the_default_class(small):
    from capplan.traffic.trace import from_frame

    frame = draw(small).frame[["arrival_s", "prompt_tokens", "output_tokens"]]
    trace = from_frame(frame)
    mean_s = allocate(small, trace=trace).by_class("chat").mean_response_s
    assert service_time(small, trace).seconds.mean() == pytest.approx(mean_s)


def test_the_table_has_a_row_per_class_and_layer_with_its_origin(small):
    table = allocate(small).table()
    assert list(table.columns) == [
        "request_class", "layer", "owner", "share_s", "queue_length", "when full", "flag", "origin",
    ]  # fmt: skip
    assert len(table) == 2 * len(WAITING)
    assert set(table["origin"]) == {"promise"}
    rows = table.set_index(["request_class", "layer"])
    assert rows.loc[("chat", "gateway_queue"), "owner"] == "edge"
    assert rows.loc[("chat", "batch_window"), "queue_length"] == ""


def test_a_budget_that_rests_on_a_default_has_that_origin(raw):
    silent = {key: value for key, value in raw.items() if key != "network"}
    assert allocate(validate(silent, where="x")).by_class("chat").origin == "default"


def test_parts_of_each_class_sum_to_its_promise(small):
    parts = allocate(small).parts()
    sums = parts.groupby("request_class")["part_s"].sum()
    assert sums["chat"] == pytest.approx(1.0)
    assert sums["batch"] == pytest.approx(10.0)


def test_parts_past_the_promise_are_the_layer_over(small):
    late = with_values(small, {"classes.chat.promises": {"deadline_s": 0.5}})
    parts = allocate(late).parts().query("request_class == 'chat'").set_index("layer")["part_s"]
    assert parts["over"] > 0
    assert parts.drop("over").sum() == pytest.approx(0.5)


def test_json_has_null_for_what_is_not_known(small):
    told = allocate(small).to_json()
    batch = next(c for c in told["classes"] if c["request_class"] == "batch")
    assert batch["tpot_s"] is None
    assert told["verdict"]["outcome"] in {"pass", "fail", "blocked", "unknown", "retest"}
    assert all(reason["next_action"] for reason in told["verdict"]["reasons"])


def test_a_drawn_trace_and_its_profile_give_the_laws_budget(small):
    scenario = with_values(small, {"traffic.arrivals": {"kind": "even"}})
    by_law = allocate(scenario)
    trace = draw(scenario)
    for other in (allocate(scenario, trace=trace), allocate(scenario, profile=profile(trace))):
        for name in ("chat", "batch"):
            a, b = by_law.by_class(name), other.by_class(name)
            assert b.rate_rps == pytest.approx(a.rate_rps, rel=0.05)
            assert b.remaining_s == pytest.approx(a.remaining_s, rel=0.01)
            assert b.prompt_tokens == a.prompt_tokens
            assert b.samples > 1000


def test_a_class_without_requests_in_the_trace_has_rate_zero(small):
    trace = draw(with_values(small, {"traffic.duration_s": 60.0}))
    alone = trace.frame[trace.frame["request_class"] == "chat"]
    from capplan.traffic.trace import from_frame

    budget = allocate(small, trace=from_frame(alone))
    assert budget.by_class("batch").rate_rps == 0.0
    assert budget.by_class("chat").rate_rps > 0


def test_requests_without_class_belong_to_the_default_class(small):
    from capplan.traffic.trace import from_frame

    frame = draw(small).frame[["arrival_s", "prompt_tokens", "output_tokens"]]
    assert allocate(small, trace=from_frame(frame)).by_class("chat").rate_rps == pytest.approx(
        8.0, rel=0.05
    )


def test_a_class_that_the_scenario_lacks_is_an_error(small):
    from capplan.schema import DataError
    from capplan.traffic.trace import from_frame

    frame = draw(small).frame.assign(request_class="vision")
    for given_ in ({"trace": from_frame(frame)}, {"profile": profile(from_frame(frame))}):
        with pytest.raises(DataError, match=r"request_class: one of .*chat.*got 'vision'"):
            allocate(small, **given_)


def test_bundled_scenarios_pass_once_their_budget_is_applied():
    scenario = load_scenario("chat-service")
    applied = apply(scenario, allocate(scenario))
    assert allocate(applied).outcome == "pass"


TOKENS_S = (0.05, 50.0), (0.005, 0.2)
"""Promised TTFT and TPOT, s."""


@st.composite
def scenarios(draw, raw):
    """Return a scenario of ``raw``'s form with other promises, lengths, limits and rule."""
    time = st.floats(0.05, 50.0)
    limit = st.one_of(st.none(), st.integers(0, 500))
    wait = st.one_of(st.none(), st.floats(0.01, 30.0))
    weight = st.floats(0.0, 3.0)
    deadline_s = draw(time)
    ttft, tpot = (st.floats(least, min(most, deadline_s)) for least, most in TOKENS_S)
    values = {
        "classes.chat.promises.deadline_s": deadline_s,
        "classes.chat.promises.ttft_s": draw(st.one_of(st.none(), ttft)),
        "classes.chat.promises.tpot_s": draw(st.one_of(st.none(), tpot)),
        "classes.batch.promises.e2e_s": draw(st.one_of(st.none(), time)),
        "classes.chat.prompt_tokens.tokens": draw(st.integers(1, 6000)),
        "classes.chat.output_tokens.tokens": draw(st.integers(1, 800)),
        "traffic.shape.rate_rps": draw(st.floats(0.01, 200.0)),
        "gateway.concurrency": draw(st.one_of(st.none(), st.integers(1, 500))),
        "pools.llm.router.max_in_flight": draw(st.one_of(st.none(), st.integers(1, 500))),
        "pools.labels.batching.max_queue_delay_s": draw(st.floats(0.0, 2.0)),
        "budget.rule": draw(st.sampled_from(["equal", "proportional", "weights"])),
        "budget.weights.gateway_queue": draw(weight),
        "budget.weights.service_queue": draw(weight),
        "budget.weights.scheduler_queue": draw(weight),
        "budget.weights.batch_window": draw(st.floats(0.1, 3.0)),
    }
    queues = ("gateway.queue", "pools.llm.queue", "pools.llm.batching.scheduler")
    values |= {f"{queue}.length": draw(limit) for queue in queues}
    values |= {f"{queue}.wait_limit_s": draw(wait) for queue in queues}
    return with_values(validate(raw, where="raw"), values)


@settings(max_examples=40)
@given(data=st.data())
def test_shares_sum_to_what_remains(raw, data):
    for c in allocate(data.draw(scenarios(raw))).classes:
        total = sum(c.shares_s.values())
        spent = c.network_s + c.gateway_s + c.prefill_s + c.decode_s
        if c.remaining_s > 0:
            assert total == pytest.approx(c.remaining_s)
            assert min(c.shares_s.values()) >= 0
            assert total + spent == pytest.approx(c.promise_s)
        else:
            assert math.isnan(total)


@settings(max_examples=40)
@given(data=st.data(), more=st.floats(1.0, 5.0))
def test_a_longer_promise_never_leaves_less_to_wait(raw, data, more):
    scenario = data.draw(scenarios(raw))
    promises = scenario.request_class("chat").promises
    longer = with_values(
        scenario,
        {
            f"classes.chat.promises.{name}": value * more
            for name in ("deadline_s", "ttft_s")
            if (value := getattr(promises, name)) is not None
        },
    )
    before, after = (allocate(s).by_class("chat").remaining_s for s in (scenario, longer))
    assert after >= before - 1e-9


@settings(max_examples=40)
@given(data=st.data())
def test_applying_a_budget_leaves_no_limit_that_differs_and_applying_again_changes_nothing(
    raw, data
):
    scenario = data.draw(scenarios(raw))
    budget = allocate(scenario)
    applied = apply(scenario, budget)
    again = allocate(applied)
    assert not [f for f in again.findings if f.rule == "differs_from_budget"]
    assert again.settings == budget.settings
    assert apply(applied, again) == applied


@settings(max_examples=40)
@given(data=st.data())
def test_an_applied_budget_holds_no_request_that_is_lost(raw, data):
    scenario = data.draw(scenarios(raw))
    budget = allocate(scenario)
    feasible = all(c.longest_wait_s > 0 for c in budget.classes)
    again = allocate(apply(scenario, budget))
    rules = {f.rule for f in again.findings}
    if feasible:
        assert not rules & {"waits_exceed_promise", "double_queue", "unlimited"}


@settings(max_examples=40)
@given(data=st.data())
def test_a_feasible_quantile_is_feasible(raw, data):
    scenario = data.draw(scenarios(raw))
    for c in allocate(scenario).classes:
        if c.remaining_s <= 0 and not math.isnan(c.feasible_prompt_quantile):
            lower = with_values(scenario, {"budget.prompt_quantile": c.feasible_prompt_quantile})
            assert allocate(lower).by_class(c.request_class).remaining_s > 0


def test_shares_moved_by_hand_become_the_weights_of_the_scenario(small):
    shares = {"gateway_queue": 0.1, "service_queue": 0.2, "scheduler_queue": 0.3}
    moved = with_shares(small, {**shares, "batch_window": 0.4})
    chat = allocate(moved).by_class("chat")
    assert chat.shares_s["batch_window"] == pytest.approx(0.4 * chat.remaining_s)
