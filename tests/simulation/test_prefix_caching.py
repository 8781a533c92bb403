"""Prefix caching through the layers: from a trace's ids to the log."""

import numpy as np
import pytest

from capplan.results import headline
from capplan.results.timelines import cache_hit_fraction
from capplan.schema import DataError
from capplan.simulation import simulate
from capplan.traffic.trace import from_frame

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


def conversations(trace_of, *, turns=12, people=5):
    """Return users that each send a prompt that begins with all they have sent before."""
    rows = [(turn * 3.0 + who * 0.37, who, turn) for turn in range(turns) for who in range(people)]
    frame = trace_of(
        [at for at, _, _ in rows], prompt_tokens=[160 * (turn + 1) for _, _, turn in rows],
        output_tokens=4,
    ).frame  # fmt: skip
    frame["prefix_blocks"] = [
        [1000 * who + k for k in range(10 * (turn + 1))] for _, who, turn in rows
    ]
    return from_frame(frame, prefix_block_tokens=16)


ROUTED = {
    "kind": "continuous",
    "kv_blocks": 4000,
    "prefix_caching": True,
    "step_time": {
        "kind": "linear",
        "base_s": 4e-3,
        "per_prefill_token_s": 1e-4,
        "per_sequence_s": 1e-3,
        "per_context_token_s": 1e-6,
    },
}


def test_routing_by_prefix_finds_what_routing_by_load_scatters(build, trace_of):
    trace = conversations(trace_of)
    found = {}
    for policy in ("prefix_aware", "round_robin"):
        scenario = build(batching=ROUTED, replicas=4, pool={"router": {"policy": policy}})
        result = simulate(scenario, trace=trace)
        found[policy] = headline(result)
        owners = result.requests.assign(who=[r % 5 for r in range(60)]).groupby("who")["replica"]
        assert (owners.nunique().max() == 1) == (policy == "prefix_aware")
    # All but the newest ten blocks of each prompt: Σ 160 t over Σ 160 (t + 1), of 12 turns.
    assert found["prefix_aware"]["cache_hit_fraction"] == pytest.approx(66 / 78)
    assert found["round_robin"]["cache_hit_fraction"] < 0.6
    by_replica = found["prefix_aware"]["cache_hit_fraction_by_replica"]
    assert set(by_replica) <= {f"llm-{i}" for i in range(4)}
    # Next to it what it takes: each prompt is kept once, or once on every replica.
    assert 0 < found["prefix_aware"]["kv_cached"]["max"] <= 5 * 120 / 4000
    assert found["prefix_aware"]["ttft_s"]["mean"] < found["round_robin"]["ttft_s"]["mean"]


def test_loads_too_far_apart_outweigh_a_prefix(build, trace_of):
    frame = trace_of(np.arange(40) * 1e-3, prompt_tokens=640, output_tokens=50).frame
    frame["prefix_blocks"] = [list(range(40))] * 40
    trace = from_frame(frame, prefix_block_tokens=16)
    shares = {}
    for most in (2, 64):
        router = {"policy": "prefix_aware", "balance_abs_threshold": most}
        scenario = build(batching=ROUTED, replicas=2, pool={"router": router})
        log = simulate(scenario, trace=trace).requests
        shares[most] = log["replica"].value_counts(normalize=True)
    assert shares[64].max() > 0.9
    assert shares[2].max() < 0.7


def test_a_short_match_is_no_reason_to_pass_the_least_loaded(build, trace_of):
    frame = trace_of([0.0, 1.0, 1.001], prompt_tokens=160, output_tokens=50).frame
    frame["prefix_blocks"] = [
        [1, 2, *range(10, 18)], [1, 2, *range(20, 28)], [1, 2, *range(30, 38)],
    ]  # fmt: skip
    trace = from_frame(frame, prefix_block_tokens=16)
    for threshold, replicas in ((0.3, ["llm-0", "llm-0", "llm-1"]), (0.1, ["llm-0"] * 3)):
        router = {"policy": "prefix_aware", "prefix_threshold_fraction": threshold}
        scenario = build(batching=ROUTED, replicas=2, pool={"router": router})
        assert simulate(scenario, trace=trace).requests["replica"].tolist() == replicas


def test_a_router_by_prefixes_without_a_cache_is_an_error(build):
    with pytest.raises(DataError, match=r"prefix_aware needs batching\.prefix_caching"):
        build(
            batching=ROUTED | {"prefix_caching": False}, pool={"router": {"policy": "prefix_aware"}}
        )


def test_blocks_that_only_the_cache_holds_are_counted(build, trace_of):
    frame = trace_of([0.0, 5.0], prompt_tokens=160, output_tokens=1).frame
    frame["prefix_blocks"] = [list(range(10)), list(range(100, 110))]
    result = simulate(build(batching=ROUTED), trace=from_frame(frame, prefix_block_tokens=16))
    share = result.timeline.query("metric == 'kv_cached_fraction'")["value"]
    assert sorted(set(share)) == pytest.approx([0.0, 10 / 4000, 20 / 4000])
