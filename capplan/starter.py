"""A first scenario from a use case or a trace: at most 30 commented lines that run as they are."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capplan.bundled import data_path
from capplan.formatting import counted, format_value
from capplan.schema import DataError

if TYPE_CHECKING:
    from capplan.catalog.models import Model
    from capplan.scenario import Scenario
    from capplan.traffic.trace import Trace

MODEL = "meta-llama/Llama-3.1-8B"
ACCELERATOR = "H100-SXM-80GB"
QUANTILE = 0.95
"""Quantile of the suggested promises; the targets of ``data/use_cases/`` are for p95."""
REDUNDANCY = 1.2
"""Planned peak × this factor must fit the first guess of replicas, as in ``capplan size``: a habit
of the trade without derivation, which is why the starter calls it a guess."""
TOKEN_BUDGETS = (8192, 4096, 2048, 1024, 512)
"""Token budgets of a step to choose from: powers of two, from vLLM's largest default down."""
LENGTHS = ("prompt", "output")
MINUTE_S = 60.0
MOST_CLASSES = 4
"""Classes of a trace that a starter of 30 lines has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A number that no one promised or measured for this service, and its source in short."""

    value: float
    source: str


@cache
def use_cases() -> Mapping[str, Mapping[str, Default]]:
    """Return the defaults of each use case by quantity, from ``data/use_cases/use_cases.csv``.

    >>> use_cases()["chat"]["prompt_p50_tokens"].value
    1020.0
    """
    found: dict[str, dict[str, Default]] = {}
    with data_path("use_cases", "use_cases.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            default = Default(value=float(row["value"]), source=row["short"])
            found.setdefault(row["use_case"], {})[row["quantity"]] = default
    return found


def starter(
    *,
    name: str = "my-service",
    use_case: str = "chat",
    users: int | None = None,
    rps: float | None = None,
    trace: str | Path | None = None,
    model: str = MODEL,
    accelerator: str = ACCELERATOR,
) -> str:
    """Return the YAML text of a first scenario, each number with its source in a comment.

    Parameters
    ----------
    name
        Of the scenario.
    use_case
        Brings lengths, burstiness and suggested promises; with a trace, the promises alone.
    users, rps
        People who have access, or the planned peak in requests/s; one of them, unless a trace
        brings the load.
    trace
        A recording of the traffic to replay: a path, absolute or relative to the file that the
        text goes into, or a name of :func:`~capplan.catalog.tables.trace_names`.
    model, accelerator
        Names in the catalogue.

    Raises
    ------
    DataError
        For an unknown name, a load that is not stated, or a model that fits no group of up to 8
        accelerators.
    """
    defaults = _one_of(use_case)
    context = _model(model)
    load = _recorded(trace, defaults) if trace is not None else None
    load = load or _from_laws(use_case, defaults, context, users=users, rps=rps)
    pool = _pool_lines(model, accelerator, most_tokens=min(load.most_tokens, context))
    head = [
        f"# A starting point: {load.title}",
        "# default = neither promised nor measured for this service: replace it (data/use_cases/)",
        f"name: {name}  # heads every page",
    ]
    draft = "\n".join([*head, *load.lines, *pool]) + "\n"
    count, why = _first_guess(draft, load.peak_to_mean)
    guess = f"    replicas: {count}  # first guess: {why}; `capplan size` finds the number"
    text = draft.replace("    replicas: 1", guess)
    kind = "      kind: continuous"
    return text.replace(kind, "\n".join([kind, *_batch_lines(text)]))


def scenario(
    *,
    name: str = "my-service",
    use_case: str = "chat",
    users: int | None = None,
    rps: float | None = None,
    trace: str | Path | None = None,
    model: str = MODEL,
    accelerator: str = ACCELERATOR,
) -> Scenario:
    """Return the scenario of :func:`starter`, with the same options.

    >>> scenario(use_case="chat", users=1000).pool().model
    'meta-llama/Llama-3.1-8B'
    """
    return _parsed(
        starter(
            name=name,
            use_case=use_case,
            users=users,
            rps=rps,
            trace=trace,
            model=model,
            accelerator=accelerator,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """What calls: the lines of classes and traffic, and the longest request."""

    title: str
    lines: list[str]
    most_tokens: int
    peak_to_mean: float = 1.0
    """Rate of the busiest minute over the mean; laws state their peak as the rate."""


def _one_of(use_case: str) -> Mapping[str, Default]:
    known = use_cases()
    if use_case not in known:
        raise DataError(f"one of {', '.join(known)}", field="use_case", value=use_case)
    return known[use_case]


def _model(name: str) -> int:
    """Return the longest context of a model, tokens."""
    from capplan.catalog.lookup import model

    found: Model = model(name)
    return int(found.max_position_embeddings)


def _from_laws(
    use_case: str,
    defaults: Mapping[str, Default],
    context: int,
    *,
    users: int | None,
    rps: float | None,
) -> _Load:
    rate, why = _rate(use_case, defaults, users=users, rps=rps)
    longest = {n: int(defaults[f"{n}_max_tokens"].value) for n in LENGTHS}
    longest["output"] = min(longest["output"], context // 2)
    longest["prompt"] = min(longest["prompt"], context - longest["output"])
    lengths = []
    for name in LENGTHS:
        p50, p95 = (defaults[f"{name}_{q}_tokens"] for q in ("p50", "p95"))
        law = f"p50_tokens: {p50.value:.0f}, p95_tokens: {min(p95.value, longest[name]):.0f}"
        lengths.append(
            f"    {name}_tokens: {{kind: lognormal, {law}, max_tokens: {longest[name]}}}"
            f"  # default: {p50.source}"
        )
    duration_s = _duration_s(rate)
    cv = defaults.get("gap_cv")
    arrivals = (
        f"  arrivals: {{kind: gamma, cv: {cv.value:.3g}}}  # default: {cv.source}" if cv else ""
    )
    return _Load(
        title=f"{use_case}, {why}" if rps is None else f"{use_case}, {rate:g} requests/s",
        lines=[
            "classes:  # who calls: one entry for each kind of request with promises of its own",
            *_class_lines(use_case, defaults, longest["output"]),
            *lengths,
            "traffic:",
            f"  shape: {{kind: steady, rate_rps: {rate:.4g}}}  # planned peak: {why}",
            *([arrivals] if arrivals else []),
            f"  duration_s: {duration_s:.0f}  # enough requests to judge p{100 * QUANTILE:g}",
        ],
        most_tokens=sum(longest.values()),
    )


def _class_lines(name: str, defaults: Mapping[str, Default], longest_output: int) -> list[str]:
    """Return the lines of a class: name, owner, promises."""
    ttft, tpot, deadline = (defaults.get(n) for n in ("ttft_s", "tpot_s", "deadline_s"))
    promises, why = [f"quantile: {QUANTILE}"], []
    if ttft and tpot:
        promises += [f"ttft_s: {ttft.value:g}", f"tpot_s: {tpot.value:g}"]
        leaves_s = math.ceil(ttft.value + longest_output * tpot.value)
        why.append(f"{ttft.source}; deadline: TTFT + longest output × TPOT")
    if deadline:
        leaves_s = int(deadline.value)
        why.append(deadline.source)
    promises.append(f"deadline_s: {leaves_s}")
    return [
        f"  - name: {name}",
        "    owner: service team  # answers for these promises",
        *([] if ttft else ["    streaming: false  # its answers come whole"]),
        f"    promises: {{{', '.join(promises)}}}  # default: {'; '.join(why)}",
    ]


def _rate(
    use_case: str, defaults: Mapping[str, Default], *, users: int | None, rps: float | None
) -> tuple[float, str]:
    """Return the planned peak, requests/s, and how it came about."""
    if rps is not None:
        if not (rps > 0 and math.isfinite(rps)):
            raise DataError("a rate above 0", field="rps", value=rps)
        return rps, "as stated"
    names = ("active_fraction", "requests_per_active_user_per_min", "peak_to_mean")
    if users is None or not set(names) <= set(defaults):
        rule = "users or rps" if set(names) <= set(defaults) else (
            f"rps, since no source states how often a user of {use_case} calls"
        )  # fmt: skip
        raise DataError(rule, field="load", value=users)
    if users < 1:
        raise DataError("at least 1", field="users", value=users)
    active, each, peak = (defaults[n].value for n in names)
    why = (
        f"{counted(users, 'user')} × {format_value(active, '_fraction')} active × {each:g}/min "
        f"× {peak:g} at peak"
    )
    return users * active * each / 60 * peak, f"{why} (defaults)"


def _duration_s(rate_rps: float) -> float:
    """Return how long a run must be to judge the promised quantile, in whole hours as s."""
    from capplan.scenario.classes import Promises

    samples = 2 * Promises(quantile=QUANTILE).samples_needed()
    return 3600.0 * math.ceil(max(1.0, samples / rate_rps / 3600.0))


def _recorded(trace: str | Path, defaults: Mapping[str, Default]) -> _Load:
    """Return the load of a recorded trace, one class for each of its classes."""
    from capplan.traffic.sample import read_base

    found: Trace = read_base(str(trace))
    frame = found.frame
    names = ["all"]
    if "request_class" in frame and frame["request_class"].notna().any():
        names = [str(n) for n in frame["request_class"].value_counts().index]
    if len(names) > MOST_CLASSES:
        rule = f"at most {MOST_CLASSES} classes in a starter ({', '.join(names[:8])})"
        raise DataError(rule, where=trace, field="request_class", value=len(names))
    longest = {n: frame[f"{n}_tokens"].max() for n in LENGTHS}
    lines = [
        line for name in names for line in _class_lines(name, defaults, int(longest["output"]))
    ]
    span_s = float(found.duration_s or frame["arrival_s"].iloc[-1])
    return _Load(
        title=f"the traffic of {Path(trace).name} ({counted(len(frame), 'request')})",
        lines=[
            "classes:  # who calls; lengths come from the trace",
            *lines,
            "traffic:",
            f'  trace: "{trace}"  # replayed as recorded',
            "  shape: {kind: replay}",
            f"  duration_s: {math.ceil(span_s)}  # all of it",
        ],
        most_tokens=int(sum(longest.values())),
        peak_to_mean=_peak_to_mean(frame["arrival_s"].to_numpy(), span_s),
    )


def _peak_to_mean(arrival_s: Any, span_s: float) -> float:
    """Return the rate of the busiest minute over the mean rate."""
    import numpy as np

    counts = np.bincount((arrival_s // MINUTE_S).astype(np.int64))
    return float(counts.max() * span_s / (MINUTE_S * len(arrival_s))) if span_s > MINUTE_S else 1.0


def _pool_lines(model: str, accelerator: str, *, most_tokens: int) -> list[str]:
    held = "{owner: platform team, length: derived, wait_limit_s: derived, retry_after_s: derived}"
    return [
        f"gateway: {{owner: platform team, concurrency: derived, queue: {held}}}"
        "  # derived: what `capplan budget` shows; it ends only what is lost",
        "pools:  # what serves",
        "  - name: llm",
        "    owner: platform team  # answers for its queues",
        f"    model: {_yaml(model)}",
        f"    accelerator: {_yaml(accelerator)}",
        f"    tensor_parallel: {_fits(model, accelerator, most_tokens)}  # accelerators a replica",
        "    replicas: 1",
        f"    queue: {held}",
        "    router: {max_in_flight: derived}",
        "    batching:",
        "      kind: continuous",
        f"      max_model_len: {most_tokens}  # the longest prompt and answer, tokens",
        f"      scheduler: {held}",
        "      step_time: {kind: roofline}  # published peaks; `capplan calibrate` fits yours",
    ]


def _yaml(name: str) -> str:
    """Return a name as YAML, in quotes if it would be read as a number."""
    from capplan.scenario.yaml_text import parse_value

    return name if isinstance(parse_value(name), str) else f'"{name}"'


def _fits(model: str, accelerator: str, most_tokens: int) -> int:
    """Return the fewest accelerators that hold a replica with its longest request."""
    from capplan.catalog.accelerators import accelerator as known
    from capplan.replica.kv_capacity import kv_blocks
    from capplan.scenario.batching import ContinuousBatching
    from capplan.scenario.pools import Pool

    known(accelerator)
    reason: DataError | None = None
    for count in (1, 2, 4, 8):
        batching = ContinuousBatching(max_model_len=most_tokens)
        pool = Pool(
            name="llm", model=model, accelerator=accelerator, tensor_parallel=count,
            batching=batching,
        )  # fmt: skip
        try:
            kv_blocks(pool)
        except DataError as err:
            reason = err
            continue
        return count
    rule = f"a model that up to 8 × {accelerator} hold with a request of {most_tokens:,} tokens"
    raise DataError(rule, field="model", value=model) from reason


def _first_guess(text: str, peak_to_mean: float) -> tuple[int, str]:
    """Return replicas whose full batches carry the planned peak × redundancy, and why."""
    from capplan.budget import allocate

    classes = allocate(_parsed(text)).classes
    rate, drain = (sum(getattr(c, n) for c in classes) for n in ("rate_rps", "drain_rps"))
    if not (rate > 0 and drain > 0 and math.isfinite(drain)):
        return 1, "no rate to derive one from"
    peak = rate * peak_to_mean
    count = max(1, math.ceil(REDUNDANCY * peak / drain))
    return count, f"{REDUNDANCY} × {peak:.3g}/s at peak over {drain:.3g}/s of a full replica"


def _batch_lines(text: str) -> list[str]:
    """Return the lines that state fewer sequences or tokens where a promise asks for them."""
    from capplan.budget import allocate
    from capplan.scenario.files import with_values

    lines = []
    study = _parsed(text)
    stated = study.pool().batching
    for tokens in TOKEN_BUDGETS:
        found = allocate(study)
        if not any(reason.rule == "below_batch_window" for reason in found.findings):
            break
        study = with_values(study, {"pools.llm.batching.max_num_batched_tokens": tokens})
        lines = [f"      max_num_batched_tokens: {tokens}  # a step of them leaves time for TTFT"]
    most = found.settings.get("pools.llm.batching.max_num_seqs")
    if most not in (None, getattr(stated, "max_num_seqs", None)):
        lines.append(f"      max_num_seqs: {most}  # the most that keep TPOT: `capplan budget`")
    return lines


def _parsed(text: str) -> Scenario:
    from capplan.scenario.files import validate
    from capplan.scenario.yaml_text import parse_value

    return validate(parse_value(text), where="starter")
