"""What fits into a replica's memory: weights, activations, KV blocks, sequences.

An engine that fills its share of the memory with KV blocks, as vLLM does, leaves

    KV = utilisation × total − weights − peak of activations − runtime − collectives

bytes. Source: vLLM, ``vllm/v1/worker/gpu_worker.py`` (``determine_available_memory``), 2026.
Checked against servers that logged their blocks: Llama-2-7B on H100-80GB (7,462 blocks of 16
tokens) and Llama-3.1-8B on RTX 4090 (2,588), both within 0.5 %. The two fix no constant of their
own: the constants below come from other servers' start-up logs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from capplan.catalog import (
    BYTES,
    Accelerator,
    Attention,
    Dtype,
    Model,
    accelerator,
    embedding_parameters,
    expert_parameters,
    indexer_parameters,
    linear_state_bytes,
    model,
    model_from_config,
    model_from_mapping,
)
from capplan.scenario.pools import Pool
from capplan.schema import DataError

T = TypeVar("T")

GIB = 2**30
SIXTEEN_BITS = 2.0
"""Bytes of a number."""

RUNTIME_BYTES = 0.08 * GIB
"""Memory of the runtime outside PyTorch's allocator. Source: ``non_torch_memory`` in public vLLM
start-up logs of one accelerator, 2024-12 to 2025-08: 0.05 to 0.12 GiB."""

COLLECTIVES_BYTES = 0.35 * GIB
"""Buffers of the collective library on each of several accelerators. Source: aiconfigurator-core
0.12, ``systems/h100_sxm.yaml`` (``nccl_mem``): 342 MiB for 2, 392 MiB for 4 and 8."""

SAMPLER_BYTES_PER_LOGIT = 36.0
"""Peak of the sampler's profiling run: nine 4-byte arrays of sequences × vocabulary (logits in
two precisions, sorted values, 8-byte indices, probabilities, sums, masks, noise). Source: vLLM,
``vllm/v1/sample/ops/topk_topp_sampler.py``, 2026; it gives 1.10 GiB for 256 sequences of
Llama-3.1, whose start-up logs show an activation peak of 1.16 to 1.24 GiB."""


PADDED_NUMBERS = 256
"""Hidden sizes of experts in MXFP4 are padded to a multiple of these. Source: weights that vLLM
logged for gpt-oss-20b and -120b on an H100, 13.47 and 64.38 GiB (llm-d-benchmark,
``config_explorer/empirical-vllm-memory-results.md``, 2025): 3,072 for 2,880 gives both within
0.5 %."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """How the memory of one accelerator is used, bytes; ``kv_bytes`` is what the blocks may take.

    ``kv_bytes`` is negative if the model does not fit: the bytes that are missing.
    """

    total_bytes: float
    usable_bytes: float
    """The engine's share of the total."""
    weight_bytes: float
    activation_bytes: float
    runtime_bytes: float
    kv_bytes: float


def memory_use(pool: Pool) -> MemoryUse:
    """Return how the memory of one accelerator of a pool is used."""
    batching, found, device = pool.continuous, model_of(pool), accelerator_of(pool)
    share, stages = pool.tensor_parallel, pool.pipeline_parallel
    usable = device.usable_bytes * batching.gpu_memory_utilization
    weights = weight_bytes(
        found, dtype=pool.weight_dtype, tensor_parallel=share, pipeline_parallel=stages
    )
    activations = activation_bytes(
        found,
        tokens=batching.max_num_batched_tokens,
        sequences=batching.max_num_seqs,
        tensor_parallel=share,
    )
    runtime = RUNTIME_BYTES + (COLLECTIVES_BYTES if share * stages > 1 else 0.0)
    return MemoryUse(
        total_bytes=device.usable_bytes,
        usable_bytes=usable,
        weight_bytes=weights,
        activation_bytes=activations,
        runtime_bytes=runtime,
        kv_bytes=usable - weights - activations - runtime,
    )


def weight_bytes(
    found: Model,
    *,
    dtype: Dtype | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
) -> float:
    """Return the bytes of the weights on one accelerator, of the stage that holds most.

    Under tensor parallelism each holds its part of every matrix; what has fewer KV heads than
    accelerators, or is compressed for all heads together (MLA), is held by each in full. In types
    below 16 bits the embeddings keep 16, and so does what the model's checkpoint leaves as it was
    (``unquantized_parameters``; a 16-bit model that is quantised on loading has none). A stage of a
    pipeline holds its layers, the first one the embeddings besides, the last one the output head.
    Source: vLLM, ``model_executor/layers/linear.py`` (``QKVParallelLinear``) and
    ``distributed/utils.py`` (``get_pp_indices``), 2026.

    >>> from capplan.catalog import model
    >>> weight_bytes(model("Llama-3.1-8B")) / 2**30
    14.957...
    """
    size = BYTES[dtype or found.served_dtype]
    embeddings = embedding_parameters(found)
    undivided, held = undivided_parameters(found, tensor_parallel)
    divided = float(found.parameters - embeddings - undivided)
    if (dtype or found.served_dtype) == "mxfp4":
        divided += found.moe_layers * found.num_experts * _padding(found)
    inner = divided / tensor_parallel + held
    if pipeline_parallel > 1:
        inner *= stage_layers(found, pipeline_parallel) / found.num_hidden_layers
        embeddings = found.vocab_size * found.hidden_size
    kept = found.unquantized_parameters * stage_layers(found, pipeline_parallel)
    kept_bytes = kept / found.num_hidden_layers / tensor_parallel * max(SIXTEEN_BITS - size, 0.0)
    return inner * size + kept_bytes + embeddings / tensor_parallel * max(size, SIXTEEN_BITS)


def _padding(found: Model) -> float:
    """Return the numbers by which an expert in MXFP4 is padded."""
    missing = -found.hidden_size % PADDED_NUMBERS
    return expert_parameters(found) * missing / found.hidden_size


def stage_layers(found: Model, pipeline_parallel: int) -> int:
    """Return the layers of the stage that has most; raises DataError for more stages than layers.

    >>> from capplan.catalog import model
    >>> stage_layers(model("Llama-3.1-8B"), 3)
    11
    """
    layers = found.num_hidden_layers
    if pipeline_parallel > layers:
        rule = f"at most the {layers} layers of {found.name}"
        raise DataError(rule, field="pipeline_parallel", value=pipeline_parallel)
    return -(-layers // pipeline_parallel)


def pool_kv_bytes_per_token(pool: Pool) -> float:
    """Return the KV bytes that a token adds on one accelerator of a pool, in the fullest stage.

    With ``hybrid_kv_context_tokens`` it is the mean over a sequence of that length.
    """
    found, length = model_of(pool), pool.continuous.hybrid_kv_context_tokens
    dtype, share = pool.kv_dtype, pool.tensor_parallel
    if length is None:
        parts = growing_attentions(pool)
        each = sum(token_bytes(found, p, dtype=dtype, tensor_parallel=share) for p in parts)
    else:
        each = kv_bytes(found, length, dtype=dtype, tensor_parallel=share) / length
    return each * stage_layers(found, pool.pipeline_parallel) / found.num_hidden_layers


def growing_attentions(pool: Pool) -> list[Attention]:
    """Return the layers of a pool's model whose KV grows with a sequence to its end.

    All, where an engine keeps windows whole: without a hybrid block manager, in contiguous KV, for
    stated ``kv_blocks`` or ``hybrid_kv_context_tokens``, and if every layer has a window.
    """
    batching, parts = pool.continuous, model_of(pool).attentions()
    whole = (
        batching.disable_hybrid_kv_cache_manager
        or batching.kv_layout == "contiguous"
        or batching.kv_blocks is not None
        or batching.hybrid_kv_context_tokens is not None
    )
    grows = [part for part in parts if whole or not part.drops_kv]
    return grows or list(parts)


def kv_bytes_per_token(
    found: Model, *, dtype: Dtype | None = None, tensor_parallel: int = 1
) -> float:
    """Return the KV bytes that one token takes on one accelerator, over all layers.

    MHA, GQA and MQA keep a key and a value per KV head, at least one head per accelerator. MLA
    keeps one compressed vector for all heads, in full on each; an indexer a key of its own; layers
    of linear attention nothing. Source: :meth:`capplan.catalog.Model.attentions`.

    >>> from capplan.catalog import model
    >>> kv_bytes_per_token(model("Llama-2-7b-hf")), kv_bytes_per_token(model("DeepSeek-V3"))
    (524288.0, 70272.0)
    """
    parts = found.attentions()
    return sum(
        token_bytes(found, part, dtype=dtype, tensor_parallel=tensor_parallel) for part in parts
    )


def kv_bytes(
    found: Model, context_tokens: float, *, dtype: Dtype | None = None, tensor_parallel: int = 1
) -> float:
    """Return the KV bytes that a sequence needs on one accelerator, without its state.

    A layer with a sliding window keeps no more than the window.
    """
    return sum(
        token_bytes(found, part, dtype=dtype, tensor_parallel=tensor_parallel)
        * (min(context_tokens, part.window_tokens) if part.drops_kv else context_tokens)
        for part in found.attentions()
    )


def sequence_state_bytes(
    found: Model, *, tensor_parallel: int = 1, pipeline_parallel: int = 1
) -> float:
    """Return the state of a sequence's linear attention on one accelerator, bytes.

    Accelerators divide its heads, stages its layers.

    >>> from capplan.catalog import model
    >>> sequence_state_bytes(model("Qwen3-Next-80B-A3B-Instruct")) / 2**20
    37.6875
    """
    stage = stage_layers(found, pipeline_parallel) / found.num_hidden_layers
    return linear_state_bytes(found) * stage / tensor_parallel


def context_reads(
    found: Model, *, dtype: Dtype | None = None, tensor_parallel: int = 1
) -> list[tuple[float, float]]:
    """Return what decoding a token reads on one accelerator, of each kind of layers.

    Bytes of KV of a token of context, and the most tokens that are read: the window, or as many as
    sparse attention chooses.
    """
    return [
        (
            token_bytes(found, part, dtype=dtype, tensor_parallel=tensor_parallel),
            part.window_tokens,
        )
        for part in found.attentions()
    ]


def token_bytes(
    found: Model, part: Attention, *, dtype: Dtype | None = None, tensor_parallel: int = 1
) -> float:
    """Return the KV bytes of a token on one accelerator, in layers that attend alike."""
    # Weights of 8 bits or less are served with KV of 16 bits unless the pool says otherwise.
    own = found.served_dtype if BYTES[found.served_dtype] >= SIXTEEN_BITS else "bfloat16"
    heads = divided_heads(found, part.kv_heads, tensor_parallel) if part.kv_heads else 1
    return part.layers * heads * part.kv_numbers * (part.number_bytes or BYTES[dtype or own])


def activation_bytes(
    found: Model, *, tokens: int, sequences: int, tensor_parallel: int = 1
) -> float:
    """Return the peak of activations that the engine's profiling run sees on one accelerator.

    The larger of a layer's MLP at the whole token budget (input, residual, gate and up
    projections, their product) and the sampler over all sequences' logits.
    """
    width = found.intermediate_size
    if found.num_experts:
        active = found.num_experts_per_tok + found.num_shared_experts
        width = max(active * found.moe_intermediate_size, width if found.first_dense_layers else 0)
    layer = tokens * (3 * width / tensor_parallel + 4 * found.hidden_size) * 2.0
    return max(layer, sequences * found.vocab_size * SAMPLER_BYTES_PER_LOGIT)


def model_of(pool: Pool) -> Model:
    """Return the pool's model; raises :class:`DataError` if it is not stated or unknown."""
    where = f"pool {pool.name}"
    if isinstance(pool.hf_config, str):
        return model_from_config(pool.hf_config)
    if pool.hf_config is not None:
        name = pool.model or pool.name
        return model_from_mapping(pool.hf_config, name=name, where=f"{where}, hf_config")
    if pool.model is None:
        raise DataError("a model, to derive memory or step time", where=where, field="model")
    return _named(model, pool.model, pool)


def accelerator_of(pool: Pool) -> Accelerator:
    """Return the pool's accelerator; raises :class:`DataError` if it is not stated or unknown."""
    if pool.accelerator is None:
        rule = "an accelerator, to derive memory or step time"
        raise DataError(rule, where=f"pool {pool.name}", field="accelerator")
    return _named(accelerator, pool.accelerator, pool)


def _named(look_up: Callable[[str], T], name: str, pool: Pool) -> T:
    """Return what has that name; a DataError that names no file names the pool."""
    try:
        return look_up(name)
    except DataError as err:
        where = err.where or f"pool {pool.name}"
        raise DataError(err.rule, where=where, field=err.field, value=err.value) from err


def divided_heads(found: Model, heads: int, tensor_parallel: int) -> int:
    """Return the KV heads on one accelerator; raises DataError if they cannot be divided."""
    if found.num_attention_heads % tensor_parallel or (
        heads % tensor_parallel and tensor_parallel % heads
    ):
        rule = (
            f"a divisor of the {found.num_attention_heads} heads of {found.name} that divides, or "
            f"is a multiple of, its {heads} KV heads"
        )
        raise DataError(rule, field="tensor_parallel", value=tensor_parallel)
    return max(heads // tensor_parallel, 1)


def undivided_parameters(found: Model, tensor_parallel: int) -> tuple[int, int]:
    """Return the parameters that are not simply divided, and what each accelerator holds of them.

    Over all layers: keys and values, or what MLA compresses and its indexers.
    """
    if found.kv_lora_rank:
        latent = found.kv_lora_rank + found.qk_rope_head_dim + found.q_lora_rank
        total = found.num_hidden_layers * found.hidden_size * latent
        total += found.index_layers * indexer_parameters(found)
        return total, total
    each = [
        (part, part.layers * found.hidden_size * part.kv_numbers) for part in found.attentions()
    ]
    held = sum(size * divided_heads(found, part.kv_heads, tensor_parallel) for part, size in each)
    return sum(size * part.kv_heads for part, size in each), held
