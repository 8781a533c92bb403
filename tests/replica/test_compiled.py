"""Compiled steps: the same times as Python's, one module, a cache that is never in the way."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.replica import compiled
from capplan.replica.calibrated import ScaledStepTime
from capplan.replica.fast import unsupported
from capplan.replica.grid import Curve
from capplan.replica.kernel_tables import KernelStepTime
from capplan.replica.mix_table import mix_table
from capplan.replica.silicon import SiliconStepTime
from capplan.replica.step_time import LinearStepTime, step_time
from capplan.replica.steplaw import step_law
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


def curve(rng, size):
    return Curve(tuple(np.cumsum(rng.random(size))), tuple(rng.random(size)))


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
    for hidden in (False, True):
        host = {"overhead_s": 0.4, "per_sequence_s": 1e-3, "host_hidden": hidden}
        for attention in (mix(rng, per_prompt=True, empty=True), LAWS["Llama-3.1-8B"]):
            curves = {"dense": curve(rng, 5), "head": curve(rng, 3)}
            yield KernelStepTime(**curves, attention=attention, **host)
        yield SiliconStepTime(steps=mix(rng, per_prompt=False, empty=False), **host)
    for base in (*table_laws_of_one_host(rng), LINEAR):
        yield ScaledStepTime(base=base, **scales)


def table_laws_of_one_host(rng):
    host = {"overhead_s": 0.4, "per_sequence_s": 1e-3}
    attention = mix(rng, per_prompt=True, empty=True)
    yield KernelStepTime(dense=curve(rng, 5), head=curve(rng, 3), attention=attention, **host)
    yield SiliconStepTime(steps=mix(rng, per_prompt=False, empty=True), **host)


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
    found = compiled.step_seconds(
        step_law(law), float(tokens), pairs, float(sequences), float(context)
    )
    assert found == law.seconds(tokens, pairs, sequences, context)


def test_what_is_not_compiled_is_named():
    assert unsupported(ContinuousBatching(), LINEAR) == []
    changed = {
        "kv_layout": "contiguous",
        "reserved": (Reservation(priority_at_most=0, fraction=0.1),),
    }
    for name, value in changed.items():
        assert unsupported(ContinuousBatching(**{name: value}), LINEAR) == [name]

    turns = Queue(order="weighted_fair")
    assert unsupported(ContinuousBatching(scheduler=turns), LINEAR) == ["scheduler.order"]

    class Other:
        def seconds(self, *_):
            return 1.0

    assert unsupported(ContinuousBatching(), Other()) == ["step_time (Other)"]


def test_compiled_functions_use_nothing_from_other_modules_of_the_package():
    """numba's cache takes no notice when such a module is edited."""
    tree = ast.parse(Path(compiled.__file__).read_text())
    imported = {
        name.asname or name.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("capplan")
        for name in node.names
    }
    assert imported == {"compiled"}  # the decorator
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 20
    for function in functions:
        assert ast.unparse(function.decorator_list[0]) in {"compiled", "intrinsic"}
        assert "compiled" not in {n.id for s in function.body for n in ast.walk(s)
                                  if isinstance(n, ast.Name)}  # fmt: skip


MODULE = """
from capplan.replica.jit import compiled

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
    told = subprocess.run(
        [sys.executable, "-B", folder / "module.py"],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(map(int, told.stdout.split()))


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
