import numpy as np
import pytest

from capplan.scenario.files import load_scenario, with_values
from capplan.traffic.curve import curve
from capplan.traffic.draw import draw
from capplan.traffic.perturb import with_bursts

BURSTS = {"kind": "bursts", "peak_fraction": 2.0, "burst_s": 30.0, "every_s": 600.0}
LONG = {"kind": "long_outputs", "fraction": 0.05, "above_tokens": 5000, "max_tokens": 6000}


def perturbed(scenario, *perturbations, **values):
    return with_values(scenario, {"traffic.perturbations": list(perturbations), **values})


def test_bursts_reach_twice_the_planned_peak_for_half_a_minute(chat):
    plan = with_bursts(curve([0, 1800], [2.0, 6.0]), perturbed(chat, BURSTS))
    assert plan.rate_at([599, 600, 629, 630, 1200, 1229]) == pytest.approx(
        [2 + 4 * 599 / 1800, 12, 12, 2 + 4 * 630 / 1800, 12, 12]
    )


@pytest.mark.parametrize("trace", ["sample", None])
def test_a_drawn_shape_has_the_requests_of_its_bursts(chat, trace):
    shape = {"kind": "steady", "rate_rps": 5.0}
    burst = {**BURSTS, "every_s": 100.0, "first_s": 50.0}
    scenario = perturbed(
        chat,
        burst,
        **{"traffic.shape": shape, "traffic.trace": trace, "traffic.duration_s": 2000.0},
    )
    times = draw(scenario).frame["arrival_s"].to_numpy()
    inside = np.mod(times - 50, 100) < 30
    assert abs(inside.sum() - 20 * 300) < 3.29 * np.sqrt(6000)
    assert abs((~inside).sum() - 20 * 350) < 3.29 * np.sqrt(7000)


def test_a_replay_gets_the_requests_that_its_bursts_lack(chat):
    plain, more = draw(chat).frame, draw(perturbed(chat, BURSTS)).frame
    peak = np.bincount((plain["arrival_s"] // 60).astype(int)).max() / 60
    extra = more[~more["request_id"].isin(plain["request_id"])]
    assert more["request_id"].is_unique
    assert (np.mod(extra["arrival_s"] - 600, 600) < 30).all()
    assert len(more) == len(plain) + len(extra)
    in_burst = np.mod(more["arrival_s"].to_numpy() - 600, 600) < 30
    in_burst &= more["arrival_s"].to_numpy() >= 600
    expected = 5 * 30 * 2 * peak
    assert abs(in_burst.sum() - expected) < 3.29 * np.sqrt(expected)


def test_a_burst_below_the_replayed_rate_adds_nothing_with_a_note(chat):
    trace = draw(perturbed(chat, {**BURSTS, "peak_fraction": 0.01}))
    assert len(trace) == len(draw(chat))
    assert any("5 bursts were busier" in note for note in trace.notes)


def test_a_share_of_the_requests_gets_a_long_output(chat):
    trace = draw(perturbed(chat, LONG))
    output = trace.frame["output_tokens"]
    long = output > 5000
    assert abs(long.sum() - 0.05 * len(output)) < 3.29 * np.sqrt(0.05 * 0.95 * len(output))
    assert output.max() <= 6000
    plain = draw(chat).frame["output_tokens"]
    assert (output[~long] == plain[~long]).all()
    assert any("output above 5,000 tokens" in note for note in trace.notes)


def test_long_outputs_may_be_those_of_one_class(chat):
    frame = draw(perturbed(chat, {**LONG, "fraction": 1.0, "request_class": "assistant"})).frame
    assert ((frame["output_tokens"] > 5000) == (frame["request_class"] == "assistant")).all()


def test_requests_with_a_size_keep_their_outputs():
    mixed = load_scenario("mixed-modality")
    frame = draw(perturbed(mixed, {**LONG, "fraction": 1.0})).frame
    sized = {c.name for c in mixed.classes if c.size is not None}
    long = set(frame.loc[frame["output_tokens"] > 5000, "request_class"])
    assert long == {c.name for c in mixed.classes} - sized


def test_bursts_and_long_outputs_compose(chat):
    both = draw(perturbed(chat, LONG, BURSTS)).frame
    bursts = draw(perturbed(chat, BURSTS)).frame
    assert len(both) == pytest.approx(len(bursts), rel=0.02)
    assert (both["output_tokens"] > 5000).mean() == pytest.approx(0.05, abs=0.01)
