"""The loads of the stages, and the run of one of them: its start-up found and cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from capplan import progress
from capplan.budget import allocate
from capplan.results import per_request
from capplan.scenario.faults import GeneratorLimit, Leak
from capplan.scenario.files import with_values
from capplan.scenario.shapes import Replay
from capplan.scenario.traffic import RecordedGaps
from capplan.simulation.backend import current
from capplan.stages.scaling import fall_back_s, scales
from capplan.stages.stage import Stage, stage_of, windowed
from capplan.stages.violations import margins_of
from capplan.statistics import mser5
from capplan.traffic.closed import is_closed
from capplan.traffic.draw import draw
from capplan.traffic.replay import busiest, rate_rps
from capplan.traffic.sample import base_trace

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario
    from capplan.scenario.faults import Fault
    from capplan.traffic.trace import Trace

Shape = Mapping[str, Any]
PEAK_S = 60.0
START_RPS = 10.0
START_FRACTION = 0.2
CLOSED = ", the most that its users send: if every answer came at once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Rates that the stages are run at, requests/s, and where each comes from."""

    planned_rps: float
    peak_rps: float
    needed_rps: float
    """Load up to which the ramp must keep every promise."""
    estimate_rps: float
    """Load at which the first pool is full, by the wait budget's drain rates; NaN unknown."""
    baseline_rps: float
    start_rps: float
    """First step of the ramp above the baseline load."""
    share: dict[str, float]
    """Share of each class of all requests."""
    evidence: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return the loads as plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def loads_of(scenario: Scenario, *, seed: int = 0) -> Loads:
    """Return the loads of a scenario's stages; stated by its plan, or derived.

    Steps that replay a trace's own gaps bring its peaks with them: what they must keep is the mean
    rate of that stretch as recorded. Other steps are smooth, and must keep the planned peak.
    """
    plan = scenario.stages
    trace = draw(scenario, seed=seed)
    mean, busiest_minute = rates(trace)
    share = trace.frame["request_class"].value_counts(normalize=True).to_dict()
    estimate = estimate_rps(scenario, trace)
    start, origin = START_FRACTION * estimate, "20 % of the estimate"
    if math.isnan(estimate):
        start, origin = START_RPS, "the default without an estimate"
    planned = plan.planned_rps or mean
    peak = plan.peak_rps or max(busiest_minute, planned)
    needed, needs = peak, "the planned peak" + CLOSED * is_closed(trace)
    smooth = "drawn from the scenario's law, smooth within a minute"
    if gaps := _own_gaps(scenario):
        smooth = "steps and soak replay the trace's own gaps, scaled; other stages are " + smooth
        stretch = rate_rps(busiest(trace, gaps.requests))
        if plan.peak_rps is None:
            needed, needs = stretch, "mean of the stretch whose gaps the steps replay, as recorded"
    if is_closed(trace):
        smooth = "an open load: unlike the scenario's users, its callers do not wait for an answer"
    of = "the scenario's traffic" + CLOSED * is_closed(trace)
    derived = {
        "planned_rps": f"mean of {of}",
        "peak_rps": f"busiest {PEAK_S:g} s of {of}",
        "start_rps": origin,
    }
    return Loads(
        planned_rps=planned,
        peak_rps=peak,
        needed_rps=needed,
        estimate_rps=estimate,
        baseline_rps=plan.start_rps or min(start, planned),
        start_rps=plan.start_rps or start,
        share={str(name): float(value) for name, value in share.items()},
        evidence={
            **{name: "its plan" if getattr(plan, name) else how for name, how in derived.items()},
            "estimate_rps": "drain rates of the wait budget, at the mix of the traffic",
            "needed_rps": needs,
            "baseline_rps": "its plan" if plan.start_rps else "start_rps, at most planned_rps",
            "arrivals": smooth,
        },
    )


def rates(trace: Trace) -> tuple[float, float]:
    """Return the mean rate of a trace and that of its busiest minute, requests/s."""
    arrival = trace.frame["arrival_s"].to_numpy(np.float64)
    last = float(arrival[-1])
    span = max(trace.duration_s or last, last)
    if span <= 0:
        return float(len(arrival)), float(len(arrival))
    width = min(PEAK_S, span)
    counts = np.bincount((arrival // width).astype(np.int64))[: max(int(span // width), 1)]
    return len(arrival) / span, float(counts.max()) / width


def estimate_rps(scenario: Scenario, trace: Trace) -> float:
    """Return the load at which the first pool is full; NaN if the budget has no drain rate.

    A pool is full when its classes arrive at the sum of their drain rates; all classes keep their
    share of the load.
    """
    budget = allocate(scenario, trace=trace)
    total = sum(c.rate_rps for c in budget.classes)
    found = []
    for pool in scenario.pools:
        own = [c for c in budget.classes if c.pool == pool.name]
        drain, rate = sum(c.drain_rps for c in own), sum(c.rate_rps for c in own)
        if drain > 0 and rate > 0:
            found.append(drain * total / rate)
    return min(found, default=math.nan)


def steady(rate_rps: float) -> Shape:
    """Return the shape of a constant load."""
    return {"kind": "steady", "rate_rps": rate_rps}


def in_sequence(*parts: tuple[Shape, float]) -> Shape:
    """Return shapes one after another, each for so many seconds."""
    stated = [{"shape": shape, "duration_s": lasts_s} for shape, lasts_s in parts]
    return {"kind": "sequence", "parts": stated}


def rise(from_rps: float, to_rps: float, *, ramp_s: float, duration_s: float) -> Shape:
    """Return the shape of a step: from the load before in a straight line, then held."""
    if ramp_s <= 0:
        return steady(to_rps)
    line = {"kind": "ramp", "start_rps": from_rps, "target_rps": to_rps, "ramp_s": ramp_s}
    return in_sequence((line, ramp_s), (steady(to_rps), duration_s - ramp_s))


def under_load(
    scenario: Scenario,
    shape: Shape,
    *,
    duration_s: float,
    own_gaps: bool = False,
    perturbations: Sequence[Mapping[str, Any]] = (),
    faults: Sequence[Mapping[str, Any]] = (),
) -> Scenario:
    """Return the scenario under another shape of the load.

    ``own_gaps`` keeps order and gaps of the trace that the scenario replays, scaled to the load.
    Limits of the load generator belong to the test and leaks to the software, so they stay; the
    scenario's other faults do not.
    """
    lasting = [fault_values(f) for f in scenario.faults if isinstance(f, GeneratorLimit | Leak)]
    values = {
        "traffic.shape": dict(shape),
        "traffic.duration_s": duration_s,
        "traffic.perturbations": [dict(p) for p in perturbations],
        "traffic.mix": [],
        "faults": [*lasting, *(dict(f) for f in faults)],
        "requests": None,
        "warmup_s": 0.0,
    }
    if own_gaps and (gaps := _own_gaps(scenario)):
        values["traffic.arrivals"] = gaps.model_dump()
    return with_values(scenario, values)


def fault_values(fault: Fault) -> dict[str, Any]:
    """Return a fault as the values that were stated."""
    return fault.model_dump(exclude_unset=True)


def run_load(
    scenario: Scenario,
    shape: Shape,
    *,
    duration_s: float,
    seed: int,
    replication: int = 0,
    own_gaps: bool = False,
    perturbations: Sequence[Mapping[str, Any]] = (),
    faults: Sequence[Mapping[str, Any]] = (),
) -> RunResult:
    """Return the run of a scenario under another shape of the load; see :func:`under_load`.

    Every run of a seed and replication draws the same requests in the same order: two steps differ
    in load alone.
    """
    changed = under_load(
        scenario,
        shape,
        duration_s=duration_s,
        own_gaps=own_gaps,
        perturbations=perturbations,
        faults=faults,
    )
    trace = draw(changed, seed=seed, replication=replication)
    run = current().run(changed, trace=trace, seed=seed, replication=replication)
    progress.step()
    return run


def continued(scenario: Scenario, run: RunResult) -> Scenario:
    """Return a scenario whose pools that scale begin with the replicas that a run ended with."""
    rows = run.timeline[run.timeline["metric"] == "replicas"]
    last = rows.groupby("replica", observed=True)["value"].last()
    pools = [p.name for p in scenario.pools if p.is_elastic and p.name in last.index]
    return with_values(scenario, {f"pools.{n}.replicas": max(int(last[n]), 1) for n in pools})


def settled(scenario: Scenario, load_rps: float, *, seed: int) -> Scenario:
    """Return a scenario that begins with the replicas that its pools hold at a load.

    The load is held for a step and until what was added too much is released. Without pools that
    scale, the scenario itself.
    """
    if not scales(scenario):
        return scenario
    held_s = scenario.stages.step_s + fall_back_s(scenario)
    return continued(scenario, run_load(scenario, steady(load_rps), duration_s=held_s, seed=seed))


def step(
    scenario: Scenario,
    load_rps: float,
    *,
    before_rps: float,
    name: str,
    kind: str,
    seed: int,
    replication: int = 0,
) -> tuple[Stage, list[Stage]]:
    """Return a stage at one load, and the void tries before it.

    A try whose start-up alone breaks a promise is void and repeated with twice the rise. One that
    does not count yet, or whose start-up leaves less than its steady part, is repeated longer.
    A step that replays a trace's gaps is judged over whole passes of them.
    """
    plan = scenario.stages
    pass_s = _pass_s(scenario, load_rps)
    steady_s = max(plan.steady_s, pass_s)
    ramp_s, duration_s = plan.ramp_s, plan.step_s - plan.steady_s + steady_s
    longest_s = max(plan.longest_s, duration_s)
    voids: list[Stage] = []
    while True:
        shape = rise(before_rps, load_rps, ramp_s=ramp_s, duration_s=duration_s)
        run = run_load(
            scenario,
            shape,
            duration_s=duration_s,
            seed=seed,
            replication=replication,
            own_gaps=True,
        )
        start_s, settled = warmed_up(run, ramp_s=ramp_s, end_s=duration_s, steady_s=steady_s)
        end_s = duration_s
        if pass_s > 0:  # quiet parts of a trace look settled, and busy ones do not
            settled = True
            end_s = start_s + pass_s * max(math.floor((duration_s - start_s) / pass_s), 1)
        found = stage_of(name, kind, load_rps, run, start_s=start_s, end_s=min(end_s, duration_s))
        if not found.broken and _broke_early(run, start_s, found):
            voids.append(replace(found, void=True, note="void: the ramp was too fast"))
            if len(voids) > plan.repeats:
                return voids[-1], voids[:-1]
            ramp_s, duration_s = 2 * ramp_s, duration_s + ramp_s
            continue
        missing_s = 0.0 if settled or found.grows() else plan.steady_s / 2
        if not (found.counts or found.client_limited):
            missing_s = max(missing_s, pass_s)
        longer_s = lengthened(found, duration_s, longest_s, missing_s=missing_s)
        if longer_s <= duration_s:
            return found, voids
        duration_s = longer_s


def _own_gaps(scenario: Scenario) -> RecordedGaps | None:
    """Return the gaps of the trace that a scenario replays, at most as many as its requests."""
    if not isinstance(scenario.traffic.shape, Replay):
        return None
    law = RecordedGaps()
    most = law.requests if scenario.requests is None else max(scenario.requests, 2)
    return RecordedGaps(requests=min(law.requests, most))


def _pass_s(scenario: Scenario, load_rps: float) -> float:
    """Return how long a load takes to replay the gaps of the scenario's trace, s; 0 if none."""
    gaps, base = _own_gaps(scenario), base_trace(scenario.traffic)
    return 0.0 if gaps is None or base is None else min(gaps.requests, len(base)) / load_rps


def lengthened(found: Stage, length_s: float, longest_s: float, *, missing_s: float = 0.0) -> float:
    """Return how long a stage of a length must last to count, at most ``longest_s``, s.

    It is ``length_s`` if nothing is missing, or if no length would help. A twentieth more than is
    missing, because arrivals are random.
    """
    if not (found.counts or found.client_limited):
        missing_s = max(missing_s, found.missing_s)
    if missing_s == 0:
        return length_s
    return max(length_s, min(1.05 * (length_s + missing_s), longest_s))


def prolonged(run: Callable[[float], Stage], length_s: float, longest_s: float) -> Stage:
    """Return the stage that ``run`` gives for a length, made longer until it counts."""
    while True:
        found = run(length_s)
        longer_s = lengthened(found, length_s, longest_s)
        if longer_s <= length_s:
            return found
        length_s = longer_s


def warmed_up(
    run: RunResult, *, ramp_s: float, end_s: float, steady_s: float
) -> tuple[float, bool]:
    """Return when the start-up of a run ends, s, and whether it left ``steady_s`` of it.

    The series is the number of requests in flight (MSER-5); one that never settles leaves its last
    ``steady_s``, and the stability gate decides.
    """
    rows = run.timeline
    rows = rows[(rows["layer"] == "caller") & (rows["metric"] == "in_flight")]
    rows = rows[(rows["time_s"] >= ramp_s) & (rows["time_s"] < end_s)]
    time = rows["time_s"].to_numpy(np.float64)
    cut = mser5(rows["value"].to_numpy(np.float64))
    latest = max(end_s - steady_s, ramp_s)
    if cut is None or not time.size:
        return latest, False
    start = max(float(time[cut]), ramp_s)
    return min(start, latest), start <= end_s - steady_s


def _broke_early(run: RunResult, start_s: float, stage: Stage) -> bool:
    """Return whether the requests of the start-up broke a promise beyond doubt."""
    if start_s <= 0:
        return False
    early = per_request(windowed(run, 0.0, start_s))
    return any(found.proven for found in margins_of(early, stage.scenario))
