"""How random pools queue and batch."""

from functools import cache

from hypothesis import strategies as st

maybe = st.none


STEP = {
    "kind": "linear",
    "base_s": 4e-3,
    "per_prefill_token_s": 1e-4,
    "per_sequence_s": 1e-3,
    "per_context_token_s": 1e-6,
}

PLAIN = [{"order": "fifo"}, {"order": "priority"}]
BOUNDS = {"bounds_tokens": [50, 100]}
ORDERS = [
    *PLAIN,
    {"order": "priority", "ageing_per_s": 2.0},
    {"order": "weighted_fair"},
    {"order": "weighted_fair", "fair": {"by": "class", "cost": "requests"}},
    {"order": "earliest_deadline"},
    {"order": "shortest_prompt", "ageing_per_s": 50.0},
    {"order": "length_buckets", "buckets": BOUNDS},
    {"order": "length_buckets", "buckets": BOUNDS | {"turn": "shortest_first"}},
]


KEPT = {"classes": ["embed"], "fraction": 0.4, "kv_fraction": 0.3}


def queues(orders=ORDERS):
    limits = st.fixed_dictionaries(
        {
            "length": maybe() | st.integers(0, 6),
            "wait_limit_s": maybe() | st.floats(0.01, 2.0),
            "retry_after_s": st.floats(0, 1.0),
        }
    )
    return st.builds(lambda one, order: one | order, limits, st.sampled_from(orders))


def fitting(batching):
    """Return batching whose longest sequence fits its KV, else it is an error."""
    capacity = batching["kv_blocks"] * batching["block_size"]
    return batching | {"max_model_len": min(batching["max_model_len"], capacity)}


def continuous(orders=ORDERS):
    plain = st.fixed_dictionaries(
        {
            "kind": st.just("continuous"),
            "max_num_seqs": st.integers(1, 8),
            "max_num_batched_tokens": st.integers(300, 400),
            "max_model_len": st.just(300),
            "chunked_prefill": st.booleans(),
            "block_size": st.sampled_from([1, 16]),
            "kv_blocks": st.integers(4, 60),
            "scheduler": queues(orders),
            "step_time": st.just(STEP),
        }
    )
    return plain.map(fitting)


@cache
def optional():
    """Return continuous batching with some of what an engine has beyond the plain scheduler."""
    prompts = {
        "long_prefill_token_threshold": st.sampled_from([0, 40]),
        "max_num_partial_prefills": st.sampled_from([None, 2]),
        "async_scheduling": st.booleans(),
        "stream_interval": st.sampled_from([1, 8]),
        "cancel_frees": st.booleans(),
        "poison": st.sampled_from(["alone", "batch"]),
        "reserved": st.sampled_from([[], [KEPT]]),
    }
    draft = st.fixed_dictionaries(
        {"num_speculative_tokens": st.integers(1, 4), "acceptance": st.floats(0, 1)}
    )
    packed = st.fixed_dictionaries(
        {
            "reserve": st.sampled_from(["max", "pow2", "oracle"]),
            "compaction": st.booleans(),
            "copy_s_per_token": st.just(1e-6),
        }
    )
    more = st.one_of(
        st.fixed_dictionaries(
            prompts
            | {
                "prefix_caching": st.booleans(),
                "watermark": st.sampled_from([0.0, 0.3]),
                "speculation": maybe() | draft,
            }
        ),
        st.fixed_dictionaries(prompts | {"beam_width": st.just(2), "max_num_seqs": st.just(5)}),
        st.fixed_dictionaries(
            prompts
            | {"kv_layout": st.just("contiguous"), "contiguous": packed}
            | {"block_size": st.just(16), "kv_blocks": st.integers(20, 60)}
        ),
    )
    by_priority = st.just({"scheduler": {"order": "priority"}, "priority_preemption": True})
    return st.builds(
        lambda plain, options, order: keeping(fitting(plain | options | order)),
        continuous(), more, st.just({}) | by_priority,
    )  # fmt: skip


def keeping(batching):
    """Return batching that keeps no less than one place: 0.4 of two would be none."""
    return batching | ({"reserved": []} if batching["max_num_seqs"] * KEPT["fraction"] < 1 else {})


@cache
def static():
    return st.fixed_dictionaries(
        {
            "kind": st.just("static"),
            "max_batch_size": st.integers(1, 4),
            "max_queue_delay_s": st.sampled_from([0.0, 0.1]),
            "max_model_len": st.just(250),
            "cancel_frees": st.booleans(),
            "scheduler": queues(),
            "step_time": st.just(STEP),
        }
    )


@cache
def policies():
    return st.fixed_dictionaries(
        {
            "timeout_s": maybe() | st.floats(0.01, 1.0),
            "timeout_action": st.sampled_from(["reject", "delay"]),
            "max_queue_size": maybe() | st.integers(1, 5),
        }
    )


@cache
def levelled():
    """Return dynamic batching with preferred sizes and levels."""
    more = st.fixed_dictionaries(
        {
            "max_batch_size": st.just(5),
            "preferred_batch_sizes": st.sampled_from([[], [2, 4]]),
            "priority_levels": st.sampled_from([0, 2]),
            "queue_policy": policies(),
            "level_policies": st.lists(policies().map(lambda p: p | {"level": 1}), max_size=1),
            "cancel_frees": st.booleans(),
        }
    )
    return st.builds(lambda plain, options: plain | options, dynamic(), more)


@cache
def dynamic():
    return st.fixed_dictionaries(
        {
            "kind": st.just("dynamic"),
            "max_batch_size": st.integers(1, 5),
            "max_queue_delay_s": st.sampled_from([0.0, 0.05, 0.3]),
            "scheduler": queues(),
            "service": st.fixed_dictionaries(
                {
                    "base_s": st.floats(0.01, 0.3),
                    "per_item_s": st.sampled_from([0.0, 0.02]),
                    "exponential": st.booleans(),
                }
            ),
        }
    )


RANKED = [
    order
    for order in ORDERS
    if order["order"] != "weighted_fair"
    and (order["order"] != "length_buckets" or order["buckets"].get("turn") == "shortest_first")
]


@cache
def compiled_options():
    """Return some of what compiled steps have beyond the plain scheduler."""
    draft = st.fixed_dictionaries(
        {"num_speculative_tokens": st.integers(1, 4), "acceptance": st.floats(0, 1)}
    )
    every = {
        "stream_interval": st.sampled_from([1, 8]),
        "cancel_frees": st.booleans(),
        "kv_blocks": st.integers(4, 30),
        "long_prefill_token_threshold": st.sampled_from([0, 40]),
        "max_num_partial_prefills": st.sampled_from([None, 2]),
        "async_scheduling": st.booleans(),
    }
    alone = {
        "watermark": st.sampled_from([0.0, 0.3]),
        "speculation": maybe() | draft,
        "prefix_caching": st.booleans(),
    }
    beams = {"beam_width": st.just(2), "max_num_seqs": st.just(5)}
    kinds = [st.fixed_dictionaries(every | more) for more in ({}, alone, beams)]
    long = st.just({"long_prefill_token_threshold": 40, "max_long_partial_prefills": 1})
    return st.builds(lambda one, more: one | more, st.one_of(kinds), st.just({}) | long)
