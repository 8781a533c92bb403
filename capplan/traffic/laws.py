"""Requests drawn from the laws of a scenario: classes, tenants, lengths, sizes, prefixes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from capplan.scenario import Scenario
from capplan.scenario.classes import (
    ChoiceSize,
    FixedLength,
    FixedSize,
    Length,
    LognormalLength,
    LognormalSize,
    RequestClass,
    Size,
)
from capplan.scenario.traffic import MixChange
from capplan.schema import DataError
from capplan.traffic.streams import Stream, stream

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

    Raises ValueError if every class has weight 0 at an arrival.
    """
    edges = np.cumsum(class_weights(scenario, time_s), axis=1)
    if (edges[:, -1] <= 0).any():
        at = float(time_s[edges[:, -1] <= 0][0])
        raise ValueError(f"traffic.mix: every class has weight 0 at {at:g} s")
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

    Raises :class:`DataError` if the base trace has no request of a drawn class.
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


Z95 = 1.6448536269514722
"""95th percentile of the standard normal law."""

PREFIX_BLOCK_TOKENS = 16
"""Tokens in one block of a drawn prefix: vLLM's default block size (its ``--block-size``)."""

MOST_REDRAWS = 1000


def drawn_rows(
    scenario: Scenario,
    index: Ints,
    *,
    key: tuple[int, int],
    tenant: NDArray[np.object_] | None = None,
) -> pd.DataFrame:
    """Return a row for each class index: tenant by share, lengths by the class's laws, prefix.

    ``tenant``: the tenant of each row instead.
    """
    classes, n = scenario.classes, len(index)
    normals = stream(*key, Stream.LENGTHS).standard_normal((n, 2))
    prompt, output = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for i, c in enumerate(classes):
        rows = index == i
        rng = stream(*key, Stream.LENGTHS).spawn(i + 1)[i]
        prompt[rows], output[rows] = lengths(c, normals[rows], rng)
    names = np.array([c.name for c in classes], dtype=object)[index]
    if tenant is None:
        tenant = tenants_of(scenario, names, stream(*key, Stream.TENANTS))
    frame = pd.DataFrame(
        {"prompt_tokens": prompt, "output_tokens": output, "request_class": names, "tenant": tenant}
    )
    if any(c.prefix_tokens for c in classes):
        frame["prefix_blocks"] = _prefixes(classes, index, tenant, prompt)
    return frame


def pick(n: int, weights: Sequence[float], rng: np.random.Generator) -> Ints:
    """Return n indexes drawn with the weights, one uniform number each."""
    edges = np.cumsum(weights)
    return np.searchsorted(edges / edges[-1], rng.random(n), side="right").clip(
        max=len(weights) - 1
    )


def tenants_of(
    scenario: Scenario, class_names: NDArray[np.object_], rng: np.random.Generator
) -> NDArray[np.object_]:
    """Return a tenant for each request, by share among the tenants of its class.

    The tenants of a class are those that list it or list none, or else all.
    """
    chance = rng.random(len(class_names))
    tenants = np.empty(len(class_names), dtype=object)
    for name in dict.fromkeys(class_names):
        users = [t for t in scenario.tenants if not t.classes or name in t.classes]
        users = users or list(scenario.tenants)
        edges = np.cumsum([t.sent_share or t.share for t in users])
        rows = class_names == name
        which = np.searchsorted(edges / edges[-1], chance[rows], side="right")
        tenants[rows] = np.array([t.name for t in users], dtype=object)[
            which.clip(max=len(users) - 1)
        ]
    return tenants


def lengths(
    request_class: RequestClass, normals: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return prompt and output lengths for rows of two independent standard normals.

    The logarithms of two log-normal lengths have the class's correlation (Gaussian copula). A
    pair with a length above its ``max_tokens`` is drawn again as a pair, from ``rng``.
    Raises ValueError if a pair is still above after a thousand draws.
    """
    c = request_class
    prompt, output = _pair(c, normals)
    for _ in range(MOST_REDRAWS):
        beyond = (prompt > _most(c.prompt_tokens)) | (output > _most(c.output_tokens))
        left = int(np.count_nonzero(beyond))
        if not left:
            return prompt.astype(np.int64), output.astype(np.int64)
        prompt[beyond], output[beyond] = _pair(c, rng.standard_normal((left, 2)))
    raise ValueError(f"class {c.name}: lengths are nearly always above max_tokens")


def _pair(
    c: RequestClass, normals: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    r = c.length_correlation
    first = normals[:, 0]
    second = r * first + math.sqrt(1 - r**2) * normals[:, 1]
    return _value(c.prompt_tokens, first), _value(c.output_tokens, second)


def _value(law: Length, normal: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return exp(ln p50 + z · ln(p95 / p50) / z95), rounded up; or the fixed length."""
    match law:
        case FixedLength(tokens=tokens):
            return np.full(len(normal), float(tokens))
        case LognormalLength(p50_tokens=p50, p95_tokens=p95):
            return np.asarray(np.ceil(p50 * np.exp(lognormal_sigma(p50, p95) * normal)))


def lognormal_sigma(p50: float, p95: float) -> float:
    """Return the standard deviation of the logarithm of a log-normal law, from two quantiles.

    >>> round(lognormal_sigma(100.0, 400.0), 3)
    0.843
    """
    return math.log(p95 / p50) / Z95


def _most(law: Length) -> int:
    return law.tokens if isinstance(law, FixedLength) else law.max_tokens


def sizes(law: Size, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return n sizes by a class's law; one above the law's ``max`` is drawn again.

    Raises ValueError if a size is still above after a thousand draws.
    """
    match law:
        case FixedSize(value=value):
            return np.full(n, value)
        case ChoiceSize(values=values, weights=weights):
            return np.array(values)[pick(n, weights, rng)]
        case LognormalSize(p50=p50, p95=p95, max=most):
            sigma = lognormal_sigma(p50, p95)
            drawn = p50 * np.exp(sigma * rng.standard_normal(n))
            for _ in range(MOST_REDRAWS):
                beyond = drawn > most
                if not beyond.any():
                    return np.asarray(drawn)
                again = rng.standard_normal(int(np.count_nonzero(beyond)))
                drawn[beyond] = p50 * np.exp(sigma * again)
            raise ValueError(f"sizes are nearly always above their max of {most:g}")


def _prefixes(
    classes: Sequence[RequestClass], index: Ints, tenant: NDArray[np.object_], prompt: Ints
) -> NDArray[np.object_]:
    """Return the complete blocks of the prefix that requests of one class and tenant share."""
    names = {name: i for i, name in enumerate(sorted(set(tenant)))}
    longest = max(c.prefix_tokens for c in classes) // PREFIX_BLOCK_TOKENS
    out = np.empty(len(index), dtype=object)
    for row, (c, t, tokens) in enumerate(zip(index.tolist(), tenant, prompt.tolist(), strict=True)):
        n = min(classes[c].prefix_tokens, tokens) // PREFIX_BLOCK_TOKENS
        first = (c * len(names) + names[t]) * longest
        out[row] = np.arange(first, first + n)
    return out
