"""A first scenario: short, commented, marked as resting on defaults, and it runs as it is."""

import csv

import pytest

import capplan as cp
from capplan.bundled import data_path
from capplan.cli import main
from capplan.scenario.files import load_scenario
from capplan.schema import DataError
from capplan.starter import LENGTHS, scenario, starter, use_cases

LOADS = {
    name: {"rps": 2.0} if name in ("agent", "batch") else {"users": 1000} for name in use_cases()
}


@pytest.mark.parametrize("use_case", LOADS)
def test_a_starter_has_at_most_30_lines_and_simulates_as_it_is(use_case, tmp_path):
    text = starter(use_case=use_case, **LOADS[use_case])
    assert len(text.splitlines()) <= 30
    file = tmp_path / "service.yaml"
    file.write_text(text, encoding="utf-8")
    study = load_scenario(file, values={"requests": 40})
    result = cp.simulate(study, seed=1)
    assert cp.judge(result, study).outcome in ("pass", "retest", "unknown", "fail")
    assert len(result.requests) == 40


def test_every_number_of_a_use_case_stands_in_its_starter_and_is_marked_as_a_default():
    for use_case, defaults in use_cases().items():
        text = starter(use_case=use_case, **LOADS[use_case])
        for name in LENGTHS:
            line = next(x for x in text.splitlines() if x.strip().startswith(f"{name}_tokens:"))
            assert f"p50_tokens: {defaults[f'{name}_p50_tokens'].value:.0f}" in line
            assert line.endswith(f"# default: {defaults[f'{name}_p50_tokens'].source}")


def test_the_planned_peak_is_users_by_their_share_and_rate_at_peak():
    rate = scenario(use_case="chat", users=3000).traffic.shape.rate_rps
    assert rate == pytest.approx(3000 * 0.20 * 0.4 / 60 * 2.0)  # llm-d-planner's chatbot


def test_more_users_need_at_least_as_many_replicas():
    found = [scenario(use_case="rag", users=n).pool().replicas for n in (100, 1000, 10_000)]
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_a_large_model_is_spread_over_the_fewest_accelerators_that_hold_it():
    pool = scenario(users=100, model="Llama-3.1-70B", accelerator="H200-SXM-141GB").pool()
    assert pool.tensor_parallel == 2  # 141 GB of weights and their KV do not fit into one


def test_a_recording_brings_its_own_classes_and_all_of_its_requests():
    study = scenario(trace=data_path("sample", "trace.parquet"))
    assert [c.name for c in study.classes] == ["chat", "assistant", "batch"]
    recorded = cp.read_trace(data_path("sample", "trace.parquet")).frame
    assert len(cp.draw(study).frame) == len(recorded)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"use_case": "poetry", "users": 5}, "use_case"),
        ({"use_case": "agent", "users": 5}, "load"),
        ({}, "load"),
        ({"users": 0}, "users"),
        ({"rps": float("nan")}, "rps"),
        ({"users": 5, "model": "no-such-model"}, "model"),
        ({"users": 5, "model": "Llama-3.1-405B", "accelerator": "L4"}, "model"),
    ],
)
def test_what_cannot_be_started_is_refused_with_the_field(options, field):
    with pytest.raises(DataError) as caught:
        starter(**options)
    assert caught.value.field == field


def test_the_command_writes_a_file_once_and_names_the_trace_relative_to_it(tmp_path, capsys):
    trace = tmp_path / "calls.csv"
    trace.write_text("timestamp,prompt_tokens,output_tokens\n" + "".join(
        f"{i * 0.5},{100 + i},{20 + i % 7}\n" for i in range(300)
    ), encoding="utf-8")  # fmt: skip
    file = tmp_path / "mine.yaml"
    assert main(["init", str(file), "--from", str(trace)]) == 0
    assert 'trace: "calls.csv"' in file.read_text(encoding="utf-8")
    assert main(["simulate", str(file), "--json"]) == 0
    before = file.read_text(encoding="utf-8")
    assert main(["init", str(file), "--users", "5"]) == 2
    assert "a file that does not exist yet" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == before


def test_every_default_has_a_unit_and_a_source():
    with data_path("use_cases", "use_cases.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["use_case"] for row in rows} == {"chat", "code", "rag", "summary", "agent", "batch"}
    assert all(row["unit"] and row["short"] and len(row["source"]) > 10 for row in rows)
    assert all(float(row["value"]) > 0 for row in rows)


def test_lengths_measured_on_the_public_trace_are_the_bundled_ones(shared_data):
    trace = cp.read_trace(shared_data / "traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv")
    for name in LENGTHS:
        for quantile in (0.5, 0.95):
            bundled = use_cases()["chat"][f"{name}_p{100 * quantile:.0f}_tokens"].value
            assert round(trace.frame[f"{name}_tokens"].quantile(quantile)) == bundled


def test_the_public_name_is_callable_whatever_was_imported_before():
    from capplan.scenario import files

    study = cp.scenario(use_case="code", users=200)
    assert study.classes[0].name == "code"
    assert isinstance(study, cp.scenario.Scenario)
    assert cp.load_scenario is files.load_scenario


def test_the_wait_budget_of_a_starter_is_not_blocked_by_a_queue_without_owner(tmp_path):
    file, applied = tmp_path / "a.yaml", tmp_path / "b.yaml"
    file.write_text(starter(users=1000), encoding="utf-8")
    assert main(["budget", str(file), "--apply", str(applied)]) == 0
    assert cp.allocate(load_scenario(applied)).outcome != "blocked"


def test_only_public_names_are_listed():
    assert set(dir(cp)) == {"__version__", *cp.__all__}
