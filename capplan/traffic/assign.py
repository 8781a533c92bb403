"""Columns that a trace lacks, filled from the scenario; each assumption in a sentence."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from capplan.formatting import counted
from capplan.scenario import Scenario
from capplan.scenario.traffic import ClassRule
from capplan.traffic.laws import sizes, tenants_of
from capplan.traffic.streams import Stream, stream

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
    rows = _Rows(frame, scenario, key)
    out = {
        "request_id": rows.ids(),
        "arrival_s": frame["arrival_s"].to_numpy(),
        "prompt_tokens": frame["prompt_tokens"].to_numpy(),
        "output_tokens": frame["output_tokens"].to_numpy(),
        "request_class": rows.classes,
        "tenant": rows.tenants(),
        "session": rows.labels("session"),
        "priority": rows.by_class("priority").astype(np.int64),
        "streaming": rows.streaming(),
        "deadline_s": rows.by_class("deadline_s"),
        "size": rows.sizes(),
        "prefix_blocks": rows.prefixes(),
        "observed_e2e_s": _numbers(frame, "observed_e2e_s"),
        "user": rows.labels("user"),
        "think_s": _numbers(frame, "think_s"),
        "imputed": _objects(frame, "imputed", False).astype(bool),
    }
    return pd.DataFrame(out), rows.notes


class _Rows:
    """The rows of a trace that are filled: their classes, and the assumptions so far."""

    def __init__(self, frame: pd.DataFrame, scenario: Scenario, key: tuple[int, int]) -> None:
        self.frame = frame
        self.scenario = scenario
        self.key = key
        self.notes: list[str] = []
        self.classes, self._rule_of = classes_of(frame, scenario, self.notes)

    def tenants(self) -> Objects:
        tenants = _objects(self.frame, "tenant")
        for i, rule in enumerate(self.scenario.traffic.rules):
            if rule.tenant is not None:
                tenants[_missing(tenants) & (self._rule_of == i)] = rule.tenant
        unnamed = _missing(tenants)
        if unnamed.any():
            rng = stream(*self.key, Stream.TENANTS)
            tenants[unnamed] = tenants_of(self.scenario, self.classes, rng)[unnamed]
            known = self.scenario.tenants
            how = "drawn by share" if len(known) > 1 else known[0].name
            self.notes.append(f"{_of(unnamed)} named no tenant: {how}.")
        return tenants

    def by_class(self, column: str) -> NDArray[np.float64]:
        """Return the trace's numbers, else those of the class."""
        values = _numbers(self.frame, column)
        unnamed = np.isnan(values)
        for c in self.scenario.classes:
            of_class = c.priority if column == "priority" else c.promises.deadline_s
            values[unnamed & (self.classes == c.name)] = np.nan if of_class is None else of_class
        if unnamed.any():
            what = column.removesuffix("_s")
            self.notes.append(f"{_of(unnamed)} named no {what}: that of the class.")
        if column == "deadline_s" and (endless := np.isnan(values)).any():
            self.notes.append(f"{_of(endless)} have no deadline: their callers wait without end.")
        return values

    def streaming(self) -> Bools:
        stated = _objects(self.frame, "streaming")
        unnamed = _missing(stated)
        streams = {c.name: c.streaming for c in self.scenario.classes}
        by_class = np.array([streams[name] for name in self.classes], dtype=bool)
        share = self.scenario.traffic.streaming_fraction
        if share is not None:
            by_class &= stream(*self.key, Stream.STREAMING).random(len(by_class)) < share
        if unnamed.any():
            how = "" if share is None else f", {share:g} of the streaming classes' requests"
            self.notes.append(f"{_of(unnamed)} have no streaming flag: that of the class{how}.")
        by_class[~unnamed] = stated[~unnamed].astype(bool)
        return by_class

    def sizes(self) -> NDArray[np.float64]:
        """Return the trace's sizes, else draws of the law of the class."""
        values = _numbers(self.frame, "size")
        unnamed = np.isnan(values)
        classes = self.scenario.classes
        drawn = np.zeros(len(values), dtype=bool)
        for c, rng in zip(
            classes, stream(*self.key, Stream.SIZES).spawn(len(classes)), strict=True
        ):
            if c.size is not None:
                rows = unnamed & (self.classes == c.name)
                values[rows] = sizes(c.size, int(np.count_nonzero(rows)), rng)
                drawn |= rows
        if drawn.any():
            self.notes.append(f"{_of(drawn)} named no size: drawn by the law of the class.")
        return values

    def ids(self) -> Objects:
        ids = _objects(self.frame, "request_id")
        numbered = np.array([f"r{i}" for i in range(len(ids))], dtype=object)
        return np.where(_missing(ids), numbered, ids)

    def labels(self, column: str) -> Objects:
        values = _objects(self.frame, column)
        values[_missing(values)] = None
        return values

    def prefixes(self) -> Objects:
        blocks = _objects(self.frame, "prefix_blocks")
        none = np.zeros(0, dtype=np.int64)
        none.flags.writeable = False
        for i, ids in enumerate(blocks):
            if ids is None or isinstance(ids, float):
                blocks[i] = none
        return blocks


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


def _objects(frame: pd.DataFrame, column: str, absent: object = None) -> Objects:
    if column in frame:
        return frame[column].to_numpy(dtype=object, copy=True)
    return np.full(len(frame), absent, dtype=object)


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
