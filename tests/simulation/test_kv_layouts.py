"""Paged and contiguous KV through a whole run: fragmentation is a metric of the timeline."""

import numpy as np
import pytest

STEP = {
    "kind": "linear",
    "base_s": 0.02,
    "per_prefill_token_s": 1e-5,
    "per_sequence_s": 0.0,
    "per_context_token_s": 0.0,
}


def batching(**fields):
    return {"kind": "continuous", "kv_blocks": 64, "max_model_len": 512, "step_time": STEP} | fields


def packed(reserve="oracle", **fields):
    return batching(kv_layout="contiguous", contiguous={"reserve": reserve} | fields)


@pytest.fixture(name="run")
def _run(build, play, trace_of):
    rng = np.random.default_rng(4)
    trace = trace_of(
        np.cumsum(rng.exponential(0.1, 300)),
        prompt_tokens=rng.integers(20, 300, 300),
        output_tokens=rng.integers(5, 120, 300),
    )
    return lambda chosen: play(build(batching=chosen), trace)


def mean_of(result, metric):
    timeline = result.timeline
    return timeline.loc[timeline["metric"] == metric, "value"].mean()


def test_both_kinds_of_fragmentation_are_on_the_timeline(run):
    most, exact = run(packed("max")), run(packed())
    internal = [mean_of(r, "kv_internal_fragmentation_fraction") for r in (most, exact)]
    external = [mean_of(r, "kv_external_fragmentation_fraction") for r in (most, exact)]
    assert 0 < internal[1] < internal[0] < 1
    assert external[0] == 0 < external[1]
    assert not run(batching()).timeline["metric"].str.contains("fragmentation").any()


def test_paging_answers_sooner_in_the_same_memory(run):
    ends = [
        (run(kind).requests["finish_s"] - run(kind).requests["intended_start_s"]).mean()
        for kind in (batching(), packed("oracle"), packed("max"))
    ]
    assert ends == sorted(ends)


def test_compaction_costs_its_copies(run):
    kinds = [packed(compaction=True, copy_s_per_token=cost) for cost in (0.0, 1e-3)]
    free, dear = (run(kind) for kind in kinds)
    assert dear.duration_s > free.duration_s
    assert mean_of(dear, "busy_fraction") > 0
