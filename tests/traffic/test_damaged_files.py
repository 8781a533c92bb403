"""Damaged files of every format, each with its defined result; fuzzed readers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from capplan.schema import DataError
from capplan.traffic.readers import FORMATS, read_trace, tabular, values
from capplan.traffic.trace import Trace

PLAIN = "arrival_s,prompt_tokens,output_tokens\n"
RECORD = {"timestamp": 1000, "input_length": 10, "output_length": 2, "hash_ids": [1, 2]}

BEFORE = {
    "azure": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n",
        "2023-11-16 18:15:{:02d}.1234567,{},{}\n",
    ),
    "burstgpt": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n",
        "{},ChatGPT,{},{},9,API log\n",
    ),
    "splitwise": (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n",
        "{0},2,0,{0},1,{1},{2}\n",
    ),
    "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens\n", "{},{},{}\n"),
    "csv": (PLAIN, "{},{},{}\n"),
    "mooncake": (
        "",
        '{{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [1]}}\n',
    ),
    "bailian": (
        "",
        '{{"chat_id": {0}, "parent_chat_id": -1, "timestamp": {0}, "input_length": {1}, '
        '"output_length": {2}, "type": "text", "turn": 1, "hash_ids": [1]}}\n',
    ),
    "jsonl": ("", '{{"arrival_s": {}, "prompt_tokens": {}, "output_tokens": {}}}\n'),
    "openai-log": (
        "",
        '{{"created": {}, "usage": {{"prompt_tokens": {}, "completion_tokens": {}}}}}\n',
    ),
    "otel": (
        "",
        '{{"name": "chat", "startTimeUnixNano": {}, "attributes": '
        '{{"gen_ai.usage.input_tokens": {}, "gen_ai.usage.output_tokens": {}}}}}\n',
    ),
}
"""Per format the header and the form of a row of time, prompt and output tokens."""


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(tmp_path: Path, rows: str, **options: object) -> Trace:
    return read_trace(written(tmp_path / "t.csv", PLAIN + rows), **options)


def good(form: str, n: int = 5) -> str:
    return "".join(form.format(i + 1, 10 + i, 2 + i) for i in range(n))


@pytest.mark.parametrize("name", BEFORE)
def test_a_good_file_of_each_format_is_recognised_and_kept_whole(tmp_path, name):
    header, form = BEFORE[name]
    trace = read_trace(written(tmp_path / "t", header + good(form)))
    assert trace.format == name
    assert trace.ledger.read == trace.ledger.kept == 5
    assert trace.frame["prompt_tokens"].tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize("name", BEFORE)
def test_a_cut_last_line_costs_that_line(tmp_path, name):
    header, form = BEFORE[name]
    whole = header + good(form)
    last = form.format(6, 15, 7)
    cut = last[: max(2, len(last) // 3)].rstrip(",")
    trace = read_trace(written(tmp_path / "t", whole + cut))
    assert trace.ledger.kept == 5
    assert trace.ledger.read == 6
    assert trace.ledger.dropped == {"unparseable": 1}


@pytest.mark.parametrize("name", BEFORE)
def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path, name):
    header, form = BEFORE[name]
    text = (header + good(form)).replace("\n", "\r\n")
    trace = read_trace(written(tmp_path / "t", b"\xef\xbb\xbf" + text.encode()))
    assert trace.format == name
    assert trace.ledger.kept == 5


@pytest.mark.parametrize("name", BEFORE)
def test_a_broken_line_in_the_middle_costs_that_line(tmp_path, name):
    header, form = BEFORE[name]
    text = header + good(form, 3) + 'oops, "\n' + good(form, 6)[len(good(form, 3)) :]
    trace = read_trace(written(tmp_path / "t", text))
    assert trace.ledger.read == 7
    assert trace.ledger.kept == 6
    assert trace.ledger.dropped == {"unparseable": 1}


@pytest.mark.parametrize("name", BEFORE)
def test_bytes_that_are_not_utf8_cost_their_line(tmp_path, name):
    header, form = BEFORE[name]
    bad = form.format(9, 9, 9).rstrip("\n").encode() + b"\xff\xfe\n"
    data = (header + good(form)).encode() + bad
    trace = read_trace(written(tmp_path / "t", data))
    assert trace.ledger.kept >= 5
    assert trace.ledger.read == 6


@pytest.mark.parametrize("name", BEFORE)
def test_missing_negative_and_zero_values_are_dropped_under_their_own_reasons(tmp_path, name):
    header, form = BEFORE[name]
    missing = "null" if "{{" in form else ""
    rows = [(6, missing, 5), (7, 5, missing), (8, -5, 5), (9, 5, -5), (10, 5, 0)]
    text = header + good(form) + "".join(form.format(*row) for row in rows)
    if name == "azure":
        missing_time = form.replace("2023-11-16 18:15:{:02d}.1234567", "{}").format("", 5, 5)
        text += missing_time
    trace = read_trace(written(tmp_path / "t", text))
    expected = {"missing_tokens": 2, "negative": 2}
    if name == "azure":
        expected["missing_time"] = 1
    assert trace.ledger.dropped == expected
    assert trace.ledger.kept == 6
    assert trace.ledger.changed["imputed_tokens"] == 1  # a call without an answer is demand


@pytest.mark.parametrize("name", BEFORE)
def test_rows_out_of_order_are_sorted_and_counted(tmp_path, name):
    header, form = BEFORE[name]
    rows = "".join(form.format(i, 10 + i, 2) for i in (1, 5, 3, 4, 9))
    trace = read_trace(written(tmp_path / "t", header + rows))
    assert trace.frame["prompt_tokens"].tolist() == [11, 13, 14, 15, 19]
    assert trace.ledger.changed == {"out_of_order_sorted": 2}


@pytest.mark.parametrize("name", BEFORE)
def test_one_row_is_a_trace_and_none_is_an_error(tmp_path, name):
    header, form = BEFORE[name]
    assert len(read_trace(written(tmp_path / "t", header + form.format(1, 5, 5)))) == 1
    with pytest.raises(DataError, match=r"at least one usable request|a file with rows"):
        read_trace(written(tmp_path / "t", header))
    with pytest.raises(DataError, match="a file with rows, got 'an empty file'"):
        read_trace(written(tmp_path / "t", ""))


@pytest.mark.parametrize(
    ("rows", "kept", "dropped"),
    [
        ("1,10,2\n2,nan,2\n3,10,NaN\n", 1, {"missing_tokens": 2}),
        ("1,10,2\nnan,10,2\n,10,2\n", 1, {"missing_time": 2}),
        ("1,10,2\n2,inf,2\n3,1e400,2\n", 1, {"unparseable": 2}),
        ("1,10,2\n2,10.5,2\n3,10.0,2\n", 2, {"unparseable": 1}),
        ("1,10,2\n2,12 tokens,2\n", 1, {"unparseable": 1}),
        ("1,10,2\n2,99999999999999999999,2\n3,2000000000,2\n", 1, {"unparseable": 2}),
        ("1,10,2\n-1,10,2\n", 1, {"negative": 1}),
        ("1,10,2\n2,10\n3,10,2,4\n", 1, {"unparseable": 2}),
        ('1,10,2\n2,"10,2\n3,10,2\n', 2, {"unparseable": 1}),
        ("1,0,2\n2,10,2\n", 1, {"zero_tokens": 1}),
        ("1,10,2\n\n\n2,10,2\n", 2, {}),
        ("\n1,10,2\n", 1, {}),
    ],
)
def test_each_kind_of_damage_in_a_table_has_its_reason(tmp_path, rows, kept, dropped):
    ledger = table(tmp_path, rows).ledger
    assert ledger.kept == kept
    assert ledger.dropped == dropped


def test_dropped_rows_are_noted_with_share_and_reason(tmp_path):
    lossy = table(tmp_path, "1,10,2\n2,10,2\n3,10,2\n4,10,-1\n")
    assert any("1 row (25 %) dropped" in n and "negative" in n for n in lossy.notes)
    assert not table(tmp_path, "1,10,2\n2,10,2\n").notes


def test_quoted_padded_and_grouped_numbers_are_numbers(tmp_path):
    trace = table(tmp_path, '"1.5"," 1,234 ","12"\n2.5,"1,234,567",+7\n3.5,"12,34",7\n')
    assert trace.frame["prompt_tokens"].tolist() == [1234, 1_234_567]
    assert trace.frame["output_tokens"].tolist() == [12, 7]
    assert trace.ledger.changed == {"thousands_separator": 2}
    assert trace.ledger.dropped == {"unparseable": 1}


def test_a_repeated_id_is_dropped_after_its_first_use(tmp_path):
    rows = "a,1,10,2\nb,2,11,2\na,3,12,2\n,4,13,2\n,5,1,2\n"
    text = "request_id," + PLAIN + rows
    trace = read_trace(written(tmp_path / "t.csv", text))
    assert trace.frame["prompt_tokens"].tolist() == [10, 11, 13, 1]
    assert trace.ledger.dropped == {"duplicate_id": 1}


def test_semicolons_and_tabs_separate_fields_too(tmp_path):
    for mark in (";", "\t", "|"):
        text = (PLAIN + "1,10,2\n2,11,3\n").replace(",", mark)
        assert len(read_trace(written(tmp_path / "t.csv", text))) == 2


def test_utf16_is_refused_by_name(tmp_path):
    with pytest.raises(DataError, match="UTF-8 text, got 'UTF-16'"):
        read_trace(written(tmp_path / "t.csv", (PLAIN + "1,1,1\n").encode("utf-16")))


def stamps(tmp_path: Path, *times: object) -> Trace:
    rows = "".join(f"{time},10,2\n" for time in times)
    text = "timestamp,prompt_tokens,output_tokens\n" + rows
    return read_trace(written(tmp_path / "t.csv", text))


@pytest.mark.parametrize(("scale", "unit"), [(1, "s"), (10**3, "ms"), (10**6, "us"), (10**9, "ns")])
def test_epoch_times_are_read_by_their_magnitude_and_noted(tmp_path, scale, unit):
    trace = stamps(tmp_path, 1_700_000_000 * scale, 1_700_000_001 * scale)
    assert trace.frame["arrival_s"].tolist() == [0.0, 1.0]
    assert trace.start.isoformat() == "2023-11-14T22:13:20+00:00"
    assert f"Times are {unit} since 1970; their magnitude shows the unit." in trace.notes


def test_nanoseconds_since_1970_keep_their_digits(tmp_path):
    trace = stamps(tmp_path, 1_700_000_000_000_000_001, 1_700_000_000_000_000_004)
    assert trace.frame["arrival_s"].tolist() == [0.0, 3e-9]


def test_a_mix_of_units_is_an_error_but_a_stray_row_is_dropped(tmp_path):
    seconds = [1_700_000_000 + i for i in range(200)]
    with pytest.raises(DataError, match="times in one unit, got '100 in s since 1970, 100 in ms"):
        stamps(tmp_path, *seconds[:100], *(s * 1000 for s in seconds[100:]))
    trace = stamps(tmp_path, *seconds, 0)
    assert trace.ledger.dropped == {"other_time_unit": 1}
    assert trace.ledger.kept == 200


def test_two_time_zones_are_one_time(tmp_path):
    trace = stamps(tmp_path, "2024-03-31T00:59:59Z", "2024-03-31T03:00:00+02:00")
    assert trace.frame["arrival_s"].tolist() == [0.0, 1.0]


def test_times_with_and_without_offset_in_one_file_are_an_error(tmp_path):
    with pytest.raises(DataError, match="1 without offset, 1 with offset"):
        stamps(tmp_path, "2024-03-31T00:59:59Z", "2024-03-31T03:00:00")
    with pytest.raises(DataError, match="1 numbers, 1 without offset"):
        stamps(tmp_path, "17", "2024-03-31T03:00:00")


@pytest.mark.parametrize(
    "time",
    [
        "2024-02-30 10:00:00",
        "2024-13-01 10:00:00",
        "2024-01-01 25:00:00",
        "yesterday",
        "9999-01-01",
    ],
)
def test_an_impossible_date_is_unparseable(tmp_path, time):
    trace = stamps(tmp_path, "2024-02-01 10:00:00", time, "2024-02-01 10:00:02")
    assert trace.ledger.dropped == {"unparseable": 1}
    assert trace.frame["arrival_s"].tolist() == [0.0, 2.0]


def test_parquet_columns_of_any_type_are_judged_alike(tmp_path):
    frame = pd.DataFrame(
        {
            "timestamp": pd.to_datetime(["2024-01-01 00:00:01", None, "2024-01-01 00:00:00"]),
            "prompt_tokens": [10.0, 11.0, np.nan],
            "output_tokens": ["5", "6", "7"],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert trace.ledger.dropped == {"missing_time": 1, "missing_tokens": 1}
    assert trace.start.isoformat() == "2024-01-01T00:00:01+00:00"


def test_a_cut_parquet_file_is_an_error(tmp_path):
    pd.DataFrame({"arrival_s": [1.0], "prompt_tokens": 1, "output_tokens": 1}).to_parquet(
        tmp_path / "t.parquet"
    )
    data = (tmp_path / "t.parquet").read_bytes()
    for size in (4, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(DataError, match="a readable Parquet file"):
            read_trace(written(tmp_path / "cut.parquet", data[:size]))


def test_json_of_the_wrong_shape_is_unparseable_line_by_line(tmp_path):
    text = (
        json.dumps(RECORD) + '\n[1]\n"x"\nnull\n{"a": 1}\n{"timestamp": [1]}\n' + json.dumps(RECORD)
    )
    trace = read_trace(written(tmp_path / "m.jsonl", text))
    assert trace.ledger.read == 7
    assert trace.ledger.dropped == {"unparseable": 4, "missing_time": 1}


def test_nan_and_huge_integers_in_json_are_judged(tmp_path):
    text = (
        json.dumps(RECORD)
        + '\n{"timestamp": NaN, "input_length": 5, "output_length": 5, "hash_ids": []}\n'
        + '{"timestamp": 2, "input_length": 1'
        + "0" * 50
        + ', "output_length": 5, "hash_ids": []}\n'
        + '{"timestamp": 2, "input_length": true, "output_length": 5, "hash_ids": []}\n'
    )
    trace = read_trace(written(tmp_path / "m.jsonl", text))
    assert trace.ledger.dropped == {"missing_time": 1, "unparseable": 2}


def test_a_bad_optional_value_becomes_unknown_and_is_counted(tmp_path):
    head = "arrival_s,prompt_tokens,output_tokens,deadline_s,streaming\n"
    text = head + "1,1,1,5,yes\n2,1,1,soon,?\n3,1,1,-4,\n"
    trace = read_trace(written(tmp_path / "t.csv", text))
    assert trace.frame["deadline_s"].isna().tolist() == [False, True, True]
    assert trace.frame["streaming"].isna().tolist() == [False, True, True]
    assert trace.ledger.changed == {
        "deadline_s_unparseable": 1,
        "deadline_s_negative": 1,
        "streaming_unparseable": 1,
    }


def test_rows_without_output_are_kept_on_request_or_where_they_have_a_size(tmp_path):
    assert len(table(tmp_path, "1,10,0\n2,10,5\n", keep_zero_tokens=True)) == 2
    text = "arrival_s,prompt_tokens,output_tokens,size\n1,0,0,3.5\n2,0,0,\n3,5,5,\n"
    trace = read_trace(written(tmp_path / "t.csv", text))
    assert trace.frame["size"].iloc[0] == 3.5
    assert trace.ledger.dropped == {"zero_tokens": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chunk-0-trace.csv", ""),
        ("chunk-0-trace.csv", "0,1,1\n"),
        ("chunk-0-trace.csv", "0,-1,1,Gamma,1,1\n"),
        ("chunk-0-trace.csv", "0,1,0,Gamma,1,1\n"),
        ("chunk-0-trace.csv", "0,1,nan,Gamma,1,1\n"),
        ("chunk-0-trace.csv", "0,1,1,Pareto,1,1\n"),
        ("chunk-0-trace.csv", "600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n"),
        ("chunk-0-dataset.json", "{"),
        ("chunk-0-dataset.json", "[]"),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{1: 1}"}}'),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "{1: -1}", "output_tokens": "{1: 1}"}}'),
        ("chunk-0-dataset.json", '{"0": {"input_tokens": "exit()", "output_tokens": "{1: 1}"}}'),
    ],
)
def test_a_damaged_servegen_client_is_an_error_that_names_its_file(tmp_path, name, text):
    written(tmp_path / "chunk-0-trace.csv", "0,1,1,Gamma,1,1\n600,1,1,Gamma,1,1\n")
    laws = {"0": {"input_tokens": "{1: 1.0}", "output_tokens": "{1: 1.0}"}}
    written(tmp_path / "chunk-0-dataset.json", json.dumps(laws))
    assert len(read_trace(tmp_path)) > 0
    written(tmp_path / name, text)
    with pytest.raises(DataError, match=name):
        read_trace(tmp_path)


def test_a_cut_archive_is_an_error(tmp_path, shared_data):
    source = next((shared_data / "traces" / "servegen").glob("*.tar.xz"))
    with pytest.raises(DataError, match="a complete tar archive"):
        read_trace(written(tmp_path / "s.tar.xz", source.read_bytes()[:200_000]))


FRAGMENTS = st.sampled_from(
    [
        "arrival_s", "prompt_tokens", "output_tokens", "TIMESTAMP", "ContextTokens", ",", "\n",
        "GeneratedTokens", "1", "0", "-3", "1.5", "nan", "1e9", "1700000000", "1700000000000", '"',
        "2023-11-16 18:17:03.97", "2023-11-16T18:17:03Z", "{", "}", "[", "]", ":", '"timestamp"',
        '"input_length"', '"output_length"', '"hash_ids"', '"chat_id"', "null", "\r\n", ";", "\x00",
        "1,234", "é", '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]}\n',
        "arrival_s,prompt_tokens,output_tokens\n", "1,2,3\n", '"usage"', '"prompt_tokens"',
    ]
)  # fmt: skip
STARTS = [header + good(form, 2) for header, form in BEFORE.values()]
BYTES = st.one_of(
    st.binary(max_size=300),
    st.lists(FRAGMENTS, max_size=40).map(lambda parts: "".join(parts).encode()),
    st.tuples(st.sampled_from(STARTS), st.lists(FRAGMENTS, max_size=20)).map(
        lambda pair: (pair[0] + "".join(pair[1])).encode()
    ),
    st.tuples(st.sampled_from(STARTS), st.integers(0, 300), st.binary(max_size=4)).map(
        lambda t: t[0].encode()[: t[1]] + t[2] + t[0].encode()[t[1] :]
    ),
)


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=BYTES, name=st.sampled_from(FORMATS))
@example(data=b"PAR1", name="auto")
@example(data=b"\x1f\x8b\x08", name="auto")
@example(data=b"\xfd7zXZ\x00", name="csv")
@example(data=b"\x28\xb5\x2f\xfd", name="jsonl")
@example(data=b"BZh9", name="auto")
@example(data=b"[" * 5000, name="auto")
@example(data=b'{"a":' * 5000, name="jsonl")
@example(data=b'"', name="auto")
def test_any_bytes_give_a_trace_with_balanced_books_or_a_data_error(tmp_path, data, name):
    path = written(tmp_path / "fuzz", data)
    for format_ in {"auto", name}:
        try:
            trace = read_trace(path, format=format_)
        except DataError:
            continue
        ledger = trace.ledger
        assert ledger.read == ledger.kept + sum(ledger.dropped.values())
        assert ledger.kept == len(trace) > 0
        assert np.isfinite(trace.frame["arrival_s"]).all()
        assert trace.frame["arrival_s"].is_monotonic_increasing
        assert (trace.frame[["prompt_tokens", "output_tokens"]] >= 1).all(axis=None) or (
            "size" in trace.frame
        )


CELLS = st.sampled_from(
    ["1", "2.5", "-3", "", "nan", "inf", "1e3", "007", " 8 ", "+9", "1.0", "x", '"4"', '"1,000"']
)
STAMPS = st.sampled_from(
    ["1", "7", "2.25", "1e2", "-1", "", "nan", "99999999999999999999", " 3", "x", '"5"']
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(STAMPS, CELLS, CELLS), min_size=1, max_size=25))
def test_the_quick_parser_and_line_by_line_reading_agree(tmp_path, rows):
    text = PLAIN + "".join(",".join(row) + "\n" for row in rows)
    path = written(tmp_path / "t.csv", text)
    with pytest.MonkeyPatch.context() as patch:
        quick = outcome(path)
        patch.setattr(tabular, "_fast", lambda *_: None)
        patch.setattr(values, "_cast_all", lambda _: None)
        slow = outcome(path)
    assert quick == slow


def outcome(path: Path) -> object:
    try:
        trace = read_trace(path)
    except DataError as err:
        return str(err)
    return trace.ledger, trace.frame.to_dict("list")


LINES = {
    "mooncake": '{{"timestamp": {}000, "input_length": {}, "output_length": 2, "hash_ids": [1]}}',
    "openai-log": '{{"created": 170000000{}, "usage": {{"prompt_tokens": {}, '
    '"completion_tokens": 2}}}}',
    "jsonl": '{{"arrival_s": {}, "prompt_tokens": {}, "output_tokens": 2}}',
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("broken", ['{"cut', '"put_length": 5}', "\x00"])
def test_a_broken_first_line_costs_that_line(tmp_path, name, broken):
    lines = [broken, *(LINES[name].format(i + 1, 10 + i) for i in range(5))]
    trace = read_trace(written(tmp_path / "t", "\n".join(lines)))
    assert trace.format == name
    assert trace.ledger.kept == 5
    assert trace.ledger.dropped == {"unparseable": 1}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("form", ["[{}]", "[\n{}\n]"])
def test_an_array_of_records_is_read_like_its_lines(tmp_path, name, form):
    lines = [LINES[name].format(i + 1, 10 + i) for i in range(5)]
    whole = read_trace(written(tmp_path / "lines", "\n".join(lines)))
    array = read_trace(written(tmp_path / "array", form.format(",\n".join(lines))))
    assert array.ledger == whole.ledger
    pd.testing.assert_frame_equal(array.frame, whole.frame)


def test_a_field_that_the_first_record_lacks_is_read_from_the_others(tmp_path):
    lines = [
        '{"arrival_s": 1, "prompt_tokens": 5, "output_tokens": 2}',
        '{"arrival_s": 2, "prompt_tokens": 5, "output_tokens": 2, "tenant": null}',
        '{"arrival_s": 3, "prompt_tokens": 5, "output_tokens": 2, "tenant": "a"}',
    ]
    frame = read_trace(written(tmp_path / "t", "\n".join(lines))).frame
    assert frame["tenant"].isna().tolist() == [True, True, False]


def test_a_log_that_begins_with_a_failed_call_is_recognised(tmp_path):
    lines = ['{"created": 1700000000, "error": {"code": 500}}']
    lines += [LINES["openai-log"].format(i, 10) for i in range(3)]
    ledger = read_trace(written(tmp_path / "t", "\n".join(lines))).ledger
    assert (ledger.kept, ledger.dropped) == (4, {})


def test_a_quoted_field_may_hold_line_ends(tmp_path):
    rows = "".join(f'{i},"say ""hi"",\nplease\n",{10 + i},2\n' for i in range(3))
    text = "ts,prompt,prompt_tokens,output_tokens\n" + rows + '9,"never closed,10,2\n8,x,10,2\n'
    trace = read_trace(written(tmp_path / "t.csv", text))
    assert trace.frame["prompt_tokens"].tolist() == [10, 11, 12, 10]
    assert trace.ledger.dropped == {"unparseable": 1}


@pytest.mark.parametrize("rows", ["1,10,2\n2,0x10,2\n", "1,10,2\n2,0x10,2\n3,oops,2\n"])
def test_hexadecimal_text_is_no_number_whatever_stands_beside_it(tmp_path, rows):
    assert table(tmp_path, rows).frame["prompt_tokens"].tolist() == [10]


def test_a_number_beyond_any_date_is_unparseable(tmp_path):
    assert table(tmp_path, "1,10,2\n1e300,10,2\n2,10,2\n").ledger.dropped == {"unparseable": 1}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            PLAIN.replace("\n", "\r") + "1,10,2\r",
            "line 1: lines that end with LF or CRLF, got 'CR'",
        ),
        (b"\x00" * 99, "line 1: a text table, got 'binary data'"),
        ("a" * 5000 + "\n1\n", f"among {'a' * 40}…, or a mapping"),
        ("a\x1b[31mb\n1\n", "among a\N{REPLACEMENT CHARACTER}[31mb, or a mapping"),
        ("{}\n", "JSON objects, got 'none that can be read'"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_one_short_line(tmp_path, data, words):
    with pytest.raises(DataError) as caught:
        read_trace(written(tmp_path / "t.csv", data))
    assert str(caught.value).endswith(words)
    assert str(caught.value).isprintable()
