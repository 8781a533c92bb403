"""Which requests get the slots of a gateway: quotas, borrowing, reserves, displacement."""

import math
from collections import Counter

import numpy as np
import pytest
from conservation_checks import check_conservation

from capplan.results import queue_waits
from capplan.results.segments import segments
from capplan.simulation import simulate
from capplan.simulation.run import _Run

TENANTS = [{"name": "quiet"}, {"name": "noisy"}, {"name": "guest"}]


def quotas(quiet=4, noisy=4, **fields):
    return [
        {"tenant": "quiet", "concurrency": quiet} | fields,
        {"tenant": "noisy", "concurrency": noisy} | fields,
    ]


@pytest.fixture(name="shared")
def _shared(single_queue):
    """Return a scenario of slots that each take a second, and nothing else that limits."""

    def shared(concurrency=8, *, exponential=False, **gateway):
        return single_queue(
            3 * concurrency,  # a cancelled batch still runs to its end
            exponential=exponential,
            tenants=TENANTS,
            gateway={"concurrency": concurrency} | gateway,
        )

    return shared


def waits(log):
    return log["gateway_admitted_s"] - log["gateway_in_s"]


def held(log, tenant, time_s):
    own = log[(log["tenant"] == tenant) & (log["gateway_admitted_s"] <= time_s)]
    return int((own["finish_s"] > time_s).sum())


def test_a_tenant_borrows_what_others_do_not_use(shared, trace_of, play):
    log = play(shared(quotas=quotas()), trace_of([0.0] * 9, tenant="noisy")).requests
    assert (waits(log) == 0).sum() == 8
    assert waits(log).iloc[8] == 1.0


@pytest.mark.parametrize(
    ("fields", "at_once"),
    [({"lendable_fraction": 0.5}, 6), ({"borrowing_limit": 1}, 5), ({"lendable_fraction": 0.0}, 4)],
)
def test_what_is_not_lent_or_beyond_the_borrowing_limit_stays_free(
    shared, trace_of, play, fields, at_once
):
    trace = trace_of([0.0] * 20 + [0.5] * 2, tenant=["noisy"] * 20 + ["quiet"] * 2)
    log = play(shared(quotas=quotas(**fields)), trace).requests
    assert held(log, "noisy", 0.5) == at_once
    assert (waits(log[log["tenant"] == "quiet"]) == 0).all()


def test_a_tenant_without_a_quota_only_borrows(shared, trace_of, play):
    trace = trace_of([0.0] * 8 + [0.1] * 4, tenant=["guest"] * 8 + ["guest"] * 2 + ["quiet"] * 2)
    log = play(shared(quotas=quotas()), trace).requests
    assert waits(log).tolist() == pytest.approx([0.0] * 8 + [0.9] * 4)
    first = log["gateway_admitted_s"].iloc[8:]
    assert first.tolist() == [1.0] * 4


def test_the_next_free_slot_goes_to_the_tenant_within_its_quota(shared, trace_of, play):
    """The noisy tenant has borrowed all; the later request that owns the slot is served first."""
    scenario = shared(2, quotas=quotas(1, 1))
    trace = trace_of(
        [0.0, 0.2, 0.3, 0.3, 0.3, 0.5],
        tenant=["noisy", "noisy", "noisy", "noisy", "noisy", "quiet"],
    )
    log = play(scenario, trace).requests
    assert log["gateway_admitted_s"].tolist() == [0.0, 0.2, 1.2, 2.0, 2.2, 1.0]


def test_a_reclaimed_slot_is_that_of_the_youngest_borrowed(shared, trace_of, play):
    scenario = shared(4, quotas=quotas(2, 2), reclaim="cancel", queue={"retry_after_s": 7.0})
    trace = trace_of([0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7], tenant=["noisy"] * 4 + ["quiet"] * 3)
    result = play(scenario, trace)
    log = result.requests
    check_conservation(result)
    assert log["reason"].fillna("").tolist() == ["", "", "reclaimed", "reclaimed", "", "", ""]
    assert log["finish_s"].tolist()[2:4] == [0.6, 0.5]
    assert log["outcome_layer"].iloc[3] == "gateway"
    # The third is beyond the quota: it waits like any other.
    assert log["gateway_admitted_s"].tolist()[4:] == [0.5, 0.6, 1.0]


def test_a_full_queue_of_the_noisy_makes_room_for_the_quiet(shared, trace_of, play):
    scenario = shared(2, quotas=quotas(1, 1), queue={"length": 3})
    trace = trace_of([0.0] * 2 + [0.1] * 4 + [0.2] * 3, tenant=["noisy"] * 6 + ["quiet"] * 3)
    log = play(scenario, trace).requests
    reasons = log["reason"].fillna("").tolist()
    # The last of the noisy ones finds it full. The noisy tenant is 4 beyond its quota, then 3,
    # then 2: as far as the quiet one would be with its third.
    assert reasons == ["", "", "", "displaced", "displaced", "queue_full", "", "", "queue_full"]
    assert log["gateway_admitted_s"].tolist()[6:8] == [1.0, 2.0]


@pytest.mark.parametrize("reclaim", ["next_free", "cancel"])
def test_a_noisy_tenant_does_not_touch_the_tail_of_one_within_its_quota(
    shared, trace_of, play, reclaim
):
    """Ten times its share for a minute; the quiet one uses at most 4 of its 4 slots."""
    rng = np.random.default_rng(4)
    quiet = np.arange(0, 120, 0.3)
    noisy = 30 + np.cumsum(rng.exponential(1 / 40, 2400))
    times = np.concatenate([quiet, noisy])
    order = np.argsort(times, kind="stable")
    names = np.array(["quiet"] * len(quiet) + ["noisy"] * len(noisy))[order]
    trace = trace_of(times[order], tenant=names.tolist())
    queue = {"length": 20, "wait_limit_s": 2.0}

    def of_quiet(scenario):
        log = play(scenario, trace).requests
        return log[log["tenant"] == "quiet"]

    alone = of_quiet(shared(queue=queue))
    assert (alone["outcome"] == "succeeded").mean() < 0.9
    safe = of_quiet(shared(queue=queue, quotas=quotas(), reclaim=reclaim))
    assert (safe["outcome"] == "succeeded").all()
    longest = {"next_free": 0.5, "cancel": 0.0}[reclaim]
    assert waits(safe).max() <= longest


def test_slots_are_never_idle_while_a_request_may_have_one(shared, trace_of):
    """Work-conserving, checked at every event: with lendable quotas, waiting means no slot free."""
    rng = np.random.default_rng(8)
    tenants = rng.choice(["quiet", "noisy", "guest"], 400, p=[0.3, 0.5, 0.2]).tolist()
    trace = trace_of(np.cumsum(rng.exponential(0.1, 400)), tenant=tenants)
    run = _Run(shared(quotas=quotas(3, 2), exponential=True), trace, seed=1, replication=0)
    run.callers.start(run.gateway)
    waited = 0
    while run._busy():
        run.clock.step()
        waiting = len(run.gateway.queue.line)
        waited += waiting > 0
        assert not waiting or run.gateway.in_flight == 8
        holders = Counter({t: run.gateway.slots.held(t) for t in ("quiet", "noisy", "guest")})
        assert holders.total() == run.gateway.in_flight <= 8
    assert waited > 100


def test_the_last_slots_are_for_the_urgent(shared, trace_of, play):
    scenario = shared(4, reserves=[{"priority": 0, "concurrency": 2}], queue={"length": 0})
    trace = trace_of([0.0] * 6, priority=[1, 1, 1, 0, 0, 0])
    log = play(scenario, trace).requests
    assert log["reason"].fillna("").tolist() == ["", "", "queue_full", "", "", "queue_full"]


def test_who_waits_behind_a_reserve_does_not_hold_up_the_urgent(shared, trace_of, play):
    scenario = shared(3, reserves=[{"priority": 0, "concurrency": 1}])
    trace = trace_of([0.0, 0.0, 0.1, 0.2], priority=[1, 1, 1, 0])
    log = play(scenario, trace).requests
    assert log["gateway_admitted_s"].tolist() == [0.0, 0.0, 1.0, 0.2]


def test_no_tenant_beyond_its_quota_gets_a_reserved_slot_however_urgent(shared, trace_of, play):
    scenario = shared(6, quotas=quotas(2, 2), reserves=[{"priority": 0, "concurrency": 2}])
    tenants = ["noisy"] * 9 + ["quiet"] * 2
    trace = trace_of([0.0] * 9 + [0.5] * 2, tenant=tenants, priority=0)
    log = play(scenario, trace).requests
    assert held(log, "noisy", 0.5) == 4
    assert waits(log).tolist()[9:] == [0.0, 0.0]


@pytest.mark.parametrize(("load", "share"), [(6.0, 0.5), (9.0, 0.3)])
def test_a_reserve_loses_calls_as_trunk_reservation_does(single_queue, trace_of, load, share):
    """Poisson arrivals, exponential service, no queue: the birth-death chain of the source.

    Source: Kelly, "Loss networks", 1991 (trunk reservation): with n of C slots used both classes
    come in while C - n > R, then only the urgent one.
    """
    slots, kept, count = 8, 2, 40_000
    rng = np.random.default_rng(11)
    scenario = single_queue(
        slots,
        gateway={
            "concurrency": slots,
            "reserves": [{"priority": 0, "concurrency": kept}],
            "queue": {"length": 0},
        },
    )
    urgent = rng.random(count) < share
    trace = trace_of(np.cumsum(rng.exponential(1 / load, count)), priority=np.where(urgent, 0, 1))
    log = simulate(scenario, trace=trace, seed=2).requests
    lost = log["outcome"] == "rejected"
    weights = [1.0]
    for n in range(slots):
        rate = load if slots - n > kept else load * share
        weights.append(weights[-1] * rate / (n + 1))
    chance = np.array(weights) / sum(weights)
    expected = {0: chance[slots], 1: chance[slots - kept :].sum()}
    for priority, loss in expected.items():
        own = lost[log["priority"] == priority]
        batches = own.to_numpy()[: len(own) // 50 * 50].reshape(50, -1).mean(axis=1)
        half = 2.68 * batches.std(ddof=1) / math.sqrt(50)  # 99 %, t with 49 degrees
        assert abs(batches.mean() - loss) < half
        assert half < 0.1 * loss + 0.003


def test_a_full_queue_refuses_the_newcomer_or_displaces_the_least_urgent(shared, trace_of, play):
    queue = {"length": 2, "order": "priority", "status": 503, "retry_after_s": 4.0}
    trace = trace_of([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], priority=[1, 2, 2, 2, 1, 0])
    log = play(shared(1, queue=queue), trace).requests
    assert log["reason"].fillna("").tolist() == ["", "", ""] + ["queue_full"] * 3
    log = play(shared(1, queue=queue, when_full="displace_lowest"), trace).requests
    # The youngest of the least urgent goes first; an equal never displaces an equal.
    assert log["reason"].fillna("").tolist() == ["", "displaced", "displaced", "queue_full", "", ""]
    assert log["finish_s"].tolist()[1:3] == [0.5, 0.4]
    assert log["gateway_admitted_s"].tolist()[4:] == [2.0, 1.0]


def test_who_was_displaced_or_reclaimed_has_waited_until_then(shared, trace_of, play):
    both = {"quotas": quotas(1, 1), "queue": {"length": 1}, "reclaim": "cancel"}
    scenario = shared(2, when_full="displace_lowest", overhead_s=0.4, **both)
    trace = trace_of([0.0, 0.1, 0.2, 0.5, 0.6], tenant=["noisy"] * 3 + ["quiet"] * 2)
    log = play(scenario, trace).requests
    assert log["reason"].fillna("").tolist() == ["", "reclaimed", "displaced", "", ""]
    waited = queue_waits(log)["gateway"].tolist()
    assert waited == pytest.approx([0.0, 0.0, 0.3, 0.0, 0.8])


def test_an_urgent_request_beyond_its_quota_displaces_none_within_theirs(shared, trace_of, play):
    scenario = shared(
        2,
        quotas=quotas(1, 1),
        when_full="displace_lowest",
        queue={"length": 1, "order": "priority"},
    )
    trace = trace_of(
        [0.0, 0.0, 0.1, 0.2], priority=[1, 1, 2, 0], tenant=["noisy", "noisy", "quiet", "noisy"]
    )
    log = play(scenario, trace).requests
    assert log["reason"].fillna("").tolist() == ["", "", "", "queue_full"]


def test_overhead_queues_for_its_workers_and_shows_in_the_gateways_wait(build, trace_of, play):
    scenario = build(
        gateway={"overhead_s": 0.5, "overhead_concurrency": 2, "queue": {"wait_limit_s": 1.2}},
        network={"one_way_s": 0.01},
    )
    log = play(scenario, trace_of([0.0] * 8)).requests
    assert waits(log).tolist()[:6] == pytest.approx([0.0, 0.0, 0.5, 0.5, 1.0, 1.0])
    assert log["reason"].tolist()[6:] == ["wait_limit"] * 2
    served = log.iloc[:6]
    assert (served["service_queue_in_s"] - served["gateway_admitted_s"]).tolist() == [0.5] * 6
    parts = segments(served)
    assert parts["gateway_s"].tolist() == pytest.approx([0.5, 0.5, 1.0, 1.0, 1.5, 1.5])
    total = served["finish_s"] - served["intended_start_s"]
    np.testing.assert_allclose(parts.sum(axis=1), total, rtol=0, atol=1e-12)


def test_one_worker_waits_as_an_m_d_1_queue(build, trace_of):
    """Mean wait ρ s / 2 (1 - ρ) in an M/D/1 queue. Source: Pollaczek (1930), Khinchine (1932)."""
    rng = np.random.default_rng(6)
    scenario = build(gateway={"overhead_s": 0.02, "overhead_concurrency": 1})
    trace = trace_of(np.cumsum(rng.exponential(1 / 35, 40_000)), output_tokens=1)
    waited = waits(simulate(scenario, trace=trace).requests).to_numpy().reshape(40, -1)
    half = 2.71 * waited.mean(axis=1).std(ddof=1) / math.sqrt(40)
    assert abs(waited.mean() - 0.7 * 0.02 / (2 * 0.3)) < half < 0.004


def test_a_worker_ends_its_work_for_a_caller_who_has_left(build, trace_of, play):
    retry = {"attempt_timeout_s": 0.3}
    scenario = build(
        classes=[{"name": "chat", "retry": retry}],
        gateway={"overhead_s": 0.5, "overhead_concurrency": 1, "concurrency": 5},
    )
    result = play(scenario, trace_of([0.0, 0.4]))
    assert result.requests["gateway_admitted_s"].tolist() == [0.0, 0.5]


def test_the_timeline_shows_tenants_workers_and_refusals(shared, trace_of, play):
    scenario = shared(
        2, quotas=quotas(1, 1), queue={"length": 1}, overhead_s=0.01, overhead_concurrency=1
    )
    rows = play(scenario, trace_of(np.arange(5) / 10, tenant="noisy")).timeline
    rows = rows[rows["layer"] == "gateway"]
    peak = rows.groupby("metric")["value"].max()
    assert peak["in_flight_noisy"] == 2
    assert peak["in_flight_quiet"] == 0
    assert peak["length_noisy"] == 1
    assert peak["busy_workers"] == 1
    assert peak["refused_queue_full_rps"] > 0
    plain = play(shared(2), trace_of([0.0])).timeline
    assert not set(plain["metric"]) & {"busy_workers", "in_flight_noisy", "refused_queue_full_rps"}
