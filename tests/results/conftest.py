"""Tiny runs, written down attempt by attempt."""

import math
from types import SimpleNamespace

import pandas as pd
import pytest
from run_tables import requests_table, timeline_table

from capplan.results import RunResult
from capplan.scenario.files import load_scenario

PASS = ("sent_s", "gateway_in_s", "gateway_admitted_s", "service_queue_in_s")
PASS += ("scheduler_queue_in_s", "batch_in_s", "prefill_end_s", "decode_end_s")


def attempt_row(request, start, *, waits=(0.0, 0.0, 0.0), network=0.2, overhead=0.1, **values):
    """One served attempt: waits at gateway, service queue and replica, 1 s prefill, 2 s decode."""
    gateway_in = start + network / 2
    admitted = gateway_in + waits[0]
    service_in = admitted + overhead
    scheduler_in = service_in + waits[1]
    batch_in = scheduler_in + waits[2]
    row = {
        "request_id": request,
        "attempt": 1,
        "request_class": "chat",
        "tenant": "all",
        "priority": 0,
        "streaming": True,
        "intended_start_s": start,
        "sent_s": start,
        "gateway_in_s": gateway_in,
        "gateway_admitted_s": admitted,
        "service_queue_in_s": service_in,
        "scheduler_queue_in_s": scheduler_in,
        "batch_in_s": batch_in,
        "prefill_end_s": batch_in + 1.0,
        "decode_end_s": batch_in + 3.0,
        "first_token_s": batch_in + 1.0 + network / 2,
        "finish_s": batch_in + 3.0 + network / 2,
        "batch_window_s": 0.0,
        "network_s": network,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "output_tokens": 21,
        "wasted_tokens": 0,
        "degraded": False,
        "outcome": "succeeded",
    }
    return row | values


def ended_row(request, start, *, at, outcome, layer, finish=None, **values):
    """An attempt that ended in a layer: the moments after ``at`` were not reached."""
    row = attempt_row(request, start)
    for moment in PASS[PASS.index(at) + 1 :]:
        row[moment] = None
    row |= {"first_token_s": None, "outcome": outcome, "outcome_layer": layer}
    row |= {"output_tokens": 0, "cached_tokens": None, "wasted_tokens": None}
    return row | {"finish_s": finish, "batch_window_s": None} | values


@pytest.fixture
def served():
    return attempt_row


@pytest.fixture
def ended():
    return ended_row


@pytest.fixture
def two_classes(tmp_path):
    """A scenario with a streaming class ``chat`` and a class ``jobs`` that is not."""
    return load_scenario(
        "benchmark",
        values={
            "classes": [
                {"name": "chat", "promises": {"deadline_s": 10.0, "ttft_s": 2.0, "tpot_s": 0.5}},
                {"name": "jobs", "streaming": False, "promises": {"e2e_s": 5.0}},
            ],
            "pools.llm.price_usd_per_accelerator_hour": 3.6,
        },
    )


@pytest.fixture
def make_run(two_classes):
    def make(rows, *, duration_s=100.0, timeline=(), scenario=None, **values):
        log = requests_table(rows)
        trace = SimpleNamespace(frame=pd.DataFrame({"request_id": log["request_id"].unique()}))
        return RunResult(
            scenario=scenario or two_classes,
            trace=trace,
            requests=log,
            timeline=timeline_table(timeline),
            duration_s=duration_s,
            **({"wall_s": math.nan} | values),
        )

    return make


@pytest.fixture
def busy():
    """Rows of a timeline in which a replica is busy for a share of the time, from the start on."""

    def make(replica, fraction):
        row = {"time_s": 0.0, "layer": "decode", "replica": replica, "metric": "busy_fraction"}
        return [row | {"value": fraction}]

    return make
