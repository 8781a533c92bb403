"""Laws beside the data: the frame of the chart and the sentence that says where they fail."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from capplan.formatting import format_value

if TYPE_CHECKING:
    from capplan.traffic.profile import TrafficProfile
    from capplan.traffic.profile.fits import Fit
    from capplan.traffic.trace import Trace

STEPS = np.concatenate([np.linspace(0.005, 0.98, 90), np.linspace(0.982, 0.999, 10)])
GAP = "gap (s)"
SHORTEST_SHOWN = 1e-6
"""A logarithmic axis has no place for zero; gaps below a microsecond are left out of the chart."""
LAW_NAMES = {"weibull": "Weibull"}
ALIKE = 2.0
"""Dispersion, times that of the law, above which the page calls the rate wandering."""


def fit_frame(trace: Trace, profile: TrafficProfile) -> pd.DataFrame:
    """Return quantiles of gaps and lengths beside those of the law that comes closest.

    Columns: quantity, source, value, share_fraction.
    """
    arrival = np.sort(trace.frame["arrival_s"].to_numpy())
    values = {
        GAP: np.diff(arrival),
        "prompt (tokens)": trace.frame["prompt_tokens"].to_numpy(),
        "output (tokens)": trace.frame["output_tokens"].to_numpy(),
    }
    parts = []
    for (quantity, found), fit in zip(values.items(), _fits(profile), strict=True):
        if len(found):
            parts.append((quantity, "data", np.quantile(found, STEPS, method="inverted_cdf")))
        if fit is not None:
            drawn = fit.quantile(STEPS)
            parts.append((quantity, "law", drawn if quantity == GAP else np.ceil(drawn)))
    frame = pd.DataFrame(
        {
            "quantity": np.repeat([part[0] for part in parts], len(STEPS)),
            "source": np.repeat([part[1] for part in parts], len(STEPS)),
            "value": np.concatenate([part[2] for part in parts]),
            "share_fraction": np.tile(STEPS, len(parts)),
        }
    )
    return frame[frame["value"] > SHORTEST_SHOWN]


def fit_sentence(profile: TrafficProfile) -> str:
    """Return which law comes closest to the gaps and lengths, and where each fails."""
    gaps, prompt, output = _fits(profile)
    names = (("gaps", gaps, "_s"), ("prompts", prompt, "_tokens"), ("outputs", output, "_tokens"))
    told_of = [_fit_told(name, fit, unit) for name, fit, unit in names]
    return " ".join([*told_of, _wandering(profile, gaps)])


def _fits(profile: TrafficProfile) -> tuple[Fit | None, Fit | None, Fit | None]:
    overall = profile.overall
    gaps = overall.gap_fits[0] if overall.gap_fits else None
    return gaps, overall.prompt_fit, overall.output_fit


def _fit_told(name: str, fit: Fit | None, unit: str) -> str:
    if fit is None:
        return f"No law is fitted to the {name}: they are too few or all alike."
    worst, ratio = fit.worst_quantile()
    off = format_value(fit.ks, "_fraction")
    verdict = "which chance explains" if fit.holds else "which chance does not explain"
    law = LAW_NAMES.get(fit.law, fit.law)
    return (
        f"The {law} law of the {name} is off by up to {off} of the requests, at "
        f"{format_value(fit.worst_at, unit)}, {verdict}; its {_quantile_name(worst)} is {format_value(ratio)} "
        f"times the data's."
    )


def _quantile_name(name: str) -> str:
    return "p99.9" if name == "p999" else name


def _wandering(profile: TrafficProfile, gaps: Fit | None) -> str:
    """Return what a law of the gaps makes of long windows: CV² (Cox, Renewal Theory, 1962)."""
    windows = profile.overall.arrivals.index_of_dispersion
    known = [(float(w), v) for w, v in windows.items() if math.isfinite(v)]
    if gaps is None or not known:
        return ""
    width, found = known[-1]
    law = gaps.parameters.get("cv", 1.0) ** 2
    more = found > ALIKE * law
    judged = "more than such gaps make: its rate wanders" if more else "no more than such gaps make"
    return (
        f"Independent gaps of that law have an index of dispersion of {format_value(law)} in long windows; "
        f"the trace has {format_value(found)} in windows of {format_value(width, '_s')}, {judged}."
    )
