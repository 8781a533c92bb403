import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_tables import requests_table

from capplan.results import SEGMENTS, segments

times = st.floats(0.0, 50.0)


@given(st.lists(st.tuples(*[times] * 11), min_size=1, max_size=8))
def test_segments_sum_to_e2e_and_up_to_the_first_token_to_ttft(parts):
    rows = []
    for start, lag, net, queue, overhead, service, sched, window, prefill, decode, serial in parts:
        sent = start + lag
        gateway_in = sent + net
        admitted = gateway_in + queue
        scheduler_in = admitted + overhead + service
        batch_in = scheduler_in + sched + window
        prefill_end = batch_in + prefill
        decode_end = prefill_end + decode
        rows.append(
            {
                "request_id": str(len(rows)),
                "attempt": 1,
                "request_class": "chat",
                "outcome": "succeeded",
                "intended_start_s": start,
                "sent_s": sent,
                "gateway_in_s": gateway_in,
                "gateway_admitted_s": admitted,
                "service_queue_in_s": admitted + overhead,
                "scheduler_queue_in_s": scheduler_in,
                "batch_in_s": batch_in,
                "prefill_end_s": prefill_end,
                "decode_end_s": decode_end,
                "first_token_s": prefill_end + serial / 2 + net,
                "finish_s": decode_end + serial + net + 1e-3,
                "network_s": 2 * net,
                "batch_window_s": window,
            }
        )
    log = requests_table(rows)
    whole, first = segments(log), segments(log, until="first_token")
    start = log["intended_start_s"]
    np.testing.assert_allclose(whole.sum(axis=1), log["finish_s"] - start, atol=1e-9)
    np.testing.assert_allclose(first.sum(axis=1), log["first_token_s"] - start, atol=1e-9)
    np.testing.assert_allclose(whole["batch_window_s"], [p[7] for p in parts], atol=1e-9)
    np.testing.assert_allclose(whole["scheduler_queue_s"], [p[6] for p in parts], atol=1e-9)


def test_each_segment_of_a_known_attempt(served):
    log = requests_table([served("a", 0.0, waits=(0.5, 0.25, 0.75), batch_window_s=0.25)])
    row = segments(log).iloc[0]
    expected = [0.0, 0.2, 0.6, 0.25, 0.5, 0.25, 1.0, 2.0]
    assert row[list(SEGMENTS)].tolist() == pytest.approx(expected)


def test_decode_belongs_to_the_wait_for_an_answer_in_one_piece(served):
    log = requests_table([served("a", 0.0, streaming=False, first_token_s=3.3)])
    assert segments(log, until="first_token")["decode_s"].iloc[0] == pytest.approx(2.0)


def test_what_a_server_does_not_tell_is_nan(served):
    log = requests_table([served("a", 0.0, scheduler_queue_in_s=None)])
    missing = segments(log).iloc[0].isna()
    assert missing[["service_queue_s", "scheduler_queue_s"]].all()
    assert not missing[["gateway_s", "prefill_s", "decode_s"]].any()
