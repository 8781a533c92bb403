"""One recording a file: several runs in one are refused, disorder and grouped rows are not."""

import json

import numpy as np
import pytest

import capplan as cp
from capplan.schema import DataError

TIMES = [float(i) for i in range(60)]
HEADER = "arrival_s,prompt_tokens,output_tokens"


def write(path, times, *columns, header=HEADER):
    rows = [f"{t},100,10{''.join(f',{c[i]}' for c in columns)}" for i, t in enumerate(times)]
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return path


def test_times_that_begin_again_are_two_recordings(tmp_path):
    with pytest.raises(DataError, match="begin again 1 time, first after row 60"):
        cp.read_trace(write(tmp_path / "t.csv", TIMES * 2))


def test_times_in_disorder_are_one_recording(tmp_path):
    rng = np.random.default_rng(1)
    late = np.argsort(np.array(TIMES) + rng.exponential(5.0, len(TIMES)))  # as calls ended
    for order in (late, rng.permutation(len(TIMES))):
        assert len(cp.read_trace(write(tmp_path / "t.csv", [TIMES[i] for i in order]))) == 60


def test_a_file_sorted_by_session_is_one_recording(tmp_path):
    sessions = ["a"] * 60 + ["b"] * 60
    file = write(tmp_path / "t.csv", TIMES * 2, sessions, header=f"{HEADER},session")
    assert len(cp.read_trace(file)) == 120


def test_wall_times_of_two_gateways_are_one_recording(tmp_path):
    times = [1_700_000_000 + t for t in TIMES]
    assert len(cp.read_trace(write(tmp_path / "t.csv", times * 2))) == 120


@pytest.mark.parametrize("column", ["run_id", "Experiment"])
def test_a_column_of_several_runs_is_refused(tmp_path, column):
    runs = ["x", "y"] * 30
    file = write(tmp_path / "t.csv", TIMES, runs, header=f"{HEADER},{column}")
    with pytest.raises(DataError, match=rf"{column}: one recording .*2 runs \(x, y\)"):
        cp.read_trace(file)


@pytest.mark.parametrize("runs", [["x"] * 60, [f"call-{i}" for i in range(60)]])
def test_one_run_or_an_id_a_call_is_no_reason_to_refuse(tmp_path, runs):
    file = write(tmp_path / "t.csv", TIMES, runs, header=f"{HEADER},run_id")
    assert len(cp.read_trace(file)) == 60


def test_results_of_two_benchmarks_in_one_file_are_refused(tmp_path):
    lists = {"start_times": TIMES, "input_lens": [9] * 60, "output_lens": [9] * 60,
             "ttfts": [0.1] * 60, "itls": [[0.1]] * 60}  # fmt: skip
    file = tmp_path / "bench.jsonl"
    file.write_text(json.dumps(lists) + "\n")
    assert len(cp.read_trace(file)) == 60
    file.write_text(f"{json.dumps(lists)}\n{json.dumps(lists)}\n")
    with pytest.raises(DataError, match="one run a file"):
        cp.read_trace(file)
    with pytest.raises(DataError, match="one run a file"):
        cp.read_measured(file)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_a_measured_file_of_two_runs_is_refused(tmp_path, suffix, named):
    import pandas as pd

    runs = {"run": np.repeat([1, 2], 60)} if named else {}
    frame = pd.DataFrame({"sent_s": TIMES * 2, "prompt_tokens": 9, "output_tokens": 9,
                          "ttft_s": 0.1, "e2e_s": 0.2, **runs})  # fmt: skip
    whole, half = tmp_path / f"whole.{suffix}", tmp_path / f"half.{suffix}"
    for file, part in ((whole, frame), (half, frame[:60])):
        if suffix == "parquet":
            part.to_parquet(file)
        elif suffix == "csv":
            part.to_csv(file, index=False)
        else:
            part.to_json(file, orient="records", lines=True)
    assert len(cp.read_measured(half).requests) == 60
    with pytest.raises(DataError, match="one recording a file"):
        cp.read_measured(whole)
