"""Servers that are started for each point of a sweep."""

import sys
from pathlib import Path

import pytest
import tiny_llama

import capplan as cp
from capplan.live import Launcher, Target
from capplan.scenario.files import with_values
from capplan.schema import DataError
from tests.live.conftest import free_port


@pytest.fixture
def llama(tmp_path):
    """Return a function that builds a launcher of llama.cpp's server for a field's value."""
    model = tmp_path / "model.gguf"
    tiny_llama.write(model)
    script = Path(__file__).with_name("llama_server.py")

    def built(slots: str, **options: object) -> Launcher:
        command = f"{sys.executable} {script} {model} {{port}} {slots}"
        target = Target(url=f"http://127.0.0.1:{free_port()}")
        return Launcher(target=target, command=command, **options)

    return built


def test_each_point_of_a_sweep_starts_its_own_server(llama, service) -> None:
    scenario = service(rate_rps=10, duration_s=4.0, output_tokens={"kind": "fixed", "tokens": 60})
    vary = {"pools.llm.batching.max_num_seqs": [1, 4]}
    swept = cp.sweep(scenario, vary, backend=llama("{max_num_seqs}"))
    one, four = swept.frame.to_dict("records")
    assert swept.frame["feasible"].all()
    assert four["ttft_p50_s"] < one["ttft_p50_s"]
    assert swept.inputs.backend == "live"


def test_a_server_that_ends_is_a_point_with_its_last_words(llama, service) -> None:
    vary = {"pools.llm.batching.max_num_seqs": [2, 4]}
    launcher = llama("{max_num_seqs}")
    broken = Launcher(
        target=launcher.target,
        command="sh -c 'test {max_num_seqs} = 4 || { echo no such memory; exit 7; }; exec "
        + launcher.command.replace("{max_num_seqs}", "4")
        + "'",
    )
    frame = cp.sweep(service(rate_rps=5), vary, backend=broken).frame
    assert frame["feasible"].tolist() == [False, True]
    assert "ended with 7" in frame["reason"][0]


def test_the_log_of_a_server_that_never_starts_is_quoted(service) -> None:
    target = Target(url=f"http://127.0.0.1:{free_port()}")
    launcher = Launcher(target=target, command="sh -c 'echo out of memory; exit 3'")
    with pytest.raises(DataError, match="out of memory"):
        launcher.run(service(), trace=cp.draw(service()))


def test_a_server_that_does_not_answer_in_time_is_stopped(service) -> None:
    target = Target(url=f"http://127.0.0.1:{free_port()}")
    launcher = Launcher(target=target, command="sleep 600", ready_timeout_s=0.5)
    with pytest.raises(DataError, match=r"within 0\.5 s"):
        launcher.run(service(), trace=cp.draw(service()))


def test_the_start_of_a_server_is_measured(llama, service) -> None:
    scenario = with_values(service(rate_rps=5), {"pools.llm.batching.max_num_seqs": 4})
    launcher = llama("{pools.llm.batching.max_num_seqs}")
    result = launcher.run(scenario, trace=cp.draw(scenario))
    assert result.client is not None
    assert result.client.cold_start_s > 0
    assert (result.requests["outcome"] == "succeeded").all()


def test_an_unknown_field_of_a_command_is_named(service) -> None:
    launcher = Launcher(target=Target(url="http://127.0.0.1:1"), command="serve {max_num_seq}")
    with pytest.raises(DataError, match=r"\{max_num_seq\}"):
        launcher.command_for(service())
