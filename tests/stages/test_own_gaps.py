"""Steps replay the gaps of the trace that a scenario replays, scaled to the load."""

import numpy as np
import pytest

from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.stages import run_stages
from capplan.stages.ramp import raise_load, ramp_of
from capplan.stages.run_load import loads_of, step
from capplan.stages.stage_kinds import burst
from capplan.traffic.draw import draw

BURST, REQUESTS = 20, 1000
"""Twenty requests at once, twenty more 4 s later, every 20 s: 2/s on average. A burst takes 2 s to
serve, so from twice the load on the second burst waits for the first."""
PLAN = {"planned_rps": None, "peak_rps": None, "start_rps": None, "step_s": 100.0,
        "steady_s": 60.0, "ramp_s": 10.0, "longest_s": 600.0}  # fmt: skip


@pytest.fixture(name="bursty", scope="module")
def _bursty(single_server, tmp_path_factory):
    """Return M/M/1 of 10/s that serves the bursts: the last of one waits about 2 s."""
    file = tmp_path_factory.mktemp("traces") / "bursts.csv"
    number, place = np.divmod(np.arange(REQUESTS), BURST)
    when = number // 2 * 20.0 + number % 2 * 4.0 + place * 1e-3
    rows = "".join(f"{t:.3f},100,10\n" for t in when)
    file.write_text("arrival_s,prompt_tokens,output_tokens\n" + rows)
    traffic = {"trace": str(file), "shape": {"kind": "replay"}}
    return single_server(plan=PLAN, traffic=traffic, promises={"e2e_s": 2.5, "quantile": 0.9})


def cv(table):
    gaps = np.diff(np.sort(table["intended_start_s"]))
    return gaps.std() / gaps.mean()


@pytest.mark.parametrize("load", [2.0, 7.0])
def test_a_step_is_whole_passes_of_the_trace_at_its_load(bursty, load):
    found, _ = step(bursty, load, before_rps=load / 2, name="x", kind="ramp", seed=1)
    assert len(found.table) % REQUESTS == pytest.approx(0, abs=2) or (
        REQUESTS - len(found.table) % REQUESTS <= 2
    )
    assert found.offered_rps == pytest.approx(load, rel=0.01)
    recorded = draw(bursty, seed=1).frame.rename(columns={"arrival_s": "intended_start_s"})
    assert cv(found.table) == pytest.approx(cv(recorded), rel=0.02)


def test_a_stage_of_another_shape_says_that_its_arrivals_are_smooth(bursty):
    loads = loads_of(bursty)
    assert "other stages" in loads.evidence["arrivals"]
    found = burst(bursty, loads, seed=1)
    assert found.scenario.traffic.arrivals.kind == "poisson"
    quiet = found.table[found.table["intended_start_s"] < 50.0]
    assert cv(quiet) == pytest.approx(1.0, abs=0.4)


def test_a_bursty_trace_breaks_at_a_load_that_a_smooth_one_keeps(bursty):
    """M/M/1 keeps p90 of 2.5 s up to 10 - ln(10) / 2.5 = 9.1/s; the bursts meet at 4/s."""
    loads = loads_of(bursty)
    assert loads.needed_rps == pytest.approx(2.0, rel=0.05)
    assert loads.baseline_rps <= loads.planned_rps < loads.peak_rps * 1.01
    ramp = ramp_of(bursty, loads, seed=1)
    assert loads.needed_rps < ramp.kept_rps < 7.0
    smooth = with_values(
        bursty, {"traffic.shape": {"kind": "steady", "rate_rps": 2.0}, "traffic.duration_s": 500.0}
    )
    assert ramp_of(smooth, loads_of(smooth), seed=1).kept_rps > 7.5


def test_a_stated_peak_is_what_the_steps_must_hold(bursty):
    stated = with_values(bursty, {"stages.peak_rps": 6.0})
    assert loads_of(stated).needed_rps == 6.0


def test_a_ramp_that_begins_broken_goes_down_until_a_step_holds(single_server):
    scenario = single_server()
    ramp = raise_load(scenario, start_rps=12.0, seed=1)
    assert ramp.steps[0].load_rps < 10.0
    assert not ramp.steps[0].broken
    assert ramp.first_broken.load_rps <= 1.2 * ramp.kept_rps


def test_the_baseline_is_no_more_than_the_planned_load(single_server):
    """A fifth of 10/s is more than the planned 0.5/s: the ramp goes on from there."""
    plan = {"start_rps": None, "planned_rps": 0.5, "peak_rps": 0.6, "run": ["baseline", "ramp"],
            "longest_s": 4000.0}  # fmt: skip
    found = run_stages(single_server(plan=plan), seed=1)
    assert found.baseline.load_rps == 0.5
    assert [s.load_rps for s in found.ramp.steps][:2] == pytest.approx([0.5, 2.0], rel=0.02)
    assert found.ramp.first_broken.load_rps <= 1.2 * found.ramp.kept_rps


def test_recorded_arrivals_need_a_trace_and_no_changing_mix(single_server):
    steady = {"kind": "steady", "rate_rps": 2.0}
    recorded = {"shape": steady, "arrivals": {"kind": "recorded"}}
    with pytest.raises(DataError, match="arrivals recorded needs"):
        single_server(traffic=recorded)
    mix = [{"request_class": "chat", "at_s": 1.0, "share": 2.0}]
    with pytest.raises(DataError, match="draw no classes"):
        single_server(traffic=recorded | {"trace": "sample", "mix": mix})
