"""Results of load testers, in the form that each publishes."""

import gzip
import json

import numpy as np
import pytest

from capplan.measured import read_measured
from capplan.measured.testers import FORMS
from capplan.schema import DataError

START_NS = 1759813207532900363


def aiperf(second=0.0, *, error=None, phase="profiling", cancelled=False):
    """Return a record as AIPerf's guide to its export files shows it."""
    start = START_NS + int(second * 1e9)
    metrics = {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "time_to_first_token": {"value": 255.88656799999998, "unit": "ms"},
        "request_latency": {"value": 297.52522799999997, "unit": "ms"},
        "output_token_count": {"value": 9, "unit": "tokens"},
        "inter_chunk_latency": {"value": [4.898437, 5.316006], "unit": "ms"},
        "output_sequence_length": {"value": 9, "unit": "tokens"},
        "inter_token_latency": {"value": 5.2048325, "unit": "ms"},
    }
    if error:
        metrics = {"error_isl": {"value": 550, "unit": "tokens"}}
    metadata = {
        "session_num": 45,
        "x_request_id": "7609a2e7-aa53-4ab1-98f4-f35ecafefd25",
        "turn_index": 0,
        "request_start_ns": start,
        "request_ack_ns": None if error else start + 117_830_613,
        "request_end_ns": start + 305_864_241,
        "benchmark_phase": phase,
        "was_cancelled": cancelled,
        "cancellation_time_ns": None,
    }
    return {"metadata": metadata, "metrics": metrics, "error": error}


@pytest.mark.parametrize("packed", [False, True])
def test_aiperf_tells_each_request_in_a_line(tmp_path, packed):
    gone = {"code": 499, "type": "RequestCancellationError", "message": "cancelled"}
    records = [
        aiperf(phase="warmup"),
        aiperf(1.0),
        aiperf(2.5),
        aiperf(3.0, error=gone, cancelled=True),
        aiperf(4.0, error={"code": 500, "type": "ServerError", "message": "boom"}),
    ]
    text = "\n".join(map(json.dumps, records))
    file = tmp_path / f"profile_export.jsonl{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = read_measured(file)
    rows = found.requests
    assert any("1 row of 5 dropped: 1 × of the warm-up" in note for note in found.notes)
    assert rows["start_s"].tolist() == pytest.approx([0.0, 1.5, 2.0, 3.0], abs=1e-6)
    assert rows["outcome"].tolist() == ["succeeded", "succeeded", "cancelled", "failed"]
    assert rows["prompt_tokens"].tolist() == [550] * 4
    assert rows["ttft_s"].iloc[0] == pytest.approx(0.255886568)
    assert rows["e2e_s"].iloc[0] == pytest.approx(0.297525228)
    assert np.isnan(rows["e2e_s"].iloc[3])


def guidellm(second, **times):
    """Return a request of a GuideLLM report, with the fields that its schema has."""
    start = 1_790_000_000.0 + second
    timings = {
        "targeted_start": start - 0.002,
        "resolve_start": start - 0.001,
        "request_start": start,
        "first_token_iteration": start + 0.25,
        "last_token_iteration": start + 1.24,
        "token_iterations": 100,
        "request_end": start + 1.25,
        "resolve_end": start + 1.26,
    }
    return {
        "type_": "generative_request_stats",
        "request_id": f"r{second}",
        "info": {"status": "completed", "timings": {**timings, **times}},
        "input_metrics": {"text_tokens": 256},
        "output_metrics": {"text_tokens": 100},
        "prompt_tokens": 256,
        "output_tokens": 100,
    }


def report(*runs):
    return {"metadata": {"version": 1}, "benchmarks": list(runs)}


def test_guidellm_tells_requests_by_how_they_ended(tmp_path):
    requests = {
        "successful": [guidellm(0.0), guidellm(0.5)],
        "incomplete": [guidellm(2.0, request_end=None, first_token_iteration=None)],
        "errored": [guidellm(1.0, request_start=None, request_end=None)],
    }
    file = tmp_path / "benchmarks.json"
    file.write_text(json.dumps(report({"requests": requests})), encoding="utf-8")
    rows = read_measured(file).requests
    assert rows["outcome"].tolist() == ["succeeded", "succeeded", "failed", "cancelled"]
    assert rows["ttft_s"].tolist()[:2] == pytest.approx([0.25, 0.25])
    assert rows["e2e_s"].tolist()[:2] == pytest.approx([1.25, 1.25])
    assert rows["prompt_tokens"].tolist()[:2] == [256, 256]


LISTS = {
    "start_times": [100.0, 101.0],
    "input_lens": [5, 6],
    "output_lens": [3, 3],
    "ttfts": [0.5, 0.0],
    "itls": [[0.1, 0.2], []],
    "errors": ["", "boom"],
}


def test_sglang_writes_the_lists_of_a_run_as_a_line(tmp_path):
    file = tmp_path / "online.jsonl"
    file.write_text(json.dumps({"backend": "sglang", **LISTS}) + "\n", encoding="utf-8")
    rows = read_measured(file).requests
    assert rows["e2e_s"].iloc[0] == pytest.approx(0.8)
    assert rows["outcome"].tolist() == ["succeeded", "failed"]


WITHOUT_STARTS = {key: value for key, value in LISTS.items() if key != "start_times"}
LLMPERF = {
    "error_code": None, "inter_token_latency_s": 0.02, "ttft_s": 0.4, "end_to_end_latency_s": 3.1,
    "request_output_throughput_token_per_s": 48.0, "number_input_tokens": 550,
    "number_output_tokens": 150,
}  # fmt: skip
GENAI_PERF = {
    "experiments": [{"requests": [{"timestamp": 1, "response_timestamps": [2, 3]}]}],
    "version": "",
}
K6 = "metric_name,timestamp,metric_value,url\nhttp_req_duration,1700000000,12.5,http://h/\n"
LOCUST = "Type,Name,Request Count,Failure Count\nPOST,/v1/completions,10,0\n"


INFERENCE_PERF = {"load_summary": {"count": 80}, "successes": {"count": 72}}
JTL = "timeStamp,elapsed,label,success\n1759522419000,1000,chat,true\n"
K6_POINT = {"type": "Point", "metric": "http_req_duration", "data": {"value": 1.0}}
SUMMARY = {"completed": 10, "request_throughput": 1.0, "mean_ttft_ms": 3.0}
GENAI_SUMMARY = {"request_throughput": {"avg": 1.2}, "request_latency": {"avg": 100.0}}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "online.jsonl",
            {"tag": None, **WITHOUT_STARTS},
            "of SGLang .* lacks start_t.*--output-d",
        ),
        (
            "online.jsonl",
            {"backend": "sglang-oai", **WITHOUT_STARTS},
            "of SGLang .* lacks start_t.*--output-d",
        ),
        (
            "online.json",
            {"backend": "vllm", **WITHOUT_STARTS},
            "of vLLM bench serve lacks start_times",
        ),
        ("online.json", WITHOUT_STARTS, "of vLLM bench serve lacks start_times.*--save-detailed"),
        ("result.json", SUMMARY, "of vLLM bench serve lacks single requests: .*--save-detailed"),
        ("online.jsonl", {"tag": "", **SUMMARY}, "of SGLang .* lacks single .*--output-details"),
        ("individual_responses.json", [LLMPERF], "of LLMPerf lacks start times"),
        ("profile_export.json", GENAI_PERF, "of GenAI-Perf or Perf Analyzer lacks token counts"),
        ("profile_export_genai_perf.json", GENAI_SUMMARY, "of GenAI-Perf lacks single requests"),
        (
            "profile_export_aiperf.json",
            {"input_config": {}, **GENAI_SUMMARY},
            "of AIPerf .* records",
        ),
        ("summary_lifecycle_metrics.json", INFERENCE_PERF, "of inference-perf .*per_request: true"),
        ("benchmarks.json", report({"requests": {}}, {"requests": {}}), "one benchmark a file.*2"),
        ("benchmarks.json", report({"requests": {}}), "benchmarks.0.requests: requests by succ"),
        ("results.jtl", JTL, "of JMeter lacks token counts: .*sample_variables"),
        ("metrics.csv", K6, "of k6 lacks token counts"),
        ("points.json", f"{json.dumps(K6_POINT)}\n{json.dumps(K6_POINT)}\n", "of k6 lacks token"),
        ("stats.csv", LOCUST, "of Locust lacks single requests"),
        ("other.json", {"answer": 42}, "a file of vLLM or SGLang bench, GuideLLM, .*keys answer"),
        ("lines.jsonl", [1, 2], "an object a line"),
    ],
)
def test_what_cannot_be_replayed_names_its_tool_and_what_it_lacks(tmp_path, name, content, said):
    file = tmp_path / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=said):
        read_measured(file)


def test_a_message_never_names_an_option_of_another_tool():
    options = {
        "vLLM": {"--save-detailed", "--save-result"}, "SGLang": {"--output-details"},
        "AIPerf": {"--export-level"}, "JMeter": {"sample_variables"},
        "inference-perf": {"per_request"},
    }  # fmt: skip
    for form in FORMS:
        for tool, names in options.items():
            assert tool in form.tool or not any(name in form.lacks for name in names), form


def test_guidellm_of_0_3_tells_times_beside_the_tokens(tmp_path):
    one = {
        "start_time": 100.0, "end_time": 101.5, "first_token_time": 100.2, "prompt_tokens": 200,
        "output_tokens": 50,
    }  # fmt: skip
    other = {**one, "start_time": 102.0, "end_time": 104.0, "first_token_time": 102.5}
    file = tmp_path / "benchmarks.json"
    runs = report({"requests": {"successful": [one, other], "errored": [], "incomplete": []}})
    file.write_text(json.dumps(runs), encoding="utf-8")
    rows = read_measured(file).requests
    assert rows["start_s"].tolist() == pytest.approx([0.0, 2.0])
    assert rows["ttft_s"].tolist() == pytest.approx([0.2, 0.5])
    assert rows["e2e_s"].tolist() == pytest.approx([1.5, 2.0])


def test_aiperf_of_0_1_names_its_phase_and_first_token_otherwise(tmp_path):
    record = aiperf(1.0)
    metrics = record["metrics"]
    metrics["ttft"] = metrics.pop("time_to_first_token")
    about = {"timestamp_ns": START_NS, "credit_phase": "profiling"}
    lines = [
        {**record, "metadata": about},
        {**record, "metadata": {**about, "credit_phase": "warmup"}},
    ]
    file = tmp_path / "profile_export.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    rows = read_measured(file).requests
    assert len(rows) == 1
    assert rows["ttft_s"].iloc[0] == pytest.approx(0.255886568)


def lifecycle(start, **changes):
    info = {
        "input_tokens": 300,
        "output_tokens": 3,
        "output_token_times": [start + 0.1, start + 0.9],
    }
    return {"start_time": start, "end_time": start + 1.0, "info": info, "error": None, **changes}


def test_inference_perf_tells_token_times_of_each_request(tmp_path):
    records = [lifecycle(5000.0), lifecycle(5002.0), lifecycle(5003.0, error={"type": "Timeout"})]
    file = tmp_path / "per_request_lifecycle_metrics.json"
    file.write_text(json.dumps(records), encoding="utf-8")
    rows = read_measured(file).requests
    assert rows["start_s"].tolist() == pytest.approx([0.0, 2.0, 3.0])
    assert rows["ttft_s"].tolist()[:2] == pytest.approx([0.1, 0.1])
    assert rows["e2e_s"].tolist()[:2] == pytest.approx([1.0, 1.0])
    assert rows["outcome"].tolist() == ["succeeded", "succeeded", "failed"]


def test_jmeter_is_read_if_its_samples_carry_token_counts(tmp_path):
    file = tmp_path / "results.jtl"
    file.write_text(
        "timeStamp,elapsed,label,success,Latency,prompt_tokens,output_tokens\n"
        "1759522419000,1000,chat,true,150,200,20\n1759522421500,2000,chat,false,150,210,0\n"
    )
    rows = read_measured(file).requests
    assert rows["start_s"].tolist() == pytest.approx([0.0, 2.5])
    assert rows["e2e_s"].iloc[0] == pytest.approx(1.0)
    assert rows["outcome"].tolist() == ["succeeded", "failed"]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (
            lifecycle(5003.0, info={"input_tokens": 300, "output_tokens": 0}),
            "an answer without tokens",
        ),
        (lifecycle(5003.0, end_time=None), "unreadable"),
        (lifecycle(5003.0, end_time=4000.0), "e2e_s is negative"),
        ({"start_time": None, "end_time": 1.0, "info": {}}, "unreadable"),
    ],
)
def test_one_odd_row_is_dropped_and_counted_not_the_file(tmp_path, odd, reason):
    file = tmp_path / "per_request_lifecycle_metrics.json"
    file.write_text(json.dumps([lifecycle(5000.0), lifecycle(5001.0), odd]), encoding="utf-8")
    found = read_measured(file)
    assert len(found.requests) == 2
    assert any("1 row of 3 dropped" in note and reason in note for note in found.notes)


def test_several_runs_in_a_file_are_not_taken_for_one(tmp_path):
    file = tmp_path / "online.jsonl"
    file.write_text(f"{json.dumps(LISTS)}\n{json.dumps(LISTS)}\n", encoding="utf-8")
    with pytest.raises(DataError, match="one run a file, got '2 lines of runs'"):
        read_measured(file)


def test_a_metric_of_unknown_unit_makes_its_row_unreadable(tmp_path):
    record = aiperf()
    record["metrics"]["request_latency"]["unit"] = "fortnights"
    file = tmp_path / "profile_export.jsonl"
    file.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(DataError, match=r"request_latency: a unit of ns, .*fortnights"):
        read_measured(file)
