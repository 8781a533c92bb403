from __future__ import annotations

import json

import pytest

from capplan.cli import main
from capplan.scenario.files import load_scenario
from capplan.traffic.draw import draw


def test_public_traces_are_listed_with_their_licence(capsys):
    assert main(["data", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["azure-2023-conv"]["kind"] == "public trace"
    assert "CC-BY-4.0" in rows["azure-2023-conv"]["about"]


def test_a_public_trace_is_fetched_and_its_licence_shown(
    shared_data, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("CAPPLAN_DATA", str(shared_data))
    assert main(["data", "get", "mooncake-synthetic"]) == 0
    out, err = capsys.readouterr()
    assert out.strip().endswith("synthetic_trace.jsonl.gz")
    assert "licence Apache-2.0" in err
    copy = tmp_path / "here.jsonl.gz"
    assert main(["data", "get", "mooncake-synthetic", "--out", str(copy)]) == 0
    assert copy.exists()
    assert main(["data", "get", "mooncake-synthetic", "--out", str(copy)]) == 2


def test_a_trace_that_cannot_be_fetched_is_a_failure_while_running(monkeypatch, capsys):
    monkeypatch.delenv("CAPPLAN_DATA", raising=False)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no route")

    pooch = pytest.importorskip("pooch")
    monkeypatch.setattr(pooch, "retrieve", refuse)
    assert main(["data", "get", "azure-2023-code"]) == 3
    assert "cannot be downloaded: no route" in capsys.readouterr().err


def test_a_public_traces_name_stands_where_a_trace_file_may(
    shared_data, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("CAPPLAN_DATA", str(shared_data))
    monkeypatch.chdir(tmp_path)
    assert main(["profile", "azure-2023-code", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"]["kept"] == 8819
    assert main(["init", "--from", "azure-2023-code", "code.yaml"]) == 0
    study = load_scenario("code.yaml")
    assert study.traffic.trace == "azure-2023-code"
    assert any("CC-BY-4.0" in note for note in draw(study).notes)
    words = ["simulate", "benchmark", "--trace", "azure-2023-code", "--set", "requests=300"]
    assert main([*words, "--json"]) == 0
    shape = ["--set", "traffic.shape={kind: replay}"]
    capsys.readouterr()
    assert main([*words, *shape, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["offered"] == 300


def test_the_bundled_traces_name_makes_a_scenario_that_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--from", "sample", "first.yaml"]) == 0
    study = load_scenario("first.yaml")
    assert study.traffic.trace == "sample"
    assert len(draw(study)) == 20_053


@pytest.mark.parametrize("command", [["profile", "smaple"], ["init", "--from", "smaple", "a.yaml"]])
def test_a_trace_that_is_not_there_names_what_is(command, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    err = capsys.readouterr().err
    assert "sample" in err
    assert "azure-2023-conv" in err
