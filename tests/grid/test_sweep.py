import numpy as np
import pandas as pd
import pytest

from capplan.evidence import read_run
from capplan.grid import sweep
from capplan.grid.sweep import _flat
from capplan.results import headline
from capplan.scenario.files import load_scenario
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.traffic.draw import draw

SEQS = "pools.llm.batching.max_num_seqs"


@pytest.fixture(scope="module")
def scenario():
    return load_scenario("benchmark", values={"requests": 80})


def test_every_combination_is_a_row_in_the_order_of_the_grid(scenario):
    swept = sweep(scenario, {"gateway.overhead_s": [0.0, 0.1], SEQS: [4, 8]}, replications=2)
    frame = swept.frame
    assert list(frame["point"]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert list(frame["replication"]) == [0, 1] * 4
    assert list(frame[SEQS]) == [4, 4, 8, 8] * 2
    assert list(frame["gateway.overhead_s"]) == [0.0] * 4 + [0.1] * 4
    assert frame["feasible"].all()
    assert {"ttft_p99_s", "queue_wait_service_queue_p99_s", "succeeded", "outcome"} <= set(frame)
    assert set(swept.by_class["request_class"]) == {"benchmark"}
    assert len(swept.by_class) == 8


def test_the_result_does_not_depend_on_the_number_of_jobs(scenario):
    vary = {SEQS: [2, 4, 8]}
    one, two = (sweep(scenario, vary, seed=3, jobs=jobs) for jobs in (1, 2))
    pd.testing.assert_frame_equal(one.frame, two.frame)
    pd.testing.assert_frame_equal(one.by_class, two.by_class)
    assert one.inputs.run_id == two.inputs.run_id


def test_points_share_the_requests(scenario):
    swept = sweep(scenario, {"gateway.overhead_s": [0.0, 0.25]}, seed=1)
    e2e_s = swept.frame["e2e_mean_s"]
    assert e2e_s[1] - e2e_s[0] == pytest.approx(0.25, abs=1e-9)
    assert swept.inputs.trace.rows == len(draw(scenario, seed=1))


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("breakers", ["tiered-default", []]),
        ("resource_pools", [[], [{"name": "rack", "accelerators": 4}]]),
        ("hosts", [[], [{"name": "machine"}]]),
        ("classes.benchmark.retry.max_attempts", [1, 2]),
        ("classes.benchmark.promises.ttft_s", [1.0, 2.0]),
    ],
)
def test_points_share_the_requests_unless_a_field_affects_the_traffic(scenario, field, values):
    swept = sweep(scenario, {field: values}, seed=1)
    assert swept.inputs.trace is not None
    assert len(set(swept.frame["duration_s"])) == 1


def test_requests_are_drawn_for_each_point_where_a_field_affects_the_traffic(scenario):
    swept = sweep(scenario, {"requests": [20, 40]})
    assert list(swept.frame["offered"]) == [20, 40]
    per_replica = sweep(scenario, {"replicas": [1, 2]})
    assert np.ptp(per_replica.frame["duration_s"]) > 0.3


def test_a_given_trace_is_run_as_it_is(scenario):
    trace = draw(load_scenario("benchmark", values={"requests": 10}), seed=9)
    swept = sweep(scenario, {SEQS: [4, 8]}, trace=trace)
    assert list(swept.frame["offered"]) == [10, 10]


def test_an_infeasible_combination_is_a_row_with_its_reason(scenario):
    vary = {
        "pools.llm.batching.chunked_prefill": [True, False],
        "pools.llm.batching.max_num_batched_tokens": [512, 8192],
    }
    frame = sweep(scenario, vary).frame
    assert list(frame["feasible"]) == [True, True, False, True]
    assert "without chunked_prefill" in frame["reason"][2]
    assert frame["outcome"][2] == "fail"
    assert np.isnan(frame["ttft_p99_s"][2])


@pytest.mark.parametrize(
    "vary", [{"replcas": [1]}, {"replicas": [1, "two"]}, {"pools.gpu.replicas": [1]}, {SEQS: [0]}]
)
def test_a_field_or_value_that_can_not_be_is_an_error(scenario, vary):
    with pytest.raises(DataError):
        sweep(scenario, vary)


@pytest.mark.parametrize(
    ("vary", "options"),
    [({}, {}), ({SEQS: []}, {}), ({SEQS: [4]}, {"jobs": 0}), ({SEQS: [4]}, {"replications": 0})],
)
def test_an_empty_grid_or_count_is_an_error(scenario, vary, options):
    with pytest.raises(ValueError, match="must"):
        sweep(scenario, vary, **options)


def test_a_grid_is_stored_and_read_back(scenario, tmp_path):
    vary = {"gateway.concurrency": [None, 8], "gateway.queue.order": ["fifo", "priority"]}
    swept = sweep(scenario, vary, seed=2)
    record = swept.write(tmp_path / "sweep")
    assert record.kind == "sweep"
    assert record.manifest["inputs"]["asked"]["vary"] == vary
    stored = read_run(tmp_path / "sweep")
    pd.testing.assert_frame_equal(stored.table("sweep"), swept.frame, check_dtype=False)
    assert stored.verdict["outcome"] in {"pass", "fail", "unknown"}
    swept.write(tmp_path / "sweep")


def test_values_of_mixed_kinds_are_stored_as_json(scenario, tmp_path):
    law = {"kind": "fixed", "tokens": 64}
    longer = {"kind": "lognormal", "p50_tokens": 64, "p95_tokens": 128}
    swept = sweep(scenario, {"classes.benchmark.output_tokens": [law, longer]})
    assert swept.frame["classes.benchmark.output_tokens"][0] == '{"kind": "fixed", "tokens": 64}'
    swept.write(tmp_path / "sweep")


def test_no_two_figures_of_a_run_become_the_same_column(scenario):
    """A figure may be told twice, but then it is the same one."""
    figures = headline(simulate(scenario, seed=1))
    del figures["by_class"]
    flat = _flat(figures)
    told = [_flat({name: value}) for name, value in figures.items()]
    for part in told:
        np.testing.assert_equal({name: flat[name] for name in part}, part)
