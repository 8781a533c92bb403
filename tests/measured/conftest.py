"""Folders of measured runs, written the way a person would leave them."""

import json

import pandas as pd
import pytest

SERVER = {
    "engine": "vllm 0.19.0",
    "model": "meta-llama/Llama-3.1-8B",
    "accelerator": "H100-SXM-80GB",
    "max_num_seqs": 64,
    "max_num_batched_tokens": 1024,
    "kv_blocks": 5000,
    "clock": "client: ttft_s and e2e_s from intended_start_s",
}

ROWS = pd.DataFrame(
    {
        "intended_start_s": [10.0, 10.5, 12.0, 11.0],
        "prompt_tokens": [100, 200, 300, 400],
        "output_tokens": [11, 21, 1, 41],
        "ttft_s": [0.1, 0.2, 0.3, 0.4],
        "e2e_s": [1.1, 2.2, 0.3, 4.4],
        "outcome": ["succeeded"] * 4,
    }
)


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes a measured folder and returns its path."""

    def write(rows=ROWS, name="requests.csv", **server):
        place = tmp_path / "run"
        place.mkdir(exist_ok=True)
        rows.to_csv(place / name, index=False)
        (place / "server.json").write_text(json.dumps({**SERVER, **server}), encoding="utf-8")
        return place

    return write


@pytest.fixture
def rows():
    """Return four measured requests."""
    return ROWS.copy()
