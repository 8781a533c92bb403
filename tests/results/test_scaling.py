"""Lives of replicas and findings about scaling, on runs written down by hand."""

import pytest

from capplan.results import lead_times, lifecycle_table, scaling_findings, scaling_summary
from capplan.results.cost import cost_usd, pool_cost_usd_per_hour
from capplan.results.replica_lifecycle import wanted_changes
from capplan.scenario.files import with_values
from capplan.schema import PHASES

SCALER = {
    "max_replicas": 4,
    "metrics": [{"metric": "queue_length", "source": "external", "target": 5.0}],
}


def entered(replica, *told):
    """Return a replica's rows: pairs of a time and the phase that begins."""
    return [
        {
            "time_s": time_s,
            "layer": "decode",
            "replica": replica,
            "metric": "phase",
            "value": PHASES.index(phase),
        }
        for time_s, phase in told
    ]


@pytest.fixture(name="elastic")
def _elastic(two_classes):
    return with_values(
        two_classes,
        {
            "pools.llm.replicas": 1,
            "pools.llm.cold_start_s": 20.0,
            "pools.llm.autoscaler": SCALER,
            "pools.llm.standby": {"replicas": 1, "ready": {"kind": "fixed", "seconds": 2.0}},
        },
    )


COLD = entered("llm-2", (10, "asked"), (15, "provisioning"), (30, "loading"), (40, "up"))
WARM = entered(
    "llm-1",
    (0, "standby"),
    (10, "loading"),
    (11, "standby"),
    (50, "loading"),
    (52, "up"),
    (60, "draining"),
    (64, "gone"),
)
FIRST = entered("llm-0", (0, "up"))


def test_the_lifecycle_of_a_replica_follows_from_its_phases(make_run, served, elastic):
    rows = [served("r0", 41.0, replica="llm-2"), served("r1", 45.0, replica="llm-2")]
    run = make_run(rows, scenario=elastic, timeline=[*FIRST, *COLD, *WARM])
    told = lifecycle_table(run).set_index("replica")
    cold = told.loc["llm-2"]
    assert (cold["asked_s"], cold["provisioning_s"], cold["ready_s"]) == (10, 15, 40)
    assert cold["refused"]
    assert not cold["warm"]
    assert cold["first_answer_s"] == rows[0]["finish_s"]
    assert told.loc["llm-0", ["asked_s", "gone_s"]].isna().all()
    leads = lead_times(run, pool="llm").set_index("replica")
    assert leads["ready_s"].to_dict() == {"llm-2": 30.0, "llm-1": 2.0}
    assert leads["first_answer_s"]["llm-2"] == pytest.approx(rows[0]["finish_s"] - 10)


def test_the_wanted_number_changes_when_replicas_are_asked_for_and_dismissed(make_run, elastic):
    run = make_run([], scenario=elastic, timeline=[*FIRST, *COLD, *WARM])
    assert wanted_changes(run, "llm") == [(10, 2), (11, -1), (50, 1), (60, -1)]
    assert wanted_changes(run, "other") == []
    assert scaling_summary(run)["llm"]["turns"] == 3
    assert {f.rule for f in scaling_findings(run)} == {"flapping", "resource_pool_empty"}


@pytest.mark.parametrize(("again_s", "flaps"), [(65, True), (75, False)])
def test_a_turn_sooner_than_a_start_takes_flaps_at_any_load(
    make_run, served, elastic, again_s, flaps
):
    """A start takes 10 s; the replica that left at 60 s is wanted again after 5 or 15 s."""
    goes = entered("llm-1", (20, "asked"), (20, "provisioning"), (30, "up"), (60, "gone"))
    comes = entered("llm-2", (again_s, "asked"), (again_s, "provisioning"), (again_s + 10, "up"))
    for load in (0, 40):
        rows = [served(f"r{i}", 60.0 + i / 10) for i in range(load)]
        run = make_run(rows, scenario=elastic, timeline=[*FIRST, *goes, *comes])
        assert scaling_summary(run)["llm"]["turns"] == 2
        found = [f for f in scaling_findings(run) if f.rule == "flapping"]
        assert [(f.value, f.limit) for f in found] == [(1.0, 0.0)] * flaps


@pytest.mark.parametrize(
    ("phases", "flaps"),
    [
        ([(20, "asked"), (20, "provisioning"), (30, "loading"), (45, "gone")], True),
        ([(20, "asked"), (45, "gone")], False),
        ([(20, "asked"), (20, "provisioning"), (30, "loading")], False),
    ],
)
def test_a_start_that_is_paid_and_released_unready_flaps(make_run, elastic, phases, flaps):
    """It costs nothing to give up an order before it has an accelerator."""
    run = make_run([], scenario=elastic, timeline=[*FIRST, *entered("llm-1", *phases)])
    found = [f for f in scaling_findings(run) if f.rule == "flapping"]
    assert [f.value for f in found] == [1.0] * flaps
    assert all("25 s of paid" in f.evidence for f in found)


def test_a_run_without_phases_has_no_lifecycle_and_an_unknown_cost(make_run, served, elastic):
    run = make_run([served("r0", 0.0)], scenario=elastic)
    assert lifecycle_table(run).empty
    assert lead_times(run).empty
    assert scaling_findings(run) == []
    assert cost_usd(run) != cost_usd(run)  # NaN


def test_standby_is_in_the_price_of_a_pool_at_its_share(elastic):
    half = with_values(elastic, {"pools.llm.standby.price_fraction": 0.5})
    assert pool_cost_usd_per_hour(elastic.pool()) == pytest.approx(7.2)
    assert pool_cost_usd_per_hour(half.pool()) == pytest.approx(5.4)
