"""Limits in a scenario's file: the file keeps what people wrote in it."""

from pathlib import Path

import pytest

from capplan.budget import allocate, applied_text, apply
from capplan.bundled import data_path
from capplan.scenario.files import load_scenario
from capplan.schema import DataError


@pytest.fixture
def file() -> Path:
    return data_path("scenarios", "chat-service.yaml")


def test_the_written_file_reads_as_the_applied_scenario(file, tmp_path):
    scenario = load_scenario(file)
    budget = allocate(scenario)
    out = tmp_path / "out.yaml"
    out.write_text(applied_text(file, budget), encoding="utf-8")
    assert load_scenario(out) == apply(scenario, budget)


def test_comments_and_order_of_the_file_stay(file):
    old = file.read_text(encoding="utf-8")
    new = applied_text(file, allocate(load_scenario(file)))
    comments = [line for line in old.splitlines() if line.startswith("#")]
    assert comments
    assert [line for line in new.splitlines() if line.startswith("#")] == comments
    fields = [line for line in old.splitlines() if line and line[0].isalpha()]
    assert [line for line in new.splitlines() if line and line[0].isalpha()] == fields


def test_values_set_by_hand_are_written_too(file, tmp_path):
    values = {"pools.llm.replicas": 5, "network.one_way_s": 0.03}
    scenario = load_scenario(file, values=values)
    out = tmp_path / "out.yaml"
    out.write_text(applied_text(file, allocate(scenario), values=values), encoding="utf-8")
    assert load_scenario(out) == apply(scenario, allocate(scenario))


def test_parts_that_the_file_left_out_are_added(tmp_path):
    source = data_path("scenarios", "benchmark.yaml")
    scenario = load_scenario(source)
    budget = allocate(scenario)
    out = tmp_path / "out.yaml"
    out.write_text(applied_text(source, budget), encoding="utf-8")
    applied = load_scenario(out)
    assert applied == apply(scenario, budget)
    assert applied.gateway.concurrency == budget.settings["gateway.concurrency"]


def test_a_relative_trace_still_leads_to_the_same_file(file, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    source, out = here / "s.yaml", there / "s.yaml"
    text = file.read_text(encoding="utf-8").replace("trace: sample", "trace: t.csv")
    source.write_text(text, encoding="utf-8")
    out.write_text(
        applied_text(source, allocate(load_scenario(file)), folder=there), encoding="utf-8"
    )
    assert Path(load_scenario(out).traffic.trace) == here / "t.csv"


def test_an_unknown_entry_and_a_missing_file_are_data_errors(file, tmp_path):
    budget = allocate(load_scenario(file))
    with pytest.raises(DataError, match=r"pools\.gpu\.replicas: one of .*, got 'gpu'"):
        applied_text(file, budget, values={"pools.gpu.replicas": 1})
    with pytest.raises(DataError, match=r"none\.yaml: a readable UTF-8 file"):
        applied_text(tmp_path / "none.yaml", budget)


def test_limits_that_the_file_has_already_stay_as_written(file):
    scenario = load_scenario(file)
    budget = allocate(scenario)
    assert budget.settings["gateway.queue.status"] == scenario.gateway.queue.status
    assert "gateway.queue.status" not in budget.changes
    applied = apply(scenario, budget)
    assert allocate(applied).changes == {}


@pytest.mark.parametrize("name", ["chat-service", "embedding-batch", "mixed-modality"])
def test_bundled_services_keep_their_own_budget(name):
    assert allocate(load_scenario(name)).outcome == "pass"
