"""``capplan calibrate`` and ``capplan validate``."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from capplan.cli import main


@pytest.fixture
def call(capsys):
    def run(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "intended_start_s": np.cumsum(rng.exponential(0.2, size=60)),
            "prompt_tokens": 300,
            "output_tokens": 40,
            "ttft_s": 0.03,
            "e2e_s": 0.4,
        }
    )
    place = tmp_path / "run"
    place.mkdir()
    rows.to_csv(place / "requests.csv", index=False)
    server = {"engine": "vllm 0.10", "model": "Llama-3.1-8B", "accelerator": "H100"}
    (place / "server.json").write_text(json.dumps(server), encoding="utf-8")
    return place


def test_calibrate_writes_what_validate_reads(call, folder, tmp_path):
    out = tmp_path / "latency.json"
    code, printed, err = call("calibrate", "--measured", folder, "--out", out, "--json")
    assert (code, err) == (0, "")
    assert json.loads(printed) == json.loads(out.read_text(encoding="utf-8"))
    code, printed, err = call("validate", "--measured", folder, "--latency", out, "--json")
    assert (code, err) == (0, "")
    document = json.loads(printed)
    assert document["source"] == "calibrated"
    assert abs(document["metrics"]["e2e_s"]["mean"]["error_fraction"]) < 0.02


def test_people_get_a_table_and_what_was_assumed(call, folder, tmp_path):
    code, printed, _ = call("validate", "--measured", folder)
    assert code == 0
    assert "step times: roofline" in printed
    assert "throughput_tokens_per_s" in printed
    assert "Latencies count from intended_start_s." in printed
    code, printed, _ = call("calibrate", "--measured", folder, "--out", tmp_path / "x.json")
    assert code == 0
    assert "dense_scale" in printed
    assert "of the bandwidth for weights" in printed


def test_a_scenario_stands_in_for_an_unknown_server(call, folder):
    (folder / "server.json").unlink()
    file = folder / "requests.csv"
    code, _, err = call("validate", "--measured", file)
    assert code == 2
    assert "model and accelerator" in err
    code, printed, err = call("validate", "--measured", file, "--scenario", "benchmark", "--json")
    assert (code, err) == (0, "")
    assert json.loads(printed)["source"] == "scenario"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["validate"], "--measured: required, got nothing"),
        (["validate", "--measured", "nowhere.csv"], "nowhere.csv: an existing file"),
        (["validate", "--measured", "RUN", "--source", "guess"], "--source: one of roofline, "),
        (["validate", "--measured", "RUN", "--latency", "x", "--source", "roofline"], "either "),
        (["validate", "--measured", "RUN", "--profile", "x"], "--profile: given with --source "),
        (["validate", "--measured", "RUN", "--source", "tables"], "--profile: a folder, or CAPP"),
        (["validate", "--measured", "RUN", "--latency", "nowhere.json"], "an existing file"),
        (["calibrate", "--measured", "RUN"], "--out: required, got nothing"),
        (["calibrate", "--measured", "RUN", "--out", "RUN"], "--out: a file, got 'a folder'"),
    ],
)
def test_bad_input_is_told_in_one_line(call, folder, monkeypatch, words, message):
    monkeypatch.delenv("CAPPLAN_DATA", raising=False)
    code, out, err = call(*(folder if word == "RUN" else word for word in words))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_repeat_stands_beside_the_errors_and_another_load_is_refused(call, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    rows = pd.read_csv(folder / "requests.csv")
    rows.assign(ttft_s=0.033).to_csv(again / "requests.csv", index=False)
    words = ("validate", "--measured", folder, "--measured", again)
    code, printed, err = call(*words, "--json")
    assert (code, err) == (0, "")
    repeat = json.loads(printed)["repeat"]
    assert repeat["metrics"]["ttft_s"]["p50"]["error_fraction"] == pytest.approx(0.1)
    code, printed, _ = call(*words)
    assert "As near as the repeat again" in printed
    code, _, err = call(*words, "--measured", again)
    assert (code, err.count("\n")) == (2, 1)
    assert "--measured: one run, or two" in err
    rows.assign(prompt_tokens=3000).to_csv(again / "requests.csv", index=False)
    code, _, err = call(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert "again: prompt_tokens: 300 ± 10 %" in err
