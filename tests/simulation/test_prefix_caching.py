"""Prefix caching through the layers: from a trace's ids to the log."""

import numpy as np
import pytest

from capplan.results.headline import cache_hit_fraction

CONTINUOUS = {
    "kind": "continuous",
    "kv_blocks": 400,
    "step_time": {
        "kind": "linear",
        "base_s": 4e-3,
        "per_prefill_token_s": 1e-4,
        "per_sequence_s": 1e-5,
        "per_context_token_s": 1e-8,
    },
}
CACHING = CONTINUOUS | {"prefix_caching": True}


@pytest.fixture(name="trace")
def _trace(trace_of):
    """Return requests of three conversations that share their first 512 tokens each."""
    ids = [np.array([k % 3, 100 + k], dtype=np.int64) for k in range(30)]
    trace = trace_of(np.arange(30) * 0.5, prompt_tokens=900, prefix_blocks=ids)
    object.__setattr__(trace, "prefix_block_tokens", 512)
    return trace


def test_ids_of_the_trace_are_found_in_the_cache_and_logged(build, play, trace):
    off, on = (play(build(batching=b), trace) for b in (CONTINUOUS, CACHING))
    assert (off.requests["cached_tokens"] == 0).all()
    cached = on.requests["cached_tokens"].to_numpy()
    assert (cached[:3] == 0).all()
    assert (cached[3:] == 512).all()
    assert cache_hit_fraction(on.requests) == pytest.approx(27 * 512 / (30 * 900))
    ttft = [(r.requests["first_token_s"] - r.requests["sent_s"]).to_numpy() for r in (off, on)]
    assert (ttft[1][3:] < ttft[0][3:] - 0.05).all()


def test_each_replica_has_its_own_cache(build, play, trace):
    alone, two = (
        play(build(batching=CACHING, replicas=n, pool={"router": {"policy": "round_robin"}}), trace)
        for n in (1, 2)
    )
    assert cache_hit_fraction(two.requests) < cache_hit_fraction(alone.requests)


def test_a_class_states_its_share_where_the_trace_has_no_ids(build, play, trace_of):
    trace = trace_of(np.arange(10) * 0.5, prompt_tokens=900)
    classes = [{"name": "chat", "cached_fraction": 0.5}]
    log = play(build(batching=CACHING, classes=classes), trace).requests
    assert (log["cached_tokens"] == 448).all()
    log = play(build(batching=CONTINUOUS, classes=classes), trace).requests
    assert (log["cached_tokens"] == 0).all()
