"""Compiled steps: the same times as Python's, and a cache that is never stale or in the way."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.replica.compiled.engine import CompiledEngine, not_compiled
from capplan.replica.compiled.laws import step_law, step_seconds
from capplan.replica.compiled.step_laws import LinearStepTime, ScaledStepTime, TableStepTime, curve
from capplan.replica.job import Job
from capplan.replica.kernel_tables import mix_table
from capplan.replica.step_time import step_time
from capplan.scenario.batching import ContinuousBatching, Reservation
from capplan.scenario.layers import Queue
from capplan.scenario.pools import Pool

LINEAR = LinearStepTime(4e-3, 1.2e-5, 1.3e-5, 3.9e-8)
LAWS = {
    "linear": LINEAR,
    **{
        name: step_time(
            Pool(name="llm", model=name, accelerator=device, batching=ContinuousBatching())
        )
        for name, device in (
            ("Llama-3.1-8B", "H100-SXM"),
            ("Mixtral-8x7B-v0.1", "H200"),
            ("gemma-2-9b", "A100-80GB"),
            ("gpt-oss-20b", "H100-SXM"),
            ("Qwen3.5-35B-A3B", "H200"),
        )
    },
    "pipeline": step_time(
        Pool(
            name="llm",
            model="Qwen3-30B-A3B",
            accelerator="H100-SXM",
            tensor_parallel=2,
            pipeline_parallel=3,
            batching=ContinuousBatching(),
        )
    ),
    "ahead": step_time(
        Pool(
            name="llm",
            model="Llama-3.2-1B",
            accelerator="B200",
            batching=ContinuousBatching(async_scheduling=True),
        )
    ),
}


def rising(rng, size):
    return curve(np.cumsum(rng.random(size)).tolist(), rng.random(size).tolist())


def mix(rng, *, per_prompt, empty):
    """Return a table of random numbers that was not measured beside the longest chunk."""
    chunks, befores = (16.0, 256.0, 2048.0), (0.0, 512.0, 4096.0)
    return mix_table(
        lambda chunk, before, n, k: None if chunk == chunks[2] and n else rng.random(),
        chunks=chunks, befores=befores, sequences=(1.0, 8.0, 64.0, 300.0),
        contexts=(64.0, 1024.0, 9000.0), per_prompt=per_prompt, empty=empty,
    )  # fmt: skip


def table_laws():
    rng = np.random.default_rng(1)
    scales = {"dense_scale": 1.1, "context_scale": 0.9, "prefill_scale": 1.3, "fixed_s": 2e-3}
    scales |= (beside := {"mixed_fraction": 0.7, "narrow_tokens": 16.0})
    yield replace(LAWS["Llama-3.1-8B"], **beside, tile_fraction=0.6)
    plain = {
        name: getattr(LAWS["Llama-3.1-8B"], name)
        for name in ("per_prefill_token_s", "per_pair_s", "per_sequence_s", "per_context_token_s")
    }
    for hidden in (False, True):
        host = {"host_s": 0.4, "host_per_sequence_s": 1e-3, "host_hidden": hidden}
        for attention in ({"mix": mix(rng, per_prompt=True, empty=True)}, plain):
            curves = {"dense": rising(rng, 5), "head": rising(rng, 3)}
            yield (tables := TableStepTime(**curves, **attention, **host))
            yield ScaledStepTime(base=tables, **scales)
        for empty in (False, True):
            yield (tables := TableStepTime(mix=mix(rng, per_prompt=False, empty=empty), **host))
            yield ScaledStepTime(base=tables, **scales)
    yield ScaledStepTime(base=LINEAR, **scales)


LAWS |= {f"{type(law).__name__} {i}": law for i, law in enumerate(table_laws())}


@pytest.mark.parametrize("name", LAWS)
@given(
    tokens=st.integers(0, 8192),
    before=st.integers(0, 100_000) | st.just(0),
    prompts=st.integers(1, 5),
    sequences=st.integers(0, 512),
    mean=st.integers(1, 20_000),
)
def test_a_compiled_step_takes_exactly_as_long(name, *, tokens, before, prompts, sequences, mean):
    law = LAWS[name]
    pairs, context = tokens * (before + tokens / 2 / prompts), sequences * mean
    record, tables = step_law(law)
    found = step_seconds(
        record[0], tables, float(tokens), float(pairs), float(sequences), float(context)
    )
    assert found == law.seconds(tokens, pairs, sequences, context)


def test_what_has_no_compiled_form_is_named():
    assert not_compiled(ContinuousBatching(), LINEAR) == []
    changed = {
        "kv_layout": {"kv_layout": "contiguous"},
        "beam_shares_prompt": {"beam_width": 2, "beam_shares_prompt": True},
        "reserved": {"reserved": (Reservation(priority_at_most=0, fraction=0.1),)},
        "priority_preemption": {"priority_preemption": True, "scheduler": Queue(order="priority")},
        "scheduler.order": {"scheduler": Queue(order="weighted_fair")},
    }
    for name, values in changed.items():
        assert not_compiled(ContinuousBatching(**values), LINEAR) == [name]

    class Other:
        def seconds(self, *_):
            return 1.0

    assert not_compiled(ContinuousBatching(), Other()) == ["step_time (Other)"]


class Recorder:
    """A batching that adds the names of the fields it is asked for to a set."""

    def __init__(self, batching, read):
        self._batching, self._read = batching, read

    def __getattr__(self, name):
        self._read.add(name)
        return getattr(self._batching, name)


def test_every_field_of_a_batching_is_read_by_the_compiled_engine_or_acts_elsewhere():
    """A new field that only the reference engine reads must be named by ``not_compiled``."""
    elsewhere = {
        *("kind", "kv_blocks", "gpu_memory_utilization", "hybrid_kv_context_tokens"),  # memory
        "disable_hybrid_kv_cache_manager",
        *("step_time", "cancel_frees", "poison"),  # the step law, the replica, its steps
        "contiguous",  # of kv_layout
    }
    clock, read = type("Clock", (), {"now": 0.0, "reached": 0})(), set()
    for caching in (False, True):
        batching = Recorder(ContinuousBatching(prefix_caching=caching), read)
        engine = CompiledEngine(batching, step_time=LINEAR, kv_blocks=8, clock=clock, rank=0)
        engine.join(Job(prompt_tokens=5, output_tokens=5), 0.0)
        assert engine.refusal(Job(prompt_tokens=5, output_tokens=5)) is None
    assert set(ContinuousBatching.model_fields) - read == elsewhere


MODULE = """
from capplan.replica.compiled.jit import compiled

@compiled
def one_more(x):
    return x + 1

assert one_more(1) == 2
stats = getattr(one_more, "stats", None)
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def run(folder, **environment):
    """Return how often a process took a function from the cache, and how often it did not."""
    clean = {k: v for k, v in os.environ.items() if k not in {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME"}}
    done = subprocess.run(
        [sys.executable, "-B", folder / "module.py"],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, done.stdout.split()))


@pytest.fixture(name="folder")
def _folder(tmp_path):
    (tmp_path / "module.py").write_text(MODULE)
    return tmp_path


def read_only(folder):
    """Keep numba from writing beside the module, whoever runs this."""
    (folder / "__pycache__").write_text("not a folder")


def test_compiled_code_is_there_for_the_next_process(folder):
    assert [run(folder), run(folder)] == [(0, 1), (1, 0)]


def test_beside_a_read_only_package_the_cache_is_the_user_s(folder):
    read_only(folder)
    home = {"HOME": str(folder / "home")}
    assert [run(folder, **home), run(folder, **home)] == [(0, 1), (1, 0)]


def test_where_nothing_can_be_written_each_process_compiles(folder):
    read_only(folder)
    home = {"HOME": "/dev/null"}
    assert [run(folder, **home), run(folder, **home)] == [(0, 1), (0, 1)]


def test_numba_cache_dir_decides(folder):
    where = {"NUMBA_CACHE_DIR": str(folder / "cache")}
    assert [run(folder, **where), run(folder, **where)] == [(0, 1), (1, 0)]
    assert not (folder / "__pycache__").exists()
    assert list((folder / "cache").rglob("*.nbi"))


CALLER = """
import sys
from dataclasses import replace
from capplan.replica.compiled.jit import compiled, is_compiled
from callee import number

@compiled
def twice():
    return 2 * number()

there = is_compiled(twice)
print(twice(), sum(twice.stats.cache_hits.values()), int(there))
assert is_compiled(twice)
"""
CALLEE = """
from capplan.replica.compiled.jit import compiled

@compiled
def number():
    return {}
"""


def test_an_edited_callee_is_noticed_by_its_caller_in_another_module(tmp_path):
    (tmp_path / "module.py").write_text(CALLER)
    found = []
    for number in (10, 10, 15):
        (tmp_path / "callee.py").write_text(CALLEE.format(number))
        found.append(run(tmp_path))
    assert found == [(20, 0, 0), (20, 1, 1), (30, 0, 0)]
