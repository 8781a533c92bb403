"""Means of known queues lie inside the simulation's own interval.

Service times have mean 1 s. Each test runs independent replications of one seed, leaves the first
part of each out as warm-up, and asks that the 99 % interval of the replications' means holds the
known value and is narrow enough to tell it from its neighbours.
"""

import math

import numpy as np
import pytest

from capplan.simulation import simulate_many
from capplan.statistics import replication_mean
from capplan.traffic.streams import stream

WARMUP = 1000


def erlang_b(servers, load):
    """Source: Erlang, "Solution of some problems", 1917; recursion as in Cooper 1981, eq. 3.3."""
    blocked = 1.0
    for n in range(1, servers + 1):
        blocked = load * blocked / (n + load * blocked)
    return blocked


def erlang_c(servers, load):
    """Share that waits in M/M/c. Source: Kleinrock, "Queueing Systems" I, eq. 3.40."""
    blocked = erlang_b(servers, load)
    return blocked / (1 - load / servers * (1 - blocked))


def erlang_a(servers, load, patience_rate):
    """Return (abandonment probability, mean wait) of M/M/c+M by its birth-death chain.

    Source: Garnett, Mandelbaum, Reiman, "Designing a call center with impatient customers", 2002.
    """
    weights, deaths = [1.0], 0.0
    for n in range(1, servers + 400):
        deaths = min(n, servers) + max(n - servers, 0) * patience_rate
        weights.append(weights[-1] * load / deaths)
    p = np.array(weights) / sum(weights)
    queue = float(sum(max(n - servers, 0) * p[n] for n in range(len(p))))
    return patience_rate * queue / load, queue / load


def fixed_patience_loss(load, patience_s):
    """Share that leaves M/M/1+D unserved, from the density of the work found.

    Source: Baccelli, Hebuterne, "On queues with impatient customers", Performance '81, eq. 3.
    """
    up_to = (1 - math.exp(-(1 - load) * patience_s)) / (1 - load) * load
    beyond = load * math.exp(-(1 - load) * patience_s)
    return beyond / (1 + up_to + beyond)


def intervals_hold(scenario, traces, *figures):
    """Check that the interval of each ``(figure of a log, known value, width)`` holds its value.

    ``width`` is how wide the interval may be, as a share of the value.
    """
    runs = simulate_many(scenario, replications=len(traces), seed=7, traces=traces)
    logs = [run.requests.iloc[WARMUP:] for run in runs]
    for figure, known, width in figures:
        estimate = replication_mean([figure(log) for log in logs], confidence=0.99)
        assert estimate.low <= known <= estimate.high
        assert estimate.high - estimate.low < width * known


def poisson(trace_of, rate_rps, *, replications, size=5000, patience_s=None, **columns):
    traces = []
    for replication in range(replications):
        rng = stream(11, replication, 0)
        more = dict(columns)
        if patience_s is not None:
            more["deadline_s"] = rng.exponential(patience_s, size)
        traces.append(trace_of(np.cumsum(rng.exponential(1 / rate_rps, size)), **more))
    return traces


def wait(log):
    return float((log["batch_in_s"] - log["intended_start_s"]).mean())


@pytest.mark.parametrize(("servers", "load"), [(1, 0.6), (3, 1.8), (8, 5.6)])
def test_mm1_and_mmc_wait_as_erlang_c_says(single_queue, trace_of, servers, load):
    share = erlang_c(servers, load)
    intervals_hold(
        single_queue(servers),
        poisson(trace_of, load, replications=16),
        (lambda log: float((log["batch_in_s"] > log["intended_start_s"]).mean()), share, 0.2),
        (wait, share / (servers - load), 0.5),
    )


def test_md1_waits_half_as_long_as_mm1(single_queue, trace_of):
    traces = poisson(trace_of, 0.7, replications=8)
    intervals_hold(single_queue(1, exponential=False), traces, (wait, 0.7 / (2 * 0.3), 0.3))


def test_mg1_waits_as_pollaczek_and_khinchine_say(build, trace_of):
    service = {"base_s": 1e-6, "per_size_s": 1.0}
    batching = {"kind": "dynamic", "max_batch_size": 1, "service": service}
    scenario = build(batching=batching, pool={"router": {"max_in_flight": 1}})
    traces = []
    for replication in range(8):
        rng = stream(13, replication, 0)
        size = rng.choice([0.5, 1.5], 6000)
        traces.append(trace_of(np.cumsum(rng.exponential(1 / 0.7, 6000)), size=size))
    intervals_hold(scenario, traces, (wait, 0.7 * (0.25 + 2.25) / 2 / (2 * 0.3), 0.3))


@pytest.mark.parametrize(("servers", "load", "patience_s"), [(1, 1.2, 2.0), (4, 4.4, 1.0)])
def test_impatient_callers_leave_as_erlang_a_says(
    single_queue, trace_of, servers, load, patience_s
):
    """A caller that leaves while served keeps its server to the end, as in the model."""
    traces = poisson(trace_of, load, replications=6, patience_s=patience_s)
    abandoned, waited = erlang_a(servers, load, 1 / patience_s)

    def left_waiting(log):
        return float(log["batch_in_s"].isna().mean())

    def any_wait(log):
        end = log["batch_in_s"].fillna(log["finish_s"])
        return float((end - log["intended_start_s"]).mean())

    intervals_hold(
        single_queue(servers), traces, (left_waiting, abandoned, 0.3), (any_wait, waited, 0.3)
    )


def test_a_wait_limit_loses_what_fixed_patience_loses(single_queue, trace_of):
    scenario = single_queue(1, pool={"queue": {"wait_limit_s": 1.5}})
    traces = poisson(trace_of, 0.9, replications=10)

    def lost(log):
        assert set(log.loc[log["outcome"] != "succeeded", "reason"]) == {"wait_limit"}
        return float((log["outcome"] == "timed_out").mean())

    intervals_hold(scenario, traces, (lost, fixed_patience_loss(0.9, 1.5), 0.2))


def test_a_bounded_queue_blocks_as_mm1k_says(single_queue, trace_of):
    """Source: Kleinrock, "Queueing Systems" I, eq. 3.46."""
    scenario = single_queue(1, pool={"queue": {"length": 3}})
    traces = poisson(trace_of, 0.8, replications=10)
    known = 0.2 * 0.8**4 / (1 - 0.8**5)

    def blocked(log):
        return float((log["reason"] == "queue_full").mean())

    intervals_hold(scenario, traces, (blocked, known, 0.3))


def test_priorities_wait_as_cobham_says(single_queue, trace_of):
    """Two classes without preemption. Source: Cobham, "Priority assignment", 1954, eq. 3."""
    scenario = single_queue(1, pool={"queue": {"order": "priority"}})
    priorities = np.tile([0, 1, 1], 2000)
    traces = []
    for replication in range(10):
        rng = stream(17, replication, 0)
        traces.append(
            trace_of(
                np.cumsum(rng.exponential(1 / 0.75, 6000)), priority=rng.permutation(priorities)
            )
        )
    first, both = 0.25, 0.75

    def wait_of(priority):
        return lambda log: wait(log[log["priority"] == priority])

    intervals_hold(
        scenario,
        traces,
        (wait_of(0), both / (1 - first), 0.3),
        (wait_of(1), both / (1 - first) / (1 - both), 0.5),
    )


def test_a_full_replica_makes_as_many_tokens_as_its_step_law(build, trace_of):
    """Steps at full batch: each of ``seqs`` prefills once and decodes ``output - 1`` times."""
    seqs, prompt, output = 32, 64, 40
    law = {
        "kind": "linear",
        "base_s": 4e-3,
        "per_prefill_token_s": 1.2e-5,
        "per_sequence_s": 2e-4,
        "per_context_token_s": 0.0,
    }
    batching = {
        "kind": "continuous",
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 4096,
        "kv_blocks": 10000,
        "step_time": law,
    }
    log = simulate_many(
        build(batching=batching),
        replications=1,
        traces=[trace_of(np.zeros(3200), prompt_tokens=prompt, output_tokens=output)],
    )[0].requests
    starts = seqs / output
    step_s = 4e-3 + 1.2e-5 * prompt * starts + 2e-4 * seqs * (output - 1) / output
    assert 3200 / log["finish_s"].max() == pytest.approx(starts / step_s, rel=0.01)
