"""Whole files of every format: what each gives, and what each refuses."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import capplan as cp
from capplan.schema import DataError
from capplan.traffic.readers import read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
PLAIN = "arrival_s,prompt_tokens,output_tokens\n"


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("file", "format_", "rows"),
    [
        ("azure-llm-2023/AzureLLMInferenceTrace_conv.csv", "azure", 19_366),
        ("azure-llm-2023/AzureLLMInferenceTrace_code.csv", "azure", 8_819),
        ("mooncake-fast25/conversation_trace.jsonl.gz", "mooncake", 12_031),
        ("mooncake-fast25/synthetic_trace.jsonl.gz", "mooncake", 3_993),
    ],
)
def test_the_public_traces_are_read_whole(shared_data, file, format_, rows):
    trace = cp.read_trace(shared_data / "traces" / file)
    assert trace.format == format_
    assert trace.ledger.read == trace.ledger.kept == rows == len(trace)
    assert not trace.ledger.dropped
    assert len(trace.sha256) == 64


def test_azure_times_keep_seven_digits(tmp_path):
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:03.9799607,3180,8\n"
    trace = read_trace(written(tmp_path / "a.csv", AZURE + rows))
    assert trace.frame["arrival_s"].tolist() == [0.0, 7e-7]
    assert trace.start == datetime(2023, 11, 16, 18, 17, 3, 979960, tzinfo=UTC)
    assert "Wall times without an offset are read as UTC." in trace.notes


def test_azure_2024_times_have_an_offset(tmp_path):
    rows = "2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 02:00:00.009930+01:00,2399,6\n"
    trace = read_trace(written(tmp_path / "a.csv", AZURE + rows))
    assert trace.frame["arrival_s"].tolist() == [0.0, 3600.0]
    assert trace.format == "azure"
    assert trace.notes == ()


def test_mooncake_times_are_ms_and_quantised_ones_are_spread_the_same_way_each_time(tmp_path):
    records = [
        {"timestamp": 3000 * (i // 5), "input_length": 600, "output_length": 3, "hash_ids": [0, i]}
        for i in range(100)
    ]
    path = written(tmp_path / "m.jsonl", lines(*records))
    trace, again = read_trace(path), read_trace(path)
    assert trace.frame["arrival_s"].equals(again.frame["arrival_s"])
    assert trace.frame["arrival_s"].between(0, 60).all()
    assert trace.frame["arrival_s"].nunique() == 100
    assert trace.ledger.changed["times_spread"] == 100
    assert any("grid of 3 s" in note and "seed 0" in note for note in trace.notes)
    assert trace.prefix_block_tokens == 512
    assert trace.frame["prefix_blocks"].iloc[7].tolist() == [0, 7]
    kept = read_trace(path, spread=False)
    assert kept.frame["arrival_s"].nunique() == 20
    assert not np.array_equal(read_trace(path, seed=1).frame["arrival_s"], again.frame["arrival_s"])


def test_burstgpt_failures_are_recognised(tmp_path):
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    rows = "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n"
    trace = read_trace(written(tmp_path / "b.csv", head + rows))
    assert trace.format == "burstgpt"
    assert trace.ledger.dropped == {}
    assert trace.frame["imputed"].tolist() == [False, True]
    assert trace.frame["output_tokens"].tolist() == [18, 18]
    assert trace.frame[["tenant", "request_class"]].iloc[0].tolist() == [
        "ChatGPT",
        "Conversation log",
    ]


def test_burstgpt_with_sessions_has_the_observed_latency(tmp_path):
    head = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,"
        "Total tokens,Log Type\n"
    )
    rows = "19440110.0,s-1,43,GPT-4,906,446,1352,Conversation log\n"
    trace = read_trace(written(tmp_path / "b.csv", head + rows * 2))
    assert trace.frame["observed_e2e_s"].tolist() == [43.0, 43.0]
    assert trace.frame["arrival_s"].tolist() == [0.0, 0.0]
    assert any("Nothing arrives in the first 19,440,1" in note for note in trace.notes)
    assert trace.frame["session"].iloc[0] == "s-1"


def test_splitwise_and_vidur_times_are_seconds_of_the_trace(tmp_path):
    split = (
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,1.5,1,100,20\n1,2,0,2.5,1,50,4\n"
    )
    trace = read_trace(written(tmp_path / "s.csv", split))
    assert trace.format == "splitwise"
    assert trace.frame["arrival_s"].tolist() == [1.5, 2.5]
    trace = read_trace(written(tmp_path / "v.csv", VIDUR + "0.25,30,7\n"))
    assert trace.format == "vidur"
    assert trace.frame.iloc[0].tolist() == [0.25, 30, 7]


def test_a_chat_and_its_continuations_are_one_session(tmp_path):
    base = {"timestamp": 1.5, "input_length": 40, "output_length": 8, "type": "text"}
    records = [
        {**base, "chat_id": 1, "parent_chat_id": -1, "turn": 1, "hash_ids": [5, 6]},
        {**base, "chat_id": 2, "parent_chat_id": 1, "turn": 2, "hash_ids": [5, 6, 7]},
        {**base, "chat_id": 3, "parent_chat_id": 2, "turn": 3, "hash_ids": [5]},
        {**base, "chat_id": 4, "parent_chat_id": -1, "turn": 1, "hash_ids": [9]},
    ]
    trace = read_trace(written(tmp_path / "q.jsonl", lines(*records)))
    assert trace.format == "bailian"
    assert trace.frame["session"].tolist() == ["1", "1", "1", "4"]
    assert trace.prefix_block_tokens == 16
    assert trace.frame["arrival_s"].tolist() == [1.5] * 4


def openai(i: int, **more: object) -> dict[str, object]:
    usage = {"prompt_tokens": 10 + i, "completion_tokens": 5, "total_tokens": 15 + i}
    body = {"id": f"chatcmpl-{i}", "created": 1_700_000_000 + i, "model": "m", "usage": usage}
    return {**body, **more}


def test_openai_logs_are_read_bare_wrapped_and_from_the_batch_api(tmp_path):
    wrapped = {
        "timestamp": "2023-11-14T22:13:22Z",
        "request": {"user": "team-a", "stream": True},
        "response": openai(2),
    }
    batch = {"custom_id": "x", "response": {"status_code": 200, "body": openai(3)}, "error": None}
    failed = {**openai(4), "error": {"message": "overloaded"}}
    refused = {"response": {"status_code": 429, "body": openai(5)}}
    trace = read_trace(written(tmp_path / "o.jsonl", lines(openai(0), openai(1))))
    assert trace.format == "openai-log"
    assert trace.start == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    one = read_trace(written(tmp_path / "w.jsonl", lines(wrapped)))
    assert one.frame["tenant"].tolist() == ["team-a"]
    assert one.frame["streaming"].tolist() == [True]
    two = read_trace(written(tmp_path / "b.jsonl", lines(batch, failed, refused, openai(0))))
    assert two.ledger.dropped == {}
    assert sorted(two.frame["prompt_tokens"]) == [10, 13, 14, 15]


def test_an_openai_log_may_be_one_json_array(tmp_path):
    text = json.dumps([openai(0), openai(1)], indent=1)
    assert len(read_trace(written(tmp_path / "o.json", text))) == 2


def bench(**more: object) -> dict[str, object]:
    return {
        "date": "20260101-000000",
        "request_throughput": 2.0,
        "total_input_tokens": 30,
        "input_lens": [10, 20, 30],
        "output_lens": [4, 5, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.01, 0.01], [0.02], []],
        "start_times": [5000.5, 5001.0, 5001.5],
        "errors": ["", "", "timeout"],
        **more,
    }


def test_a_vllm_bench_result_has_send_times_and_latencies(tmp_path):
    trace = read_trace(written(tmp_path / "r.json", json.dumps(bench())))
    assert trace.format == "vllm-bench"
    assert trace.frame["arrival_s"].tolist() == [0.0, 0.5, 1.0]
    assert trace.frame["observed_e2e_s"].tolist()[:2] == pytest.approx([0.12, 0.22])
    assert trace.ledger.dropped == {}


def test_a_vllm_bench_result_without_details_is_refused_by_name(tmp_path):
    result = bench()
    del result["start_times"]
    with pytest.raises(DataError, match="start_times: a list by request"):
        read_trace(written(tmp_path / "r.json", json.dumps(result)))
    with pytest.raises(DataError, match="lists of one length"):
        read_trace(written(tmp_path / "r.json", json.dumps(bench(input_lens=[1]))))


def otlp(i: int, operation: str | None = "chat", **more: object) -> dict[str, object]:
    attributes = [
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": str(100 + i)}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": 7}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c1"}},
    ]
    if operation:
        attributes.append({"key": "gen_ai.operation.name", "value": {"stringValue": operation}})
    start = 1_700_000_000_000_000_000 + i * 10**9
    return {
        "traceId": "t",
        "spanId": f"s{i}",
        "name": "chat m",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 250_000_000),
        "attributes": attributes,
        **more,
    }


def export(*spans: dict[str, object]) -> dict[str, object]:
    service = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return {"resourceSpans": [{"resource": service, "scopeSpans": [{"spans": list(spans)}]}]}


def test_otlp_documents_give_one_row_per_model_call(tmp_path):
    failed = otlp(3, status={"code": 2})
    first = export(otlp(0), otlp(1, "execute_tool"), failed)
    trace = read_trace(written(tmp_path / "o.jsonl", lines(first, export(otlp(2, None)))))
    assert trace.format == "otel"
    assert trace.ledger.read == 4
    assert trace.ledger.dropped == {"other_span": 1}
    assert trace.frame["arrival_s"].tolist() == [0.0, 2.0, 3.0]
    assert trace.frame["tenant"].tolist() == ["shop"] * 3
    assert trace.frame["session"].tolist() == ["c1"] * 3
    assert trace.frame["observed_e2e_s"].tolist()[:2] == [0.25, 0.25]
    pretty = json.dumps(first, indent=2) + "\n" + json.dumps(export(otlp(2)), indent=2)
    assert len(read_trace(written(tmp_path / "o.json", pretty))) == 3


def test_spans_of_the_console_exporter_are_read(tmp_path):
    span = {
        "name": "chat m",
        "context": {"trace_id": "0x1", "span_id": "0x2"},
        "start_time": "2023-11-14T22:13:20.123456Z",
        "end_time": "2023-11-14T22:13:21.123456Z",
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": 12,
            "gen_ai.usage.output_tokens": 3,
        },
    }
    trace = read_trace(written(tmp_path / "c.json", json.dumps(span, indent=4)))
    assert trace.format == "otel"
    assert trace.frame["request_id"].tolist() == ["0x2"]


def client(folder: Path, number: int, *windows: object, laws: object = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rate, cv, law = windows
    rows = [f"{start},{rate},{cv},{law},1,1" for start in (0, 600, 1200)]
    written(folder / f"chunk-{number}-trace.csv", "\n".join(rows) + "\n")
    if laws is not None:
        written(folder / f"chunk-{number}-dataset.json", json.dumps(laws))


LAWS = {"0": {"input_tokens": "{10: 0.5, 30: 0.5}", "output_tokens": "{7: 1.0}"}}


def test_servegen_clients_become_tenants_with_their_rates_and_cvs(tmp_path):
    folder = tmp_path / "data" / "language" / "m-small"
    for number, (rate, cv, law) in enumerate(
        [(20.0, 1.0, "Gamma"), (10.0, 2.5, "Gamma"), (10.0, 2.0, "Weibull")]
    ):
        client(folder, number, rate, cv, law, laws=LAWS)
    trace = read_trace(tmp_path / "data", span_s=(0, 1800))
    assert trace.format == "servegen"
    assert trace.duration_s == 1800
    for number, (rate, cv) in enumerate([(20, 1.0), (10, 2.5), (10, 2.0)]):
        mine = trace.frame[trace.frame["tenant"] == f"m-small/chunk-{number}"]
        wide = 4 * cv / np.sqrt(rate * 1800)
        assert len(mine) / 1800 == pytest.approx(rate, rel=wide)
        gaps = np.diff(mine["arrival_s"])
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.12)
        assert mine["prompt_tokens"].mean() == pytest.approx(20, rel=0.05)
    assert set(trace.frame["request_class"]) == {"m-small"}


def test_the_expected_number_of_drawn_requests_is_unbiased(tmp_path):
    client(tmp_path / "g", 0, 2.0, 3.0, "Gamma", laws=LAWS)
    counts = [len(read_trace(tmp_path / "g", span_s=(0, 30), seed=s)) for s in range(200)]
    error = np.std(counts, ddof=1) / np.sqrt(200)
    assert abs(np.mean(counts) - 60) < 4 * error


def test_requests_of_a_client_without_lengths_are_counted_as_dropped(tmp_path):
    client(tmp_path / "g", 0, 5.0, 1.0, "Gamma", laws=LAWS)
    client(tmp_path / "g", 1, 5.0, 1.0, "Gamma")
    trace = read_trace(tmp_path / "g")
    assert set(trace.frame["tenant"]) == {"g/chunk-0"}
    assert trace.ledger.dropped["missing_tokens"] > 2000


def test_a_servegen_archive_gives_the_requests_of_its_folder(tmp_path):
    client(tmp_path / "data" / "g", 0, 5.0, 1.0, "Gamma", laws=LAWS)
    with tarfile.open(tmp_path / "s.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "data", arcname="data")
    packed, loose = read_trace(tmp_path / "s.tar.xz"), read_trace(tmp_path / "data")
    pd.testing.assert_frame_equal(packed.frame, loose.frame)
    with pytest.raises(DataError, match="only"):
        read_trace(tmp_path / "s.tar.xz", only="h")


def test_the_public_servegen_clients_are_drawn(shared_data):
    path = next((shared_data / "traces" / "servegen").glob("*.tar.xz"))
    trace = read_trace(path, only="deepseek-r1", span_s=(0, 300))
    rates = trace.frame["tenant"].value_counts() / 300
    assert len(rates) > 15
    assert rates.sum() == pytest.approx(14.9, abs=2)
    assert trace.frame["output_tokens"].mean() > trace.frame["prompt_tokens"].mean()


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        ("gz", gzip.compress),
        ("xz", lzma.compress),
        ("bz2", bz2.compress),
        ("zst", lambda data: pa.compress(data, codec="zstd", asbytes=True)),
    ],
)
def test_compressed_input_gives_the_same_rows(tmp_path, suffix, pack):
    text = PLAIN + "".join(f"{i / 7},{i + 1},{i % 9 + 1}\n" for i in range(5000))
    plain = read_trace(written(tmp_path / "t.csv", text))
    packed = read_trace(written(tmp_path / f"t.csv.{suffix}", pack(text.encode())))
    pd.testing.assert_frame_equal(plain.frame, packed.frame)
    cut = written(tmp_path / f"cut.{suffix}", pack(text.encode())[:-40])
    with pytest.raises(DataError, match=r"complete compressed file|readable file"):
        read_trace(cut)


def test_a_trace_survives_a_round_trip_through_parquet_csv_and_json_lines(tmp_path):
    rows = 400
    rng = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "request_id": [f"r{i}" for i in range(rows)],
            "arrival_s": np.sort(rng.uniform(0, 1e4, rows)),
            "prompt_tokens": rng.integers(1, 9000, rows),
            "output_tokens": rng.integers(1, 900, rows),
            "request_class": rng.choice(["chat", "batch"], rows),
            "priority": rng.integers(0, 3, rows),
            "streaming": rng.uniform(size=rows) < 0.5,
            "deadline_s": rng.choice([5.0, 30.0], rows),
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_json(tmp_path / "t.jsonl", orient="records", lines=True, double_precision=15)
    expected = cp.traffic.trace.from_frame(frame).frame
    for name in ("t.parquet", "t.csv", "t.jsonl"):
        trace = read_trace(tmp_path / name)
        pd.testing.assert_frame_equal(trace.frame, expected, rtol=1e-12)
        assert trace.format == Path(name).suffix[1:]


def test_prefix_blocks_and_missing_values_survive_parquet(tmp_path):
    frame = pd.DataFrame(
        {
            "arrival_s": [0.0, 1.0, 2.0],
            "prompt_tokens": 4,
            "output_tokens": 4,
            "tenant": ["a", None, "b"],
            "deadline_s": [1.0, None, 3.0],
            "prefix_blocks": [[1, 2], [], [1, 2, 3]],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    found = read_trace(tmp_path / "t.parquet").frame
    assert [x.tolist() for x in found["prefix_blocks"]] == [[1, 2], [], [1, 2, 3]]
    assert found["tenant"].isna().tolist() == [False, True, False]
    assert found["deadline_s"].isna().tolist() == [False, True, False]


def test_a_mapping_names_the_columns_and_their_units(tmp_path):
    text = "when,tokens in,tokens out,who\n1500,10,20,x\n2500,11,21,y\n"
    trace = read_trace(
        written(tmp_path / "log.csv", text),
        mapping={
            "arrival_s": "when",
            "prompt_tokens": "tokens in",
            "output_tokens": "tokens out",
            "tenant": "who",
        },
        units={"arrival_s": "ms"},
    )
    assert trace.frame["arrival_s"].tolist() == [1.5, 2.5]
    assert trace.frame["tenant"].tolist() == ["x", "y"]


def test_a_mapping_reaches_into_nested_json(tmp_path):
    records = [{"t": i, "use": {"in": 5, "out": {"n": 6}}} for i in range(3)]
    trace = read_trace(
        written(tmp_path / "log.jsonl", lines(*records)),
        mapping={"arrival_s": "t", "prompt_tokens": "use.in", "output_tokens": "use.out.n"},
    )
    assert trace.frame["output_tokens"].tolist() == [6, 6, 6]


def test_well_known_names_are_read_with_a_note(tmp_path):
    text = "timestamp_ms,input_tokens,completion_tokens\n1000,10,20\n2000,11,21\n"
    trace = read_trace(written(tmp_path / "log.csv", text))
    assert trace.frame["arrival_s"].tolist() == [1.0, 2.0]
    assert "Column 'input_tokens' is read as prompt_tokens." in trace.notes


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("time,timestamp,input_tokens,output_tokens\n1,1,1,1\n", {}, "time, timestamp"),
        ("a,b\n1,2\n", {}, "arrival_s, prompt_tokens, output_tokens: a column for it among a, b"),
        (PLAIN + "1,1,1\n", {"mapping": {"arrival_s": "when"}}, "mapping: a column of the file"),
        (PLAIN + "1,1,1\n", {"mapping": {"arrival": "x"}}, "mapping: a column of a trace"),
        (PLAIN + "1,1,1\n", {"units": {"arrival_s": "h"}}, "units: s, ms, us or ns"),
        ("arrival_s,prompt_tokens,prompt_tokens,output_tokens\n1,1,1,1\n", {}, "each column once"),
        (PLAIN + "1,1,1\n", {"format": "azure"}, "a file of format azure"),
        (AZURE.strip() + "," + VIDUR + "1,1,1,1,1,1\n", {}, "format: content of one format"),
        (PLAIN + "1,1,1\n", {"format": "parquet"}, "a file of format parquet"),
        (PLAIN + "1,1,1\n", {"format": "mooncake"}, "a file of format mooncake"),
    ],
)
def test_an_ambiguous_file_is_an_error_that_names_the_choice(tmp_path, text, options, words):
    with pytest.raises(DataError, match=words):
        read_trace(written(tmp_path / "t.csv", text), **options)


def test_a_named_format_settles_what_fits_two(tmp_path):
    text = AZURE.strip() + "," + VIDUR + "2023-11-16 18:17:03,1,1,7,8,9\n"
    trace = read_trace(written(tmp_path / "t.csv", text), format="vidur")
    assert trace.frame.iloc[0].tolist() == [7, 8, 9]


def test_an_unknown_format_and_a_missing_file_are_errors(tmp_path):
    with pytest.raises(ValueError, match="format: one of auto, azure"):
        read_trace(tmp_path / "t.csv", format="excel")
    with pytest.raises(DataError, match="a file that exists"):
        read_trace(tmp_path / "t.csv")
    with pytest.raises(DataError, match="clients"):
        read_trace(tmp_path)


def timed(tmp_path, times, *, column="timestamp", name="calls.csv"):
    lines = [f"{column},prompt_tokens,output_tokens", *(f"{time},100,10" for time in times)]
    return written(tmp_path / name, "\n".join(lines))


def test_a_unit_that_two_readings_fit_is_refused_with_both_named(tmp_path):
    every_second_in_ms = [1000 * i for i in range(100)]
    rule = r"a stated unit .*two fit: s \(0.00101/s\) or ms \(1.01/s\)"
    with pytest.raises(DataError, match=rule):
        read_trace(timed(tmp_path, every_second_in_ms))
    found = read_trace(timed(tmp_path, every_second_in_ms), units={"arrival_s": "ms"})
    assert found.frame["arrival_s"].iloc[-1] == 99.0
    named = read_trace(timed(tmp_path, every_second_in_ms, column="timestamp_ms"))
    assert named.frame["arrival_s"].iloc[-1] == 99.0


def test_a_mooncake_file_in_seconds_is_not_read_a_thousand_times_too_fast(tmp_path):
    lines = [
        json.dumps({"timestamp": i, "input_length": 9, "output_length": 5, "hash_ids": [i]})
        for i in range(100)
    ]
    file = written(tmp_path / "m.jsonl", "\n".join(lines))
    with pytest.raises(DataError, match=r"two fit: ms \(1.01e\+03/s\) or s \(1.01/s\)"):
        read_trace(file)
    assert read_trace(file, units={"arrival_s": "s"}).frame["arrival_s"].iloc[-1] == 99.0


def test_the_unit_of_times_is_always_noted(tmp_path):
    notes = read_trace(timed(tmp_path, [0, 0.5, 1.25])).notes
    assert "Times are s (no unit is stated) from the start." in notes


@pytest.mark.parametrize("shift", ["+00:00", ""])
def test_a_clock_that_turns_back_an_hour_needs_an_offset(tmp_path, shift):
    minutes = [*range(180), *range(120, 240)]  # 02:00 to 03:00 comes twice
    times = [f"2025-10-26 {m // 60:02d}:{m % 60:02d}:00{shift}" for m in minutes]
    file = timed(tmp_path, times)
    if shift:
        assert read_trace(file).ledger.changed["out_of_order_sorted"]
        return
    with pytest.raises(DataError, match="comes twice is ambiguous, got '2025-10-26 02:59:00, then"):
        read_trace(file)


def test_rows_out_of_order_are_no_clock_that_turns_back(tmp_path):
    times = [f"2025-10-26 00:{m:02d}:00" for m in (0, 5, 3, 9, 7, 30)]
    assert len(read_trace(timed(tmp_path, times))) == 6


def test_an_idle_stretch_before_the_first_request_is_no_traffic(tmp_path):
    trace = read_trace(timed(tmp_path, [2000 + 0.5 * i for i in range(200)], column="arrival_s"))
    assert trace.frame["arrival_s"].iloc[0] == 0.0
    assert any("Nothing arrives in the first 2,000 s" in note for note in trace.notes)
