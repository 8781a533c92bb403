"""Step times from aiconfigurator-core: the extra is installed for development."""

from importlib.metadata import PackageNotFoundError

import pytest

from capplan.replica import silicon
from capplan.replica.latency import step_time
from capplan.scenario import ContinuousBatching, Pool, SiliconStep
from capplan.schema import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    silicon._table.cache_clear()
    yield tmp_path / "capplan" / "silicon"
    silicon._table.cache_clear()


def steps(model="Llama-3.1-8B", accelerator="H100", weight_dtype=None, **law):
    batching = ContinuousBatching(step_time=SiliconStep(**law))
    return step_time(
        Pool(
            name="llm",
            model=model,
            accelerator=accelerator,
            weight_dtype=weight_dtype,
            batching=batching,
        )
    )


def test_the_table_gives_back_what_the_database_says():
    found = steps()
    # aiconfigurator-core 0.12, vLLM 0.24, H100, in ms.
    assert found.seconds(0, 0, 32, 32 * 1024) * 1e3 == pytest.approx(8.32, rel=0.02)
    assert found.seconds(2048, 2048**2 / 2, 0, 0) * 1e3 == pytest.approx(43.5, rel=0.02)
    mixed = found.seconds(512, 512**2 / 2, 64, 64 * 1024)
    assert mixed * 1e3 == pytest.approx(17.4, rel=0.05)


def test_overheads_are_added():
    bare, hosted = steps(), steps(overhead_s=1e-3, per_sequence_s=1e-5)
    assert hosted.seconds(0, 0, 10, 5000) - bare.seconds(0, 0, 10, 5000) == pytest.approx(1.1e-3)


def test_the_database_is_asked_once(own_cache, monkeypatch):
    first = steps().seconds(0, 0, 8, 8000)
    assert len(list(own_cache.glob("*.json"))) == 1
    silicon._table.cache_clear()
    monkeypatch.setattr(silicon, "_ask", lambda asked: pytest.fail("asked again"))
    assert steps().seconds(0, 0, 8, 8000) == first


def test_a_spoilt_cache_is_made_again(own_cache):
    first = steps().seconds(0, 0, 8, 8000)
    (file,) = own_cache.glob("*.json")
    file.write_text("{", encoding="utf-8")
    silicon._table.cache_clear()
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
    with pytest.raises(DataError, match=r"weight_dtype: .*16 bits"):
        steps(weight_dtype="fp8")
