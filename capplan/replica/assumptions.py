"""What an answer rests on beside its inputs: the error of step times, an engine's own defaults."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import cache

from capplan.bundled import data_path
from capplan.catalog import BYTES, accelerator
from capplan.catalog.engines import DEFAULTS_SOURCE
from capplan.formatting import format_value, listed
from capplan.replica.family_errors import family_errors
from capplan.replica.memory import SIXTEEN_BITS, model_of
from capplan.replica.memory_plan import OUTSIDE, is_compared
from capplan.scenario import Scenario
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.classes import RequestClass
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import CalibratedStep, LinearStep, StepTime

FIGURES: Mapping[tuple[str, str], str] = {
    ("e2e_s", "mean"): "mean E2E",
    ("tpot_s", "mean"): "mean TPOT",
    ("ttft_s", "p50"): "median TTFT",
}
"""The frozen errors that are quoted, by metric and figure."""
COMPARED_ON = ("h100", "rtx4090")
"""Accelerators of the measured runs. Source: ``data/validation/README.md``: vLLM with Llama-2-7B,
Llama-2-70B and Qwen3-14B on H100 and with Llama-3.1-8B on one RTX 4090, 16 bits."""


MOSTLY = 0.5
"""Share of a run's requests that waited at a limit above which its error is not quoted."""


LONGEST_S: Mapping[str, tuple[float, str]] = {
    "ttft_s": (10.0, "after which a person turns to something else"),
    "e2e_s": (600.0, "after which OpenAI's client gives up by default"),
    "deadline_s": (600.0, "after which OpenAI's client gives up by default"),
}
"""Times of an answer that is streamed, s, from which on their unit is doubted. Source: Nielsen,
"Usability Engineering", 1993, section 5.5 (10 s); openai-python, README, "Timeouts", 2025."""


def rests_on(scenario: Scenario) -> list[str]:
    """Return a sentence on each pool's step times and their known error, and on engine defaults.

    Promises so long that their unit is doubtful have one too.

    >>> from capplan.scenario.files import load_scenario
    >>> rests_on(load_scenario("benchmark"))[0]
    'Step times of `llm` are linear, as stated: not compared with a server.'
    """
    found = [sentence for pool in scenario.pools for sentence in _of_pool(pool)]
    return found + [sentence for c in scenario.classes for sentence in _doubts(c)]


def _doubts(c: RequestClass) -> Iterator[str]:
    """Yield times of a class that are longer than they can matter, as milliseconds are."""
    ends_s, left_s = c.retry.attempt_timeout_s, c.promises.deadline_s
    if ends_s is not None and left_s is not None and ends_s > left_s:
        yield (
            f"classes.{c.name}.retry.attempt_timeout_s: {ends_s:g} is taken for seconds: no "
            f"attempt ends then, as the caller leaves after {left_s:g} s."
        )
    for name, (longest_s, why) in LONGEST_S.items():
        value_s = getattr(c.promises, name)
        if c.streaming and value_s is not None and value_s > longest_s:
            yield (
                f"classes.{c.name}.promises.{name}: {value_s:g} is taken for seconds, beyond "
                f"{longest_s:g} s, {why}."
            )


def _of_pool(pool: Pool) -> Iterator[str]:
    batching, name = pool.batching, f"`{pool.name}`"
    law: StepTime | None = getattr(batching, "step_time", None)
    if law is None:
        yield f"Service times of {name} are as stated: not compared with a server."
        return
    if isinstance(law, LinearStep):
        yield f"Step times of {name} are linear, as stated: not compared with a server."
    else:
        yield f"Step times of {name} are {_source(law)}: {_error(pool, law)}."
        yield from _in_full(pool)
    if not isinstance(batching, ContinuousBatching):
        return
    if batching.kv_blocks is None and not pool.models and not is_compared(pool):
        yield f"KV memory of {name}: {OUTSIDE}."
    if assumed := pool.assumed_settings:
        taken = listed([f"{field} {value:,}" for field, value in assumed.items()])
        source = f"{DEFAULTS_SOURCE}, {pool.accelerator}"
        yield f"Engine settings of {name} not stated: {taken} ({source})."
    if "max_model_len" not in batching.model_fields_set:
        most = f"{batching.max_model_len:,} tokens"
        yield f"max_model_len of {name} is not stated: requests beyond {most} are refused."


def _in_full(pool: Pool) -> Iterator[str]:
    """Yield the catalogue's name of an accelerator whose own says less: A100 is of 80 GB."""
    short = pool.accelerator or ""
    if short and not short.endswith((".yaml", ".yml")):
        full = accelerator(short).name
        if full != short:
            yield f"Accelerator of `{pool.name}`: {short} is read as {full}."


def _source(law: StepTime) -> str:
    return f"calibrated over {law.base.kind}" if isinstance(law, CalibratedStep) else law.kind


def _error(pool: Pool, law: StepTime) -> str:
    """Return how far predictions from a source are from servers of the pool's kind."""
    errors = {key: max(map(abs, ends)) for key, ends in frozen_errors()[law.kind].items()}
    quoted = [f"{words} {format_value(errors[key], '_fraction')}" for key, words in FIGURES.items()]
    within = f"within {listed(quoted)} (data/validation)"
    if isinstance(law, CalibratedStep):
        return (
            f"fitted to a measured run; on other loads of the same server such a fit was {within}"
        )
    differs = unlike(pool)
    if not differs:
        return f"on measured runs that no limit bent {within}"
    unknown = f"not compared with a server of this kind ({'; '.join(differs)})"
    return "; ".join([unknown, *map(str, family_errors(pool))])


def unlike(pool: Pool) -> list[str]:
    """Return in what a pool differs from the servers that predictions were compared with."""
    if pool.models:
        return ["several models"]
    model, device = model_of(pool), pool.accelerator or ""
    found = {
        "a model of experts": model.num_experts,
        "layers with a sliding window": model.sliding_layers,
        "layers of linear attention": model.linear_layers,
        "weights below 16 bits": BYTES[pool.weight_dtype or model.served_dtype] < SIXTEEN_BITS,
        f"{pool.accelerators_per_replica} accelerators a replica": (
            pool.accelerators_per_replica > 1
        ),
        device or "no accelerator": not any(
            name in device.lower().replace("-", "").replace(" ", "") for name in COMPARED_ON
        ),
    }
    return [words for words, differs in found.items() if differs]


@cache
def frozen_errors() -> Mapping[str, Mapping[tuple[str, str], tuple[float, float]]]:
    """Return the least and largest error over the measured runs, by step times and figure.

    Without runs that the step times were fitted on, and those whose requests mostly waited at a
    limit: there a small error of step times is a large one of latencies.
    """
    found: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
    bent = {
        row["run"]
        for row in _rows("circumstances.csv")
        if row["left_out"] == "at_cap" and float(row["left_out_fraction"]) > MOSTLY
    }
    for row in _rows("errors.csv"):
        key, own = (row["metric"], row["figure"]), found.setdefault(row["step_times"], {})
        if key in FIGURES and row["run"] not in {*bent, *row["fitted_on"].split()}:
            error = float(row["error_fraction"])
            low, high = own.get(key, (error, error))
            own[key] = (min(low, error), max(high, error))
    return found


def _rows(name: str) -> list[dict[str, str]]:
    with data_path("validation", name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
