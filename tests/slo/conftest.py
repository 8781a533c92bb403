"""Runs of thousands of requests, written down as arrays."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from run_tables import requests_table, timeline_table

from capplan.results import RunResult
from capplan.scenario.files import load_scenario, with_values

PROMISES = {"ttft_s": 2.0, "quantile": 0.99}


@pytest.fixture
def scenario():
    def make(promises=None, **values):
        classes = [{"name": "chat", "owner": "chat", "promises": promises or PROMISES}]
        base = load_scenario("benchmark", values={"classes": classes})
        return with_values(base, values) if values else base

    return make


def _log(n, ttft, outcome, **columns):
    generator = np.random.default_rng(1)
    start = np.arange(n) * 0.1
    ttft = np.broadcast_to(np.asarray(ttft, dtype=float), n)
    outcome = np.broadcast_to(np.asarray(outcome, dtype=object), n)
    done = outcome == "succeeded"
    log = requests_table([{}] * n)
    values = {
        "request_id": [f"r{i}" for i in range(n)],
        "attempt": 1,
        "request_class": "chat",
        "tenant": "all",
        "streaming": True,
        "intended_start_s": start,
        "sent_s": start,
        "gateway_in_s": start,
        "gateway_admitted_s": start,
        "service_queue_in_s": start,
        "scheduler_queue_in_s": start,
        "batch_in_s": np.where(done, start + ttft / 2, np.nan),
        "prefill_end_s": np.where(done, start + ttft, np.nan),
        "first_token_s": np.where(done, start + ttft, np.nan),
        "finish_s": start + ttft + 1.0,
        "batch_window_s": 0.0,
        "prompt_tokens": generator.integers(50, 500, n),
        "output_tokens": np.where(done, generator.integers(2, 40, n), 0),
        "wasted_tokens": 0,
        "replica": "llm-0",
        "outcome": outcome,
        "outcome_layer": np.where(done, None, "service_queue"),
    }
    return log.assign(**(values | columns))


@pytest.fixture
def run(scenario):
    """Make a run of ``n`` requests of class chat, ten a second, with these TTFTs and outcomes."""

    def make(n=2000, *, ttft=0.5, outcome="succeeded", asked=None, busy=0.5, **columns):
        log = _log(n, ttft, outcome, **columns)
        timeline = [
            {"time_s": 0.0, "layer": "decode", "replica": name, "metric": "busy_fraction",
             "value": value}
            for name, value in (("llm-0", busy), ("idle-0", 0.0))
        ]  # fmt: skip
        return RunResult(
            scenario=asked or scenario(),
            trace=SimpleNamespace(frame=pd.DataFrame({"request_id": log["request_id"]})),
            requests=log,
            timeline=timeline_table(timeline),
            duration_s=float(log["finish_s"].max()),
        )

    return make
