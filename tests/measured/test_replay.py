"""A measured run as a scenario and a trace."""

import pandas as pd
import pytest

from capplan.measured import read_measured, replay_scenario, replay_trace
from capplan.schema import DataError


def test_the_server_becomes_a_pool(folder):
    pool = replay_scenario(read_measured(folder(tensor_parallel=2, dtype="float16"))).pool()
    batching = pool.batching
    assert (pool.model, pool.tensor_parallel) == ("meta-llama/Llama-3.1-8B", 2)
    assert pool.weight_dtype == "float16"
    assert (batching.max_num_seqs, batching.max_num_batched_tokens) == (64, 1024)
    assert (batching.kv_blocks, batching.block_size) == (5000, 16)
    assert batching.async_scheduling
    assert batching.prefix_caching


def test_an_older_or_plainer_engine_is_taken_as_told(folder):
    measured = read_measured(folder(engine="vllm 0.10.1", prefix_caching=False))
    batching = replay_scenario(measured).pool().batching
    assert not batching.async_scheduling
    assert not batching.prefix_caching


def test_the_clients_timeout_and_cap_become_deadline_and_concurrency(folder):
    measured = read_measured(folder(client_timeout_s=30, client_max_in_flight=7))
    scenario = replay_scenario(measured, request_overhead_s=0.006)
    assert scenario.request_class().promises.deadline_s == 30.0
    assert scenario.gateway.concurrency == 7
    assert scenario.gateway.queue.length is None
    assert scenario.gateway.overhead_s == 0.006
    assert replay_trace(measured, scenario).frame["deadline_s"].tolist() == [30.0] * 4


def test_what_counts_from_the_engine_has_no_overhead_of_the_client(folder, rows):
    rows["scheduler_queue_in_s"] = rows["intended_start_s"] + 0.1
    place = folder(rows, clock="engine: from scheduler_queue_in_s")
    assert replay_scenario(read_measured(place), request_overhead_s=0.006).gateway.overhead_s == 0


def test_the_same_prompt_has_the_same_prefix_and_others_share_none(folder):
    lengths = [100 + 13 * i for i in range(20)]
    rows = pd.DataFrame(
        {
            "intended_start_s": range(200),
            "prompt_tokens": lengths * 10,
            "output_tokens": 5,
            "ttft_s": 0.1,
            "e2e_s": 0.2,
        }
    )
    measured = read_measured(folder(rows))
    trace = replay_trace(measured, replay_scenario(measured))
    blocks = trace.frame["prefix_blocks"]
    assert trace.prefix_block_tokens == 16
    assert blocks[3].tolist() == blocks[23].tolist()
    assert len(blocks[3]) == lengths[3] // 16
    assert not set(blocks[3]) & set(blocks[4])


def test_without_a_model_a_scenario_is_asked_for(tmp_path, rows):
    rows.to_csv(tmp_path / "requests.csv", index=False)
    with pytest.raises(DataError, match="model and accelerator"):
        replay_scenario(read_measured(tmp_path / "requests.csv"))


def test_an_unknown_type_is_refused(folder):
    with pytest.raises(DataError, match=r"dtype: one of .*, got 'q8'"):
        replay_scenario(read_measured(folder(dtype="q8")))
