"""Grids over any field of a scenario: the same requests against every point.

Points are compared under common random numbers: unless a varied field affects the
traffic, every point of a replication gets the same drawn trace.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from pydantic import ValidationError

from capplan.encoding import plain
from capplan.evidence import Inputs, TraceIdentity
from capplan.grid.result import SweepResult
from capplan.progress import work
from capplan.replica.assumptions import rests_on
from capplan.results import by_bucket, headline
from capplan.scenario import Scenario
from capplan.scenario.fields import effects
from capplan.scenario.files import with_values
from capplan.scenario.part import Affects
from capplan.scenario.shapes import Steady
from capplan.schema import DataError
from capplan.simulation.backend import SIMULATION, Backend
from capplan.slo import judge
from capplan.traffic.draw import draw
from capplan.workers import worker_pool

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.traffic.trace import Trace
    from capplan.verdict import Verdict

LATENCIES = ("ttft_s", "tpot_s", "e2e_s")
"""Promises that are latencies."""
CLOCKS = ("wall_s", "simulated_requests_per_wall_s")
"""Figures of the machine, not of the model: two equal sweeps differ in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of the grid; ``scenario`` is None if the point is infeasible."""

    point: int
    replication: int
    seed: int
    setting: tuple[Any, ...]
    scenario: Scenario | None
    reason: str | None
    as_is: bool
    trace: Trace | None
    by_bucket: bool
    backend: Backend

    @property
    def key(self) -> dict[str, Any]:
        """Return what its rows start with."""
        return {"point": self.point, "replication": self.replication, "setting": self.setting}


Rows = list[dict[str, Any]]
Answer = tuple[Rows, Rows, Rows, tuple[str, ...]]


def sweep(
    scenario: Scenario,
    vary: Mapping[str, Sequence[Any]],
    *,
    seed: int = 0,
    jobs: int = 1,
    replications: int = 1,
    trace: Trace | None = None,
    by_bucket: bool = False,
    backend: Backend = SIMULATION,
) -> SweepResult:
    """Run every combination of the varied fields and return their figures.

    Parameters
    ----------
    scenario
        The scenario around which the fields are varied.
    vary
        Values of each field, by its dotted path; the last field varies fastest.
    seed, replications
        Every point is run with each of the replications 0, 1, … of the seed.
    jobs
        Processes to run in; the result does not depend on it.
    trace
        A drawn trace for every run; None draws one per replication, shared by all points unless
        a varied field affects the traffic.
    by_bucket
        Take the figures of each class and length bucket too.
    backend
        What runs the points: the simulation, or a real server, one run after the other.

    Raises
    ------
    DataError
        For a field that does not exist or a value that it cannot take. A combination that breaks
        a rule between fields, or that cannot be simulated, is a row with its reason instead.
    ValueError
        For an empty grid, or counts below 1.
    """
    _check(vary, jobs=jobs, replications=replications, backend=backend)
    shared: list[Trace | None] = [trace] * replications
    if trace is None and not _changes_trace(scenario, vary):
        shared = [draw(scenario, seed=seed, replication=r) for r in range(replications)]
    points = [_point(scenario, vary, values) for values in itertools.product(*vary.values())]
    tasks = [
        Task(
            point=index,
            replication=replication,
            seed=seed,
            setting=setting,
            scenario=changed,
            reason=reason,
            as_is=changed == scenario,
            trace=drawn,
            by_bucket=by_bucket,
            backend=backend,
        )
        for index, (setting, changed, reason) in enumerate(points)
        for replication, drawn in enumerate(shared)
    ]
    answers = list(_answers(tasks, jobs))
    asked = {
        "vary": {f: list(v) for f, v in vary.items()},
        "replications": replications,
        **backend.identity(),
    }
    identity = None if shared[0] is None else TraceIdentity.of(shared[0])
    inputs = Inputs(
        kind="sweep",
        scenario=scenario,
        seed=seed,
        trace=identity,
        backend=backend.name,
        asked=asked,
    )
    rows, classes, buckets, notes = ([row for part in parts for row in part]
                              for parts in zip(*answers, strict=True))  # fmt: skip
    return SweepResult(
        inputs=inputs,
        frame=_frame(vary, rows),
        by_class=_frame(vary, classes),
        by_bucket=_frame(vary, buckets),
        assumed=tuple(dict.fromkeys([*notes, *rests_on(scenario)])),
    )


def _check(
    vary: Mapping[str, Sequence[Any]], *, jobs: int, replications: int, backend: Backend
) -> None:
    empty = [field for field, values in vary.items() if not len(values)]
    if not vary or empty:
        msg = f"vary must name fields with at least one value each, got none for {empty or 'any'}"
        raise ValueError(msg)
    if min(jobs, replications) < 1:
        msg = f"jobs and replications must be at least 1, got {jobs} and {replications}"
        raise ValueError(msg)
    if jobs > 1 and backend.name == "live":
        raise ValueError(f"jobs must be 1 on a real server, got {jobs}")


def _point(
    scenario: Scenario, vary: Mapping[str, Sequence[Any]], values: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Scenario | None, str | None]:
    try:
        return values, with_values(scenario, dict(zip(vary, values, strict=True))), None
    except DataError as err:
        if not _breaks_rule_between_fields(err):
            raise
        return values, None, _reason(err)


def _breaks_rule_between_fields(err: DataError) -> bool:
    """Return whether each field could take its value, and only their combination is refused.

    Pydantic adds ``too_short`` to a list whose entry broke the rule.
    """
    cause = err.__cause__
    if not isinstance(cause, ValidationError):
        return False
    kinds = {error["type"] for error in cause.errors(include_url=False)}
    return "value_error" in kinds and kinds <= {"value_error", "too_short"}


def _reason(err: DataError) -> str:
    return f"{err.field}: {err.rule}" if err.field else err.rule


def _changes_trace(scenario: Scenario, vary: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether a varied field changes the drawn requests."""
    shape = scenario.traffic.shape
    follows_replicas = isinstance(shape, Steady) and shape.per_replica
    return any(
        Affects.TRAFFIC in effects(Scenario, field)
        or (follows_replicas and field.startswith(("pools", "replicas")))
        for field in vary
    )


def _answers(tasks: Sequence[Task], jobs: int) -> Iterator[Answer]:
    with work("points", total=len(tasks)) as under_way:
        for answer in _each(tasks, jobs):
            under_way.step()
            yield answer


def _each(tasks: Sequence[Task], jobs: int) -> Iterator[Answer]:
    if jobs == 1 or len(tasks) == 1:
        yield from map(_answer, tasks)
        return
    with worker_pool(min(jobs, len(tasks))) as pool:
        try:
            yield from pool.map(_answer, tasks)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _answer(task: Task) -> Answer:
    """Return the row of one run, its rows by class and by bucket, and the notes of its trace."""
    start, reason = {**task.key, "as_is": task.as_is}, task.reason
    try:
        result = None if task.scenario is None else _run(task, task.scenario)
    except DataError as err:
        result, reason = None, _reason(err)
    if result is None:
        return [{**start, "feasible": False, "reason": reason, "outcome": "fail"}], [], [], ()
    figures = {k: v for k, v in headline(result).items() if k not in CLOCKS}
    classes = figures.pop("by_class")
    del figures["breakers"]  # a table of its own, in each run's document
    verdict = judge(result)
    end = {
        "feasible": True,
        "reason": None,
        "outcome": verdict.outcome,
        "latency_of_promise": _latency_of_promise(verdict),
        "equal_lengths": any(reason.rule == "equal_lengths" for reason in verdict.reasons),
    }
    by_class = [{**task.key, "request_class": n, **_flat(f)} for n, f in classes.items()]
    buckets = by_bucket(result).to_dict("records") if task.by_bucket else []
    return (
        [{**start, **end, **_flat(figures)}],
        by_class,
        [{**task.key, **{str(name): value for name, value in row.items()}} for row in buckets],
        TraceIdentity.of(result.trace).notes,
    )


def _run(task: Task, scenario: Scenario) -> RunResult:
    trace = task.trace or draw(scenario, seed=task.seed, replication=task.replication)
    return task.backend.run(scenario, trace=trace, seed=task.seed, replication=task.replication)


def _latency_of_promise(verdict: Verdict) -> float:
    """Return the worst of all promised latencies ÷ its promise; NaN where none was measured."""
    found = [
        float(reason.value) / float(reason.limit)
        for reason in verdict.reasons
        if reason.rule in LATENCIES
        and isinstance(reason.value, int | float)
        and isinstance(reason.limit, int | float)
    ]
    return max(found, default=math.nan)


def _flat(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested figures as columns, the part put before the unit.

    >>> _flat({"ttft_s": {"p99": 2.0}, "outcomes": {"rejected": 1}, "offered": 3})
    {'ttft_p99_s': 2.0, 'rejected': 1, 'offered': 3}
    """
    row: dict[str, Any] = {}
    for name, value in figures.items():
        if not isinstance(value, Mapping):
            row[name] = value
            continue
        stem, unit = (name[:-2], "_s") if name.endswith("_s") else (name, "")
        prefix = "" if name == "outcomes" else f"{stem}_"
        row |= _flat({f"{prefix}{part}{unit}": inner for part, inner in value.items()})
    return row


def _frame(vary: Mapping[str, Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    fields = {field: _storable([row["setting"][i] for row in rows]) for i, field in enumerate(vary)}
    frame = pd.DataFrame(rows)
    if frame.empty:
        return pd.DataFrame(columns=["point", "replication", *vary, "request_class"])
    keys = frame[["point", "replication"]].assign(**fields)
    rest = frame.drop(columns=["point", "replication", "setting"])
    if "stable" in rest:
        rest = rest.assign(stable=rest["stable"].astype("boolean"))
    return pd.concat([keys, rest], axis="columns")


def _storable(values: Sequence[Any]) -> list[Any]:
    """Return values a Parquet column can hold: as they are, or as JSON where kinds are mixed."""
    known = [value for value in values if value is not None]
    for kinds in (bool, (int, float), str):
        if all(isinstance(value, kinds) for value in known):
            return list(values)
    return [json.dumps(plain(value)) for value in values]
