"""Step time from measured kernels: dense layers over tokens, attention over what it attends to.

A step is the sum of its kernels: every layer's dense kernels at the step's tokens, its attention
at the step's prefill chunk and decode batch, and the output head at the sequences that get a
token. The host's work is not in a profile: ``overhead_s`` and ``per_sequence_s``, added to the
kernels, or hidden behind them if steps are formed ahead.

Two layouts are read:

- LLMServingSim's (Cho et al., "LLMServingSim", IISWC 2024; ``profiler/perf``, 2026):
  ``dense.csv``, ``per_sequence.csv``, ``attention.csv[.gz]``, times in µs, of one layer;
- Vidur's (Agrawal et al., "Vidur", MLSys 2024; ``data/profiling/compute``): ``mlp.csv[.gz]``,
  times in ms, of one layer. Without an ``attention.csv`` beside it, and for the output
  head, the roofline stands in.

Trust it for the model, accelerator and tensor parallelism that were profiled; the profile's engine
version decides its kernels. Attention is looked up at the mean context of the decode batch: a
batch of very unequal contexts is up to 20 % slower in attention than its mean tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from capplan.catalog import accelerator, model
from capplan.replica.compiled.step_laws import Curve, MixTable, TableStepTime, check_axis, curve
from capplan.replica.memory import accelerator_of, model_of
from capplan.replica.roofline import hides_host, one_stage, roofline_step
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import TablesStep
from capplan.schema import DataError

US = 1e-6
MS = 1e-3

FILES = ("dense.csv", "mlp.csv", "mlp.csv.gz")
Time = Callable[[float, float, float, float], float | None]
"""Chunk, tokens before it, decoding sequences, context of each: seconds, None if not known."""

PER_LAYER = (
    "layernorm", "qkv_proj", "rotary_emb", "o_proj", "layernorm", "gate_up_proj", "act_fn",
    "down_proj",
)  # fmt: skip
"""Dense kernels of one layer in LLMServingSim's profile; two norms."""
ONCE = ("embedding", "final_layernorm")
PER_SEQUENCE = ("lm_head", "sampler")

VIDUR_LAYER = (
    "input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm",
    "mlp_up_proj", "mlp_act", "mlp_down_proj",
)  # fmt: skip
"""Kernels of one layer in Vidur's profile; the addition is part of vLLM's fused norm."""

ATTENTION_S = 14e-6
"""What decode attention of one layer takes beside reading KV, for a profile without it. Source:
aiconfigurator-core 0.12, vLLM, one short sequence on H100 and H200 (12 to 15 µs)."""


def kernel_tables(pool: Pool, law: TablesStep) -> TableStepTime:
    """Return the step time of a pool from the profile in a folder.

    Raises :class:`DataError` for a folder without a profile in one of the two layouts.
    """
    one_stage(pool, "tables")
    folder = Path(law.path)
    if (folder / "dense.csv").is_file():
        return _llmservingsim(pool, law, folder)
    for name in ("mlp.csv", "mlp.csv.gz"):
        if (folder / name).is_file():
            return _vidur(pool, law, folder / name)
    raise DataError("a folder with dense.csv or mlp.csv", where=folder, field="step_time.path")


def _llmservingsim(pool: Pool, law: TablesStep, folder: Path) -> TableStepTime:
    layers = model_of(pool).num_hidden_layers
    dense = _wide(folder / "dense.csv", "tokens")
    heads = _wide(folder / "per_sequence.csv", "sequences")
    _have(dense, {*PER_LAYER, *ONCE}, folder / "dense.csv")
    _have(heads, PER_SEQUENCE, folder / "per_sequence.csv")
    each = dense[list(PER_LAYER)].sum(axis=1) * layers + dense[list(ONCE)].sum(axis=1)
    return TableStepTime(
        dense=_curve(each * US),
        head=_curve(heads[list(PER_SEQUENCE)].sum(axis=1) * US),
        mix=_attention(_found(folder, "attention.csv"), layers * US),
        host_s=law.overhead_s,
        host_per_sequence_s=law.per_sequence_s,
        host_hidden=hides_host(pool),
    )


def _vidur(pool: Pool, law: TablesStep, file: Path) -> TableStepTime:
    frame = _read(file)
    of = frame[frame["num_tensor_parallel_workers"] == pool.tensor_parallel]
    if of.empty:
        rule = f"one of the profiled {sorted(map(int, set(frame['num_tensor_parallel_workers'])))}"
        raise DataError(rule, where=file, field="tensor_parallel", value=pool.tensor_parallel)
    times = of.groupby("num_tokens").median(numeric_only=True)
    each = times[[f"time_stats.{name}.median" for name in VIDUR_LAYER]].sum(axis=1)
    embed = times["time_stats.emb.median"]
    rest = roofline_step(pool)
    layers = model_of(pool).num_hidden_layers
    most = 4096.0
    head = (rest.head_weights_s, max(rest.head_weights_s, rest.head_per_token_s * most))
    return TableStepTime(
        dense=_curve((each * layers + embed) * MS + layers * ATTENTION_S),
        head=curve((0.0, most), head),
        per_prefill_token_s=rest.per_prefill_token_s,
        per_pair_s=rest.per_pair_s,
        per_sequence_s=rest.per_sequence_s,
        per_context_token_s=rest.per_context_token_s,
        host_s=law.overhead_s,
        host_per_sequence_s=law.per_sequence_s,
        host_hidden=hides_host(pool),
    )


def _attention(file: Path, scale: float) -> MixTable:
    frame = _read(file)
    keys = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode"]
    _have(frame, {*keys, "time_us"}, file)
    axes = [sorted(float(x) for x in set(frame[key]) if x > 0) for key in keys]
    rows = frame[[*keys, "time_us"]].to_numpy(dtype=float).tolist()
    time = {tuple(row[:4]): row[4] * scale for row in rows}
    try:
        return mix_table(
            lambda *key: time.get(key),
            chunks=axes[0],
            befores=[0.0, *axes[1]],
            sequences=axes[2],
            contexts=axes[3],
            per_prompt=True,
            empty=True,
        )
    except ValueError as err:
        raise DataError(f"a whole grid ({err})", where=file) from err


def _wide(file: Path, by: str) -> pd.DataFrame:
    frame = _read(file)
    _have(frame, {"layer", by, "time_us"}, file)
    return frame.pivot_table(index=by, columns="layer", values="time_us")


def _curve(values: pd.Series[float]) -> Curve:
    return curve(tuple(map(float, values.index)), tuple(map(float, values)))


def _found(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise DataError("an existing file", where=folder / name)


def _read(file: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(file)
    except (OSError, ValueError) as err:
        raise DataError(f"a readable CSV file ({err})", where=file) from err


def _have(frame: pd.DataFrame, wanted: Iterable[str], file: Path) -> None:
    missing = sorted(set(wanted) - set(frame.columns))
    if missing:
        raise DataError("kernels or columns of the profile", where=file, field=", ".join(missing))


def mix_table(
    time: Time,
    *,
    chunks: Sequence[float],
    befores: Sequence[float],
    sequences: Sequence[float],
    contexts: Sequence[float],
    per_prompt: bool,
    empty: bool,
) -> MixTable:
    """Return the table of a function that is known on a grid of what a step mixes.

    It holds what a chunk takes alone, what a decode batch takes alone, and what the batch adds
    beside a chunk, because the three are straight over most of the grid, and because a grid is
    never whole: if the batch was not measured beside a long chunk, it adds what it adds beside
    a shorter one.

    Parameters
    ----------
    time
        The function; must be known for chunks alone and for decode batches alone.
    chunks, befores, sequences, contexts
        The grid, rising; chunks, sequences and contexts from above 0, befores from 0.
    per_prompt
        Whether several short prompts take as many times one of them.
    empty
        Whether nothing takes no time (a kernel), or as much as the least (a whole step).

    Raises
    ------
    ValueError
        If the function is not known for a chunk or a decode batch alone.
    """
    alone = [[_known(time, c, b, 0, 0) for b in befores] for c in chunks]
    measured = [[_known(time, 0, 0, n, k) for k in contexts] for n in sequences]
    nothing = [0.0] * len(contexts)
    decode = [nothing if empty else measured[0], *measured]
    beside: list[list[list[list[float]]]] = []
    for row, chunk in enumerate(chunks):
        shorter = beside[-1] if beside else [decode] * len(befores)
        beside.append([])
        for column, before in enumerate(befores):
            added = [
                [
                    _added(time(chunk, before, n, k), alone[row][column], other)
                    for k, other in zip(contexts, others, strict=True)
                ]
                for n, others in zip(sequences, shorter[column][1:], strict=True)
            ]
            beside[-1].append([nothing, *added])
    if empty:
        chunks = (0.0, *chunks)
        alone = [[0.0] * len(befores), *alone]
        beside = [[decode] * len(befores), *beside]
    axes = tuple(chunks), tuple(befores), (0.0, *sequences), tuple(contexts)
    for axis in axes:
        check_axis(axis)
    rows = [row for planes in beside for plane in planes for row in plane]
    return MixTable(float(per_prompt), *axes, *map(_flat, (decode, alone, rows)))


def _flat(rows: Iterable[Iterable[float]]) -> tuple[float, ...]:
    return tuple(value for row in rows for value in row)


def _known(time: Time, chunk: float, before: float, sequences: float, context: float) -> float:
    seconds = time(chunk, before, sequences, context)
    if seconds is None:
        msg = f"no time for chunk, before, sequences, context = {chunk, before, sequences, context}"
        raise ValueError(msg)
    return seconds


def _added(seconds: float | None, alone_s: float, otherwise_s: float) -> float:
    return otherwise_s if seconds is None else seconds - alone_s


def find_profile(root: str | Path, pool: Pool) -> Path:
    """Return the folder below ``root`` that profiles a pool's model on its accelerator.

    A folder counts if one or two of the names on the way to it are the model's id, and it or a
    ``meta.yaml`` above it names the accelerator: in any spelling that the catalogue knows, or as
    the file of one's own model or accelerator does. A folder ``tp2`` is of two accelerators. The
    root itself counts if it holds a profile, whatever it is called.
    Raises :class:`DataError` if there is none.
    """
    top = Path(root)
    if any((top / name).is_file() for name in FILES):
        return top
    wanted, device = model_of(pool).name, accelerator_of(pool).name
    for folder in sorted({file.parent for name in FILES for file in top.glob(f"**/{name}")}):
        parts = folder.relative_to(top).parts
        tp = next((part for part in parts if part == f"tp{pool.tensor_parallel}"), None)
        of_tp = tp is not None or not any(_is_tp(part) for part in parts)
        ids = [*parts, *("/".join(parts[i : i + 2]) for i in range(len(parts) - 1))]
        devices = [*parts, *(text for i in range(len(parts) + 1) for text in _meta(top, parts[:i]))]
        named = _names(model, ids, wanted) and _names(accelerator, devices, device)
        if of_tp and named:
            return folder
    rule = f"a kernel profile of {wanted} on {device} with tensor_parallel {pool.tensor_parallel}"
    raise DataError(rule, where=top, value="nothing")


def _is_tp(part: str) -> bool:
    return part.startswith("tp") and part[2:].isdigit()


def _meta(top: Path, parts: tuple[str, ...]) -> list[str]:
    """Return the accelerator that a ``meta.yaml`` names."""
    file = top.joinpath(*parts, "meta.yaml")
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.partition(":")[2].strip() for line in lines if line.startswith("gpu:")]


def _names(look_up: Callable[[str], Any], texts: Iterable[str], wanted: str) -> bool:
    """Return whether one of the texts is that name, or a spelling of it in the catalogue."""
    return any(wanted in (text, _known_name(look_up, text)) for text in texts)


def _known_name(look_up: Callable[[str], Any], text: str) -> str | None:
    if text.endswith((".yaml", ".yml", ".json")):
        return None
    for spelling in (text, text.upper()):
        with contextlib.suppress(DataError):
            return str(look_up(spelling).name)
    return None
