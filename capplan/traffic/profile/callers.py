"""Callers: tenants, priorities, streaming, sessions, shared prefixes, acceptable waits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from capplan.statistics import quantiles
from capplan.traffic.profile.arrivals import gap_cv

LARGEST = 20
PILE_FRACTION = 0.01
PILE_WIDTH = 0.01
LEAST_PILE = 5
Floats = npt.NDArray[np.float64]


def streaming_fraction(frame: pd.DataFrame) -> float:
    """Return the share of streamed answers among the rows that state it; NaN for none."""
    if "streaming" not in frame:
        return math.nan
    known = frame["streaming"].dropna()
    return float(known.astype(bool).mean()) if len(known) else math.nan


def priorities(frame: pd.DataFrame) -> dict[str, float] | None:
    """Return the share of requests by priority; None for a trace without priorities."""
    if "priority" not in frame or frame["priority"].isna().all():
        return None
    shares = frame["priority"].dropna().astype(int).value_counts(normalize=True).sort_index()
    return {str(priority): float(share) for priority, share in shares.items()}


def tenants(frame: pd.DataFrame, rate_rps: float) -> dict[str, Any] | None:
    """Return the number of tenants, the shares of the largest and their burstiness."""
    if "tenant" not in frame or frame["tenant"].isna().all():
        return None
    sizes = frame["tenant"].value_counts()
    shares = sizes / sizes.sum()
    arrival = frame["arrival_s"]
    largest = [
        {
            "tenant": str(name),
            "share": float(shares[name]),
            "rate_rps": float(sizes[name]) / len(frame) * rate_rps,
            "gap_cv": gap_cv(arrival[frame["tenant"] == name].to_numpy()),
        }
        for name in sizes.index[:LARGEST]
    ]
    return {
        "count": len(sizes),
        "top1_share": float(shares.iloc[0]),
        "top5_share": float(shares.iloc[:5].sum()),
        "largest": largest,
    }


def sessions(frame: pd.DataFrame, service_s: Floats, origin: str) -> dict[str, Any] | None:
    """Return turns per session and the think time between an answer and the next call.

    Think time = gap between two calls of a session − service time of the first. A call before the
    end of the previous one counts as overlapping and is left out of the think times.
    """
    if "session" not in frame or frame["session"].isna().all():
        return None
    known = frame["session"].notna().to_numpy()
    codes = frame["session"][known].astype("category").cat.codes.to_numpy()
    arrival, service = frame["arrival_s"].to_numpy()[known], service_s[known]
    turns = np.bincount(codes)
    order = np.lexsort((arrival, codes))
    same = codes[order][1:] == codes[order][:-1]
    think = (arrival[order][1:] - arrival[order][:-1] - service[order][:-1])[same]
    waited = think[think >= 0]
    p50, p95 = quantiles(turns, [0.5, 0.95])
    return {
        "count": len(turns),
        "requests_per_session": {
            "mean": float(turns.mean()), "p50": p50, "p95": p95, "max": int(turns.max())
        },
        "single_request_fraction": float((turns == 1).mean()),
        "think_time_s": {**_spread(waited), "n": len(waited)},
        "overlapping_fraction": float((think < 0).mean()) if len(think) else math.nan,
        "service_time_origin": origin,
    }  # fmt: skip


def _spread(values: Floats) -> dict[str, float]:
    p50, p95 = quantiles(values, [0.5, 0.95])
    mean = float(values.mean()) if len(values) else math.nan
    return {"mean": mean, "p50": p50, "p95": p95}


def prefix_reuse(frame: pd.DataFrame, block_tokens: int | None) -> dict[str, Any] | None:
    """Return the share of the prompts that an unbounded prefix cache would hold, an upper bound.

    A block counts as held if it occurred in an earlier request and all blocks before it in the
    prompt are held too. ``reusable_token_fraction`` counts whole blocks of ``block_tokens``.
    """
    if "prefix_blocks" not in frame:
        return None
    lists = [x if isinstance(x, np.ndarray | list | tuple) else () for x in frame["prefix_blocks"]]
    sizes = np.array([len(x) for x in lists])
    if not sizes.any():
        return None
    held = _leading_held(np.concatenate([np.asarray(x, np.int64) for x in lists]), sizes)
    prompt = frame["prompt_tokens"].to_numpy()
    reused = np.minimum(held * block_tokens, prompt) if block_tokens else None
    return {
        "block_tokens": block_tokens,
        "blocks": int(sizes.sum()),
        "reusable_block_fraction": float(held.sum() / sizes.sum()),
        "reusable_token_fraction": (
            math.nan if reused is None else float(reused.sum() / max(1, prompt.sum()))
        ),
        "requests_with_reuse_fraction": float((held > 0).mean()),
        "basis": "unbounded cache, every block kept from its first use",
    }


def _leading_held(
    blocks: npt.NDArray[np.int64], sizes: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Return per request the number of leading blocks that earlier requests had."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    _, first, inverse = np.unique(blocks, return_index=True, return_inverse=True)
    held = owner[first][inverse] < owner
    place = np.arange(len(blocks)) - starts[owner]
    stop = np.where(held, sizes[owner], place)
    leading = np.zeros(len(sizes), np.intp)
    full = sizes > 0
    leading[full] = np.minimum.reduceat(stop, starts[full])
    return leading


def acceptable_wait(frame: pd.DataFrame) -> dict[str, Any]:
    """Return how long callers wait at most: ``source`` is deadline, timeout or unknown.

    *deadline*: the trace states deadlines. *observed client timeout*: at least 1 % of the observed
    latencies (and five) lie within 1 % of the largest, as they do if callers hang up.
    """
    if "deadline_s" in frame and frame["deadline_s"].notna().any():
        stated = frame["deadline_s"].dropna().to_numpy()
        p5, p50, p95 = quantiles(stated, [0.05, 0.5, 0.95])
        return {
            "source": "deadline",
            "n": len(stated),
            "min_s": float(stated.min()),
            "p5_s": p5,
            "p50_s": p50,
            "p95_s": p95,
        }
    timeout = _pile(frame)
    if timeout is not None:
        return {"source": "observed client timeout", "n": timeout[1], "p50_s": timeout[0]}
    return {"source": "unknown", "n": 0, "p50_s": math.nan}


def _pile(frame: pd.DataFrame) -> tuple[float, int] | None:
    if "observed_e2e_s" not in frame:
        return None
    observed = frame["observed_e2e_s"].dropna().to_numpy()
    if not len(observed):
        return None
    longest = float(observed.max())
    pile = int((observed >= longest * (1 - PILE_WIDTH)).sum())
    if pile < max(LEAST_PILE, PILE_FRACTION * len(observed)) or pile > len(observed) / 2:
        return None
    return longest, pile
