"""Every field of a scenario that the simulation is meant to heed changes something."""

import numpy as np
import pytest

from capplan.scenario import Scenario
from capplan.scenario.autoscaling import (
    Autoscaler,
    EventDriven,
    FixedTime,
    Lifecycle,
    LognormalTime,
    ResourcePool,
    ScaleDownRules,
    ScaleUpRules,
    ScalingMetric,
    ScalingPolicy,
    Standby,
)
from capplan.scenario.batching import (
    ContiguousKv,
    ContinuousBatching,
    DynamicBatching,
    QueuePolicy,
    Reservation,
    ServiceLaw,
    Speculation,
    StaticBatching,
)
from capplan.scenario.callers import Hedge, Retry
from capplan.scenario.classes import Promises, RequestClass
from capplan.scenario.files import with_values
from capplan.scenario.gateway import (
    Accept,
    Gateway,
    Reserve,
    ResponseCache,
    TenantQuota,
)
from capplan.scenario.hosts import Demand, Host
from capplan.scenario.layers import FairShare, LengthBuckets, Network, Queue, Router
from capplan.scenario.pools import ModelLoad, Pool, ResidentModel
from capplan.scenario.rate_limits import Allowance, RequestLimit, RetryBudget, TokenLimit
from capplan.scenario.step_times import LinearStep
from capplan.simulation import simulate

STEP = "pools.llm.batching.step_time"
LLM = "pools.llm.batching"
VECTOR = "pools.vector.batching"

LINEAR = {
    "kind": "linear",
    "base_s": 5e-3,
    "per_prefill_token_s": 1e-4,
    "per_sequence_s": 1e-3,
    "per_context_token_s": 1e-6,
}
TERMS = ("base_s", "per_prefill_token_s", "per_sequence_s", "per_context_token_s")
MODELS = "pools.llm.models"
SCALE = "pools.llm.autoscaler"
LIFE = "pools.llm.lifecycle"
STATIC = {"kind": "static", "max_batch_size": 4, "step_time": LINEAR}
DRAFT = {"num_speculative_tokens": 3, "acceptance": 0.7}

REQUEST_LIMIT = {"name": "r", "rate_rps": 20.0, "burst": 2}
TOKEN_LIMIT = {
    "name": "t",
    "rate_tokens_per_s": 3000.0,
    "burst_tokens": 800,
    "output_estimate_tokens": 30,
}
ALLOWANCE = {"name": "m", "tokens": 3000, "period_s": 1.5}
QUOTA = {"tenant": "all", "concurrency": 3, "borrowing_limit": 3}
OTHER = {"tenant": "c", "concurrency": 5, "lendable_fraction": 0.0}
RESERVE = {"priority": 0, "concurrency": 4}
RESERVATION = {"classes": ["urgent"], "fraction": 0.5}
BUDGET = {"fraction": 0.2, "min_per_s": 0.0, "window_s": 1.0}
ACCEPT = {"rate_per_s": 30.0, "backlog": 6, "max_open": 9, "max_per_caller": 7}

ONE_POD = {"type": "Pods", "value": 1, "period_s": 0.5}

CHANGES = {
    Scenario: {"drain_s": ("drain_s", 0.01), "default_class": ("default_class", "embed")},
    Network: {
        "one_way_s": ("network.one_way_s", 0.05),
        "handshake_s": ("network.handshake_s", 0.03),
        "connections": ("network.connections", "long_lived"),
    },
    Gateway: {
        "response_cache": ("gateway.response_cache", {"lookup_s": 0.01}),
        "concurrency": ("gateway.concurrency", None),
        "overhead_s": ("gateway.overhead_s", 0.1),
        "overhead_fraction": ("gateway.overhead_fraction", 0.3),
        "overhead_concurrency": ("gateway.overhead_concurrency", 1),
        "accept": ("gateway.accept", ACCEPT),
        "max_prompt_tokens": ("gateway.max_prompt_tokens", 100),
        "max_total_tokens": ("gateway.max_total_tokens", 120),
        "drop_final_retries": ("gateway.drop_final_retries", True),
        "retry_budget": ("gateway.retry_budget", BUDGET),
        "allowances": ("gateway.allowances", [ALLOWANCE]),
        "rate_limits": ("gateway.rate_limits", []),
        "token_limits": ("gateway.token_limits", [TOKEN_LIMIT]),
        "quotas": ("gateway.quotas", [QUOTA, OTHER]),
        "reclaim": ("gateway.reclaim", "cancel"),
        "reserves": ("gateway.reserves", [RESERVE]),
        "when_full": ("gateway.when_full", "displace_lowest"),
    },
    RequestLimit: {
        "tenant": ("gateway.rate_limits.r.tenant", "b"),
        "request_class": ("gateway.rate_limits.r.request_class", "urgent"),
        "rate_rps": ("gateway.rate_limits.r.rate_rps", 30.0),
        "burst": ("gateway.rate_limits.r.burst", 7),
    },
    TokenLimit: {
        "tenant": ("gateway.token_limits.t.tenant", "b"),
        "request_class": ("gateway.token_limits.t.request_class", "urgent"),
        "rate_tokens_per_s": ("gateway.token_limits.t.rate_tokens_per_s", 4000.0),
        "burst_tokens": ("gateway.token_limits.t.burst_tokens", 150),
        "output_estimate_tokens": ("gateway.token_limits.t.output_estimate_tokens", 60),
        "corrected": ("gateway.token_limits.t.corrected", False),
    },
    Allowance: {
        "tenant": ("gateway.allowances.m.tenant", "b"),
        "request_class": ("gateway.allowances.m.request_class", "urgent"),
        "tokens": ("gateway.allowances.m.tokens", 5000),
        "period_s": ("gateway.allowances.m.period_s", None),
    },
    TenantQuota: {
        "tenant": ("gateway.quotas.0.tenant", "b"),
        "concurrency": ("gateway.quotas.0.concurrency", 5),
        "lendable_fraction": ("gateway.quotas.1.lendable_fraction", 0.5),
        "borrowing_limit": ("gateway.quotas.0.borrowing_limit", 0),
    },
    Reserve: {
        "priority": ("gateway.reserves.0.priority", 1),
        "concurrency": ("gateway.reserves.0.concurrency", 9),
    },
    Accept: {
        "rate_per_s": ("gateway.accept.rate_per_s", 50.0),
        "backlog": ("gateway.accept.backlog", 0),
        "max_open": ("gateway.accept.max_open", 5),
        "max_per_caller": ("gateway.accept.max_per_caller", 2),
    },
    Router: {
        "policy": ("pools.llm.router.policy", "random"),
        "max_in_flight": ("pools.llm.router.max_in_flight", None),
    },
    ResponseCache: {
        "capacity": ("gateway.response_cache.capacity", 1),
        "ttl_s": ("gateway.response_cache.ttl_s", 0.1),
        "lookup_s": ("gateway.response_cache.lookup_s", 0.2),
        "bytes_per_token": ("gateway.response_cache.bytes_per_token", 1.0),
    },
    ModelLoad: {
        "start_s": ("pools.vector.model_load.start_s", 0.3),
        "bytes": ("pools.vector.model_load.bytes", 9.0),
        "over": ("pools.vector.model_load.over", "network"),
    },
    Pool: {
        "step_factors": ("pools.llm.step_factors", [1.0, 3.0]),
        "model_load": ("pools.llm.model_load", {"bytes": 1e9}),
        "replicas_per_node": ("pools.llm.replicas_per_node", 2),
        "replicas": ("pools.llm.replicas", 3),
        "hosts": ("pools.vector.hosts", []),
        "models": ("pools.llm.models", [{"name": "x", "kv_fraction": 0.5}]),
        "load_bandwidth_bytes_per_s": ("pools.llm.load_bandwidth_bytes_per_s", 1e10),
        "lifecycle": (LIFE, {"model_load": {"kind": "fixed", "seconds": 0.9}}),
        "standby": ("pools.llm.standby", {"replicas": 1, "ready": {"kind": "fixed", "seconds": 0}}),
        "autoscaler": (SCALE, {"max_replicas": 3, "metrics": [{"metric": "running", "target": 1}]}),
        "resource_pool": ("pools.llm.resource_pool", None),
    },
    Lifecycle: {
        "provisioning": (f"{LIFE}.provisioning", {"kind": "fixed", "seconds": 0.7}),
        "image_pull": (f"{LIFE}.image_pull", {"kind": "fixed", "seconds": 0.7}),
        "model_load": (f"{LIFE}.model_load", {"kind": "fixed", "seconds": 0.7}),
        "grace_period_s": (f"{LIFE}.grace_period_s", 0.0),
    },
    FixedTime: {"seconds": (f"{LIFE}.provisioning.seconds", 0.7)},
    LognormalTime: {
        "p50_s": (f"{LIFE}.model_load.p50_s", 0.08),
        "p95_s": (f"{LIFE}.model_load.p95_s", 2.0),
    },
    Standby: {
        "replicas": ("pools.llm.standby.replicas", 2),
        "ready": ("pools.llm.standby.ready", {"kind": "fixed", "seconds": 0.5}),
        "price_fraction": ("pools.llm.standby.price_fraction", 0.5),
    },
    ResourcePool: {"accelerators": ("resource_pools.rack.accelerators", 3)},
    Autoscaler: {
        "min_replicas": (f"{SCALE}.min_replicas", 4),
        "max_replicas": (f"{SCALE}.max_replicas", 3),
        "metrics": (f"{SCALE}.metrics", [{"metric": "running", "target": 1}]),
        "sync_period_s": (f"{SCALE}.sync_period_s", 0.4),
        "tolerance": (f"{SCALE}.tolerance", 0.9),
        "scrape_interval_s": (f"{SCALE}.scrape_interval_s", 0.3),
        "metric_lag_s": (f"{SCALE}.metric_lag_s", 0.5),
    },
    ScalingMetric: {
        "metric": (f"{SCALE}.metrics.0.metric", "running"),
        "source": (f"{SCALE}.metrics.0.source", "pods"),
        "target_type": (f"{SCALE}.metrics.1.target_type", "AverageValue"),
        "target": (f"{SCALE}.metrics.0.target", 1.0),
        "activation": (f"{SCALE}.metrics.0.activation", 900.0),
        "quantile": (f"{SCALE}.metrics.1.quantile", 0.1),
        "window_s": (f"{SCALE}.metrics.1.window_s", 0.3),
    },
    ScaleUpRules: {
        "stabilization_window_s": (f"{SCALE}.behavior.scale_up.stabilization_window_s", 1.0),
        "select_policy": (f"{SCALE}.behavior.scale_up.select_policy", "Disabled"),
        "policies": (f"{SCALE}.behavior.scale_up.policies", [ONE_POD]),
    },
    ScaleDownRules: {
        "stabilization_window_s": (f"{SCALE}.behavior.scale_down.stabilization_window_s", 9.0),
        "select_policy": (f"{SCALE}.behavior.scale_down.select_policy", "Disabled"),
        "policies": (f"{SCALE}.behavior.scale_down.policies", [ONE_POD]),
    },
    ScalingPolicy: {
        "type": (f"{SCALE}.behavior.scale_up.policies.0.type", "Percent"),
        "value": (f"{SCALE}.behavior.scale_up.policies.0.value", 2),
        "period_s": (f"{SCALE}.behavior.scale_up.policies.0.period_s", 2.0),
    },
    EventDriven: {
        "polling_interval_s": (f"{SCALE}.event_driven.polling_interval_s", 0.9),
        "cooldown_s": (f"{SCALE}.event_driven.cooldown_s", 60.0),
        "idle_replicas": (f"{SCALE}.event_driven.idle_replicas", None),
    },
    ResidentModel: {
        "model": (f"{MODELS}.y.model", "Llama-3.2-3B"),
        "kv_fraction": (f"{MODELS}.y.kv_fraction", 0.5),
        "load_s": (f"{MODELS}.y.load_s", 0.5),
        "unload_s": (f"{MODELS}.x.unload_s", 0.5),
        "weight_dtype": (f"{MODELS}.y.weight_dtype", "int8"),
        "step_time": (f"{MODELS}.y.step_time", {"kind": "linear"} | dict.fromkeys(TERMS, 1e-4)),
    },
    ContinuousBatching: {
        "max_num_seqs": (f"{LLM}.max_num_seqs", 2),
        "max_num_batched_tokens": (f"{LLM}.max_num_batched_tokens", 500),
        "chunked_prefill": (f"{LLM}.chunked_prefill", False),
        "block_size": (f"{LLM}.block_size", 64),
        "kv_blocks": (f"{LLM}.kv_blocks", 26),
        "max_model_len": (f"{LLM}.max_model_len", 250),
        "prefix_caching": (f"{LLM}.prefix_caching", True),
        "long_prefill_token_threshold": (f"{LLM}.long_prefill_token_threshold", 20),
        "max_num_partial_prefills": (f"{LLM}.max_num_partial_prefills", 1),
        "max_long_partial_prefills": (f"{LLM}.max_long_partial_prefills", 1),
        "watermark": (f"{LLM}.watermark", 0.6),
        "speculation": (f"{LLM}.speculation", DRAFT),
        "beam_width": (f"{LLM}.beam_width", 2),
        "beam_shares_prompt": (f"{LLM}.beam_shares_prompt", True),
        "stream_interval": (f"{LLM}.stream_interval", 20),
        "cancel_frees": (f"{LLM}.cancel_frees", False),
        "kv_layout": (f"{LLM}.kv_layout", "contiguous"),
        "async_scheduling": (f"{LLM}.async_scheduling", True),
        "reserved": (f"{LLM}.reserved", [RESERVATION]),
        "priority_preemption": (f"{LLM}.priority_preemption", True),
        "poison": (f"{LLM}.poison", "batch"),
    },
    Reservation: {
        "classes": (f"{LLM}.reserved.0.classes", ["chat"]),
        "priority_at_most": (f"{LLM}.reserved.0.priority_at_most", 1),
        "fraction": (f"{LLM}.reserved.0.fraction", 0.9),
        "kv_fraction": (f"{LLM}.reserved.0.kv_fraction", 0.8),
    },
    FairShare: {
        "by": (f"{LLM}.scheduler.fair.by", "class"),
        "cost": (f"{LLM}.scheduler.fair.cost", "requests"),
        "tenants": (f"{LLM}.scheduler.fair.tenants", {"b": 9.0}),
        "classes": (f"{LLM}.scheduler.fair.classes", {"urgent": 9.0}),
    },
    LengthBuckets: {
        "bounds_tokens": (f"{LLM}.scheduler.buckets.bounds_tokens", [50]),
        "turn": (f"{LLM}.scheduler.buckets.turn", "shortest_first"),
    },
    Speculation: {
        "num_speculative_tokens": (f"{LLM}.speculation.num_speculative_tokens", 1),
        "acceptance": (f"{LLM}.speculation.acceptance", 0.2),
        "draft_cost_fraction": (f"{LLM}.speculation.draft_cost_fraction", 0.5),
    },
    ContiguousKv: {
        "reserve": (f"{LLM}.contiguous.reserve", "oracle"),
        "compaction": (f"{LLM}.contiguous.compaction", True),
        "copy_s_per_token": (f"{LLM}.contiguous.copy_s_per_token", 1e-3),
    },
    LinearStep: {name: (f"{STEP}.{name}", 2e-3) for name in TERMS},
    DynamicBatching: {
        "max_batch_size": (f"{VECTOR}.max_batch_size", 2),
        "max_queue_delay_s": (f"{VECTOR}.max_queue_delay_s", 0.5),
        "cancel_frees": (f"{VECTOR}.cancel_frees", False),
        "poison": (f"{VECTOR}.poison", "batch"),
        "preferred_batch_sizes": (f"{VECTOR}.preferred_batch_sizes", [2]),
        "priority_levels": (f"{VECTOR}.priority_levels", 2),
        "default_priority_level": (f"{VECTOR}.default_priority_level", 2),
        "queue_policy": (f"{VECTOR}.queue_policy", {"timeout_s": 0.05}),
        "level_policies": (f"{VECTOR}.level_policies", [{"level": 1, "timeout_s": 0.05}]),
    },
    QueuePolicy: {
        "timeout_s": (f"{VECTOR}.queue_policy.timeout_s", 0.2),
        "timeout_action": (f"{VECTOR}.queue_policy.timeout_action", "delay"),
        "max_queue_size": (f"{VECTOR}.queue_policy.max_queue_size", 1),
    },
    StaticBatching: {
        "max_batch_size": (f"{VECTOR}.max_batch_size", 2),
        "max_queue_delay_s": (f"{VECTOR}.max_queue_delay_s", 0.5),
        "max_model_len": (f"{VECTOR}.max_model_len", 100),
        "cancel_frees": (f"{VECTOR}.cancel_frees", False),
        "poison": (f"{VECTOR}.poison", "batch"),
        "step_time": (f"{VECTOR}.step_time", LINEAR | {"base_s": 9e-3}),
    },
    ServiceLaw: {
        "base_s": (f"{VECTOR}.service.base_s", 0.5),
        "per_item_s": (f"{VECTOR}.service.per_item_s", 0.1),
        "per_size_s": (f"{VECTOR}.service.per_size_s", 0.1),
        "exponential": (f"{VECTOR}.service.exponential", True),
    },
    RequestClass: {
        "pool": ("classes.chat.pool", "vector"),
        "model": ("classes.chat.model", "y"),
        "priority": ("classes.chat.priority", -1),
        "streaming": ("classes.chat.streaming", False),
        "cached_fraction": ("classes.chat.cached_fraction", 0.9),
        "response_cached_fraction": ("classes.chat.response_cached_fraction", 0.5),
        "hedge": ("classes.chat.hedge", {"after_s": 0.2}),
        "poisoned_fraction": ("classes.chat.poisoned_fraction", 0.2),
    },
    Hedge: {
        "after_s": ("classes.chat.hedge.after_s", 0.4),
        "after_quantile": ("classes.chat.hedge", {"after_quantile": 0.5}),
        "most": ("classes.chat.hedge.most", 2),
    },
    RetryBudget: {
        "fraction": ("classes.chat.retry.budget.fraction", 0.9),
        "min_per_s": ("classes.chat.retry.budget.min_per_s", 9.0),
        "window_s": ("classes.chat.retry.budget.window_s", 0.5),
        "per_tenant": ("classes.chat.retry.budget.per_tenant", True),
    },
    Promises: {"deadline_s": ("classes.chat.promises.deadline_s", 0.5)},
    Retry: {
        "max_attempts": ("classes.chat.retry.max_attempts", 1),
        "attempt_timeout_s": ("classes.chat.retry.attempt_timeout_s", 0.3),
        "backoff_s": ("classes.chat.retry.backoff_s", 2.0),
        "multiplier": ("classes.chat.retry.multiplier", 3.0),
        "max_backoff_s": ("classes.chat.retry.max_backoff_s", 0.02),
        "jitter": ("classes.chat.retry.jitter", True),
        "retry_on": ("classes.chat.retry.retry_on", ["failed"]),
        "heeds_final": ("classes.chat.retry.heeds_final", False),
        "honour_retry_after": ("classes.chat.retry.honour_retry_after", False),
        "never_on_status": ("classes.chat.retry.never_on_status", [503]),
        "never_on_reason": ("classes.chat.retry.never_on_reason", ["queue_full"]),
        "max_retry_after_s": ("classes.chat.retry.max_retry_after_s", 0.1),
        "budget": ("classes.chat.retry.budget", {"fraction": 0.1, "min_per_s": 0.0}),
    },
    Host: {
        "compute_units": ("hosts.h.compute_units", 9.0),
        "io_bytes_per_s": ("hosts.h.io_bytes_per_s", 5.0),
        "network_bytes_per_s": ("hosts.h.network_bytes_per_s", 5.0),
    },
    Demand: {
        "compute_units": ("classes.embed.demand.compute_units", 9.0),
        "io_bytes_per_s": ("classes.embed.demand.io_bytes_per_s", 90.0),
        "network_bytes_per_s": ("classes.embed.demand.network_bytes_per_s", 90.0),
    },
}

PACKED = {f"{LLM}.kv_layout": "contiguous", f"{LLM}.contiguous.reserve": "oracle"}
IMPATIENT = {"classes.chat.retry.attempt_timeout_s": 0.15}
BUSY = {"classes.urgent.pool": "vector", "classes.urgent.priority": 2}
BUSY |= {f"{VECTOR}.service.base_s": 0.5}
TWO = {
    MODELS: [
        {"name": "x", "kv_fraction": 0.6, "load_s": 0.2},
        {"name": "y", "kv_fraction": 0.6, "model": "Llama-3.1-8B"},
    ],
    "pools.llm.load_bandwidth_bytes_per_s": 5e10,
    "classes.urgent.model": "y",
}
LONG = {"wait_limit_s": 2.0, "length": 9}
FAIRLY = {
    f"{LLM}.scheduler": LONG | {"order": "weighted_fair", "fair": {"by": "tenant_and_class"}},
    "pools.llm.router.max_in_flight": 9,
}
IN_TURN = LONG | {"order": "length_buckets", "buckets": {"bounds_tokens": [100]}}
BAD_ONES = {"classes.chat.poisoned_fraction": 0.2, "classes.urgent.poisoned_fraction": 0.2}
NAMED = {"tenants": [{"name": "all"}, {"name": "b"}, {"name": "c"}]}
NAIVE = {"gateway.max_prompt_tokens": 100, "classes.chat.retry.heeds_final": False}
BEGINS = {
    LIFE: {
        "provisioning": {"kind": "fixed", "seconds": 0.05},
        "model_load": {"kind": "lognormal", "p50_s": 0.05, "p95_s": 0.1},
    }
}
SCALES = BEGINS | {
    SCALE: {
        "max_replicas": 6,
        "metrics": [{"metric": "in_flight", "target": 1.5}],
        "sync_period_s": 0.2,
        "scrape_interval_s": 0.05,
        "behavior": {"scale_down": {"stabilization_window_s": 0.0}},
    },
    "pools.llm.router.max_in_flight": None,
}
RACK = {"resource_pools": [{"name": "rack", "accelerators": 4}], "pools.llm.resource_pool": "rack"}
LATENCY = {
    "metric": "e2e_s",
    "source": "external",
    "target_type": "Value",
    "target": 0.2,
    "quantile": 0.5,
}
OUTSIDE = {"metric": "queue_length", "source": "external", "target": 90.0}
WAKES = {"polling_interval_s": 0.1, "cooldown_s": 0.2}
ELASTIC = {
    "Lifecycle": SCALES,
    "FixedTime": SCALES,
    "LognormalTime": SCALES,
    "Standby": SCALES
    | {"pools.llm.standby": {"replicas": 1, "ready": {"kind": "fixed", "seconds": 0.1}}},
    "ResourcePool": SCALES | RACK,
    "Autoscaler": SCALES,
    "ScalingMetric": SCALES
    | {
        f"{SCALE}.metrics": [OUTSIDE | {"target": 3.0}, LATENCY],
        f"{SCALE}.event_driven": WAKES,
        f"{SCALE}.min_replicas": 0,
    },
    "ScaleUpRules": SCALES,
    "ScaleDownRules": SCALES,
    "ScalingPolicy": SCALES | {f"{SCALE}.behavior.scale_up.policies": [ONE_POD]},
    "EventDriven": SCALES
    | {
        f"{SCALE}.metrics": [OUTSIDE | {"activation": 3.0}],
        f"{SCALE}.event_driven": WAKES | {"idle_replicas": 0},
    },
}
"""What the parts of a pool that scales need to be felt."""
LAW = {"faults": [{"mtbf_s": 1.0, "mttr_s": 0.3}]}
KEEPS = {"gateway.response_cache": {}}
LOADS = {
    "faults": [{"pool": "vector", "at_s": 1.0, "down_s": 0.2}],
    "pools.vector.model_load": {"bytes": 30.0},
    "hosts.h.network_bytes_per_s": 30.0,
}
GIVEN = {
    f"{LLM}.beam_shares_prompt": {f"{LLM}.beam_width": 2, f"{LLM}.kv_blocks": 24},
    "faults.0.mtbf_s": LAW,
    "faults.0.mttr_s": LAW,
    "pools.llm.model_load": {"pools.llm.load_bandwidth_bytes_per_s": 1e10},
    "pools.llm.replicas_per_node": {
        "pools.llm.replicas_per_node": 1,
        "faults": [{"kind": "node_loss", "pool": "llm", "at_s": 1.0, "down_s": 0.3}],
    },
    "classes.chat.response_cached_fraction": KEEPS,
    LIFE: SCALES,
    f"{SCALE}.metrics.0.source": {
        f"{SCALE}.metrics": [OUTSIDE | {"target": 1.0}, LATENCY | {"target": 90.0}],
        "pools.llm.router.max_in_flight": 5,
    },
    f"{SCALE}.behavior.scale_up.policies.0.type": {
        f"{SCALE}.behavior.scale_up.policies": [ONE_POD | {"value": 3}]
    },
    SCALE: BEGINS,
    "pools.llm.resource_pool": SCALES | RACK,
    "gateway.quotas": NAMED,
    "gateway.reclaim": NAMED
    | {"gateway.concurrency": 4}
    | {"gateway.quotas": [{"tenant": "all", "concurrency": 1}, {"tenant": "b", "concurrency": 3}]},
    "gateway.when_full": {"gateway.concurrency": 6, "gateway.queue.length": 2},
    "gateway.drop_final_retries": NAIVE,
    "classes.chat.retry.heeds_final": {"gateway.max_prompt_tokens": 100},
    "pools.llm.load_bandwidth_bytes_per_s": TWO,
    "classes.chat.model": TWO,
    f"{LLM}.max_num_partial_prefills": {f"{LLM}.long_prefill_token_threshold": 20},
    f"{LLM}.max_long_partial_prefills": {f"{LLM}.long_prefill_token_threshold": 20},
    f"{LLM}.stream_interval": IMPATIENT,
    f"{LLM}.cancel_frees": IMPATIENT,
    f"{LLM}.priority_preemption": {f"{LLM}.scheduler.order": "priority"},
    f"{LLM}.poison": BAD_ONES,
    f"{VECTOR}.poison": BAD_ONES
    | {"classes.urgent.pool": "vector", f"{VECTOR}.max_queue_delay_s": 0.3},
    f"{VECTOR}.cancel_frees": {"classes.embed.retry.attempt_timeout_s": 0.05},
    f"{LLM}.contiguous.reserve": PACKED | {f"{LLM}.contiguous.reserve": "max"},
    f"{LLM}.contiguous.compaction": PACKED | {f"{LLM}.contiguous.copy_s_per_token": 1e-4},
    f"{LLM}.contiguous.copy_s_per_token": PACKED
    | {f"{LLM}.contiguous.copy_s_per_token": 1e-4, f"{LLM}.contiguous.compaction": True},
    "classes.chat.cached_fraction": {f"{LLM}.prefix_caching": True},
    f"{VECTOR}.priority_levels": BUSY | {f"{VECTOR}.default_priority_level": 1},
    f"{VECTOR}.default_priority_level": BUSY | {f"{VECTOR}.priority_levels": 2},
    f"{VECTOR}.queue_policy": BUSY,
    f"{VECTOR}.queue_policy.max_queue_size": BUSY,
    f"{VECTOR}.level_policies": BUSY,
    f"{VECTOR}.queue_policy.timeout_s": BUSY | {f"{VECTOR}.queue_policy.timeout_s": 0.05},
    f"{VECTOR}.queue_policy.timeout_action": BUSY
    | {f"{VECTOR}.queue_policy.timeout_s": 0.05, f"{VECTOR}.priority_levels": 1},
}
"""What a field needs to be felt."""

PARTS = {
    "RequestLimit": {"gateway.rate_limits": [REQUEST_LIMIT]},
    "TokenLimit": {"gateway.token_limits": [TOKEN_LIMIT]},
    "Allowance": {"gateway.allowances": [ALLOWANCE]},
    "TenantQuota": {"gateway.quotas": [QUOTA, OTHER]},
    "Reserve": {"gateway.reserves": [RESERVE]},
    "Reservation": {f"{LLM}.reserved": [RESERVATION]},
    "FairShare": FAIRLY,
    "LengthBuckets": FAIRLY | {f"{LLM}.scheduler": IN_TURN},
    "Hedge": {"classes.chat.hedge": {"after_s": 0.2}},
    "RetryBudget": {"classes.chat.retry.budget": {"fraction": 0.1, "min_per_s": 0.5}},
    "Accept": {"gateway.accept": ACCEPT},
}
"""What the fields of a part need to be felt."""

QUEUE_CHANGES = {
    "length": 1,
    "wait_limit_s": 0.05,
    "order": "priority",
    "status": {429: 503, 503: 429},
    "retry_after_s": 2.5,
    "fair": {"by": "class", "cost": "requests"},
    "buckets": {"bounds_tokens": [100]},
    "ageing_per_s": 100.0,
}
ORDER_OF = {"fair": "weighted_fair", "buckets": "length_buckets", "ageing_per_s": "priority"}
QUEUES = ("gateway.queue", "pools.llm.queue", "pools.llm.batching.scheduler")

ELSEWHERE = {
    Scenario: {
        "name", "description", "requests", "replicas", "warmup_s", "classes", "tenants", "traffic",
        "network", "gateway", "pools", "hosts", "resource_pools", "faults", "breakers", "budget",
        "stages", "derived",
    },
    Network: {"owner"},
    Gateway: {"owner", "queue"},
    **{part: {"name", "owner"} for part in (RequestLimit, TokenLimit, Allowance)},
    **{part: {"owner"} for part in (TenantQuota, Reserve, RetryBudget, Accept)},
    Pool: {
        "name", "owner", "model", "accelerator", "tensor_parallel", "pipeline_parallel", "queue",
        "hf_config", "router", "batching",
        "price_usd_per_accelerator_hour", "cold_start_s", "weight_dtype", "kv_dtype",
    },
    ContinuousBatching: {
        "kind", "contiguous", "gpu_memory_utilization", "hybrid_kv_context_tokens", "scheduler",
        "step_time",
    },
    ResidentModel: {"name", "kv_dtype"},
    LinearStep: {"kind"},
    DynamicBatching: {"kind", "scheduler", "service"},
    StaticBatching: {"kind", "scheduler", "gpu_memory_utilization"},
    RequestClass: {
        "name", "owner", "sheddable", "allows_degraded", "promises", "retry", "share",
        "prompt_tokens", "output_tokens", "length_correlation", "prefix_tokens", "demand", "size",
    },
    Promises: {
        "e2e_s", "ttft_s", "tpot_s", "quantile", "availability_fraction", "error_rate_fraction",
        "timeout_rate_fraction", "goodput_fraction", "cost_usd_per_success", "min_samples",
        "origins",
    },
    FixedTime: {"kind"},
    LognormalTime: {"kind"},
    ResourcePool: {"name"},
    Autoscaler: {"behavior", "event_driven"},
    ResponseCache: {"owner", "per_tenant"},
    Router: {"prefix_threshold_fraction", "balance_abs_threshold", "balance_rel_threshold"},
    Host: {"name", "owner", "accelerator_memory_bytes", "host_memory_bytes"},
    Demand: {"accelerator_memory_bytes", "host_memory_bytes"},
    Queue: {"owner"},
}  # fmt: skip
"""Names, parts with their own entry above, and what traffic, memory, budget or results read."""


@pytest.fixture(name="base")
def _base(build):
    """Return a scenario in which every limit is felt."""
    return build(
        classes=[
            {
                "name": "chat",
                "pool": "llm",
                "priority": 1,
                "cached_fraction": 0.3,
                "retry": {"max_attempts": 4, "backoff_s": 0.05, "multiplier": 2.0},
                "promises": {"deadline_s": 30.0},
            },
            {
                "name": "embed",
                "pool": "vector",
                "priority": 0,
                "streaming": False,
                "demand": {"compute_units": 1.0, "io_bytes_per_s": 6.0, "network_bytes_per_s": 6.0},
            },
            {"name": "urgent", "pool": "llm", "priority": 0},
        ],
        network={"one_way_s": 0.01, "handshake_s": 0.02, "connections": "fresh"},
        gateway={
            "rate_limits": {"rate_rps": 40.0, "burst": 20},
            "concurrency": 12,
            "overhead_s": 0.01,
            "overhead_fraction": 0.1,
            "queue": {"length": 8, "wait_limit_s": 0.6, "status": 429, "retry_after_s": 0.3},
        },
        pools=[
            {
                "name": "llm",
                "replicas": 2,
                "queue": {"length": 5, "wait_limit_s": 0.5, "retry_after_s": 0.3},
                "router": {"max_in_flight": 5},
                "batching": {
                    "kind": "continuous",
                    "max_num_seqs": 3,
                    "max_num_batched_tokens": 300,
                    "max_model_len": 300,
                    "kv_blocks": 40,
                    "scheduler": {"length": 2, "wait_limit_s": 0.4, "retry_after_s": 0.3},
                    "step_time": {
                        "kind": "linear",
                        "base_s": 5e-3,
                        "per_prefill_token_s": 1e-4,
                        "per_sequence_s": 1e-3,
                        "per_context_token_s": 1e-6,
                    },
                },
            },
            {
                "name": "vector",
                "replicas": 1,
                "hosts": ["h"],
                "batching": {
                    "kind": "dynamic",
                    "max_batch_size": 4,
                    "max_queue_delay_s": 0.05,
                    "service": {"base_s": 0.1, "per_item_s": 0.01, "per_size_s": 1e-5},
                },
            },
        ],
        hosts=[{"name": "h", "io_bytes_per_s": 60.0, "network_bytes_per_s": 60.0}],
        faults=[{"at_s": 1.0, "down_s": 0.5}],
    )


@pytest.fixture(name="trace")
def _trace(trace_of):
    rng = np.random.default_rng(3)
    names = rng.choice(["chat", "embed", "urgent", None], 240, p=[0.5, 0.15, 0.3, 0.05])
    return trace_of(
        np.cumsum(rng.exponential(1 / 60, 240)),
        prompt_tokens=rng.integers(10, 230, 240),
        output_tokens=rng.integers(1, 60, 240),
        request_class=names,
        tenant=["all", "b", "all"] * 80,
    )


def tables(scenario, trace):
    result = simulate(scenario, trace=trace)
    return result.requests, result.timeline


def differ(one, two):
    return any(not a.equals(b) for a, b in zip(one, two, strict=True))


def changes():
    for part, fields in CHANGES.items():
        for name, (path, value) in fields.items():
            yield pytest.param(part.__name__, path, value, id=f"{part.__name__}.{name}")
    for queue in QUEUES:
        for name, value in QUEUE_CHANGES.items():
            yield pytest.param("Queue", f"{queue}.{name}", value, id=f"{queue}.{name}")


ALONE = {
    "Speculation": {f"{LLM}.speculation": DRAFT},
    "ResidentModel": TWO,
    "ResponseCache": KEEPS,
    "ModelLoad": LOADS,
}


def given_for(part, path):
    """Return what a field needs to be felt."""
    if part == "StaticBatching":
        return {VECTOR: STATIC, "classes.urgent.pool": "vector"} | (
            GIVEN[path] if path.endswith(("cancel_frees", "poison")) else {}
        )
    if part == "Queue":
        queue, name = path.rsplit(".", 1)
        return {f"{queue}.order": ORDER_OF[name]} if name in ORDER_OF else {}
    if part in PARTS:
        return PARTS[part] | NAMED
    if part in ALONE:
        return ALONE[part]
    if part in ELASTIC:
        return ELASTIC[part] | GIVEN.get(path, {})
    return GIVEN.get(path, {})


@pytest.mark.parametrize(("part", "path", "value"), list(changes()))
def test_a_field_changes_the_run(base, trace, part, path, value):
    if isinstance(value, dict) and 429 in value:
        value = value[429 if path.startswith("gateway") else 503]
    base = with_values(base, given_for(part, path))
    assert differ(tables(base, trace), tables(with_values(base, {path: value}), trace))


def test_every_field_is_either_heeded_or_named_as_read_elsewhere():
    for part, fields in [*CHANGES.items(), (Queue, QUEUE_CHANGES)]:
        known = set(fields) | ELSEWHERE.get(part, set())
        assert set(part.model_fields) == known, part.__name__


def test_what_changes_nothing_is_seen_to_change_nothing(base, trace):
    same = with_values(base, {"gateway.owner": "somebody"})
    assert not differ(tables(base, trace), tables(same, trace))
