"""Step time from measured kernels: dense layers over tokens, attention over what it attends to.

A step is the sum of its kernels: every layer's dense kernels at the step's tokens, its attention
at the step's prefill chunk and decode batch, and the output head at the sequences that get a
token. The host's work is not in a profile: ``overhead_s`` and ``per_sequence_s``, added to the
kernels, or hidden behind them where steps are formed ahead.

Two layouts are read:

- LLMServingSim's (Cho et al., "LLMServingSim", IISWC 2024; ``profiler/perf``, 2026):
  ``dense.csv``, ``per_sequence.csv``, ``attention.csv[.gz]``, times in µs, of one layer;
- Vidur's (Agrawal et al., "Vidur", MLSys 2024; ``data/profiling/compute``): ``mlp.csv[.gz]``,
  times in ms, of one layer. Where there is no ``attention.csv`` beside it, and for the output
  head, the roofline stands in.

Trust it for the model, accelerator and tensor parallelism that were profiled; the profile's engine
version decides its kernels. Attention is looked up at the mean context of the decode batch: a
batch of very unequal contexts is up to 20 % slower in attention than its mean tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from capplan.replica.grid import Curve
from capplan.replica.memory import model_of
from capplan.replica.mix_table import MixTable, mix_table
from capplan.replica.roofline import hides_host, one_stage, roofline_step
from capplan.scenario.pools import Pool
from capplan.schema import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from capplan.replica.roofline import RooflineStepTime
    from capplan.scenario.step_times import TablesStep

US = 1e-6
MS = 1e-3

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
"""What decode attention of one layer takes beside reading KV, where the profile has none. Source:
aiconfigurator-core 0.12, vLLM, one short sequence on H100 and H200 (12 to 15 µs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStepTime:
    """Step time as a sum of tabulated kernels, s."""

    dense: Curve
    """Dense kernels of all layers, over the step's tokens."""
    head: Curve
    """Output head and sampler, over the sequences that get a token."""
    attention: MixTable | RooflineStepTime
    overhead_s: float
    per_sequence_s: float
    host_hidden: bool = False
    """Whether the host works while the accelerator does."""

    def seconds(
        self,
        prefill_tokens: float,
        prefill_context_tokens: float,
        decode_sequences: float,
        decode_context_tokens: float,
    ) -> float:
        """Return the duration of a step, s; see :class:`capplan.replica.step_time.StepTime`."""
        done = decode_sequences + (1.0 if prefill_tokens else 0.0)
        busy = (
            self.dense.at(prefill_tokens + decode_sequences)
            + self.head.at(done)
            + self._attention_s(
                prefill_tokens, prefill_context_tokens, decode_sequences, decode_context_tokens
            )
        )
        host = self.overhead_s + self.per_sequence_s * decode_sequences
        return max(busy, host) if self.host_hidden else busy + host

    def _attention_s(self, prompt: float, pairs: float, sequences: float, context: float) -> float:
        table = self.attention
        if not isinstance(table, MixTable):
            return (
                table.per_prefill_token_s * prompt
                + table.per_pair_s * pairs
                + table.per_sequence_s * sequences
                + table.per_context_token_s * context
            )
        before = pairs / prompt - prompt / 2 if prompt else 0.0
        mean = context / sequences if sequences else 0.0
        return table.seconds(prompt, before, sequences, mean)


def kernel_tables(pool: Pool, law: TablesStep) -> KernelStepTime:
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


def _llmservingsim(pool: Pool, law: TablesStep, folder: Path) -> KernelStepTime:
    layers = model_of(pool).num_hidden_layers
    dense = _wide(folder / "dense.csv", "tokens")
    heads = _wide(folder / "per_sequence.csv", "sequences")
    _have(dense, {*PER_LAYER, *ONCE}, folder / "dense.csv")
    _have(heads, PER_SEQUENCE, folder / "per_sequence.csv")
    each = dense[list(PER_LAYER)].sum(axis=1) * layers + dense[list(ONCE)].sum(axis=1)
    return KernelStepTime(
        dense=_curve(each * US),
        head=_curve(heads[list(PER_SEQUENCE)].sum(axis=1) * US),
        attention=_attention(_found(folder, "attention.csv"), layers * US),
        overhead_s=law.overhead_s,
        per_sequence_s=law.per_sequence_s,
        host_hidden=hides_host(pool),
    )


def _vidur(pool: Pool, law: TablesStep, file: Path) -> KernelStepTime:
    frame = _read(file)
    of = frame[frame["num_tensor_parallel_workers"] == pool.tensor_parallel]
    if of.empty:
        told = pool.tensor_parallel
        raise DataError("a profiled one", where=file, field="tensor_parallel", value=told)
    times = of.groupby("num_tokens").median(numeric_only=True)
    each = times[[f"time_stats.{name}.median" for name in VIDUR_LAYER]].sum(axis=1)
    embed = times["time_stats.emb.median"]
    rest = roofline_step(pool)
    layers = model_of(pool).num_hidden_layers
    most = 4096.0
    head = (rest.head_weights_s, max(rest.head_weights_s, rest.head_per_token_s * most))
    return KernelStepTime(
        dense=_curve((each * layers + embed) * MS + layers * ATTENTION_S),
        head=Curve((0.0, most), head),
        attention=rest,
        overhead_s=law.overhead_s,
        per_sequence_s=law.per_sequence_s,
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
    return Curve(tuple(map(float, values.index)), tuple(map(float, values)))


def _found(folder: Path, name: str) -> Path:
    for file in (folder / name, folder / f"{name}.gz"):
        if file.is_file():
            return file
    raise DataError("an existing file", where=folder / name)


def _read(file: Path) -> pd.DataFrame:
    import pandas as pd

    try:
        return pd.read_csv(file)
    except (OSError, ValueError) as err:
        raise DataError(f"a readable CSV file ({err})", where=file) from err


def _have(frame: pd.DataFrame, wanted: Iterable[str], file: Path) -> None:
    missing = sorted(set(wanted) - set(frame.columns))
    if missing:
        raise DataError("kernels or columns of the profile", where=file, field=", ".join(missing))
