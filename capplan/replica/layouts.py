"""How a replica's KV is laid out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from capplan.replica.contiguous import ContiguousSpace
from capplan.replica.job import Job
from capplan.replica.kv import KvBlocks, KvCache
from capplan.replica.prefix import PrefixCache

if TYPE_CHECKING:
    from capplan.scenario.batching import ContinuousBatching


def kv_cache(
    batching: ContinuousBatching,
    blocks: int,
    copy_s_per_token: float,
    *,
    stored: Callable[[Job], int],
) -> KvCache:
    """Return the memory of keys and values that a batching asks for.

    ``stored(job)`` is for how many tokens of a running job there is KV.
    """
    if batching.kv_layout == "contiguous":
        return ContiguousSpace(
            batching, blocks=blocks, copy_s_per_token=copy_s_per_token, stored=stored
        )
    if batching.prefix_caching:
        return PrefixCache(blocks, block_size=batching.block_size)
    return KvBlocks(
        blocks,
        block_size=batching.block_size,
        width=batching.beam_width,
        shared_prompt=batching.beam_shares_prompt,
    )
