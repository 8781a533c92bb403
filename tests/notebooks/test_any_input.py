"""A page stands services and traces other than the one it was written with."""

import json
import re

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(
    ("stem", "scenario"),
    [
        ("02_wait_budget", "benchmark"),
        ("02_wait_budget", "embedding-batch"),
        ("02_wait_budget", "mixed-modality"),
        ("03_batch_window", "embedding-batch"),
        ("03_batch_window", "mixed-modality"),
        ("03_batch_window", "protected-chat"),
        ("05_failure_margin", "protected-chat"),
    ],
)
def test_a_page_takes_any_bundled_scenario(stem, scenario, run):
    page = run(stem, scenario=scenario, requests=300)
    assert page.told
    assert page.figures


@pytest.mark.parametrize(
    ("stem", "small"), [("00_tour", {"steps": 1}), ("05_failure_margin", {"requests": 300})]
)
def test_a_page_stands_a_service_that_does_not_stream(stem, small, run):
    assert run(stem, scenario="embedding-batch", **small).told


def test_a_page_stands_a_trace_of_one_request(run, tmp_path):
    trace = tmp_path / "one.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n")
    page = run("01_traffic_profile", trace=str(trace))
    assert "Nothing to draw here." in page.told
    assert not re.search(r"\bnan\b", page.told)


def test_equal_lengths_make_the_choice_unknown(run, tmp_path):
    page = run("03_batch_window", scenario="benchmark", requests=300)
    assert page.figures
    chosen = json.loads((tmp_path / "run" / "chosen_point.json").read_text())
    assert {pool["outcome"] for pool in chosen["pools"]} == {"unknown"}
    assert "unknown" in chosen["pools"][0]["finding"]


def test_the_page_of_stages_stands_a_plan_without_ramp_and_tells_a_storm_as_one(run):
    page = run("04_load_stages", scenario="drills/retry-storm", surge=5.0)
    assert "No ramp was run" in page.told
    assert "requests/s (5 × the planned peak) for 16 s instead of" in page.told
    assert ": **it does not come back** within 2.4 min after it; " in page.told
    assert not re.search(r"\bnan\b", page.told)
