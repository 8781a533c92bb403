"""Refused and failed calls of a log are demand: they keep their arrival, lengths are imputed."""

import json

import numpy as np
import pytest

import capplan as cp
from capplan.schema import DataError
from capplan.traffic.readers.unserved import failed


def log(tmp_path, header, rows, name="calls.csv"):
    file = tmp_path / name
    file.write_text("\n".join([header, *rows]), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("column", "bad", "good"),
    [
        ("status_code", "429", "200"),
        ("status", "503", "201"),
        ("success", "false", "true"),
        ("ok", "0", "1"),
        ("error", "rate limited", ""),
        ("error_code", "1301", "null"),
        ("finish_reason", "abort", "stop"),
        ("outcome", "timed_out", "succeeded"),
    ],
)
def test_a_log_with_two_of_five_calls_refused_has_the_rate_of_five(tmp_path, column, bad, good):
    rows = [
        f"{i},{100 + i},{'' if i % 5 < 2 else 20},{bad if i % 5 < 2 else good}" for i in range(500)
    ]
    trace = cp.read_trace(log(tmp_path, f"arrival_s,prompt_tokens,output_tokens,{column}", rows))
    assert len(trace) == 500
    assert trace.ledger.dropped == {}
    assert trace.ledger.changed == {"imputed_tokens": 200}
    assert trace.frame["imputed"].sum() == 200
    assert (trace.frame["output_tokens"] == 20).all()  # what the served calls took
    assert trace.frame["prompt_tokens"].tolist() == [100 + i for i in range(500)]  # as recorded
    assert any("200 calls (40 %; " in note for note in trace.notes)


def test_lengths_are_those_of_the_call_s_own_class(tmp_path):
    rows = [f"{i},short,10,5,200" for i in range(50)]
    rows += [f"{50 + i},long,1000,500,200" for i in range(50)]
    rows += [f"{100 + i},{'long' if i % 2 else 'short'},0,0,429" for i in range(20)]
    header = "arrival_s,request_class,prompt_tokens,output_tokens,status"
    frame = cp.read_trace(log(tmp_path, header, rows)).frame
    added = frame[frame["imputed"]]
    assert set(added[added["request_class"] == "long"]["prompt_tokens"]) == {1000}
    assert set(added[added["request_class"] == "short"]["output_tokens"]) == {5}


def test_an_openai_log_keeps_its_failed_calls(tmp_path):
    def call(i):
        done = {"usage": {"prompt_tokens": 10, "completion_tokens": 4}, "status_code": 200}
        refused = {"error": {"message": "overloaded"}, "status_code": 503}
        own = refused if i % 4 == 0 else done
        return json.dumps({"timestamp": i, "model": "m", "response": {"id": f"r{i}", **own}})

    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(call(i) for i in range(40)), encoding="utf-8")
    trace = cp.read_trace(file)
    assert len(trace) == 40
    assert trace.frame["imputed"].sum() == 10


def test_what_is_no_call_is_still_dropped_and_counted(tmp_path):
    rows = ["0,10,5,200", "1,0,0,200", "x,10,5,200", "3,10,5,200"]
    header = "arrival_s,prompt_tokens,output_tokens,status"
    trace = cp.read_trace(log(tmp_path, header, rows))
    assert trace.ledger.dropped == {"unparseable": 1, "zero_tokens": 1}


def test_a_log_of_nothing_but_refusals_has_no_lengths_to_take(tmp_path):
    rows = [f"{i},,,429" for i in range(5)]
    header = "arrival_s,prompt_tokens,output_tokens,status"
    with pytest.raises(DataError, match="missing_tokens 5"):
        cp.read_trace(log(tmp_path, header, rows))


def test_a_column_that_nothing_reads_is_named(tmp_path):
    header = "arrival_s,prompt_tokens,output_tokens,colour"
    trace = cp.read_trace(log(tmp_path, header, ["0,1,2,red", "1,1,2,blue"]))
    assert "Columns not used: colour." in trace.notes


def test_marks_of_several_columns_add_up():
    import pyarrow as pa

    columns = {"mark:status:s": pa.array([200, 200, 500]), "mark:error:e": pa.array(["", "x", ""])}
    assert np.array_equal(failed(columns, 3), [False, True, True])
