"""What holds in every run of users that wait and pools that share hosts."""

import numpy as np
from conservation_checks import check_conservation
from hypothesis import settings
from strategies.hosts import BATCHING, rates, shared_runs
from strategies.runs import quick

from capplan.results.segments import segments
from capplan.scenario.files import with_values
from capplan.simulation import simulate
from capplan.traffic.draw import draw


@settings(quick, max_examples=25)
@shared_runs
def test_books_balance_and_users_wait_for_their_answers(build, data, seed):
    scenario = build(**data)
    trace = draw(scenario, seed=seed)
    run = simulate(scenario, trace=trace, seed=seed)
    check_conservation(run)
    log = run.requests
    assert not log["outcome"].eq("in_flight").any()
    done = log[log["outcome"] == "succeeded"]
    parts = segments(done)
    took = done["finish_s"] - done["intended_start_s"]
    np.testing.assert_allclose(parts.sum(axis=1), took, atol=1e-9)
    assert (parts.to_numpy() > -1e-9).all()
    assert simulate(scenario, trace=trace, seed=seed).requests.equals(log)
    if scenario.traffic.shape.kind == "closed":
        check_users(trace, log)


def check_users(trace, log):
    """Each request starts exactly a think time after the last attempt of the one before."""
    ends = log.groupby("request_id")["finish_s"].max()
    starts = log.groupby("request_id")["intended_start_s"].min()
    for _, rows in trace.frame.groupby("user"):
        sent = rows[rows["request_id"].isin(starts.index)]
        begin = starts[sent["request_id"]].to_numpy()
        over = ends[sent["request_id"]].to_numpy()
        np.testing.assert_allclose(begin[1:], over[:-1] + sent["think_s"].to_numpy()[1:])
        assert (begin < trace.duration_s).all()
        if len(sent) < len(rows):
            next_think = rows["think_s"].iloc[len(sent)]
            assert over[-1] + next_think >= trace.duration_s


@settings(quick, max_examples=15)
@shared_runs
def test_no_batch_is_faster_than_at_full_speed_and_a_large_host_changes_nothing(build, data, seed):
    scenario = build(**data | {"faults": []})
    trace = draw(scenario, seed=seed)
    log = simulate(scenario, trace=trace, seed=seed).requests
    media = log[log["request_class"].eq("media") & log["decode_end_s"].notna()]
    at_full_speed = 0.2 + 0.05 * media["batch_size"]
    assert (media["decode_end_s"] - media["batch_in_s"] > at_full_speed - 1e-9).all()
    large = {f"hosts.{h}.{rate}": 1e9 for h in ("h", "g") for rate in rates}
    apart = {f"pools.{p}.hosts": [] for p in BATCHING}
    roomy = simulate(with_values(scenario, large), trace=trace, seed=seed).requests
    alone = simulate(with_values(scenario, apart), trace=trace, seed=seed).requests
    assert roomy.equals(alone)
