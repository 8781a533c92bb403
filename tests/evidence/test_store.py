import json
import signal
import subprocess
import sys
from importlib.metadata import version

import pandas as pd
import pytest

from capplan.evidence import Inputs, TraceIdentity, read_run, write_run
from capplan.evidence.store import inputs_of
from capplan.scenario.files import load_scenario, with_values
from capplan.schema import DataError

VERDICT = {"outcome": "fail", "reasons": [{"rule": "p99", "value": float("inf"), "limit": 2.0}]}


def test_a_run_is_read_back_as_it_was_written(make_result, tmp_path):
    result = make_result()
    write_run(result, VERDICT, tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.run_id == inputs_of(result).run_id
    assert record.scenario == result.scenario
    assert record.verdict == {
        "outcome": "fail",
        "reasons": [{"rule": "p99", "value": "inf", "limit": 2.0}],
    }
    pd.testing.assert_frame_equal(record.table("requests"), result.requests, check_dtype=False)
    pd.testing.assert_frame_equal(record.table("timeline"), result.timeline, check_dtype=False)
    record.verify()


def test_the_manifest_has_the_inputs_and_the_versions(make_result, tmp_path):
    result = make_result(seed=7)
    manifest = write_run(result, None, tmp_path / "run").manifest
    inputs = manifest["inputs"]
    assert (inputs["seed"], inputs["replication"], inputs["backend"]) == (7, 0, "simulated")
    assert inputs["trace"]["source"] == "made"
    assert inputs["trace"]["content_sha256"] == TraceIdentity.of(result.trace).content_sha256
    assert manifest["versions"]["numpy"] == version("numpy")
    assert manifest["versions"]["capplan"] == version("capplan")
    assert manifest["verdict"] is None
    assert manifest["circumstances"]["wall_s"] == 0.1


def test_no_secret_of_the_environment_is_stored(make_result, tmp_path, monkeypatch):
    monkeypatch.setenv("API_TOKEN", "s3cr3t-value")
    write_run(make_result(), VERDICT, tmp_path / "run")
    stored = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    assert b"s3cr3t-value" not in stored


def test_equal_runs_have_the_same_id_and_tables(make_result, tmp_path):
    first = write_run(make_result(), VERDICT, tmp_path / "a").manifest
    second = write_run(make_result(), VERDICT, tmp_path / "b").manifest
    assert first["run_id"] == second["run_id"]
    assert first["tables"] == second["tables"]


@pytest.mark.parametrize(
    "changed",
    [{"seed": 2}, {"rows": 5}, {"replicas": 2}, {"gateway.overhead_s": 0.01}],
)
def test_any_change_of_the_inputs_changes_the_id(make_result, changed):
    assert inputs_of(make_result(**changed)).run_id != inputs_of(make_result()).run_id


def test_the_path_of_the_trace_is_recorded_but_does_not_change_the_id():
    here = load_scenario("chat-service")
    there = with_values(here, {"traffic.trace": "/elsewhere/sample.csv"})
    ids = {Inputs(kind="simulate", scenario=s, seed=1).run_id for s in (here, there)}
    assert len(ids) == 1


def test_the_same_run_is_kept_where_it_is(make_result, tmp_path):
    write_run(make_result(), VERDICT, tmp_path / "run")
    before = (tmp_path / "run" / "manifest.json").stat().st_mtime_ns
    assert write_run(make_result(), VERDICT, tmp_path / "run").verdict["outcome"] == "fail"
    assert (tmp_path / "run" / "manifest.json").stat().st_mtime_ns == before


def test_another_run_is_never_written_over(make_result, tmp_path):
    write_run(make_result(), None, tmp_path / "run")
    with pytest.raises(DataError, match="an empty or new folder for run"):
        write_run(make_result(seed=2), None, tmp_path / "run")
    assert read_run(tmp_path / "run").manifest["inputs"]["seed"] == 1


def test_other_tables_from_the_same_inputs_are_an_error(make_result, tmp_path):
    result = make_result()
    write_run(result, None, tmp_path / "run")
    result.requests.loc[0, "output_tokens"] += 1
    with pytest.raises(DataError, match=r"requests: the tables of the stored run .* same inputs"):
        write_run(result, None, tmp_path / "run")


def test_a_folder_of_other_files_is_left_alone(make_result, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="an empty or new folder"):
        write_run(make_result(), None, tmp_path)
    with pytest.raises(DataError, match="a folder, or a name for a new one"):
        write_run(make_result(), None, tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_empty_folder_is_used(make_result, tmp_path):
    assert write_run(make_result(), None, tmp_path).folder == tmp_path
    read_run(tmp_path).verify()


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda run: (run / "manifest.json").unlink(), "a folder with a run"),
        (lambda run: (run / "manifest.json").write_text('{"format": '), "a readable manifest"),
        (lambda run: (run / "manifest.json").write_text('{"format": 99}'), "form 1, got 99"),
        (lambda run: (run / "manifest.json").write_text('{"format": 1}'), "inputs: a required"),
        (lambda run: (run / "requests.parquet").unlink(), "a file of the run"),
        (lambda run: (run / "requests.parquet").write_bytes(b"PAR1"), "the stored bytes"),
    ],
)
def test_a_damaged_run_is_named_not_read(make_result, tmp_path, damage, rule):
    write_run(make_result(), None, tmp_path / "run")
    damage(tmp_path / "run")
    with pytest.raises(DataError, match=rule):
        read_run(tmp_path / "run").table("requests")


def test_a_table_that_is_not_stored_is_an_error(make_result, tmp_path):
    record = write_run(make_result(), None, tmp_path / "run")
    with pytest.raises(DataError, match="one of requests, timeline, books, got 'gpu'"):
        record.table("gpu")


WRITER = """
import os, sys, time
from pathlib import Path
import pandas as pd
from capplan.evidence import Inputs, store
from capplan.evidence import folders
from capplan.scenario.files import load_scenario

def wait(*args):
    print("here", flush=True)
    time.sleep(60)

where, target = sys.argv[1:]
if where == "after a table":
    write = pd.DataFrame.to_parquet
    pd.DataFrame.to_parquet = lambda *a, **k: (write(*a, **k), wait())
elif where == "before the rename":
    Path.rename = wait
inputs = Inputs(kind="simulate", scenario=load_scenario("benchmark"), seed=1)
store(inputs, {"requests": pd.DataFrame({"a": range(1000)})}, target)
"""


@pytest.mark.parametrize("where", ["after a table", "before the rename"])
def test_a_killed_writer_leaves_no_half_run(tmp_path, where, monkeypatch):
    target = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, where, str(target)], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout.readline() == b"here\n"
        writer.send_signal(signal.SIGKILL)
    assert not target.exists()
    monkeypatch.setattr("capplan.evidence.folders.STALE_S", -1.0)
    subprocess.run([sys.executable, "-c", WRITER, "nowhere", str(target)], check=True)
    assert len(read_run(target).table("requests")) == 1000


def test_a_full_disk_leaves_nothing(make_result, tmp_path):
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
        f"sys.argv = ['', 'nowhere', {str(tmp_path / 'run')!r}]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + WRITER], capture_output=True, text=True, check=False
    )
    assert "OSError" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_plain_json(make_result, tmp_path):
    write_run(make_result(), VERDICT, tmp_path / "run")
    text = (tmp_path / "run" / "manifest.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["format"] == 1
