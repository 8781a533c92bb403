"""Which class each drawn request has: by the classes' weights, which may change over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.scenario.traffic import MixChange

Ints = NDArray[np.int64]


def class_weights(scenario: Scenario, time_s: ArrayLike) -> NDArray[np.float64]:
    """Return the weight of each class at each time, shape (times, classes).

    Weights begin as the classes' shares and follow ``traffic.mix``.
    """
    time = np.asarray(time_s, dtype=float)
    weights = np.empty((len(time), len(scenario.classes)))
    for i, c in enumerate(scenario.classes):
        changes = [m for m in scenario.traffic.mix if m.request_class == c.name]
        weights[:, i] = _weight(c.share, changes, time)
    return weights


def drawn_classes(
    scenario: Scenario, time_s: NDArray[np.float64], rng: np.random.Generator
) -> Ints:
    """Return the index of a class for each arrival, one uniform number each.

    Raises
    ------
    ValueError
        When every class has weight 0 at an arrival.
    """
    edges = np.cumsum(class_weights(scenario, time_s), axis=1)
    if (edges[:, -1] <= 0).any():
        at = float(time_s[edges[:, -1] <= 0][0])
        msg = f"traffic.mix: every class has weight 0 at {at:g} s"
        raise ValueError(msg)
    level = rng.random(len(time_s)) * edges[:, -1]
    return np.asarray((level[:, None] >= edges).sum(axis=1), dtype=np.int64)


def rows_by_class(
    names: list[str],
    index: Ints,
    classes: NDArray[np.object_],
    rng: np.random.Generator,
    *,
    source: str,
) -> Ints:
    """Return a row of the base trace for each class index, drawn among the rows of its class.

    Raises
    ------
    DataError
        When the base trace has no request of a class that is drawn.
    """
    level = rng.random(len(index))
    rows = np.empty(len(index), dtype=np.int64)
    for i, name in enumerate(names):
        drawn = index == i
        own = np.flatnonzero(classes == name)
        if not drawn.any():
            continue
        if not len(own):
            rule = f"requests of class {name}, which traffic.mix draws"
            raise DataError(rule, where=source, field="request_class", value="none")
        rows[drawn] = own[(level[drawn] * len(own)).astype(np.int64)]
    return rows


def _weight(
    share: float, changes: list[MixChange], time_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    weight = np.full(len(time_s), share)
    before = share
    for change in sorted(changes, key=lambda m: m.at_s):
        since = time_s - change.at_s
        done = np.ones(len(time_s)) if change.over_s == 0 else since / change.over_s
        part = before + (change.share - before) * np.clip(done, 0.0, 1.0)
        weight = np.where(since >= 0, part, weight)
        before = change.share
    return weight
