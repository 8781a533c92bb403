"""The load of each class: its rate, the quantiles and means of its lengths, and their origin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from capplan.replica.capacity import Mix
from capplan.scenario import Scenario
from capplan.scenario.classes import (
    ChoiceSize,
    FixedLength,
    FixedSize,
    Length,
    LognormalSize,
    RequestClass,
    Size,
)
from capplan.scenario.fields import effect_of
from capplan.scenario.part import Affects, Origin, origin
from capplan.scenario.shapes import ClosedLoop, Replay, Spike, Steady, Step
from capplan.schema import DataError
from capplan.traffic.laws import lognormal_sigma
from capplan.traffic.shapes import planned_rate

if TYPE_CHECKING:
    import pandas as pd

    from capplan.traffic.profile import GroupDemand, Lengths, TrafficProfile
    from capplan.traffic.trace import Trace

_NORMAL = NormalDist()


class _CutLognormal(NamedTuple):
    """A log-normal law cut at ``most``.

    Source: Johnson, Kotz, Balakrishnan, "Continuous Univariate Distributions", vol. 1, 2nd ed.,
    1994, chapter 14 (moments of the truncated log-normal law).
    """

    p50: float
    p95: float
    most: float

    def quantile(self, quantile: float) -> float:
        sigma = lognormal_sigma(self.p50, self.p95)
        if sigma == 0:
            return self.p50
        kept = _NORMAL.cdf(math.log(self.most / self.p50) / sigma)
        return self.p50 * math.exp(sigma * _NORMAL.inv_cdf(quantile * kept))

    def moment(self, order: int) -> float:
        sigma = lognormal_sigma(self.p50, self.p95)
        if sigma == 0:
            return self.p50**order
        end = math.log(self.most / self.p50) / sigma
        whole = self.p50**order * math.exp((order * sigma) ** 2 / 2)
        return whole * _NORMAL.cdf(end - order * sigma) / _NORMAL.cdf(end)


def length_quantile(law: Length, quantile: float) -> int:
    """Return a quantile of a length law, tokens.

    >>> from capplan.scenario.classes import LognormalLength
    >>> length_quantile(LognormalLength(p50_tokens=100, p95_tokens=400), 0.95)
    400
    """
    if isinstance(law, FixedLength):
        return law.tokens
    found = _CutLognormal(law.p50_tokens, law.p95_tokens, law.max_tokens).quantile(quantile)
    return min(law.max_tokens, max(1, math.ceil(round(found, 6))))


def length_moment(law: Length, order: int) -> float:
    """Return the mean of a length to the power of ``order``, tokens to that power.

    Lengths count as real numbers here, though they are whole.

    >>> length_moment(FixedLength(tokens=10), 2)
    100.0
    """
    if isinstance(law, FixedLength):
        return float(law.tokens) ** order
    return _CutLognormal(law.p50_tokens, law.p95_tokens, law.max_tokens).moment(order)


def size_quantile(law: Size, quantile: float) -> float:
    """Return a quantile of a size law, in the law's unit.

    >>> size_quantile(ChoiceSize(values=(4.0, 1.0), weights=(1.0, 9.0)), 0.95)
    4.0
    """
    match law:
        case FixedSize(value=value):
            return value
        case ChoiceSize(values=values, weights=weights):
            left = quantile * sum(weights)
            for value, weight in sorted(zip(values, weights, strict=True)):
                left -= weight
                if left <= 0:
                    return value
            return max(values)
        case LognormalSize(p50=p50, p95=p95, max=most):
            return min(most, _CutLognormal(p50, p95, most).quantile(quantile))


def size_mean(law: Size) -> float:
    """Return the mean of a size law.

    >>> size_mean(ChoiceSize(values=(4.0, 1.0), weights=(1.0, 9.0)))
    1.3
    """
    match law:
        case FixedSize(value=value):
            return value
        case ChoiceSize(values=values, weights=weights):
            return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
        case LognormalSize(p50=p50, p95=p95, max=most):
            return _CutLognormal(p50, p95, most).moment(1)


Quantiles = Callable[[float], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassLoad:
    """The load of one request class. Rates of a class without requests are 0."""

    request_class: str
    rate_rps: float
    """NaN if unknown."""
    samples: int
    """Requests behind the figures; 0 for those of a law."""
    prompt_mean: float
    output_mean: float
    context_mean: float
    """Mean context of a decoding sequence over its decode steps, tokens."""
    size_mean: float
    prompt_quantile: Quantiles
    output_quantile: Quantiles
    size_quantile: Quantiles
    origin: Origin


def class_loads(
    scenario: Scenario, *, profile: TrafficProfile | None = None, trace: Trace | None = None
) -> dict[str, ClassLoad]:
    """Return the load of each class: from ``trace``, else from the scenario's laws and shape.

    A ``profile`` takes the place of a trace; a quantile that it lacks is its next higher one. A
    scenario with a trace is drawn first. Requests without class belong to the default class.
    Raises :class:`DataError` for a class that the scenario lacks.
    """
    if profile is not None and trace is None:
        return _from_profile(scenario, profile)
    if trace is None and scenario.traffic.trace is not None:
        return _drawn_loads(_drawn(scenario))
    if trace is not None:
        return _from_trace(scenario, trace)
    rates = _shape_rates(scenario)
    return {c.name: _from_law(c, rates[c.name]) for c in scenario.classes}


TRAFFIC = {name for name, one in Scenario.model_fields.items() if effect_of(one) is Affects.TRAFFIC}
"""The parts of a scenario that a drawn trace follows from."""


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What a trace is drawn from; equal ones give the same trace."""

    values: str
    base: Trace | None
    """That of an unchanged file is one object."""
    scenario: Scenario = field(compare=False)


def _drawn(scenario: Scenario) -> _Drawn:
    from capplan.traffic.sample import base_trace

    values = scenario.model_dump_json(include=TRAFFIC) + str(scenario.pool().replicas)
    return _Drawn(values, base_trace(scenario.traffic), scenario)


@lru_cache(maxsize=4)
def _drawn_loads(drawn: _Drawn) -> dict[str, ClassLoad]:
    """Return the loads of a scenario's own trace; the last few are kept."""
    from capplan.traffic.draw import draw

    return _from_trace(drawn.scenario, draw(drawn.scenario, base=drawn.base))


def mix_of(loads: list[ClassLoad]) -> Mix:
    """Return the mean request over the classes of a pool, weighted by their rates.

    Classes weigh the same if no rate is known.
    """
    rates = [0.0 if math.isnan(load.rate_rps) else load.rate_rps for load in loads]
    weights = rates if sum(rates) > 0 else [1.0] * len(loads)
    total = sum(weights)
    output = sum(w * load.output_mean for w, load in zip(weights, loads, strict=True)) / total
    tokens = sum(
        w * load.output_mean * load.context_mean for w, load in zip(weights, loads, strict=True)
    )
    return Mix(
        prompt_tokens=sum(w * x.prompt_mean for w, x in zip(weights, loads, strict=True)) / total,
        output_tokens=output,
        context_tokens=tokens / (total * output),
        size=sum(w * x.size_mean for w, x in zip(weights, loads, strict=True)) / total,
    )


def _from_law(c: RequestClass, rate_rps: float) -> ClassLoad:
    prompt, output = c.prompt_tokens, c.output_tokens
    output_mean = length_moment(output, 1)
    prompt_mean = length_moment(prompt, 1)
    stated = {origin(c, "prompt_tokens"), origin(c, "output_tokens")}
    return ClassLoad(
        request_class=c.name,
        rate_rps=rate_rps,
        samples=0,
        prompt_mean=prompt_mean,
        output_mean=output_mean,
        context_mean=prompt_mean + length_moment(output, 2) / (2 * output_mean),
        size_mean=prompt_mean if c.size is None else size_mean(c.size),
        prompt_quantile=lambda q: length_quantile(prompt, q),
        output_quantile=lambda q: length_quantile(output, q),
        size_quantile=lambda q: (
            float(length_quantile(prompt, q)) if c.size is None else size_quantile(c.size, q)
        ),
        origin="default" if "default" in stated else "promise",
    )


def _from_trace(scenario: Scenario, trace: Trace) -> dict[str, ClassLoad]:
    frame, default = trace.frame, scenario.request_class().name
    if "request_class" in frame:
        grouped = frame.groupby(frame["request_class"].fillna(default), sort=False)
        rows = {str(name): group for name, group in grouped}
    else:
        rows = {default: frame}
    _check_known(scenario, rows, where=trace.source)
    span_s = trace.duration_s
    if span_s is None:
        # n requests enclose n - 1 gaps.
        span_s = float(frame["arrival_s"].iloc[-1] - frame["arrival_s"].iloc[0])
        span_s *= len(frame) / max(len(frame) - 1, 1)
    known = span_s > 0
    return {
        c.name: _from_rows(c, rows[c.name], len(rows[c.name]) / span_s if known else math.nan)
        if c.name in rows
        else _from_law(c, 0.0 if known else math.nan)
        for c in scenario.classes
    }


def _check_known(scenario: Scenario, names: Iterable[str], *, where: str) -> None:
    """Raise DataError for a class that the scenario lacks: its load would be left out."""
    known = [c.name for c in scenario.classes]
    if unknown := sorted(set(names) - set(known)):
        raise DataError(
            f"one of the scenario's classes ({', '.join(known)})",
            where=where,
            field="request_class",
            value=", ".join(unknown),
        )


def _from_rows(c: RequestClass, rows: pd.DataFrame, rate_rps: float) -> ClassLoad:
    prompt = rows["prompt_tokens"].to_numpy(dtype=np.float64)
    output = np.maximum(rows["output_tokens"].to_numpy(dtype=np.float64), 1.0)
    size = rows["size"].astype(float).fillna(rows["prompt_tokens"]) if "size" in rows else prompt
    return ClassLoad(
        request_class=c.name,
        rate_rps=rate_rps,
        samples=len(rows),
        prompt_mean=float(prompt.mean()),
        output_mean=float(output.mean()),
        context_mean=float((output * (prompt + output / 2)).sum() / output.sum()),
        size_mean=float(size.mean()),
        prompt_quantile=_empirical(prompt),
        output_quantile=_empirical(output),
        size_quantile=_empirical(size),
        origin="measured",
    )


def _empirical(values: Any) -> Quantiles:
    """Return the quantiles of a sample: the value at or above each."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    last = len(ordered) - 1
    return lambda q: float(ordered[math.ceil(round(q * last, 9))])


def _from_profile(scenario: Scenario, profile: TrafficProfile) -> dict[str, ClassLoad]:
    demands = dict(profile.by_class) or {scenario.request_class().name: profile.overall}
    _check_known(scenario, demands, where=profile.source)
    return {
        c.name: _from_demand(c, demands[c.name]) if c.name in demands else _from_law(c, 0.0)
        for c in scenario.classes
    }


def _from_demand(c: RequestClass, demand: GroupDemand) -> ClassLoad:
    prompt, output = demand.prompt_tokens, demand.output_tokens
    output_mean = max(output.mean, 1.0)
    spread = 0.0 if math.isnan(output.std) else output.std
    return ClassLoad(
        request_class=c.name,
        rate_rps=demand.arrivals.rate_rps,
        samples=prompt.n,
        prompt_mean=prompt.mean,
        output_mean=output_mean,
        context_mean=prompt.mean + (output_mean**2 + spread**2) / (2 * output_mean),
        size_mean=prompt.mean if c.size is None else size_mean(c.size),
        prompt_quantile=lambda q: _next_known(prompt, q),
        output_quantile=lambda q: _next_known(output, q),
        size_quantile=lambda q: (
            _next_known(prompt, q) if c.size is None else size_quantile(c.size, q)
        ),
        origin="measured",
    )


def _next_known(found: Lengths, quantile: float) -> float:
    """Return the lowest known quantile at or above ``quantile``, else the largest length."""
    known = sorted((int(name[1:]) / 10 ** len(name[1:]), name) for name in found.quantiles)
    for probability, name in known:
        if probability >= quantile:
            return found[name]
    return found.max


def _shape_rates(scenario: Scenario) -> dict[str, float]:
    """Return each class's sustained rate at its share.

    Of steps it is the first level, of a spike its base, of any other planned shape its mean. Of a
    closed loop it is an upper bound, the users over their mean think time: answers take time too.
    Source (bound): Denning and Buzen, "The operational analysis of queueing network models", ACM
    Computing Surveys 10(3), 1978 (bottleneck analysis).
    """
    shape = scenario.traffic.shape
    total = math.nan
    if isinstance(shape, Steady):
        total = shape.rate_rps * (scenario.pool().replicas if shape.per_replica else 1)
    elif isinstance(shape, Step):
        total = shape.start_rps
    elif isinstance(shape, Spike):
        total = shape.base_rps
    elif isinstance(shape, ClosedLoop):
        total = shape.users / shape.mean_think_s if shape.mean_think_s > 0 else math.nan
    elif not isinstance(shape, Replay):
        plan = planned_rate(shape, duration_s=scenario.traffic.lasts_s)
        total = plan.expected / plan.end_s
    shares = sum(c.share for c in scenario.classes)
    return {c.name: total * c.share / shares for c in scenario.classes}
