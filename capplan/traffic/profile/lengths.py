"""Token lengths: quantiles with intervals, correlation of input and output, variance flags."""

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
