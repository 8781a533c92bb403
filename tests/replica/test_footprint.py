"""What several models take of a replica, by hand."""

import pytest

from capplan.catalog import model
from capplan.replica.kv_capacity import kv_blocks
from capplan.replica.memory import kv_bytes_per_token, memory_use, weight_bytes
from capplan.replica.multi_model import footprint_fraction, load_seconds, pool_of_model
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool, ResidentModel
from capplan.schema import DataError

EIGHT = "Llama-3.1-8B"


def pool(*entries, **fields):
    batching = ContinuousBatching(**fields.pop("batching", {}))
    return Pool(name="p", accelerator="H100-SXM-80GB", batching=batching, models=entries, **fields)


def test_a_model_takes_its_weights_activations_runtime_and_its_share_for_kv():
    entry = ResidentModel(name=EIGHT, kv_fraction=0.25)
    whole = pool(entry)
    use = memory_use(Pool(name="p", model=EIGHT, accelerator="H100", batching=whole.batching))
    beside = use.weight_bytes + use.activation_bytes + use.runtime_bytes
    assert footprint_fraction(whole, entry) == pytest.approx(beside / use.usable_bytes + 0.25)

    per_block = kv_bytes_per_token(model(EIGHT)) * 16
    assert kv_blocks(pool_of_model(whole, entry)) == int(use.usable_bytes * 0.25 // per_block)


def test_stated_blocks_are_divided_and_nothing_else_is_counted():
    entry = ResidentModel(name="x", kv_fraction=0.3)
    whole = pool(entry, batching={"kv_blocks": 100})
    assert footprint_fraction(whole, entry) == 0.3
    assert kv_blocks(pool_of_model(whole, entry)) == 30


def test_a_model_that_does_not_fit_says_by_how_much():
    entry = ResidentModel(name="Llama-3.1-70B", kv_fraction=0.2)
    with pytest.raises(DataError, match=r"71\.\d GiB per accelerator \(7\d\.\d GiB too much: we"):
        footprint_fraction(pool(entry), entry)


def test_a_share_without_a_block_says_so():
    entry = ResidentModel(name="x", kv_fraction=0.001)
    with pytest.raises(DataError, match=r"model x: kv_fraction: .*holds 1 blocks \(1 short\)"):
        pool_of_model(pool(entry, batching={"kv_blocks": 100}), entry)


def test_loading_takes_the_bytes_of_the_weights_over_the_bandwidth():

    entry = ResidentModel(name=EIGHT, kv_fraction=0.2)
    fast = pool(entry, load_bandwidth_bytes_per_s=1e10)
    assert load_seconds(fast, entry) == weight_bytes(model(EIGHT)) / 1e10
    assert load_seconds(fast, ResidentModel(name="x", kv_fraction=0.2, load_s=3.0)) == 3.0
    with pytest.raises(DataError, match="load_s, or the pool's load_bandwidth_bytes_per_s"):
        load_seconds(pool(entry), entry)
