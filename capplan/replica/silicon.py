"""Step time from a database of measured kernels: aiconfigurator-core, the extra ``silicon``.

The database answers for one step at a time, in accelerator time. Its answers are sampled once
over a grid (about 8,000 steps, 0.2 s after a second of loading), kept for this process and in the
user's cache folder, and the run goes on the table.

Source: NVIDIA, "AIConfigurator", PyPI ``aiconfigurator-core`` 0.12 (Apache-2.0), and Xu et al.,
"AIConfigurator: Lightning-Fast Configuration Optimization for Multi-Framework LLM Serving", 2026.

Trust it for the engine version it was measured with (``backend_version``), which is not always the
one that runs. It answers in milliseconds, for the accelerator alone: what scheduler and launch
leave idle is ``overhead_s`` and ``per_sequence_s``. Without a row the database falls back to
its own model and does not say so.

Its decode attention was measured with at most 8 KV heads on an accelerator, and it extrapolates to
more: Llama-2-7B (32) on H100 came out 20 to 46 % slower than measured servers. The kernel's work is
one block per sequence and KV head, so a batch of ``n`` with 32 heads is looked up as ``4 n`` with 8
(Dao et al., "Flash-Decoding for long-context inference", 2023: the grid is batch × KV heads × parts
of the context). FP8 weights are those of per-tensor scales, FP8 experts those of blocks, as they
are published (those of per-tensor scales take five times as long in its vLLM 0.24 as in 0.19). It
has no 8-bit or 4-bit whole numbers.

Three things are put right in a model with MLA (DeepSeek-V3 on 8 H200): it counts four all-reduces a
layer under tensor parallelism, where vLLM has two (15 % of a prefill of 8,192); beside a prefill it
leaves out the context of decodes; and its FP8 products of blocks hold 58 to 92 µs of launches each,
whatever their size, so that dense products are looked up at 16 bits (11.0 instead of 14.1 ms a
decode step of one sequence; SGLang 0.5.9 takes 10.3 with four).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from capplan.catalog import Model
from capplan.replica.compiled.step_laws import MixTable, TableStepTime
from capplan.replica.kernel_tables import mix_table
from capplan.replica.memory import accelerator_of, model_of
from capplan.replica.roofline import hides_host, one_stage
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import SiliconStep
from capplan.schema import DataError

SYSTEMS = {
    "A100-SXM-80GB": "a100_sxm",
    "H100-SXM-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
    "B200-SXM-180GB": "b200_sxm",
    "L40S": "l40s",
}
"""Accelerators whose kernels the database holds, and their names in it."""

MOST_KV_HEADS = 8
"""KV heads per accelerator up to which decode attention was measured. Source: the column
``num_key_value_heads`` of aiconfigurator-core 0.12, ``generation_attention_perf.parquet``."""

SIXTEEN = ("float16", "bfloat16")

CHUNKS = (
    1.0,
    4.0,
    8.0,
    16.0,
    32.0,
    64.0,
    128.0,
    256.0,
    512.0,
    1024.0,
    2048.0,
    4096.0,
    8192.0,
    16384.0,
)
BEFORES = (0.0, 1024.0, 4096.0, 16384.0, 65536.0)
SEQUENCES = (
    1.0, 2.0, 4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0,
)  # fmt: skip
CONTEXTS = (64.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0)
MS = 1e-3
Point = tuple[float, float, float, float]
"""Chunk, tokens before it, decoding sequences, context of each."""
FORM = 3
"""Of the cached files; raised when the grid or its meaning changes."""


def silicon(pool: Pool, law: SiliconStep) -> TableStepTime:
    """Return the step time of a pool's model and accelerator from the database.

    Raises :class:`DataError` if the extra is not installed, or the database does not know the
    model, accelerator or engine.
    """
    return TableStepTime(
        host_s=law.overhead_s,
        host_per_sequence_s=law.per_sequence_s,
        mix=_table(json.dumps(_asked(pool, law), sort_keys=True)),
        host_hidden=hides_host(pool),
    )


def database_seconds(pool: Pool, law: SiliconStep, points: Iterable[Point]) -> list[float]:
    """Return the seconds of single steps, from the database itself; raises as :func:`silicon`."""
    return _ask(_asked(pool, law), points)


def _asked(pool: Pool, law: SiliconStep) -> dict[str, Any]:
    """Return what the database is asked for."""
    one_stage(pool, "silicon")
    device = accelerator_of(pool).name
    if device not in SYSTEMS:
        known = ", ".join(sorted(SYSTEMS))
        raise DataError(f"one of {known} for step times of kind silicon",
                        where=f"pool {pool.name}", field="accelerator", value=device)  # fmt: skip
    return {
        "form": FORM,
        "package": _version(),
        "model": model_config(model_of(pool)),
        "system": SYSTEMS[device],
        "backend": law.backend,
        "backend_version": law.backend_version,
        "tensor_parallel": pool.tensor_parallel,
        "weights": weights_type(pool),
        "experts": experts_type(pool),
        "kv": kv_type(pool),
    }


@lru_cache(maxsize=64)
def _table(asked: str) -> MixTable:
    times = iter(_sampled(asked))
    found = {point: next(times) for point in _points()}
    return mix_table(
        lambda *key: found.get(key),
        chunks=CHUNKS,
        befores=BEFORES,
        sequences=SEQUENCES,
        contexts=CONTEXTS,
        per_prompt=False,
        empty=False,
    )


def _points() -> Iterator[Point]:
    for n in SEQUENCES:
        for k in CONTEXTS:
            yield 0, 0, n, k
    for c in CHUNKS:
        for b in BEFORES:
            yield c, b, 0, 0
            for n in SEQUENCES:
                for k in CONTEXTS:
                    yield c, b, n, k


def _sampled(asked: str) -> list[float]:
    """Return the seconds at every point: from the cache, or asked and then put there."""
    file = _cache_file(asked)
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["asked"] == asked:
            return [float(seconds) for seconds in kept["seconds"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    seconds = _ask(json.loads(asked), _points())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"asked": asked, "seconds": seconds}), encoding="utf-8")
        part.replace(file)
    except OSError as err:
        logging.getLogger(__name__).info("step times are not kept: %s", err)
    return seconds


def _cache_file(asked: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(asked.encode()).hexdigest()[:24]
    return root / "capplan" / "silicon" / f"{name}.json"


def _ask(asked: dict[str, Any], points: Iterable[Point]) -> list[float]:
    with TemporaryDirectory() as folder, _quiet():
        Path(folder, "config.json").write_text(json.dumps(asked["model"]), encoding="utf-8")
        try:
            from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

            model = RustForwardPassPerfModel.from_native(engine_config(asked, folder))
            excess = _excess(asked, folder)
            return [_seconds(model, point) - excess(point) for point in points]
        except (ValueError, RuntimeError, KeyError) as err:
            cause = " ".join(str(err).split()).replace(folder, asked["model"]["_name_or_path"])
            rule = f"a model, accelerator and engine that aiconfigurator-core knows ({cause[:300]})"
            raise DataError(rule, field="step_time.kind", value="silicon") from err


def _seconds(model: Any, point: Point) -> float:
    estimate_ms = model.estimate_forward_pass_time_ms({"scheduled_requests": scheduled(*point)})
    if estimate_ms is None:
        raise ValueError("no estimate of a step")
    return float(estimate_ms) * MS


def _excess(asked: dict[str, Any], folder: str) -> Callable[[Point], float]:
    """Return by how much the database's time of a step is too long, s; see the module."""
    own = _engine(asked, folder)
    if "kv_lora_rank" in asked["model"]:
        return _mla_excess(own)
    parts = head_parts(asked["model"], asked["tensor_parallel"])
    if parts == 1:
        return lambda point: 0.0
    with TemporaryDirectory() as other:
        heads = ("num_attention_heads", "num_key_value_heads")
        fewer = asked["model"] | {name: asked["model"][name] // parts for name in heads}
        Path(other, "config.json").write_text(json.dumps(fewer), encoding="utf-8")
        narrow = _engine(asked, other)

    @cache
    def of_heads(n: float, k: float) -> float:
        wide = _decode_s(own, "attention", n, k)
        return wide - _decode_s(narrow, "attention", parts * n, k) if n else 0.0

    return lambda point: of_heads(*point[2:])


def _mla_excess(engine: Any) -> Callable[[Point], float]:
    """Return the all-reduces that are counted twice, less the context that a mixed step lacks."""

    @cache
    def reduces(tokens: float) -> float:
        kernels, _ = engine.run_static_per_op(
            batch_size=1, isl=int(tokens), osl=1, mode="static_ctx"
        )
        return _of(kernels, "context_tp_allreduce")

    @cache
    def context(n: float, k: float) -> float:
        return _decode_s(engine, "mla_block", n, k) - _decode_s(engine, "mla_block", n, CONTEXTS[0])

    def excess(point: Point) -> float:
        chunk, _, n, k = point
        return reduces(chunk + n) - (context(n, k) if chunk and n else 0.0)

    return excess


def _engine(asked: dict[str, Any], folder: str) -> Any:
    from aiconfigurator_core.sdk.engine import EngineHandle

    return EngineHandle.compile(
        folder,
        asked["system"],
        asked["backend"],
        backend_version=asked["backend_version"],
        tp_size=asked["tensor_parallel"],
        moe_tp_size=asked["tensor_parallel"],
        gemm_quant_mode=asked["weights"],
        moe_quant_mode=asked["experts"],
        kvcache_quant_mode=asked["kv"],
    )


def _decode_s(engine: Any, kernel: str, sequences: float, context: float) -> float:
    kernels = engine.decode_step_per_op(int(sequences), int(context), 2)
    return _of(kernels, f"generation_{kernel}")


def _of(kernels: Iterable[Any], name: str) -> float:
    return sum(float(kernel[1]) for kernel in kernels if kernel[0] == name) * MS


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("aiconfigurator-core")
    except PackageNotFoundError as err:
        rule = "the extra silicon (pip install 'capplan[silicon]')"
        raise DataError(rule, field="step_time.kind", value="silicon") from err


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of the package about tables that are not used here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def head_parts(config: dict[str, Any], share: int) -> int:
    """Return the parts to split one accelerator's KV heads into, so that each was measured."""
    if "kv_lora_rank" in config:
        return 1
    heads = config["num_key_value_heads"]
    each = max(heads // share, 1)
    return next(
        part for part in range(1, each + 1) if not each % part and each // part <= MOST_KV_HEADS
    )


def engine_config(asked: dict[str, Any], folder: str) -> dict[str, Any]:
    """Return the database's own description of an engine, its model in a folder."""
    dtypes = {
        "weight_dtype": asked["weights"],
        "moe_dtype": asked["experts"],
        "activation_dtype": None,
        "kv_cache_dtype": asked["kv"],
    }
    return {
        "schema_version": 1,
        "model_name": folder,
        "system_name": asked["system"],
        "backend": asked["backend"],
        "backend_version": asked["backend_version"],
        "tp_size": asked["tensor_parallel"],
        "moe_tp_size": asked["tensor_parallel"],
        "moe_ep_size": 1,
        "pp_size": 1,
        "kv_block_size": None,
        **dtypes,
    }


def scheduled(chunk: float, before: float, sequences: float, context: float) -> dict[str, int]:
    """Return what a step computes: a chunk after tokens before it, sequences with their context."""
    return {
        "num_prefill_requests": int(chunk > 0),
        "sum_prefill_tokens": int(chunk),
        "sum_prefill_kv_tokens": int(before),
        "num_decode_requests": int(sequences),
        "sum_decode_kv_tokens": int(sequences * context),
    }


def weights_type(pool: Pool) -> str | None:
    """Return the database's name for the type of a pool's dense weights; None = 16 bits."""
    found = model_of(pool)
    dtype = pool.weight_dtype or found.served_dtype
    if dtype in SIXTEEN:
        return None
    if dtype != "fp8":
        raise DataError("fp8 or a type of 16 bits for step times of kind silicon",
                        where=f"pool {pool.name}", field="weight_dtype", value=dtype)  # fmt: skip
    return None if found.kv_lora_rank else "fp8"


def experts_type(pool: Pool) -> str | None:
    """Return the database's name for the type of a pool's experts; None = 16 bits."""
    dtype = pool.weight_dtype or model_of(pool).served_dtype
    return None if dtype in SIXTEEN else "fp8_block"


def kv_type(pool: Pool) -> str | None:
    """Return the database's name for the type of a pool's KV; None = 16 bits."""
    if pool.kv_dtype is None or pool.kv_dtype in SIXTEEN:
        return None
    if pool.kv_dtype != "fp8":
        raise DataError("fp8 or a type of 16 bits for step times of kind silicon",
                        where=f"pool {pool.name}", field="kv_dtype",
                        value=pool.kv_dtype)  # fmt: skip
    return "fp8"


def model_config(found: Model) -> dict[str, Any]:
    """Return the model as a Hugging Face ``config.json`` of a family the database knows.

    Raises :class:`DataError` for linear and for sparse attention, which no such family has.
    """
    if found.linear_layers or found.index_layers:
        rule = "a model without linear or sparse attention for step times of kind silicon"
        raise DataError(rule, field="model", value=found.name)
    config: dict[str, Any] = {
        "_name_or_path": found.name,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": found.hidden_size,
        "intermediate_size": found.intermediate_size,
        "num_hidden_layers": found.num_hidden_layers,
        "num_attention_heads": found.num_attention_heads,
        "num_key_value_heads": found.num_key_value_heads,
        "head_dim": found.head_dim,
        "vocab_size": found.vocab_size,
        "max_position_embeddings": found.max_position_embeddings or 131072,
        "tie_word_embeddings": found.tie_word_embeddings,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    }
    if found.kv_lora_rank:
        return config | _latent(found)
    if not found.num_experts:
        return config
    if found.moe_intermediate_size in (0, found.intermediate_size):
        return config | {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": found.num_experts,
            "num_experts_per_tok": found.num_experts_per_tok,
        }
    return config | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": found.num_experts,
        "num_experts_per_tok": found.num_experts_per_tok,
        "moe_intermediate_size": found.moe_intermediate_size,
    }


def _latent(found: Model) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "kv_lora_rank": found.kv_lora_rank,
        "q_lora_rank": found.q_lora_rank,
        "qk_rope_head_dim": found.qk_rope_head_dim,
        "qk_nope_head_dim": found.qk_nope_head_dim,
        "v_head_dim": found.v_head_dim,
        "n_routed_experts": found.num_experts,
        "n_shared_experts": found.num_shared_experts,
        "num_experts_per_tok": found.num_experts_per_tok,
        "moe_intermediate_size": found.moe_intermediate_size,
        "first_k_dense_replace": found.first_dense_layers,
    }
