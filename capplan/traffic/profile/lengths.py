"""Token lengths: quantiles with intervals, correlation, flags, and buckets from short to long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from capplan.statistics import Estimate, quantile_interval

PROBABILITIES: Mapping[str, float] = {
    "p50": 0.5,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "p999": 0.999,
}
WIDE_PROMPT_TOKENS = 500
WIDE_OUTPUT_TIMES = 3
LEAST_FOR_CORRELATION = 3
Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Distribution of a length: mean, standard deviation, quantiles with intervals, maximum.

    The intervals (95 %) hold for independent lengths; lengths of one session are alike, which
    makes the true ones somewhat wider.
    """

    n: int
    mean: float
    std: float
    quantiles: Mapping[str, Estimate]
    max: float

    def __getitem__(self, name: str) -> float:
        """Return a quantile by name, such as ``p95``."""
        return self.quantiles[name].value

    def to_json(self) -> dict[str, Any]:
        """Return plain values; an end that the data cannot bound is NaN."""
        values = {name: estimate.value for name, estimate in self.quantiles.items()}
        ends = {
            name: [e if math.isfinite(e) else math.nan for e in (estimate.low, estimate.high)]
            for name, estimate in self.quantiles.items()
        }
        head = {"mean": self.mean, "std": self.std, **values, "max": self.max}
        return {**head, "n": self.n, "intervals": ends}


def lengths(tokens: Tokens) -> Lengths:
    """Return the distribution of a length; NaN for no request."""
    ordered = np.sort(tokens)
    n = len(ordered)
    return Lengths(
        n=n,
        mean=float(ordered.mean()) if n else math.nan,
        std=float(ordered.std(ddof=1)) if n > 1 else math.nan,
        quantiles={name: quantile_interval(ordered, p) for name, p in PROBABILITIES.items()},
        max=float(ordered[-1]) if n else math.nan,
    )


def correlation(prompt: Tokens, output: Tokens) -> dict[str, float | int]:
    """Return how input and output go together: ``pearson_log``, ``spearman``, ``n``.

    Pearson's coefficient of log lengths and Spearman's of ranks; NaN below three requests or
    where one length never varies.
    """
    n = len(prompt)
    if n < LEAST_FOR_CORRELATION:
        return {"pearson_log": math.nan, "spearman": math.nan, "n": n}
    logs = [np.log(np.maximum(tokens, 1)) for tokens in (prompt, output)]
    ranks = [mean_ranks(tokens) for tokens in (prompt, output)]
    return {"pearson_log": _pearson(*logs), "spearman": _pearson(*ranks), "n": n}


def mean_ranks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return ranks from 1, ties sharing their mean.

    >>> mean_ranks(np.array([10, 30, 10])).tolist()
    [1.5, 3.0, 1.5]
    """
    _, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks: npt.NDArray[np.float64] = (last - (sizes - 1) / 2)[inverse]
    return ranks


def _pearson(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    if x.min() == x.max() or y.min() == y.max():
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def flags(prompt: Lengths, output: Lengths) -> list[dict[str, Any]]:
    """Return what about the lengths asks for a reserve, each with value, limit and advice.

    Wide input: standard deviation above 500 tokens. Wide output: p99 above 3 × the mean. Both
    bounds are defaults of this workbook.
    """
    found: list[dict[str, Any]] = []
    if prompt.std > WIDE_PROMPT_TOKENS:
        advice = "Plan per length bucket and leave room for prefill of long prompts."
        found.append(_flag("wide_input", prompt.std, WIDE_PROMPT_TOKENS, "std_tokens", advice))
    limit = WIDE_OUTPUT_TIMES * output.mean
    if output["p99"] > limit:
        advice = "Reserve KV memory for the p99 output, not the mean: its spread is above 3 × it."
        found.append(_flag("wide_output", output["p99"], limit, "p99_tokens", advice))
    return found


def _flag(name: str, value: float, limit: float, unit: str, advice: str) -> dict[str, Any]:
    return {
        "flag": name,
        "measure": unit,
        "value": value,
        "limit": limit,
        "origin": "default",
        "advice": advice,
    }


NAMES: Mapping[int, tuple[str, ...]] = {
    1: ("all",),
    2: ("short", "long"),
    3: ("short", "medium", "long"),
    4: ("short", "medium", "long", "very long"),
}
GOOD_FIT = 0.8
MOST_POINTS = 512
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthClasses:
    """Lengths cut into buckets."""

    names: tuple[str, ...]
    """Buckets from short to long."""
    upper_tokens: tuple[int, ...]
    """Largest length of each bucket but the last."""
    requests: tuple[int, ...]
    """Requests in each bucket."""
    fit: float
    """Goodness of variance fit: the share of the variance of log length that the buckets explain;
    NaN where all lengths are equal."""
    silhouette: float
    """Mean simplified silhouette (distances to the centres), −1 to 1; NaN for one bucket."""

    def of(self, tokens: npt.ArrayLike) -> npt.NDArray[np.str_]:
        """Return the name of the bucket of each length."""
        at = np.searchsorted(np.asarray(self.upper_tokens), np.asarray(tokens), side="left")
        return np.asarray(self.names)[at]

    def to_json(self) -> dict[str, Any]:
        """Return the buckets with the criterion they were cut by, as plain values."""
        return {
            "names": list(self.names),
            "upper_tokens": list(self.upper_tokens),
            "requests": list(self.requests),
            "fit": self.fit,
            "silhouette": self.silhouette,
            "criterion": "least squared deviation of log length (optimal 1-D k-means)",
            "well_separated": bool(self.fit >= GOOD_FIT) if math.isfinite(self.fit) else None,
        }


def length_buckets(tokens: npt.ArrayLike, *, k: int = 3) -> LengthClasses:
    """Return ``k`` buckets with the least squared deviation of log length inside them.

    The cut is exact for up to 512 distinct lengths; beyond, neighbours are first merged into 512
    groups of equal size. Fewer distinct lengths than ``k`` give fewer buckets. A fit below 0.8
    says that the lengths do not fall into ``k`` groups.

    Parameters
    ----------
    tokens
        Lengths; zeros count as one token.
    k
        Number of buckets, 1 to 4.

    Raises ValueError for no length, or ``k`` out of range.

    Source: Fisher, "On Grouping for Maximum Homogeneity", Journal of the American Statistical
    Association 53, 1958 (optimal grouping); Jenks, "Optimal Data Classification for Choropleth
    Maps", 1977 (goodness of variance fit; 0.8 is the customary bound).

    >>> found = length_buckets([10, 11, 12, 100, 110, 1000, 1100, 1200])
    >>> found.names, found.upper_tokens, found.requests
    (('short', 'medium', 'long'), (12, 110), (3, 2, 3))
    """
    lengths = np.maximum(np.asarray(tokens, dtype=np.float64), 1.0)
    if k not in NAMES or lengths.size == 0:
        msg = f"k from 1 to 4 and at least one length, got k={k!r}, {lengths.size} lengths"
        raise ValueError(msg)
    values, sizes = _points(np.log(lengths))
    k = min(k, len(values))
    firsts = _cuts(values, sizes, k)
    uppers = _uppers(values, firsts, lengths)
    label = np.searchsorted(uppers, lengths, side="left")
    return LengthClasses(
        names=NAMES[k],
        upper_tokens=tuple(int(u) for u in uppers),
        requests=tuple(int(n) for n in np.bincount(label, minlength=k)),
        fit=_fit(np.log(lengths), label),
        silhouette=_silhouette(np.log(lengths), label, k),
    )


def _points(logs: Floats) -> tuple[Floats, Floats]:
    """Return sorted distinct values and their weights, at most 512."""
    values, sizes = np.unique(logs, return_counts=True)
    if len(values) <= MOST_POINTS:
        return values, sizes.astype(np.float64)
    share = (np.cumsum(sizes) - sizes / 2) / sizes.sum()
    group = np.minimum((share * MOST_POINTS).astype(np.intp), MOST_POINTS - 1)
    weight = np.bincount(group, sizes, MOST_POINTS)
    centre = np.bincount(group, sizes * values, MOST_POINTS)
    full = weight > 0
    return centre[full] / weight[full], weight[full].astype(np.float64)


def _cuts(values: Floats, sizes: Floats, k: int) -> list[int]:
    """Return the first index of every group but the first, by dynamic programming."""
    m = len(values)
    weight = np.concatenate([[0.0], np.cumsum(sizes)])
    first = np.concatenate([[0.0], np.cumsum(sizes * values)])
    second = np.concatenate([[0.0], np.cumsum(sizes * values**2)])
    i, j = np.arange(m)[:, None], np.arange(m)[None, :] + 1
    mass = np.where(j > i, weight[j] - weight[i], 1.0)
    cost = (second[j] - second[i]) - (first[j] - first[i]) ** 2 / mass
    cost = np.where(j > i, np.maximum(cost, 0.0), np.inf)  # cost[i, j - 1]: values i … j - 1
    best, choices = cost[0], []
    for _ in range(1, k):
        total = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        choices.append(total.argmin(axis=0))
        best = total.min(axis=0)
    cuts, end = [], m - 1
    for choice in reversed(choices):
        start = int(choice[end])
        cuts.append(start)
        end = start - 1
    return cuts[::-1]


def _uppers(values: Floats, firsts: list[int], lengths: Floats) -> Floats:
    """Return the largest length at or below the middle between neighbouring groups."""
    middles = np.exp([(values[i - 1] + values[i]) / 2 for i in firsts])
    ordered = np.unique(lengths)
    below = np.searchsorted(ordered, middles, side="right") - 1
    found: Floats = ordered[below] if len(firsts) else np.empty(0)
    return found


def _fit(logs: Floats, label: npt.NDArray[np.intp]) -> float:
    total = float(((logs - logs.mean()) ** 2).sum())
    if total < 1e-12 * len(logs):
        return math.nan
    sizes = np.bincount(label)
    centre = np.bincount(label, logs) / np.maximum(sizes, 1)
    return 1 - float(((logs - centre[label]) ** 2).sum()) / total


def _silhouette(logs: Floats, label: npt.NDArray[np.intp], k: int) -> float:
    """Source: Hruschka et al., "Evolutionary Algorithms for Clustering Gene-Expression Data", 2004.

    The simplified silhouette: (b − a) / max(a, b) with the distances to the own and to the
    nearest other centre.
    """
    if k == 1:
        return math.nan
    centre = np.bincount(label, logs) / np.bincount(label)
    away = np.abs(logs[:, None] - centre[None, :])
    own = away[np.arange(len(logs)), label]
    away[np.arange(len(logs)), label] = np.inf
    other = away.min(axis=1)
    return float(np.mean((other - own) / np.maximum(np.maximum(own, other), 1e-300)))
