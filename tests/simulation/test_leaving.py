"""What callers that leave cost, and what they have got by then."""

import numpy as np
import pytest

STEP = {
    "kind": "linear",
    "base_s": 0.01,
    "per_prefill_token_s": 1e-5,
    "per_sequence_s": 0.0,
    "per_context_token_s": 0.0,
}
CLASSES = [{"name": "chat", "retry": {"attempt_timeout_s": 0.5, "max_attempts": 1}}]


def batching(**fields):
    return {"kind": "continuous", "kv_blocks": 1000, "step_time": STEP} | fields


@pytest.fixture(name="log_of")
def _log_of(build, play, trace_of):
    def log_of(*, times=(0.0,), engine="reference", **fields):
        scenario = build(batching=batching(**fields), classes=CLASSES)
        trace = trace_of(np.array(times), prompt_tokens=10, output_tokens=200)
        return play(scenario, trace, engine=engine).requests

    return log_of


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_an_engine_that_cancels_stops_with_the_step(log_of, engine):
    (row,) = log_of(engine=engine).to_dict("records")
    assert row["outcome"] == "timed_out"
    assert row["wasted_tokens"] == pytest.approx(10 + 50, abs=2)
    assert np.isnan(row["decode_end_s"])


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_an_engine_that_does_not_cancel_computes_to_the_end(log_of, engine):
    (row,) = log_of(engine=engine, cancel_frees=False).to_dict("records")
    assert row["outcome"] == "timed_out"
    assert row["wasted_tokens"] == 10 + 200
    assert row["output_tokens"] == pytest.approx(50, abs=2)
    assert row["decode_end_s"] == pytest.approx(2.0, rel=0.01)


def test_work_for_callers_that_left_delays_the_others(log_of):
    times = [0.0] * 4 + [0.6]
    waits = [
        log_of(times=times, max_num_seqs=4, cancel_frees=frees).iloc[-1] for frees in (True, False)
    ]
    assert waits[0]["batch_in_s"] < 0.65
    assert np.isnan(waits[1]["batch_in_s"]) or waits[1]["batch_in_s"] > 1.9


@pytest.mark.parametrize("engine", ["reference", "fast"])
def test_tokens_come_in_chunks_after_the_first(log_of, engine):
    got = {n: int(log_of(engine=engine, stream_interval=n)["output_tokens"][0]) for n in (1, 20)}
    assert got[20] == 1 + (got[1] - 1) // 20 * 20
    assert got[20] < got[1]
