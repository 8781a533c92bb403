"""Levels of metrics that a simulation tells, against what is known of them."""

import pytest
from run_tables import timeline_table

from capplan.scenario.files import load_scenario
from capplan.simulation import simulate
from capplan.stages.metrics import levels, step_gaps
from capplan.stages.stage import stage_of

ROOFLINE = {"kind": "roofline", "overhead_s": 2e-3, "per_sequence_s": 1e-5}
POOL = {
    "pools.llm.model": "meta-llama/Llama-3.1-8B",
    "pools.llm.accelerator": "A100-SXM-80GB",
    "pools.llm.batching.step_time": ROOFLINE,
    "pools.llm.replicas": 2,
    "requests": 150,
}


def staged(**values):
    run = simulate(load_scenario("benchmark", values=POOL | values), seed=1)
    return stage_of("x", "plain", 1.0, run, start_s=1.0, end_s=run.duration_s)


@pytest.fixture(name="served", scope="module")
def _served():
    return staged()


def test_a_step_gap_is_the_work_of_the_host_that_nothing_hides(served):
    gaps = step_gaps(served)
    assert set(gaps["replica"]) == {"llm-0", "llm-1"}
    rows = served.run.timeline
    running = rows[(rows["layer"] == "decode") & (rows["metric"] == "running")]
    most = running["value"].max()
    assert gaps["gap_s"].between(2e-3, 2e-3 + 1e-5 * most).all()
    assert gaps["gap_fraction"].dropna().between(0, 1).all()
    found = levels(served)["2 accelerators"]["step_gap_s"]
    assert 2e-3 <= found["mean"] <= found["p95"] <= 2e-3 + 1e-5 * most


def test_work_that_is_hidden_leaves_no_gap(served):
    hidden = staged(**{"pools.llm.batching.async_scheduling": True})
    assert levels(hidden)["2 accelerators"]["step_gap_s"]["mean"] == 0.0
    assert levels(hidden)["2 accelerators"]["step_gap_fraction"]["mean"] == 0.0


def test_a_law_without_a_host_tells_no_gap():
    linear = {"kind": "linear", "base_s": 0.01, "per_prefill_token_s": 1e-5,
              "per_sequence_s": 1e-5, "per_context_token_s": 0.0}  # fmt: skip
    found = staged(**{"pools.llm.batching.step_time": linear})
    assert step_gaps(found).empty
    assert levels(found)["2 accelerators"]["step_gap_s"] is None


def test_blocks_of_which_any_one_serves_are_not_fragmented(served):
    assert levels(served)["2 accelerators"]["fragmentation"] == {"mean": 0.0, "p95": 0.0}


def test_the_pressure_on_a_shared_host_is_that_of_its_scarcest_resource():
    scenario = load_scenario("mixed-modality", values={"requests": 300})
    run = simulate(scenario, seed=1)
    stage = stage_of("x", "plain", 1.0, run, start_s=0.0, end_s=run.duration_s)
    rows = run.timeline[run.timeline["layer"] == "host"]
    assert set(rows["replica"]) == {host.name for host in scenario.hosts}
    found = levels(stage)["3 queues and hosts"]
    assert found["host_pressure"]["mean"] > 1.0
    assert found["host_pressure"]["p95"] <= rows["value"].max()
    assert found["host_pause_s"] is None


def test_the_scheduler_queues_of_all_replicas_add_up(served):
    from dataclasses import replace

    rows = [
        {"time_s": 0.0, "layer": "scheduler_queue", "replica": f"llm-{i}", "metric": "length",
         "value": 3.0}
        for i in range(2)
    ]  # fmt: skip
    stage = replace(served, run=replace(served.run, timeline=timeline_table(rows)))
    assert levels(stage)["3 queues and hosts"]["scheduler_queue"]["mean"] == 6.0
