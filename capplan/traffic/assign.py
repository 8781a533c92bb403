"""Columns that a trace lacks, filled from the scenario; each assumption in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.formatting import counted
from capplan.traffic.laws import sizes, tenants_of
from capplan.traffic.streams import Stream, stream

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.traffic import ClassRule

Objects = NDArray[np.object_]
Bools = NDArray[np.bool_]

MOST_NAMES = 5
"""Most names in a note."""


def completed(
    frame: pd.DataFrame, scenario: Scenario, *, key: tuple[int, int]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with every column of a trace filled, and the assumptions.

    Class: the trace's if the scenario has it, else the first rule of ``traffic.rules`` that
    matches, else the default class. Tenant: the trace's, else the rule's, else drawn by share.
    Priority, streaming, deadline and size: the trace's, else those of the class.
    """
    notes: list[str] = []
    classes, rule = classes_of(frame, scenario, notes)
    rng = stream(*key, Stream.TENANTS)
    out = {
        "request_id": _ids(frame),
        "arrival_s": frame["arrival_s"].to_numpy(),
        "prompt_tokens": frame["prompt_tokens"].to_numpy(),
        "output_tokens": frame["output_tokens"].to_numpy(),
        "request_class": classes,
        "tenant": _tenants(frame, scenario, classes, rule_of=rule, rng=rng, notes=notes),
        "session": _none_if_missing(frame, "session"),
        "priority": _by_class(frame, "priority", classes, scenario, notes).astype(np.int64),
        "streaming": _streaming(frame, scenario, classes, key, notes),
        "deadline_s": _by_class(frame, "deadline_s", classes, scenario, notes),
        "size": _sizes(frame, scenario, classes, key, notes),
        "prefix_blocks": _prefixes(frame),
        "observed_e2e_s": _numbers(frame, "observed_e2e_s"),
        "user": _none_if_missing(frame, "user"),
        "think_s": _numbers(frame, "think_s"),
        "imputed": _imputed(frame),
    }
    return pd.DataFrame(out), notes


def classes_of(
    frame: pd.DataFrame, scenario: Scenario, notes: list[str]
) -> tuple[Objects, NDArray[np.int64]]:
    """Return each row's class and the rule that gave it (-1: none); add them to ``notes``."""
    stated = _objects(frame, "request_class")
    classes = stated.copy()
    unnamed = ~np.isin(classes, [c.name for c in scenario.classes])
    rule_of = np.full(len(frame), -1)
    for i, rule in enumerate(scenario.traffic.rules):
        hit = unnamed & (rule_of < 0) & _matches(frame, stated, rule)
        rule_of[hit] = i
        classes[hit] = rule.request_class
        if hit.any():
            notes.append(
                f"{_of_no_class(hit, stated)} became {rule.request_class} by rule {i + 1}."
            )
    rest = unnamed & (rule_of < 0)
    default = scenario.request_class().name
    classes[rest] = default
    if rest.any():
        notes.append(f"{_of_no_class(rest, stated)} became {default}, the default class.")
    return classes, rule_of


def _of_no_class(rows: Bools, stated: Objects) -> str:
    """Return the number of requests and the classes, unknown to the scenario, that they name."""
    named = sorted({str(name) for name in stated[rows] if not pd.isna(name)})
    if not named:
        return f"{_of(rows)} named no class and"
    few = ", ".join(named[:MOST_NAMES]) + (", …" if len(named) > MOST_NAMES else "")
    return f"{_of(rows)} named no class of the scenario ({few}) and"


def _matches(frame: pd.DataFrame, stated: Objects, rule: ClassRule) -> Bools:
    hit = np.ones(len(frame), dtype=bool)
    if rule.trace_class is not None:
        hit &= stated == rule.trace_class
    for column in ("prompt_tokens", "output_tokens"):
        least, most = getattr(rule, f"min_{column}"), getattr(rule, f"max_{column}")
        tokens = frame[column].to_numpy()
        hit &= True if least is None else tokens >= least
        hit &= True if most is None else tokens <= most
    return hit


def _tenants(
    frame: pd.DataFrame,
    scenario: Scenario,
    classes: Objects,
    *,
    rule_of: NDArray[np.int64],
    rng: np.random.Generator,
    notes: list[str],
) -> Objects:
    tenants = _objects(frame, "tenant")
    for i, rule in enumerate(scenario.traffic.rules):
        if rule.tenant is not None:
            tenants[_missing(tenants) & (rule_of == i)] = rule.tenant
    unnamed = _missing(tenants)
    if unnamed.any():
        tenants[unnamed] = tenants_of(scenario, classes, rng)[unnamed]
        how = "drawn by share" if len(scenario.tenants) > 1 else f"{scenario.tenants[0].name}"
        notes.append(f"{_of(unnamed)} named no tenant: {how}.")
    return tenants


def _by_class(
    frame: pd.DataFrame, column: str, classes: Objects, scenario: Scenario, notes: list[str]
) -> NDArray[np.float64]:
    """Return the trace's numbers, else those of the class."""
    values = _numbers(frame, column)
    unnamed = np.isnan(values)
    for c in scenario.classes:
        of_class = c.priority if column == "priority" else c.promises.deadline_s
        rows = unnamed & (classes == c.name)
        values[rows] = np.nan if of_class is None else of_class
    if unnamed.any():
        what = "priority" if column == "priority" else "deadline"
        notes.append(f"{_of(unnamed)} named no {what}: that of the class.")
    if column == "deadline_s" and np.isnan(values).any():
        notes.append(f"{_of(np.isnan(values))} have no deadline: their callers wait without end.")
    return values


def _streaming(
    frame: pd.DataFrame,
    scenario: Scenario,
    classes: Objects,
    key: tuple[int, int],
    notes: list[str],
) -> Bools:
    stated = _objects(frame, "streaming")
    unnamed = _missing(stated)
    streams = {c.name: c.streaming for c in scenario.classes}
    by_class = np.array([streams[name] for name in classes], dtype=bool)
    share = scenario.traffic.streaming_fraction
    if share is not None:
        by_class &= stream(*key, Stream.STREAMING).random(len(frame)) < share
    if unnamed.any():
        how = "" if share is None else f", {share:g} of the streaming classes' requests"
        notes.append(f"{_of(unnamed)} have no streaming flag: that of the class{how}.")
    by_class[~unnamed] = stated[~unnamed].astype(bool)
    return by_class


def _sizes(
    frame: pd.DataFrame,
    scenario: Scenario,
    classes: Objects,
    key: tuple[int, int],
    notes: list[str],
) -> NDArray[np.float64]:
    """Return the trace's sizes, else draws of the law of the class."""
    values = _numbers(frame, "size")
    unnamed = np.isnan(values)
    rngs = stream(*key, Stream.SIZES).spawn(len(scenario.classes))
    drawn = np.zeros(len(frame), dtype=bool)
    for c, rng in zip(scenario.classes, rngs, strict=True):
        rows = unnamed & (classes == c.name)
        if c.size is not None:
            values[rows] = sizes(c.size, int(np.count_nonzero(rows)), rng)
            drawn |= rows
    if drawn.any():
        notes.append(f"{_of(drawn)} named no size: drawn by the law of the class.")
    return values


def _ids(frame: pd.DataFrame) -> Objects:
    ids = _objects(frame, "request_id")
    unnamed = _missing(ids)
    numbered = np.array([f"r{i}" for i in range(len(frame))], dtype=object)
    return np.where(unnamed, numbered, ids)


def _none_if_missing(frame: pd.DataFrame, column: str) -> Objects:
    values = _objects(frame, column)
    values[_missing(values)] = None
    return values


def _prefixes(frame: pd.DataFrame) -> Objects:
    blocks = _objects(frame, "prefix_blocks")
    none = np.zeros(0, dtype=np.int64)
    none.flags.writeable = False
    for i, ids in enumerate(blocks):
        if ids is None or isinstance(ids, float):
            blocks[i] = none
    return blocks


def _imputed(frame: pd.DataFrame) -> Bools:
    if "imputed" in frame:
        return frame["imputed"].to_numpy(dtype=bool)
    return np.zeros(len(frame), dtype=bool)


def _objects(frame: pd.DataFrame, column: str) -> Objects:
    if column in frame:
        return frame[column].to_numpy(dtype=object, copy=True)
    return np.full(len(frame), None, dtype=object)


def _numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    if column in frame:
        return frame[column].to_numpy(dtype=np.float64, copy=True, na_value=np.nan)
    return np.full(len(frame), np.nan)


def _missing(values: Objects) -> Bools:
    return np.asarray(pd.isna(values), dtype=bool)


def _of(rows: Bools) -> str:
    n = int(rows.sum())
    every = counted(len(rows), "request")
    return f"All {every}" if n == len(rows) > 1 else f"{n:,} of {every}"
