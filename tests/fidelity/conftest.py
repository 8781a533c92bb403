"""Measured runs that we measure ourselves, by simulating them."""

import json

import numpy as np
import pandas as pd
import pytest

from capplan.measured import read_measured, replay_scenario, replay_trace
from capplan.simulation import simulate
from capplan.validation import predicted_requests

SERVER = {
    "engine": "vllm 0.10",
    "model": "Llama-3.1-8B",
    "accelerator": "H100",
    "kv_blocks": 8000,
    "prefix_caching": False,
    "clock": "client: from intended_start_s",
}


@pytest.fixture
def requests():
    """Return a function that draws a table of requests."""

    def draw(n, rate_rps, *, seed=0):
        rng = np.random.default_rng(seed)
        return pd.DataFrame(
            {
                "intended_start_s": np.cumsum(rng.exponential(1 / rate_rps, size=n)),
                "prompt_tokens": rng.integers(200, 900, size=n),
                "output_tokens": rng.integers(2, 120, size=n),
                "ttft_s": 0.1,
                "e2e_s": 1.0,
            }
        )

    return draw


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a measured folder and reads it."""

    def into(rows, *, name="run", **server):
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        rows.to_csv(place / "requests.csv", index=False)
        (place / "server.json").write_text(json.dumps({**SERVER, **server}), encoding="utf-8")
        return read_measured(place)

    return into


@pytest.fixture
def measured(write):
    """Return a function whose measured latencies are those of the run's own replay."""

    def by_simulation(rows, *, name="run", step_time=None, front_end=None, **server):
        first = write(rows, name=name, **server)
        scenario = replay_scenario(first, step_time=step_time, **(front_end or {}))
        told = predicted_requests(first, simulate(scenario, trace=replay_trace(first, scenario)))
        columns = {key: told[key] for key in ("ttft_s", "e2e_s")}
        rows = rows.assign(outcome=told["outcome"].to_numpy(), **columns)
        return write(rows, name=name, **server)

    return by_simulation
