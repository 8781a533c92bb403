"""Step times from measured kernels: made-up profiles, and a real one."""

import pandas as pd
import pytest

from capplan.replica.kernel_tables import PER_LAYER, VIDUR_LAYER, find_profile
from capplan.replica.step_time import step_time
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import TablesStep
from capplan.schema import DataError

TOKENS, SEQUENCES = (1, 64, 2048), (1, 256)
COLUMNS = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]


def pool(
    path=".", *, model="Llama-3.1-8B", accelerator="RTX 4090", tensor_parallel=1, ahead=False, **law
):
    step = TablesStep(path=str(path), **law)
    return Pool(
        name="llm",
        model=model,
        accelerator=accelerator,
        tensor_parallel=tensor_parallel,
        batching=ContinuousBatching(step_time=step, async_scheduling=ahead),
    )


@pytest.fixture
def profile(tmp_path):
    """Return a folder in LLMServingSim's layout: 1 us a dense kernel, attention by its size."""
    layers = (*set(PER_LAYER), "embedding", "final_layernorm")
    dense = [(name, t, 1.0) for name in layers for t in TOKENS]
    heads = [(name, n, 5.0) for name in ("lm_head", "sampler") for n in SEQUENCES]
    contexts = (16, 4096)
    attention = [(0, 0, n, k, 0.001 * n * k) for n in SEQUENCES for k in contexts]
    for before in (0, 1024):
        attention += [(c, before, 0, 0, 0.01 * c) for c in (16, 2048)]
        attention += [(16, before, n, k, 0.16 + 0.001 * n * k) for n in SEQUENCES for k in contexts]
    tables = {
        "dense.csv": pd.DataFrame(dense, columns=["layer", "tokens", "time_us"]),
        "per_sequence.csv": pd.DataFrame(heads, columns=["layer", "sequences", "time_us"]),
        "attention.csv.gz": pd.DataFrame(attention, columns=COLUMNS),
    }
    for name, frame in tables.items():
        frame.to_csv(tmp_path / name, index=False)
    return tmp_path


def test_a_step_is_the_sum_of_its_kernels(profile):
    steps = step_time(pool(profile, overhead_s=1e-3, per_sequence_s=1e-5))
    dense, head = 32 * 8 + 2, 10
    decode = dense + head + 32 * 0.001 * 64 * 1000
    assert steps.seconds(0, 0, 64, 64 * 1000) == pytest.approx(1e-3 + 64e-5 + decode * 1e-6)
    prefill = dense + head + 32 * 0.01 * 512
    assert steps.seconds(512, 512**2 / 2, 0, 0) == pytest.approx(1e-3 + prefill * 1e-6)
    both = dense + head + 32 * (0.01 * 512 + 0.001 * 64 * 1000)
    assert steps.seconds(512, 512**2 / 2, 64, 64000) == pytest.approx(1e-3 + 64e-5 + both * 1e-6)


def test_a_profile_in_vidurs_layout_takes_the_rest_from_the_roofline(tmp_path):
    rows = pd.DataFrame({"num_tokens": [1, 4096] * 2, "num_tensor_parallel_workers": [1, 1, 2, 2]})
    for name in (*VIDUR_LAYER, "emb"):
        rows[f"time_stats.{name}.median"] = [0.01, 0.01, 0.005, 0.005]
    rows.to_csv(tmp_path / "mlp.csv", index=False)
    llama = {"model": "Llama-2-7b-hf", "accelerator": "H100"}
    one, two = (step_time(pool(tmp_path, tensor_parallel=n, **llama)) for n in (1, 2))
    dense = (32 * 8 + 1) * 0.01e-3
    bare = one.seconds(0, 0, 1, 0)
    attention = 32 * 14e-6
    assert dense + attention < bare < dense + attention + 0.2e-3  # and the output head
    assert two.seconds(0, 0, 1, 0) < bare
    reading = one.seconds(0, 0, 1, 10_000) - bare
    assert reading == pytest.approx(10_000 * 524288 / (0.93 * 3.35e12), rel=0.01)


def test_a_profile_that_is_not_whole_is_refused(profile):
    frame = pd.read_csv(profile / "attention.csv.gz")
    frame.drop(index=0).to_csv(profile / "attention.csv.gz", index=False)
    with pytest.raises(DataError, match="a whole grid"):
        step_time(pool(profile))
    (profile / "attention.csv.gz").unlink()
    with pytest.raises(DataError, match=r"attention\.csv: an existing file"):
        step_time(pool(profile))
    one = pd.DataFrame({"layer": ["act_fn"], "tokens": [1], "time_us": [1]})
    one.to_csv(profile / "dense.csv", index=False)
    with pytest.raises(DataError, match="kernels or columns of the profile"):
        step_time(pool(profile))
    with pytest.raises(DataError, match=r"a folder with dense.csv or mlp.csv"):
        step_time(pool(profile / "nowhere"))


def test_a_profile_is_found_by_model_accelerator_and_parallelism(tmp_path):
    for tp in (1, 2):
        folder = tmp_path / "a" / "meta-llama" / "Llama-3.1-8B" / "bf16" / f"tp{tp}"
        folder.mkdir(parents=True)
        (folder / "dense.csv").write_text("")
    (folder.parent / "meta.yaml").write_text("gpu: NVIDIA GeForce RTX 4090\n")
    other = tmp_path / "b" / "h100" / "meta-llama" / "Llama-2-7b-hf"
    other.mkdir(parents=True)
    (other / "mlp.csv.gz").write_text("")
    assert find_profile(tmp_path, pool()).name == "tp1"
    assert find_profile(tmp_path, pool(tensor_parallel=2)).name == "tp2"
    assert find_profile(tmp_path, pool(model="Llama-2-7b-hf", accelerator="H100")) == other
    assert find_profile(other, pool()) == other  # given by hand
    with pytest.raises(DataError, match=r"a kernel profile of .*Llama-3.1-8B on H100"):
        find_profile(tmp_path, pool(accelerator="H100"))
    with pytest.raises(DataError, match="with tensor_parallel 4"):
        find_profile(tmp_path, pool(tensor_parallel=4))


def test_the_measured_profile_reads_weights_and_kv_at_a_plausible_bandwidth(shared_data):
    steps = step_time(pool(find_profile(shared_data / "profiles", pool())))
    bandwidth = 1.008e12
    weights = 2 * (8030261248 - 128256 * 4096)
    assert 0.8 < weights / bandwidth / steps.seconds(0, 0, 1, 0) < 1.0
    reading = steps.seconds(0, 0, 32, 32 * 2048) - steps.seconds(0, 0, 32, 32 * 1024)
    assert 0.7 < 32 * 1024 * 131072 / bandwidth / reading < 1.0


def test_the_hosts_work_is_hidden_where_steps_are_formed_ahead(profile):
    law = {"overhead_s": 1e-3, "per_sequence_s": 1e-5}
    bare = step_time(pool(profile))
    work = (0, 0, 64, 64 * 1000)
    ahead = step_time(pool(profile, ahead=True, **law))
    assert ahead.seconds(*work) == max(bare.seconds(*work), 1e-3 + 64e-5)
    with pytest.raises(DataError, match=r"pipeline_parallel: 1 for step times of kind tables"):
        step_time(pool(profile).model_copy(update={"pipeline_parallel": 2}))


def test_a_profile_is_found_for_a_model_and_an_accelerator_of_ones_own(tmp_path):
    rates = "memory_bytes: 48e9\nmemory_bandwidth_bytes_per_s: 9e11\nbf16_flop_per_s: 3e14\n"
    (tmp_path / "card.yaml").write_text(f"name: Card 48\n{rates}")
    own = tmp_path / "profiles" / "Tiny" / "a"
    other = tmp_path / "profiles" / "Tiny" / "b"
    for folder, device in ((own, "Card 48"), (other, "Card 24")):
        folder.mkdir(parents=True)
        (folder / "dense.csv").write_text("")
        (folder / "meta.yaml").write_text(f"gpu: {device}\n")
    config = {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    mine = Pool(
        name="llm",
        model="Tiny",
        hf_config=config,
        accelerator=str(tmp_path / "card.yaml"),
        batching=ContinuousBatching(),
    )
    assert find_profile(tmp_path / "profiles", mine) == own
    (own / "dense.csv").unlink()
    with pytest.raises(DataError, match="a kernel profile of Tiny on Card 48"):
        find_profile(tmp_path / "profiles", mine)
