"""An acceptance of M/M/1, whose limit and knee are known in closed form."""

import json
import math

import pytest

from capplan.cli import main
from capplan.encoding import to_text
from capplan.evidence import read_run
from capplan.scenario.files import write_scenario
from capplan.schema import DataError
from capplan.stages import run_stages
from capplan.stages.acceptance import folder_name

MU = 10.0
LIMIT = MU - math.log(10)
"""M/M/1: the time in the system is exponential of rate μ - λ, so 10 % exceed 1 s at μ - ln 10.
Source: Kleinrock, "Queueing Systems", vol. 1, 1975, section 3.2."""
KEYS = {
    "run_id",
    "stages",
    "knee",
    "first_degradation",
    "acceptable_load",
    "recovery",
    "protective_actions",
    "verdict",
}
STAGE_KEYS = {"name", "load_rps", "stationary", "outcomes", "by_class"}


def test_the_limit_of_a_queue_lies_in_the_acceptable_load_interval(accepted):
    low, high = accepted.acceptable()["chat"]["interval"]
    assert low < LIMIT < high
    assert accepted.first_degradation.low_rps < LIMIT < accepted.first_degradation.high_rps
    assert accepted.first_degradation.promise == "e2e_s"
    assert accepted.first_degradation.request_class == "chat"


def test_the_knee_of_one_server_is_at_half_its_capacity(accepted):
    """λ / T = λ (μ - λ) is greatest at μ / 2."""
    knee = accepted.knee
    assert accepted.ramp.steps[-1].load_rps > MU
    assert knee.low_rps < MU / 2 < knee.high_rps
    assert knee.low_rps <= knee.load_rps <= knee.high_rps
    assert knee.high_rps - knee.low_rps < 0.5 * knee.load_rps


def test_the_knee_names_its_run_its_window_and_its_slowest_requests(accepted):
    knee = accepted.knee
    [stage] = [s for s in accepted.ramp.steps if s.run_id == knee.run_id]
    assert all(
        abs(stage.load_rps - knee.load_rps) <= abs(s.load_rps - knee.load_rps)
        for s in accepted.ramp.steps
        if s.counts
    )
    assert knee.span_s == (stage.start_s, stage.end_s)
    own = stage.table.set_index("request_id")["e2e_s"]
    assert own[list(knee.request_ids)].min() >= own.drop(list(knee.request_ids)).max()
    assert accepted.to_json()["knee"].keys() >= {"span_s", "request_ids", "run_id"}


def test_callers_of_a_single_queue_lose_their_time_in_that_queue(accepted):
    point = accepted.first_degradation
    assert point.layer == "service_queue"
    assert point.limit.field == "pools.server.queue.length"
    assert point.limit.value is None
    ids = set(point.stage.run.requests["request_id"])
    assert point.found.request_ids
    assert set(point.found.request_ids) <= ids


def test_a_single_replica_that_fails_breaks_the_promise_and_the_retest_holds(accepted):
    outcomes = {r.rule: r.outcome for r in accepted.verdict.reasons}
    assert outcomes["failure_promises"] == "fail"
    assert accepted.verdict.outcome == "fail"
    assert not accepted.stage("retest").breaks


def test_the_document_has_the_agreed_keys_and_is_plain_json(accepted):
    document = json.loads(to_text(accepted.to_json()))
    assert document.keys() >= KEYS
    for stage in document["stages"]:
        assert stage.keys() >= STAGE_KEYS
    assert document["knee"].keys() >= {"load_rps", "interval"}
    assert document["first_degradation"].keys() >= {
        "load_rps", "request_class", "promise", "layer",
    }  # fmt: skip
    assert document["acceptable_load"]["chat"].keys() >= {"to_rps", "interval"}
    assert document["recovery"].keys() >= {"queues_empty_s", "error_rate_back_s"}
    for action in document["protective_actions"]:
        assert action.keys() >= {"boundary", "action", "acted"}
    assert document["verdict"].keys() >= {"outcome", "reasons"}


def test_each_stage_is_stored_in_a_run_folder_of_its_own(accepted, tmp_path):
    record = accepted.write(tmp_path / "run")
    assert record.run_id == accepted.run_id
    assert read_run(tmp_path / "run").kind == "stages"
    for stage in accepted.stages:
        if stage.kind != "retest":  # the same run as the failure
            stored = read_run(tmp_path / "run" / "stages" / folder_name(stage))
            stored.verify()
            assert stored.run_id == stage.run_id
    accepted.write(tmp_path / "run")  # the same again is checked and kept


def test_a_folder_of_something_else_is_refused(accepted, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="empty or new folder"):
        accepted.write(tmp_path)


def test_the_same_seed_gives_the_same_acceptance(single_server):
    scenario = single_server(plan={"run": ["baseline", "fall_back"], "step_s": 400.0})
    first, again = (to_text(run_stages(scenario, seed=5).to_json()) for _ in range(2))
    assert first == again


def test_the_command_prints_one_document_and_checks_the_verdict(single_server, tmp_path, capsys):
    file = tmp_path / "scenario.yaml"
    file.write_text(write_scenario(single_server(plan={"run": ["baseline", "failure"]})))
    out = str(tmp_path / "out")
    code = main(["stages", str(file), "--out", out, "--json", "--check"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert (code, printed.err) == (1, "")
    assert document["verdict"]["outcome"] == "fail"
    assert [s["kind"] for s in document["stages"]] == ["baseline", "failure", "retest"]
    assert main(["stages", str(file), "--out", out]) == 0
    assert "verdict: fail" in capsys.readouterr().out


def test_a_folder_of_other_files_is_refused_before_anything_runs(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["stages", "benchmark", "--out", str(tmp_path)]) == 2
    assert "an empty or new folder for the run" in capsys.readouterr().err


def test_a_file_above_the_folder_is_refused_before_anything_runs(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["stages", "benchmark", "--out", str(tmp_path / "notes.txt" / "runs")]) == 2
    assert "notes.txt: a folder" in capsys.readouterr().err
