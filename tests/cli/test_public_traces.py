from __future__ import annotations

import json

import pytest

from capplan.cli import main


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
