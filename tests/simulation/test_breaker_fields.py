"""Every field of a breaker that the simulation is meant to heed changes something."""

import numpy as np
import pytest

from capplan.scenario.breakers import (
    Breaker,
    Greedy,
    MaxTokens,
    PauseAndCompact,
    Refuse,
    Release,
    Route,
    ShrinkBatch,
    StartStandby,
    Watch,
)
from capplan.scenario.files import with_values
from capplan.simulation import simulate

G = "breakers.guard"
SLOW = {
    "metric": "e2e_s", "quantile": 0.5, "above": 0.4, "below": None, "window_s": 1.0,
    "min_samples": 5,
}  # fmt: skip
REFUSE = [{"kind": "refuse"}]
ROUTE = [{"kind": "route", "to": "other"}]
CUT = [{"kind": "max_tokens", "tokens": 3}]
SHRINK = [{"kind": "shrink_batch", "max_num_seqs": 2, "max_num_batched_tokens": 150}]
WINDOW = [{"kind": "shrink_batch", "max_batch_size": 2, "max_queue_delay_s": 0.01}]
STANDBY = [{"kind": "start_standby"}]
GREEDY = [{"kind": "greedy"}]
WIDE = {"pools.llm.batching.beam_width": 2, "pools.llm.batching.max_num_seqs": 6}
RETRY = {"classes.chat.retry": {"max_attempts": 3}}

FIELDS = [
    (Watch, "metric", {}, (f"{G}.when.metric", "running")),
    (Watch, "of", {}, (f"{G}.when.of", "gateway")),
    (Watch, "above", {}, (f"{G}.when.above", 12)),
    (Watch, "below", {}, (f"{G}.when", {"metric": "queue_length", "below": 3})),
    (Watch, "quantile", {f"{G}.when": SLOW, f"{G}.then": CUT}, (f"{G}.when.quantile", 0.95)),
    (
        Watch,
        "request_class",
        {f"{G}.when": SLOW, f"{G}.then": CUT},
        (f"{G}.when.request_class", "bulk"),
    ),
    (Watch, "window_s", {f"{G}.when": SLOW, f"{G}.then": CUT}, (f"{G}.when.window_s", 4.0)),
    (Watch, "min_samples", {f"{G}.when": SLOW, f"{G}.then": CUT}, (f"{G}.when.min_samples", 30)),
    (Release, "below", {}, (f"{G}.release.below", 1)),
    (
        Release,
        "above",
        {f"{G}.when": {"metric": "queue_length", "below": 2}, f"{G}.then": CUT},
        (f"{G}.release.above", 9),
    ),
    (Release, "limit_factor", {}, (f"{G}.release.limit_factor", 0.3)),
    (Release, "for_s", {}, (f"{G}.release.for_s", 0.6)),
    (Release, "after_s", {f"{G}.release": {"below": 0}}, (f"{G}.release.after_s", 0.5)),
    (Breaker, "pool", {}, (f"{G}.pool", "other")),
    (Breaker, "tier", {}, (f"{G}.tier", 2)),
    (Breaker, "for_s", {}, (f"{G}.for_s", 0.4)),
    (Breaker, "cool_down_s", {}, (f"{G}.cool_down_s", 2.0)),
    (Breaker, "check_every_s", {}, (f"{G}.check_every_s", 0.75)),
    (Breaker, "then", {}, (f"{G}.then", CUT)),
    (Breaker, "when", {}, (f"{G}.when", SLOW)),
    (Breaker, "release", {}, (f"{G}.release", {"below": 1})),
    (Refuse, "classes", {}, (f"{G}.then.0.classes", ["bulk"])),
    (Refuse, "only_sheddable", {}, (f"{G}.then.0.only_sheddable", True)),
    (Refuse, "at", {}, (f"{G}.then.0.at", "gateway")),
    (Refuse, "status", {}, (f"{G}.then.0.status", 429)),
    (Refuse, "retry_after_s", RETRY, (f"{G}.then.0.retry_after_s", 0.2)),
    (Route, "classes", {f"{G}.then": ROUTE}, (f"{G}.then.0.classes", ["bulk"])),
    (Route, "to", {f"{G}.then": ROUTE}, (f"{G}.then.0.to", "third")),
    (MaxTokens, "classes", {f"{G}.then": CUT}, (f"{G}.then.0.classes", ["bulk"])),
    (MaxTokens, "tokens", {f"{G}.then": CUT}, (f"{G}.then.0.tokens", 9)),
    (Greedy, "classes", WIDE | {f"{G}.then": GREEDY}, (f"{G}.then.0.classes", ["bulk"])),
    (PauseAndCompact, "kind", {}, (f"{G}.then", [{"kind": "pause_and_compact"}])),
    (
        StartStandby,
        "ready_at_most_s",
        {f"{G}.then": STANDBY, f"{G}.pool": None, f"{G}.when.origins": {"above": "default"}},
        (f"{G}.then.0.ready_at_most_s", 0.1),
    ),
    (ShrinkBatch, "max_num_seqs", {f"{G}.then": SHRINK}, (f"{G}.then.0.max_num_seqs", 1)),
    (
        ShrinkBatch,
        "max_num_batched_tokens",
        {f"{G}.then": SHRINK},
        (f"{G}.then.0.max_num_batched_tokens", 40),
    ),
    (
        ShrinkBatch,
        "max_batch_size",
        {f"{G}.then": WINDOW, f"{G}.pool": "vector", f"{G}.when.above": -1},
        (f"{G}.then.0.max_batch_size", 1),
    ),
    (
        ShrinkBatch,
        "max_queue_delay_s",
        {f"{G}.then": WINDOW, f"{G}.pool": "vector", f"{G}.when.above": -1},
        (f"{G}.then.0.max_queue_delay_s", 0.2),
    ),
]
ELSEWHERE = {
    Watch: {"origins"},
    Release: {"origins"},
    Breaker: {"name", "owner", "origins"},
    Refuse: {"kind", "origins"},
    Route: {"kind"},
    MaxTokens: {"kind", "origins"},
    Greedy: {"kind"},
    PauseAndCompact: set(),
    StartStandby: {"kind", "origins"},
    ShrinkBatch: {"kind", "origins"},
}
"""Names, and what only the reader of a result asks."""


@pytest.fixture(name="base")
def _base(build):
    step = {"kind": "linear", "base_s": 0.02, "per_prefill_token_s": 1e-5}
    step |= {"per_sequence_s": 1e-3, "per_context_token_s": 0.0}
    batching = {"kind": "continuous", "max_num_seqs": 4, "kv_blocks": 500, "step_time": step}
    return build(
        classes=[
            {"name": "chat", "pool": "llm"},
            {"name": "bulk", "pool": "llm", "sheddable": True},
            {"name": "embed", "pool": "vector"},
        ],
        gateway={"concurrency": 30},
        pools=[
            {
                "name": "llm",
                "batching": batching,
                "standby": {"replicas": 1, "ready": {"kind": "fixed", "seconds": 0.3}},
            },
            {"name": "other", "batching": batching},
            {"name": "third", "batching": batching | {"max_num_seqs": 1}},
            {
                "name": "vector",
                "batching": {
                    "kind": "dynamic",
                    "max_batch_size": 4,
                    "max_queue_delay_s": 0.3,
                    "service": {"base_s": 0.2},
                },
            },
        ],
        breakers=[
            {
                "name": "guard",
                "pool": "llm",
                "when": {"metric": "queue_length", "above": 4},
                "then": REFUSE,
                "check_every_s": 0.1,
            },
            {
                "name": "first",
                "tier": 1,
                "when": {"metric": "queue_length", "above": 9},
                "then": [{"kind": "refuse", "classes": ["embed"]}],
            },
        ],
    )


@pytest.fixture(name="trace")
def _trace(trace_of):
    rng = np.random.default_rng(5)
    return trace_of(
        np.cumsum(rng.exponential(1 / 40, 200)) + rng.choice([0, 0, 6], 200),
        prompt_tokens=rng.integers(10, 300, 200),
        output_tokens=rng.integers(1, 30, 200),
        request_class=rng.choice(["chat", "bulk", "embed"], 200, p=[0.5, 0.3, 0.2]),
    )


@pytest.mark.parametrize(
    ("given", "change"), [pytest.param(g, c, id=f"{p.__name__}.{n}") for p, n, g, c in FIELDS]
)
def test_a_field_changes_the_run(base, trace, given, change):
    before = with_values(base, given)
    path, value = change
    one, two = (simulate(s, trace=trace) for s in (before, with_values(before, {path: value})))
    assert not (one.requests.equals(two.requests) and one.timeline.equals(two.timeline))


def test_every_field_acts_or_is_named_as_read_elsewhere():
    heeded = {}
    for part, name, _, _ in FIELDS:
        heeded.setdefault(part, set()).add(name)
    for part, others in ELSEWHERE.items():
        assert set(part.model_fields) == heeded[part] | others, part.__name__
