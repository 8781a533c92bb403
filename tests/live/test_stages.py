"""A load acceptance on a real server."""

import pytest

import capplan as cp
from capplan.live import RunningServer, Target
from capplan.scenario.files import with_values
from capplan.schema import DataError

PLAN = {
    "run": ["baseline", "ramp", "fall_back", "failure"],
    "start_rps": 25.0,
    "factor": 4.0,
    "step_s": 8.0,
    "steady_s": 7.0,
    "longest_s": 8.0,
    "ramp_s": 0.0,
    "most_steps": 4,
    "beyond": 0,
    "refine": 0,
    "repeats": 0,
    "fall_back_s": 4.0,
}


@pytest.fixture(scope="module")
def accepted(llama, service):
    """Return the acceptance of a service that a small server cannot keep up with."""
    promises = {"ttft_s": 0.5, "quantile": 0.9, "min_samples": 10}
    scenario = with_values(
        service(
            rate_rps=25,
            duration_s=4.0,
            promises=promises,
            output_tokens={"kind": "fixed", "tokens": 20},
        ),
        {"stages": PLAN, "drain_s": 4.0, "gateway.owner": "edge", "pools.llm.owner": "models"},
    )
    return cp.run_stages(scenario, backend=RunningServer(target=Target(url=llama)))


def test_the_load_rises_until_a_promise_breaks(accepted) -> None:
    steps = accepted.ramp.steps
    assert [step.load_rps for step in steps] == sorted(step.load_rps for step in steps)
    assert all(step.run.backend == "live" for step in steps)
    assert accepted.first_degradation is not None or steps[-1].client_limited


def test_a_stage_that_was_not_run_is_unknown(accepted) -> None:
    outcomes = {reason.rule: reason.outcome for reason in accepted.verdict.reasons}
    assert outcomes["failure_stage"] == "unknown"
    assert accepted.verdict.outcome != "pass"


def test_the_acceptance_names_its_server(accepted) -> None:
    assert accepted.inputs.backend == "live"
    assert accepted.inputs.asked["target"]["url"].startswith("http://127.0.0.1")


def test_the_assumption_that_limits_were_not_enforced_is_listed(accepted) -> None:
    assert any("not enforced" in note for note in accepted.assumed)


def test_what_only_a_simulation_can_do_is_refused(service, llama) -> None:
    backend = RunningServer(target=Target(url=llama))
    with pytest.raises(ValueError, match="simulation"):
        cp.run_stages(service(), backend=backend, try_next=True)


def test_faults_cannot_be_asked_of_a_server(service, llama) -> None:
    broken = with_values(service(), {"faults": [{"pool": "llm", "at_s": 1.0, "down_s": 1.0}]})
    with pytest.raises(DataError, match="faults"):
        cp.measure(broken, llama)
