"""Inside a replica: Little's law at each of its layers, capacity by its law, more never worse."""

import numpy as np
import pytest

from capplan.replica.capacity import Mix, replica_model
from capplan.simulation import simulate

LAW = {
    "kind": "linear",
    "base_s": 4e-3,
    "per_prefill_token_s": 1.2e-5,
    "per_sequence_s": 1.3e-5,
    "per_context_token_s": 3.9e-8,
}
N = 600


def batching(law=LAW, **fields):
    limits = {"kv_blocks": 4000, "max_num_seqs": 6, "max_model_len": 1000}
    return {"kind": "continuous", **limits, "step_time": law, **fields}


def scaled(factor):
    return {key: value if key == "kind" else value * factor for key, value in LAW.items()}


@pytest.fixture(name="trace")
def _trace(trace_of):
    def draw(seed=0, rate_rps=18.0, **lengths):
        rng = np.random.default_rng(seed)
        lengths = {
            "prompt_tokens": rng.integers(20, 400, N),
            "output_tokens": rng.integers(1, 150, N),
            **lengths,
        }
        return trace_of(np.cumsum(rng.exponential(1 / rate_rps, N)), **lengths)

    return draw


@pytest.fixture(name="run")
def _run(build, trace):
    """Return a run in which requests wait at every layer."""
    scenario = build(
        batching=batching(),
        replicas=2,
        pool={"router": {"max_in_flight": 9}, "queue": {"length": 100}},
        gateway={"concurrency": 20, "queue": {"length": 500}},
    )
    return simulate(scenario, trace=trace(rate_rps=60.0))


LAYERS = {
    ("caller", "in_flight"): ("intended_start_s", "finish_s"),
    ("gateway", "length"): ("gateway_in_s", "gateway_admitted_s"),
    ("service_queue", "length"): ("service_queue_in_s", "scheduler_queue_in_s"),
    ("scheduler_queue", "length"): ("scheduler_queue_in_s", "batch_in_s"),
    ("prefill", "running"): ("batch_in_s", "prefill_end_s"),
    ("decode", "running"): ("prefill_end_s", "decode_end_s"),
}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer[0])
def test_littles_law_holds_at_every_layer(run, layer):
    """L = λ W of a whole run. Source: Little, Operations Research 9, 1961; Stidham 1974 by path."""
    log, timeline = run.requests, run.timeline
    entered, left = (log[name] for name in LAYERS[layer])
    waits = (left - entered).sum()
    assert waits / len(log) > 1e-3, "somebody was there"
    mine = timeline[(timeline["layer"] == layer[0]) & (timeline["metric"] == layer[1])]
    total = mine.groupby("time_s")["value"].sum()
    for time, count in list(total.items())[:: max(len(total) // 40, 1)]:
        inside = ((entered <= time) & (left > time)).sum()
        assert count == inside, (layer, time)
    rate_rps = len(log) / run.duration_s
    assert total.mean() == pytest.approx(rate_rps * waits / len(log), rel=0.15)


@pytest.mark.parametrize("law", [LAW, {"kind": "roofline"}], ids=["linear", "roofline"])
def test_a_full_replica_serves_what_its_step_law_gives(build, trace_of, law):
    scenario = build(
        batching=batching(law, max_num_seqs=32, kv_blocks=20_000),
        pool={"model": "Llama-3.1-8B", "accelerator": "H100"},
    )
    prompt, count = 256, 2000
    output = np.random.default_rng(7).integers(1, 128, count)  # so that answers end apart
    log = simulate(
        scenario, trace=trace_of(np.zeros(count), prompt_tokens=prompt, output_tokens=output)
    ).requests
    mean = output.mean()
    seen = prompt + (output**2).mean() / mean / 2
    one = replica_model(
        scenario.pool(),
        Mix(prompt_tokens=prompt, output_tokens=mean, context_tokens=seen, size=0.0),
    )
    assert one.most_running() == 32
    # The law is convex: its mean over mixed steps is a little above what it says of the mean step.
    assert count / log["finish_s"].max() == pytest.approx(one.rate_rps(32), rel=0.06)


MORE = {
    "steps a fifth faster": ({}, {"law": scaled(0.8)}),
    "twice the KV": ({"kv_blocks": 64, "max_num_seqs": 16}, {"kv_blocks": 128, "max_num_seqs": 16}),
    "twice the places": ({}, {"max_num_seqs": 12}),
}


@pytest.mark.parametrize("what", MORE)
@pytest.mark.parametrize("seed", range(4))
def test_more_is_never_worse_on_the_same_requests(build, trace, what, seed):
    """In the mean, and in the end of the last request; a single request may well end later.

    Who shares a step with whom changes with every resource, so that one request may meet a long
    prompt that it was spared before: the timing anomalies of list scheduling. Source: Graham,
    "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969.
    """
    little, much = (
        simulate(build(batching=batching(**fields)), trace=trace(seed)).requests
        for fields in MORE[what]
    )
    assert little["outcome"].eq("succeeded").all()
    assert much["outcome"].eq("succeeded").all()
    stays = [(log["finish_s"] - log["intended_start_s"]).mean() for log in (little, much)]
    assert stays[1] < stays[0]
    assert much["finish_s"].max() <= little["finish_s"].max() + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_more_replicas_are_never_worse_on_the_same_requests(build, trace, seed):
    stays = []
    for replicas in (1, 2, 4):
        scenario = build(batching=batching(), replicas=replicas)
        log = simulate(scenario, trace=trace(seed)).requests
        stays.append((log["finish_s"] - log["intended_start_s"]).mean())
    assert stays == sorted(stays, reverse=True)
    assert stays[0] > stays[1]


def test_a_single_request_may_end_later_on_more(build, trace):
    """The anomaly exists, which is why the others are held to means."""
    later = 0
    for seed in range(4):
        slow, fast = (
            simulate(build(batching=batching(**fields)), trace=trace(seed)).requests["finish_s"]
            for fields in MORE["twice the places"]
        )
        later += int((fast > slow + 1e-9).sum())
    assert later > 0


def test_hidden_work_of_the_host_makes_no_request_later_and_waits_a_step_more(build, trace_of):
    """Asynchronous scheduling: steps without the host's work, arrivals one step later."""
    law = {"kind": "roofline", "overhead_s": 2e-3, "per_sequence_s": 0.0}
    pool = {"model": "Llama-3.1-8B", "accelerator": "H100"}
    arrivals = np.arange(12) * 0.4
    plain, ahead = (
        simulate(
            build(batching=batching(law, async_scheduling=flag), pool=pool),
            trace=trace_of(arrivals, prompt_tokens=64, output_tokens=40),
        ).requests
        for flag in (False, True)
    )
    gain = (plain["decode_end_s"] - plain["prefill_end_s"]) - (
        ahead["decode_end_s"] - ahead["prefill_end_s"]
    )
    assert gain.to_numpy() == pytest.approx(39 * 2e-3, rel=0.05)
