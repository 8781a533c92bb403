"""Every field of a scenario that the simulation heeds moves the figure that it is about.

Each change states its effect, ``more`` or ``less`` of a figure of :func:`figures`.
"""

import numpy as np
import pytest

from capplan.results import per_request
from capplan.scenario import Scenario
from capplan.scenario.autoscaling import (
    Autoscaler,
    EventDriven,
    Lifecycle,
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
from capplan.scenario.gateway import Accept, Gateway, Reserve, ResponseCache, TenantQuota
from capplan.scenario.hosts import Demand, Host
from capplan.scenario.layers import FairShare, LengthBuckets, Network, Queue, Router
from capplan.scenario.pools import ModelLoad, Pool, ResidentModel
from capplan.scenario.rate_limits import Allowance, RequestLimit, RetryBudget, TokenLimit
from capplan.scenario.step_times import LinearStep
from capplan.scenario.times import FixedTime, LognormalTime
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
    Scenario: (
        "",
        {
            "drain_s": (0.01, "less succeeded"),
            "default_class": ("embed", "more embed attempts"),
        },
    ),
    Network: (
        "network",
        {
            "one_way_s": (0.05, "more network time"),
            "handshake_s": (0.03, "more network time"),
            "connections": ("long_lived", "less network time"),
        },
    ),
    Gateway: (
        "gateway",
        {
            "response_cache": ({"lookup_s": 0.01}, "more cache answers"),
            "concurrency": (None, "less waiting gateway"),
            "overhead_s": (0.1, "more gateway overhead"),
            "overhead_per_in_flight_s": (0.01, "more gateway overhead"),
            "overhead_fraction": (0.3, "more delivery time"),
            "overhead_concurrency": (1, "more busy_workers"),
            "accept": (ACCEPT, "more connections_per_caller"),
            "max_prompt_tokens": (100, "more prompt_too_long"),
            "max_total_tokens": (120, "more too_many_tokens"),
            "drop_final_retries": (True, "more final_retry"),
            "retry_budget": (BUDGET, "more retry_budget"),
            "allowances": ([ALLOWANCE], "more quota_exhausted"),
            "rate_limits": ([], "less rate_limit"),
            "token_limits": ([TOKEN_LIMIT], "more token_limit"),
            "quotas": ([QUOTA, OTHER], "more displaced"),
            "reclaim": ("cancel", "more reclaimed"),
            "reserves": ([RESERVE], "more urgent served"),
            "when_full": ("displace_lowest", "more displaced"),
        },
    ),
    RequestLimit: (
        "gateway.rate_limits.r",
        {
            "tenant": ("b", "less rate_limit"),
            "request_class": ("urgent", "less rate_limit"),
            "rate_rps": (30.0, "less rate_limit"),
            "burst": (7, "less rate_limit"),
        },
    ),
    TokenLimit: (
        "gateway.token_limits.t",
        {
            "tenant": ("b", "less token_limit"),
            "request_class": ("urgent", "less token_limit"),
            "rate_tokens_per_s": (4000.0, "less token_limit"),
            "burst_tokens": (150, "more request_too_large"),
            "output_estimate_tokens": (60, "more token_limit"),
            "corrected": (False, "more token_limit"),
        },
    ),
    Allowance: (
        "gateway.allowances.m",
        {
            "tenant": ("b", "less quota_exhausted"),
            "request_class": ("urgent", "less quota_exhausted"),
            "tokens": (5000, "less quota_exhausted"),
            "period_s": (None, "more quota_exhausted"),
        },
    ),
    TenantQuota: (
        "gateway.quotas.0",
        {
            "tenant": ("b", "more tenant b served"),
            "concurrency": (5, "less displaced"),
            "lendable_fraction": ("gateway.quotas.1.lendable_fraction", 0.5, "more succeeded"),
            "borrowing_limit": (0, "more wait_limit"),
        },
    ),
    Reserve: (
        "gateway.reserves.0",
        {
            "priority": (1, "less urgent served"),
            "concurrency": (9, "less chat served"),
        },
    ),
    Accept: (
        "gateway.accept",
        {
            "rate_per_s": (50.0, "less connection_refused"),
            "backlog": (0, "more connection_refused"),
            "max_open": (5, "more connection_refused"),
            "max_per_caller": (2, "more connections_per_caller"),
        },
    ),
    Router: (
        "pools.llm.router",
        {
            "policy": ("random", "more imbalance"),
            "max_in_flight": (None, "less waiting service_queue"),
        },
    ),
    ResponseCache: (
        "gateway.response_cache",
        {
            "capacity": (1, "less response_cache_entries"),
            "ttl_s": (0.1, "less response_cache_entries"),
            "lookup_s": (0.2, "more gateway overhead"),
            "bytes_per_token": (1.0, "less response_cache_bytes"),
        },
    ),
    ModelLoad: (
        "pools.vector.model_load",
        {
            "start_s": (0.3, "more embed e2e"),
            "bytes": (9.0, "less embed e2e"),
            "over": ("network", "more embed e2e"),
        },
    ),
    Pool: (
        "pools.llm",
        {
            "step_factors": ([1.0, 3.0], "more chat e2e"),
            "model_load": ({"bytes": 1e9}, "less replicas"),
            "replicas_per_node": (2, "more crash"),
            "replicas": (3, "more succeeded"),
            "hosts": ("pools.vector.hosts", [], "less embed e2e"),
            "models": ([{"name": "x", "kv_fraction": 0.5}], "less succeeded"),
            "load_bandwidth_bytes_per_s": (1e10, "less succeeded"),
            "lifecycle": ({"model_load": {"kind": "fixed", "seconds": 0.9}}, "less replicas"),
            "standby": (
                {"replicas": 1, "ready": {"kind": "fixed", "seconds": 0}},
                "more replicas_standby",
            ),
            "autoscaler": (
                {"max_replicas": 3, "metrics": [{"metric": "running", "target": 1}]},
                "more replicas_desired",
            ),
            "resource_pool": (None, "more replicas"),
        },
    ),
    Lifecycle: (
        "pools.llm.lifecycle",
        {
            "provisioning": ({"kind": "fixed", "seconds": 0.7}, "less replicas"),
            "image_pull": ({"kind": "fixed", "seconds": 0.7}, "less replicas"),
            "model_load": ({"kind": "fixed", "seconds": 0.7}, "less replicas"),
            "grace_period_s": (0.0, "more scaled_down"),
        },
    ),
    FixedTime: (
        "pools.llm.lifecycle.provisioning",
        {
            "seconds": (0.7, "less replicas"),
        },
    ),
    LognormalTime: (
        "pools.llm.lifecycle.model_load",
        {
            "p50_s": (0.08, "less replicas"),
            "p95_s": (2.0, "less replicas"),
        },
    ),
    Standby: (
        "pools.llm.standby",
        {
            "replicas": (2, "more replicas_standby"),
            "ready": ({"kind": "fixed", "seconds": 0.5}, "more replicas_starting"),
            "price_fraction": (0.5, "less replicas_paid"),
        },
    ),
    ResourcePool: (
        "resource_pools.rack",
        {
            "accelerators": (3, "less replicas"),
        },
    ),
    Autoscaler: (
        "pools.llm.autoscaler",
        {
            "min_replicas": (4, "more fewest wanted"),
            "max_replicas": (3, "less replicas"),
            "metrics": ([{"metric": "running", "target": 1}], "more replicas"),
            "sync_period_s": (0.4, "less turns of replicas"),
            "tolerance": (0.9, "less turns of replicas"),
            "scrape_interval_s": (0.3, "less replicas"),
            "metric_lag_s": (0.5, "less replicas"),
        },
    ),
    ScalingMetric: (
        "pools.llm.autoscaler.metrics.0",
        {
            "metric": ("running", "more scaling_running"),
            "source": ("pods", "less replicas"),
            "target_type": (
                "pools.llm.autoscaler.metrics.1.target_type",
                "AverageValue",
                "less replicas",
            ),
            "target": (1.0, "more replicas"),
            "activation": (900.0, "less replicas"),
            "quantile": ("pools.llm.autoscaler.metrics.1.quantile", 0.1, "less replicas"),
            "window_s": ("pools.llm.autoscaler.metrics.1.window_s", 0.3, "less scaling_e2e_s"),
        },
    ),
    ScaleUpRules: (
        "pools.llm.autoscaler.behavior.scale_up",
        {
            "stabilization_window_s": (1.0, "less replicas"),
            "select_policy": ("Disabled", "less replicas"),
            "policies": ([ONE_POD], "less replicas"),
        },
    ),
    ScaleDownRules: (
        "pools.llm.autoscaler.behavior.scale_down",
        {
            "stabilization_window_s": (9.0, "more replicas"),
            "select_policy": ("Disabled", "more replicas"),
            "policies": ([ONE_POD], "more replicas"),
        },
    ),
    ScalingPolicy: (
        "pools.llm.autoscaler.behavior.scale_up.policies.0",
        {
            "type": ("Percent", "less replicas"),
            "value": (2, "more replicas"),
            "period_s": (2.0, "less replicas"),
        },
    ),
    EventDriven: (
        "pools.llm.autoscaler.event_driven",
        {
            "polling_interval_s": (0.9, "less replicas_desired"),
            "cooldown_s": (60.0, "more replicas"),
            "idle_replicas": (None, "more replicas"),
        },
    ),
    ResidentModel: (
        "pools.llm.models.y",
        {
            "model": ("Llama-3.2-3B", "more urgent served"),
            "kv_fraction": (0.4, "more succeeded"),
            "load_s": (0.5, "less succeeded"),
            "unload_s": ("pools.llm.models.x.unload_s", 0.5, "less succeeded"),
            "weight_dtype": ("int8", "more urgent served"),
            "step_time": (LINEAR | {"base_s": 0.05}, "more step_time_s"),
        },
    ),
    ContinuousBatching: (
        "pools.llm.batching",
        {
            "max_num_seqs": (2, "less batch size"),
            "max_num_batched_tokens": (500, "more step_time_s"),
            "chunked_prefill": (False, "less batch size"),
            "block_size": (64, "less kv_usage_fraction"),
            "kv_blocks": (26, "less succeeded"),
            "max_model_len": (250, "more max_model_len"),
            "prefix_caching": (True, "more cached tokens"),
            "long_prefill_token_threshold": (20, "more chat ttft"),
            "max_num_partial_prefills": (1, "less prefill time"),
            "max_long_partial_prefills": (1, "less prefill time"),
            "watermark": (0.6, "less succeeded"),
            "speculation": (DRAFT, "less chat e2e"),
            "beam_width": (2, "less succeeded"),
            "beam_shares_prompt": (True, "less kv_capacity"),
            "stream_interval": (20, "less tokens"),
            "cancel_frees": (False, "less succeeded"),
            "kv_layout": ("contiguous", "less succeeded"),
            "async_scheduling": (True, "less chat e2e"),
            "reserved": ([RESERVATION], "less urgent ttft"),
            "priority_preemption": (True, "less urgent ttft"),
            "poison": ("batch", "more poisoned_batch"),
        },
    ),
    Reservation: (
        "pools.llm.batching.reserved.0",
        {
            "classes": (["chat"], "more urgent ttft"),
            "priority_at_most": (1, "more urgent ttft"),
            "fraction": (0.9, "less chat served"),
            "kv_fraction": (0.8, "less chat served"),
        },
    ),
    FairShare: (
        "pools.llm.batching.scheduler.fair",
        {
            "by": ("class", "more tenant b ttft"),
            "cost": ("requests", "less short ttft"),
            "tenants": ({"b": 9.0}, "less tenant b ttft"),
            "classes": ({"urgent": 9.0}, "less urgent ttft"),
        },
    ),
    LengthBuckets: (
        "pools.llm.batching.scheduler.buckets",
        {
            "bounds_tokens": ([50], "more short ttft"),
            "turn": ("shortest_first", "less short ttft"),
        },
    ),
    Speculation: (
        "pools.llm.batching.speculation",
        {
            "num_speculative_tokens": (1, "more chat e2e"),
            "acceptance": (0.2, "more chat e2e"),
            "draft_cost_fraction": (0.5, "more chat e2e"),
        },
    ),
    ContiguousKv: (
        "pools.llm.batching.contiguous",
        {
            "reserve": ("oracle", "more succeeded"),
            "compaction": (True, "less kv_external_fragmentation_fraction"),
            "copy_s_per_token": (1e-3, "more chat e2e"),
        },
    ),
    LinearStep: (
        STEP,
        {n: (2e-3, f"{'less' if n == 'base_s' else 'more'} chat e2e") for n in TERMS},
    ),
    DynamicBatching: (
        "pools.vector.batching",
        {
            "max_batch_size": (2, "less vector batch size"),
            "max_queue_delay_s": (0.5, "more embed e2e"),
            "cancel_frees": (False, "more wasted tokens"),
            "poison": ("batch", "more poisoned_batch"),
            "preferred_batch_sizes": ([2], "less vector batch size"),
            "priority_levels": (2, "more urgent e2e"),
            "default_priority_level": (2, "less urgent e2e"),
            "queue_policy": ({"timeout_s": 0.05}, "more queue_timeout"),
            "level_policies": ([{"level": 1, "timeout_s": 0.05}], "more queue_timeout"),
        },
    ),
    QueuePolicy: (
        "pools.vector.batching.queue_policy",
        {
            "timeout_s": (0.2, "less queue_timeout"),
            "timeout_action": ("delay", "less queue_timeout"),
            "max_queue_size": (1, "less waiting scheduler_queue"),
        },
    ),
    StaticBatching: (
        "pools.vector.batching",
        {
            "max_batch_size": (2, "less vector batch size"),
            "max_queue_delay_s": (0.5, "more urgent e2e"),
            "max_model_len": (100, "more max_model_len"),
            "cancel_frees": (False, "more urgent e2e"),
            "poison": ("batch", "more poisoned_batch"),
            "step_time": (LINEAR | {"base_s": 9e-3}, "more urgent e2e"),
        },
    ),
    ServiceLaw: (
        "pools.vector.batching.service",
        {
            "base_s": (0.5, "more embed e2e"),
            "per_item_s": (0.1, "more embed e2e"),
            "per_size_s": (0.1, "more embed e2e"),
            "exponential": (True, "more spread of vector service"),
        },
    ),
    RequestClass: (
        "classes.chat",
        {
            "pool": ("vector", "more vector attempts"),
            "model": ("y", "more succeeded"),
            "priority": (-1, "less chat ttft"),
            "streaming": (False, "less chat first tokens"),
            "cached_fraction": (0.9, "more cached tokens"),
            "response_cached_fraction": (0.5, "more cache answers"),
            "hedge": ({"after_s": 0.2}, "more cancelled"),
            "poisoned_fraction": (0.2, "more poisoned"),
        },
    ),
    Hedge: (
        "classes.chat.hedge",
        {
            "after_s": (0.4, "less chat attempts"),
            "after_quantile": ("classes.chat.hedge", {"after_quantile": 0.5}, "less chat attempts"),
            "most": (2, "more chat attempts"),
        },
    ),
    RetryBudget: (
        "classes.chat.retry.budget",
        {
            "fraction": (0.9, "more chat attempts"),
            "min_per_s": (9.0, "more chat attempts"),
            "window_s": (0.5, "less chat attempts"),
            "per_tenant": (True, "more chat attempts"),
        },
    ),
    Promises: (
        "classes.chat.promises",
        {
            "deadline_s": (0.5, "more deadline"),
        },
    ),
    Retry: (
        "classes.chat.retry",
        {
            "max_attempts": (1, "less chat attempts"),
            "attempt_timeout_s": (0.3, "more attempt_timeout"),
            "backoff_s": (2.0, "more retry pause"),
            "multiplier": (3.0, "more retry pause"),
            "max_backoff_s": (0.02, "less retry pause"),
            "jitter": (True, "less retry pause"),
            "retry_on": (["failed"], "less chat attempts"),
            "heeds_final": (False, "more chat attempts"),
            "honour_retry_after": (False, "less retry pause"),
            "never_on_status": ([503], "less retries of full llm"),
            "never_on_reason": (["queue_full"], "less chat attempts"),
            "max_retry_after_s": (0.1, "less retry pause"),
            "budget": ({"fraction": 0.1, "min_per_s": 0.0}, "less chat attempts"),
        },
    ),
    Host: (
        "hosts.h",
        {
            "compute_units": (9.0, "less compute_units_pressure"),
            "io_bytes_per_s": (5.0, "more io_bytes_per_s_pressure"),
            "network_bytes_per_s": (5.0, "more network_bytes_per_s_pressure"),
        },
    ),
    Demand: (
        "classes.embed.demand",
        {
            "compute_units": (9.0, "more compute_units_pressure"),
            "io_bytes_per_s": (90.0, "more io_bytes_per_s_pressure"),
            "network_bytes_per_s": (90.0, "more network_bytes_per_s_pressure"),
        },
    ),
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
    "pools.llm.router.policy": {"faults": []},
    f"{MODELS}.y.kv_fraction": {f"{LLM}.kv_blocks": 60},
    f"{VECTOR}.max_batch_size": BUSY,
    f"{VECTOR}.preferred_batch_sizes": BUSY,
    f"{VECTOR}.service.exponential": {"pools.vector.hosts": []},
    "gateway.response_cache": {"classes.chat.response_cached_fraction": 0.5},
    "classes.chat.priority": {"gateway.queue.order": "priority"},
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
    "length": (1, "less waiting {layer}"),
    "wait_limit_s": (0.05, "more wait_limit"),
    "order": ("priority", "less urgent ttft"),
    "status": (None, "more status_{status}_rps"),
    "retry_after_s": (2.5, "more retry pause"),
    "fair": ({"by": "class", "cost": "requests"}, "less urgent ttft"),
    "buckets": ({"bounds_tokens": [100], "turn": "shortest_first"}, "less short ttft"),
    "ageing_per_s": (100.0, "more urgent ttft"),
}
ORDER_OF = {"fair": "weighted_fair", "buckets": "length_buckets", "ageing_per_s": "priority"}
QUEUES = {
    "gateway.queue": ("gateway", 503),
    "pools.llm.queue": ("service_queue", 429),
    "pools.llm.batching.scheduler": ("scheduler_queue", 429),
}
"""Each queue by its path: its layer, and another status than it has."""

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
        "hf_config", "router", "batching", "version",
        "price_usd_per_accelerator_hour", "cold_start_s", "weight_dtype", "kv_dtype",
    },
    ContinuousBatching: {
        "kind", "contiguous", "gpu_memory_utilization", "hybrid_kv_context_tokens",
        "disable_hybrid_kv_cache_manager", "scheduler",
        "step_time",
    },
    ResidentModel: {"name", "kv_dtype"},
    LinearStep: {"kind", "error_fraction"},
    ServiceLaw: {"error_fraction"},
    DynamicBatching: {"kind", "scheduler", "service"},
    StaticBatching: {"kind", "scheduler", "gpu_memory_utilization"},
    RequestClass: {
        "name", "owner", "sheddable", "allows_degraded", "promises", "retry", "share",
        "prompt_tokens", "output_tokens", "length_correlation", "prefix_tokens", "demand", "size",
    },
    Promises: {
        "e2e_s", "ttft_s", "tpot_s", "quantile", "availability_fraction", "error_rate_fraction",
        "timeout_rate_fraction", "goodput_fraction", "cost_usd_per_success", "min_samples",
        "window_s", "origins",
    },
    FixedTime: {"kind"},
    LognormalTime: {"kind"},
    ResourcePool: {"name", "owner"},
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
    """Yield the part, path and value of each change, and its effect."""
    for part, (above, fields) in CHANGES.items():
        for name, change in fields.items():
            *path, value, effect = change
            where = path[0] if path else f"{above}.{name}".lstrip(".")
            yield pytest.param((part.__name__, where, value, effect), id=f"{part.__name__}.{name}")
    for queue, (layer, status) in QUEUES.items():
        for name, (value, effect) in QUEUE_CHANGES.items():
            new = status if name == "status" else value
            moved = effect.format(layer=layer, status=status)
            yield pytest.param(("Queue", f"{queue}.{name}", new, moved), id=f"{queue}.{name}")


BY_PART = {
    **{part: given | NAMED for part, given in PARTS.items()},
    **ELASTIC,
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
    return BY_PART.get(part, {}) | GIVEN.get(path, {})


def mean(values):
    return float(values.mean()) if len(values) else 0.0


def pauses_s(log):
    """Return how long callers waited between an attempt and the next, s."""
    ordered = log.sort_values(["request_id", "attempt"])
    before = ordered.groupby("request_id")["finish_s"].shift()
    return (ordered["intended_start_s"] - before).dropna()


def figures(result):
    """Return what a run did: counts of outcomes and reasons, mean times, means of the timeline."""
    log, rows = result.requests, result.timeline
    served = log[log["outcome"] == "succeeded"]
    vector = log["replica"].astype("object").str.startswith("vector").fillna(False).astype(bool)
    found = {
        "network time": mean(log["network_s"].dropna()),
        "gateway overhead": mean((log["service_queue_in_s"] - log["gateway_admitted_s"]).dropna()),
        "prefill time": mean((served["prefill_end_s"] - served["batch_in_s"]).dropna()),
        "delivery time": mean((served["finish_s"] - served["decode_end_s"]).dropna()),
        "retry pause": mean(pauses_s(log)),
        "cache answers": len(served[served["outcome_layer"] == "gateway"]),
        "cached tokens": log["cached_tokens"].sum(),
        "wasted tokens": log["wasted_tokens"].sum(),
        "tokens": log["output_tokens"].sum(),
        "batch size": mean(log["batch_size"].dropna()),
        "vector batch size": mean(log.loc[vector, "batch_size"].dropna()),
        "vector attempts": int(vector.sum()),
        "imbalance": log.loc[~vector, "replica"].value_counts().std(),
        "spread of vector service": (served["decode_end_s"] - served["batch_in_s"])[vector].std(),
        "retries of full llm": int((log["attempt"] > 1).sum()),
    }
    wanted = rows.loc[rows["metric"] == "replicas_desired", "value"]
    found["turns of replicas"] = int(wanted.diff().fillna(0).ne(0).sum())
    found["fewest wanted"] = wanted.iloc[len(wanted) // 2 :].min()
    found |= log["outcome"].value_counts().to_dict()
    found |= log["reason"].dropna().str.partition(":")[0].value_counts().to_dict()
    found |= rows.groupby("metric", observed=True)["value"].mean().to_dict()
    lengths = rows[rows["metric"] == "length"].groupby("layer", observed=True)["value"].mean()
    found |= {f"waiting {layer}": value for layer, value in lengths.items()}
    table = per_request(result, warmup=True)
    groups = {
        "short": table[table["prompt_tokens"] < 100],
        **{str(name): own for name, own in table.groupby("request_class", observed=True)},
        **{f"tenant {name}": own for name, own in table.groupby("tenant", observed=True)},
    }
    for name, own in groups.items():
        found[f"{name} attempts"] = own["attempts"].sum()
        found[f"{name} served"] = int((own["outcome"] == "succeeded").sum())
        found[f"{name} ttft"] = own["ttft_s"].mean()
        found[f"{name} first tokens"] = own["ttft_s"].count()
        found[f"{name} e2e"] = own["e2e_s"].mean()
    return found


BEFORE = {}
"""Figures of the run without a change, by what is given."""


@pytest.mark.parametrize("change", list(changes()))
def test_a_field_moves_the_figure_that_it_is_about(base, trace, change):
    part, path, value, effect = change
    given = given_for(part, path)
    base = with_values(base, given)
    if repr(given) not in BEFORE:
        BEFORE[repr(given)] = figures(simulate(base, trace=trace))
    after = figures(simulate(with_values(base, {path: value}), trace=trace))
    side, figure = effect.split(" ", 1)
    one, two = (float(run.get(figure, 0)) for run in (BEFORE[repr(given)], after))
    assert two > one if side == "more" else two < one, (figure, one, two)


def test_every_field_acts_or_is_named_as_read_elsewhere():
    every = {part: fields for part, (_, fields) in CHANGES.items()} | {Queue: QUEUE_CHANGES}
    for part, fields in every.items():
        known = set(fields) | ELSEWHERE.get(part, set())
        assert set(part.model_fields) == known, part.__name__


def test_what_changes_nothing_is_seen_to_change_nothing(base, trace):
    same = with_values(base, {"gateway.owner": "somebody"})
    assert not differ(tables(base, trace), tables(same, trace))
