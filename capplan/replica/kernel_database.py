"""One step's kernels from the database of aiconfigurator-core: the extra ``silicon``.

Source: NVIDIA, "AIConfigurator", PyPI ``aiconfigurator-core`` 0.12 (Apache-2.0), and Xu et al.,
"AIConfigurator: Lightning-Fast Configuration Optimization for Multi-Framework LLM Serving", 2026.

A step with a prefill is a sum: its dense kernels at all its tokens, attention of the prefill,
attention of the decodes. What it says is changed where it is not what a server runs:

- decode attention was measured with at most 8 KV heads on an accelerator, and it extrapolates to
  more: Llama-2-7B (32) on H100 came out 20 to 46 % slower than measured servers. The kernel's work
  is one block per sequence and KV head, so a batch of ``n`` with 32 heads is looked up as ``4 n``
  with 8 (Dao et al., "Flash-Decoding for long-context inference", 2023: the grid is batch × KV
  heads × parts of the context);
- decodes beside a prefill attend longer: it has no kernel that does both, as servers have
  (:data:`capplan.replica.roofline.MIXED_FRACTION`);
- FP8 weights are those of per-tensor scales, FP8 experts those of blocks, as they are published
  (those of per-tensor scales take five times as long in its vLLM 0.24 as in 0.19);
- of a model with MLA it counts four all-reduces a layer under tensor parallelism, where vLLM has
  two (15 % of a prefill of 8,192 of DeepSeek-V3 on 8 H200), leaves out the context of decodes
  beside a prefill, and makes a short chunk after other tokens cheaper than without them. Its FP8
  products of blocks hold 58 to 92 µs of launches each, whatever their size, so dense ones are
  looked up at 16 bits (a decode step of one sequence takes 10.4 ms instead of 14.1; SGLang 0.5.9
  takes 10.3 with four).

It has no 8-bit or 4-bit whole numbers. Without a row it falls back to its own model and does not
say so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from capplan.catalog import Model
from capplan.replica.memory import accelerator_of, model_of
from capplan.replica.roofline import mixed_fraction, one_stage
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

MS = 1e-3


def request(pool: Pool, law: SiliconStep) -> dict[str, Any]:
    """Return what the database is asked for; raises as :func:`capplan.replica.silicon.silicon`."""
    one_stage(pool, "silicon")
    device = accelerator_of(pool).name
    if device not in SYSTEMS:
        known = ", ".join(sorted(SYSTEMS))
        raise DataError(f"one of {known} for step times of kind silicon",
                        where=f"pool {pool.name}", field="accelerator", value=device)  # fmt: skip
    found = model_of(pool)
    unlike = found.sliding_layers or found.linear_layers or found.index_layers
    if unlike or (found.num_shared_experts and not found.kv_lora_rank):
        rule = "a model that attends to the whole context in every layer and has no shared experts"
        raise DataError(f"{rule} (but with MLA) for step times of kind silicon",
                        where=f"pool {pool.name}", field="model", value=found.name)  # fmt: skip
    return {
        "package": _version(),
        "model": model_config(found),
        "mixed_fraction": mixed_fraction(found),
        "system": SYSTEMS[device],
        "backend": law.backend,
        "backend_version": law.backend_version,
        "tensor_parallel": pool.tensor_parallel,
        "weights": weights_type(pool),
        "experts": experts_type(pool),
        "kv": kv_type(pool),
    }


class KernelDatabase:
    """The kernels of one model, accelerator and engine; times in s."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        """Open the database for a :func:`request`; raises DataError if it lacks something."""
        model = dict(asked["model"])
        self._name, self._latent = model["_name_or_path"], "kv_lora_rank" in model
        self._mixed = float(asked["mixed_fraction"])
        self._parts = 1 if self._latent else head_parts(model, asked["tensor_parallel"])
        with _refused(self._name):
            self._engine = self._narrow = _opened(asked, model)
            if self._parts > 1:
                heads = ("num_attention_heads", "num_key_value_heads")
                fewer = {name: model[name] // self._parts for name in heads}
                self._narrow = _opened(asked, model | fewer)

    def dense_s(self, tokens: float) -> float:
        """Return the dense kernels at so many tokens; with MLA also the attention of one prompt."""
        kernels = self._prefill(tokens)
        return sum(kernels.values()) - _of(kernels, "attention", "tp_allreduce")

    def prefill_s(self, chunk: float, before: float) -> float:
        """Return the attention of a chunk after tokens before it; with MLA what these add."""
        if not self._latent:
            return _of(self._prefill(chunk, before), "attention")
        if not before:
            return 0.0
        both, first, own, least = (
            _of(self._prefill(tokens), "mla_block") for tokens in (chunk + before, before, chunk, 1)
        )
        return both - first - (own - least)

    def beside_s(self, sequences: float, context: float) -> float:
        """Return the attention of decodes beside a prefill; with MLA what their context adds."""
        if self._latent:
            kernels = (self._decode(sequences, length) for length in (context, 1))
            longer, least = (_of(kernel, "mla_block") for kernel in kernels)
            return longer - least
        return (1 + self._mixed) * self._attention_s(sequences, context)

    def _attention_s(self, sequences: float, context: float) -> float:
        narrow = self._decode(self._parts * sequences, context, self._narrow)
        return _of(narrow, "attention")

    def decode_s(self, sequences: float, context: float) -> float:
        """Return a step of decodes alone."""
        kernels = self._decode(sequences, context)
        seconds = sum(kernels.values()) - _of(kernels, "tp_allreduce")
        if self._latent:
            return seconds
        return seconds - _of(kernels, "attention") + self._attention_s(sequences, context)

    def seconds(self, chunk: float, before: float, sequences: float, context: float) -> float:
        """Return a step: a chunk after tokens before it, sequences with the context of each."""
        if not chunk:
            return self.decode_s(sequences, context)
        decodes = self.beside_s(sequences, context) if sequences else 0.0
        return self.dense_s(chunk + sequences) + self.prefill_s(chunk, before) + decodes

    def _prefill(self, chunk: float, before: float = 0.0) -> dict[str, float]:
        with _refused(self._name):
            kernels, _ = self._engine.run_static_per_op(
                batch_size=1, isl=int(chunk + before), osl=1, prefix=int(before), mode="static_ctx"
            )
        return _kernels(kernels)

    def _decode(self, sequences: float, context: float, engine: Any = None) -> dict[str, float]:
        with _refused(self._name):
            engine = engine or self._engine
            return _kernels(engine.decode_step_per_op(int(sequences), int(context), 2))


def _kernels(rows: Iterable[Any]) -> dict[str, float]:
    """Return seconds by kernel, without the phase in its name."""
    return {name.partition("_")[2]: float(ms) * MS for name, ms, *_ in rows}


def _of(kernels: Mapping[str, float], *names: str) -> float:
    return sum(kernels.get(name, 0.0) for name in names)


def _opened(asked: Mapping[str, Any], model: Mapping[str, Any]) -> Any:
    from aiconfigurator_core.sdk.engine import EngineHandle

    with TemporaryDirectory() as folder, _quiet():
        Path(folder, "config.json").write_text(json.dumps(model), encoding="utf-8")
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


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """Turn what the database lacks into a DataError that names the model."""
    try:
        yield
    except (ValueError, RuntimeError, KeyError) as err:
        cause = " ".join(str(err).split())
        known = "a model, accelerator and engine that aiconfigurator-core knows"
        rule = f"{known} ({name}: {cause[:300]})"
        raise DataError(rule, field="step_time.kind", value="silicon") from err


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
    """Return the model as a Hugging Face ``config.json`` of a family the database knows."""
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
