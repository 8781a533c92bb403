"""Step times from aiconfigurator-core: the extra is installed for development."""

from importlib.metadata import PackageNotFoundError

import pytest

from capplan.replica import silicon
from capplan.replica.kernel_database import KernelDatabase, head_parts, model_config, request
from capplan.replica.step_time import step_time
from capplan.scenario.batching import ContinuousBatching
from capplan.scenario.pools import Pool
from capplan.scenario.step_times import SiliconStep
from capplan.schema import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    silicon._tables.cache_clear()
    yield tmp_path / "capplan" / "silicon"
    silicon._tables.cache_clear()


POOL = ("weight_dtype", "kv_dtype", "tensor_parallel")


def steps(model="Llama-3.1-8B", accelerator="H100", **fields):
    pool = {name: fields.pop(name) for name in POOL if name in fields}
    batching = ContinuousBatching(step_time=SiliconStep(**fields))
    return step_time(
        Pool(name="llm", model=model, accelerator=accelerator, batching=batching, **pool)
    )


def test_the_table_gives_back_what_the_database_says():
    found = steps()
    # aiconfigurator-core 0.12, vLLM 0.24, H100, in ms.
    assert found.seconds(0, 0, 32, 32 * 1024) * 1e3 == pytest.approx(8.32, rel=0.02)
    assert found.seconds(2048, 2048**2 / 2, 0, 0) * 1e3 == pytest.approx(43.5, rel=0.02)
    mixed, bare = (found.seconds(512, 512**2 / 2, n, n * 1024) * 1e3 for n in (64, 0))
    alone = found.seconds(0, 0, 64, 64 * 1024) - found.seconds(0, 0, 64, 64)
    # 17.4 of which 3.6 are attention, which takes 1.8 times as long beside a prefill.
    assert mixed == pytest.approx(17.4 + 0.8 * 3.6, rel=0.02)
    assert mixed - bare > 1.7 * alone * 1e3


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-2-7b-hf", "Qwen3-30B-A3B"])
def test_the_table_is_within_a_thirtieth_of_the_database_between_its_points(model):
    found = steps(model)
    place = Pool(
        name="llm", model=model, accelerator="H100",
        batching=ContinuousBatching(step_time=SiliconStep()),
    )  # fmt: skip
    database = KernelDatabase(request(place, SiliconStep()))
    for chunk, before, n, k in (
        (0, 0, 20, 700), (300, 0, 0, 0), (700, 0, 20, 700), (1024, 0, 1, 1024),
        (1100, 500, 40, 3000), (5000, 9000, 100, 300),
    ):  # fmt: skip
        seconds = found.seconds(chunk, chunk * (before + chunk / 2), n, n * k)
        assert seconds == pytest.approx(database.seconds(chunk, before, n, k), rel=1 / 30)


def test_overheads_are_added():
    bare, hosted = steps(), steps(overhead_s=1e-3, per_sequence_s=1e-5)
    assert hosted.seconds(0, 0, 10, 5000) - bare.seconds(0, 0, 10, 5000) == pytest.approx(1.1e-3)


def test_the_database_is_asked_once(own_cache, monkeypatch):
    first = steps().seconds(0, 0, 8, 8000)
    assert len(list(own_cache.glob("*.json"))) == 1
    silicon._tables.cache_clear()
    monkeypatch.setattr(silicon, "_ask", lambda asked: pytest.fail("asked again"))
    assert steps().seconds(0, 0, 8, 8000) == first


def test_a_spoilt_cache_is_made_again(own_cache):
    first = steps().seconds(0, 0, 8, 8000)
    (file,) = own_cache.glob("*.json")
    file.write_text("{", encoding="utf-8")
    silicon._tables.cache_clear()
    assert steps().seconds(0, 0, 8, 8000) == first


def test_a_cache_that_cannot_be_written_does_not_matter(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert steps().seconds(0, 0, 8, 8000) > 0


@pytest.mark.parametrize("model", ["Llama-2-7b-hf", "Mixtral-8x7B-v0.1"])
def test_models_of_the_catalogue_need_no_network(model):
    found = steps(model)
    assert 0 < found.seconds(0, 0, 8, 8000) < found.seconds(0, 0, 64, 64000)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(DataError, match=r"pip install 'capplan\[silicon\]'"):
        steps()


def test_what_the_database_does_not_know_is_refused():
    with pytest.raises(DataError, match="RTX-4090"):
        steps(accelerator="RTX 4090")
    with pytest.raises(DataError, match="aiconfigurator-core knows"):
        steps(backend_version="0.0.1")
    with pytest.raises(DataError, match=r"weight_dtype: .*16 bits.*int4"):
        steps(weight_dtype="int4")
    with pytest.raises(DataError, match=r"kv_dtype: .*16 bits.*int8"):
        steps(kv_dtype="int8")
    for model in ("gemma-2-9b", "Qwen3-Next-80B-A3B-Instruct", "Qwen2-57B-A14B"):
        with pytest.raises(DataError, match=rf"model: .*whole context.*{model}"):
            steps(model, tensor_parallel=2)


def test_many_kv_heads_are_asked_for_as_more_sequences_with_fewer():
    from capplan.catalog import model

    found, narrow = model("Llama-2-7b-hf"), 8 / 32
    assert head_parts(model_config(found), 1) == 1 / narrow
    assert head_parts(model_config(found), 4) == 1
    assert head_parts(model_config(model("Llama-2-13b-hf")), 1) == 5
    assert head_parts(model_config(model("DeepSeek-V3")), 1) == 1
    decode, bare = (steps("Llama-2-7b-hf").seconds(0, 0, 64, 64 * k) for k in (8192, 4096))
    bytes_read = 64 * 4096 * 2 * 32 * 128 * 2 * 32
    # Reading that KV at the peak bandwidth of 3.35 TB/s; extrapolated it came out at 0.7 of it.
    assert 0.8 < bytes_read / (decode - bare) / 3.35e12 < 1.0


def test_fp8_of_weights_and_of_kv_is_asked_for():
    plain, weights, kv = steps(), steps(weight_dtype="fp8"), steps(kv_dtype="fp8")
    few, much = (0, 0, 1, 100), (0, 0, 64, 64 * 8192)
    assert weights.seconds(*few) < 0.8 * plain.seconds(*few)
    assert kv.seconds(*few) == pytest.approx(plain.seconds(*few), rel=0.05)
    assert kv.seconds(*much) < 0.75 * plain.seconds(*much)


@pytest.mark.parametrize(("model", "share"), [("Mixtral-8x7B-v0.1", 2), ("DeepSeek-V3", 8)])
def test_experts_are_divided_with_the_rest(model, share):
    assert steps(model, tensor_parallel=share).seconds(0, 0, 32, 32 * 1024) > 0


def test_several_prompts_of_a_step_do_not_attend_to_each_other():
    found = steps("Qwen3-30B-A3B")
    one, sixteen = (found.seconds(8192, 8192**2 / 2 / n, 0, 0) for n in (1, 16))
    # aiconfigurator-core 0.12, vLLM 0.24, H100: one prompt of 8,192 tokens, and 16 of 512, ms.
    assert one * 1e3 == pytest.approx(153.2, rel=0.01)
    assert sixteen * 1e3 == pytest.approx(118.8, rel=0.05)


def test_experts_of_8_bits_take_less_than_those_of_16():
    many = (0, 0, 32, 32 * 1024)
    plain, eight = steps("Qwen3-30B-A3B"), steps("Qwen3-30B-A3B", weight_dtype="fp8")
    assert eight.seconds(*many) < 0.75 * plain.seconds(*many)


def test_latent_attention_counts_its_all_reduces_once_and_its_context_beside_a_prefill():
    found = steps("DeepSeek-V3", accelerator="H200", tensor_parallel=8)
    # The database itself: 399 ms at 16-bit dense weights, 61 ms of them all-reduces counted twice.
    assert found.seconds(8192, 8192**2 / 2, 0, 0) * 1e3 == pytest.approx(399 - 61, rel=0.01)
    short, long = (found.seconds(2048, 2048**2 / 2, 32, 32 * k) for k in (1024, 32768))
    alone = [found.seconds(0, 0, 32, 32 * k) for k in (1024, 32768)]
    assert long - short == pytest.approx(alone[1] - alone[0], rel=0.02)
