"""A short designed experiment on a server: the loads that tell the numbers of a step law apart.

Three runs, each with what the one before leaves together. *Prompts*: one request at a time, with
prompts of many lengths, up to twice the scenario's longest: what a prefill adds, and what lies
outside the engine. *Batches*: more and more users with short prompts and long answers: decode by
the sequences of a step and their context. *Mixed*: an open load of the scenario's own lengths at
half of what the server then gave: prefill and decode in one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from capplan.live.run import measure
from capplan.live.target import Target
from capplan.results import RunResult
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.files import with_values
from capplan.schema import DataError
from capplan.traffic.draw import draw
from capplan.traffic.trace import Trace, from_frame

RUN_S = 60.0
"""Length of each of the three runs, s: a judgement of the project, so that all take 3 minutes."""
LENGTHS = 8
"""Prompt lengths of the first run, and contexts of the second."""
SHORTEST_TOKENS = 32
PROBE_OUTPUT_TOKENS = 4
"""Output tokens of the first run: a first token, and steps to tell it from."""
BATCH_OUTPUT_TOKENS = 128
MIXED_FRACTION = 0.5
"""Share of the second run's token rate that the third asks for: busy, and not at its knee."""
MOST_REQUESTS = 100_000
"""Requests that a user has ready; more than a server answers in a run."""


def calibration_runs(
    scenario: Scenario, target: Target, *, seed: int = 0, confirmed: bool = False
) -> Iterator[tuple[str, RunResult]]:
    """Yield the runs of the experiment with their names; the first pool describes the server.

    Raises :class:`capplan.schema.DataError` for a pool without continuous batching, or a server
    that answers nothing.
    """
    pool = scenario.pools[0]
    if not isinstance(pool.batching, ContinuousBatching):
        rule = "continuous batching, whose steps are calibrated"
        raise DataError(rule, field=f"pools.{pool.name}.batching", value=pool.batching.kind)
    quiet = with_values(scenario, {"faults": [], "warmup_s": 0.0, "requests": None})
    drawn = draw(quiet, seed=seed).frame
    longest = min(pool.batching.max_model_len, int(drawn["prompt_tokens"].max()) * 2)
    run = partial(_answered, quiet, target, seed=seed, confirmed=confirmed)
    yield "prompts", run(prompts(longest))
    batched = run(batches(longest, pool.batching.max_num_seqs))
    yield "batches", batched
    yield "mixed", run(_mixed(quiet, batched, seed=seed))


def _answered(scenario: Scenario, target: Target, trace: Trace, **options: Any) -> RunResult:
    """Return a run; DataError if no request succeeds."""
    result = measure(scenario, target, trace=trace, **options)
    if not (result.requests["outcome"] == "succeeded").any():
        reasons = ", ".join(sorted(set(result.requests["reason"].dropna())))
        raise DataError("a server that answers", where=target.url, value=reasons)
    return result


def prompts(longest: int) -> Trace:
    """Return one user's requests with prompts of :data:`LENGTHS` lengths, again and again."""
    lengths = _ladder(SHORTEST_TOKENS, longest - PROBE_OUTPUT_TOKENS)
    return _closed([0.0], lengths, PROBE_OUTPUT_TOKENS)


def batches(longest: int, most: int) -> Trace:
    """Return the requests of users that join, 1, 2, 4, … up to ``most`` of them."""
    steps = [2**n for n in range(int(math.log2(most)) + 1)]
    starts = [RUN_S * index / len(steps) for index, count in enumerate(steps)
              for _ in range(count - (steps[index - 1] if index else 0))]  # fmt: skip
    output = min(BATCH_OUTPUT_TOKENS, longest // 2)
    lengths = _ladder(SHORTEST_TOKENS, max(longest // 4, SHORTEST_TOKENS))
    return _closed(starts, lengths, output)


def _ladder(least: int, most: int) -> Sequence[int]:
    return [int(n) for n in np.unique(np.geomspace(least, max(most, least), LENGTHS).round())]


def _closed(starts_s: Sequence[float], prompt_tokens: Sequence[int], output_tokens: int) -> Trace:
    """Return users that start at those times and send without a pause until the run ends."""
    each = min(MOST_REQUESTS // len(starts_s), 2_000)
    rng = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            {
                "arrival_s": start_s,
                "prompt_tokens": rng.choice(prompt_tokens, size=each),
                "user": f"u{user}",
            }
        )
        for user, start_s in enumerate(starts_s)
    ]
    frame = pd.concat(frames, ignore_index=True)
    frame = frame.assign(output_tokens=output_tokens, think_s=0.0)
    return from_frame(frame, source="calibration", duration_s=RUN_S)


def _mixed(scenario: Scenario, before: RunResult, *, seed: int) -> Trace:
    """Return the scenario's own lengths at a share of the tokens that the run before gave."""
    done = before.requests[before.requests["outcome"] == "succeeded"]
    late = done[done["intended_start_s"] > RUN_S / 2]
    tokens = (late if len(late) else done)["output_tokens"].sum() / (RUN_S / 2)
    drawn = draw(scenario, seed=seed).frame["output_tokens"].mean()
    rate_rps = max(MIXED_FRACTION * tokens / drawn, 1 / RUN_S)
    shape = {"kind": "steady", "rate_rps": float(rate_rps)}
    values = {"traffic.shape": shape, "traffic.duration_s": RUN_S, "traffic.mix": []}
    return draw(with_values(scenario, values), seed=seed)
