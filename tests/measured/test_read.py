"""What a measured run says, whatever form its file has."""

import json
import re

import numpy as np
import pytest

from capplan.measured import Server, read_measured
from capplan.measured.server import formed_ahead
from capplan.schema import DataError


def test_requests_are_sorted_and_counted_from_the_first(folder):
    found = read_measured(folder())
    assert found.name == "run"
    assert found.requests["start_s"].tolist() == [0.0, 0.5, 1.0, 2.0]
    assert found.requests["prompt_tokens"].tolist() == [100, 200, 400, 300]
    assert found.requests["tpot_s"].tolist()[:3] == pytest.approx([0.1, 0.1, 0.1])
    assert np.isnan(found.requests["tpot_s"].iloc[3])  # one token has none


@pytest.mark.parametrize("form", ["csv", "csv.gz", "parquet", "jsonl"])
def test_every_form_of_file_reads_alike(folder, rows, form):
    place = folder()
    (place / "requests.csv").unlink()
    file = place / f"requests.{form}"
    if form == "parquet":
        rows.to_parquet(file)
    elif form == "jsonl":
        rows.to_json(file, orient="records", lines=True)
    else:
        rows.to_csv(file, index=False)
    from_folder, from_file = read_measured(place), read_measured(file)
    assert from_folder.requests["e2e_s"].tolist() == [1.1, 2.2, 4.4, 0.3]
    assert from_file.requests.equals(from_folder.requests)
    assert from_file.server.kv_blocks == 5000


def test_moments_stand_for_latencies_and_count_from_the_stated_one(folder, rows):
    rows["sent_s"] = rows["intended_start_s"] + 0.05
    rows["first_token_s"] = rows["intended_start_s"] + 0.25
    rows["finish_s"] = rows["intended_start_s"] + 1.05
    rows = rows.drop(columns=["ttft_s", "e2e_s", "outcome"])
    found = read_measured(folder(rows, clock="client: from sent_s"))
    assert found.origin == "sent_s"
    assert found.requests["ttft_s"].tolist() == pytest.approx([0.2] * 4)
    assert found.requests["e2e_s"].tolist() == pytest.approx([1.0] * 4)
    assert set(found.requests["outcome"]) == {"succeeded"}


def test_a_run_without_ttft_has_no_ttft(folder, rows):
    found = read_measured(folder(rows.drop(columns="ttft_s")))
    assert found.requests["ttft_s"].isna().all()
    assert found.requests["tpot_s"].isna().all()


def test_a_result_of_vllm_bench_is_a_measured_run(tmp_path):
    file = tmp_path / "result.json"
    record = {
        "start_times": [100.0, 101.0],
        "input_lens": [5, 6],
        "output_lens": [3, 3],
        "ttfts": [0.5, 0.0],
        "itls": [[0.1, 0.2], []],
        "errors": ["", "boom"],
    }
    file.write_text(json.dumps(record), encoding="utf-8")
    found = read_measured(file)
    assert found.origin == "sent_s"
    assert found.requests["e2e_s"].iloc[0] == pytest.approx(0.8)
    assert found.requests["outcome"].tolist() == ["succeeded", "failed"]
    assert np.isnan(found.requests["ttft_s"].iloc[1])


def test_a_failed_request_without_tokens_gets_the_median_and_no_latency(folder, rows):
    rows.loc[3, ["prompt_tokens", "output_tokens", "outcome"]] = [0, 0, "timed_out"]
    found = read_measured(folder(rows))
    lost = found.requests[found.requests["outcome"] == "timed_out"].iloc[0]
    assert (lost["prompt_tokens"], lost["output_tokens"]) == (200, 11)
    assert np.isnan(lost["e2e_s"])
    assert any("1 request without tokens" in note for note in found.notes)


def test_keys_that_nothing_is_made_of_are_told(folder):
    assert "Not used: colour of server.json." in read_measured(folder(colour="green")).notes


def test_columns_that_nothing_is_made_of_are_named_but_those_of_our_own_log(folder, rows):
    notes = read_measured(folder(rows.assign(rate=1.0, tenant="a"))).notes
    assert "Not used: rate of requests.csv." in notes
    assert not any("tenant" in note for note in notes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": None}, "requests.csv: prompt_tokens: a required column"),
        ({"intended_start_s": None}, "requests.csv: intended_start_s: a required column"),
        ({"e2e_s": None, "ttft_s": None}, "ttft_s, first_token_s, e2e_s or finish_s"),
        ({"e2e_s": -1.0}, "at least one readable request, got '4 × e2e_s is negative'"),
        ({"ttft_s": "soon"}, "4 × ttft_s is no number"),
        ({"outcome": "gone"}, "outcome: one of succeeded, "),
        ({"output_tokens": 0}, "at least one request with start and tokens"),
    ],
)
def test_a_broken_table_is_refused_by_field(folder, rows, change, message):
    for name, value in change.items():
        rows = rows.drop(columns=name) if value is None else rows.assign(**{name: value})
    with pytest.raises(DataError, match=re.escape(message)):
        read_measured(folder(rows))


def test_a_broken_server_is_refused_by_field(folder):
    with pytest.raises(DataError, match=r"server.json: kv_blocks: .*, got 0"):
        read_measured(folder(kv_blocks=0))


def test_what_is_not_there_is_refused(tmp_path, folder):
    with pytest.raises(DataError, match="one file requests"):
        read_measured(tmp_path)
    with pytest.raises(DataError, match=r"nowhere\.csv: an existing file"):
        read_measured(tmp_path / "nowhere.csv")
    (folder() / "server.json").unlink()
    with pytest.raises(DataError, match=r"server\.json: an existing file"):
        read_measured(tmp_path / "run")


def test_a_server_says_itself_whether_it_forms_steps_ahead():
    assert not formed_ahead(Server(engine="vllm 0.19.0", async_scheduling=False))
    assert formed_ahead(Server(engine="vllm 0.9", async_scheduling=True))
    assert not formed_ahead(Server(engine="TensorRT-LLM 1.0"))


def test_a_run_that_is_not_there_is_told_as_missing(tmp_path):
    with pytest.raises(DataError, match="an existing file, or a folder of a measured run"):
        read_measured(tmp_path / "my-run")
