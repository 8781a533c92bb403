"""Busy is time with any work, utilisation the share of the roofline that the work needed."""

import json

import pytest

import capplan as cp
from capplan.catalog import accelerator, model
from capplan.cli import main
from capplan.replica.memory import weight_bytes
from capplan.replica.utilisation import utilisation_table
from capplan.scenario.files import validate


def run(rate_rps, output_tokens=64, prompt_tokens=64, **pool):
    study = validate(
        {
            "name": "x",
            "requests": 60,
            "classes": [
                {
                    "name": "c",
                    "prompt_tokens": {"kind": "fixed", "tokens": prompt_tokens},
                    "output_tokens": {"kind": "fixed", "tokens": output_tokens},
                }
            ],
            "traffic": {
                "shape": {"kind": "steady", "rate_rps": rate_rps},
                "arrivals": {"kind": "even"},
            },
            "pools": [
                {
                    "name": "llm", "model": "Llama-3.1-8B", "accelerator": "H100-SXM-80GB",
                    "batching": {"kind": "continuous", "step_time": {"kind": "roofline"}},
                    **pool,
                }
            ],
        },
        where="x",
    )  # fmt: skip
    [row] = utilisation_table(cp.simulate(study, seed=1)).to_dict("records")
    return row["busy_fraction"], row["utilisation_fraction"]


def test_decoding_one_sequence_is_busy_at_the_share_of_the_bandwidth_that_reads_the_weights():
    busy, used = run(1.0)
    one = model("Llama-3.1-8B")
    read_s = weight_bytes(one) / accelerator("H100-SXM-80GB").memory_bandwidth_bytes_per_s
    assert used == pytest.approx(64 * read_s * 1.0, rel=0.1), "64 steps a request, one a second"
    assert used < busy < 1


def test_a_full_service_is_busy_all_the_time_and_reaches_less_than_its_roofline():
    busy, used = run(1000.0, prompt_tokens=4000, output_tokens=2)
    assert busy > 0.95
    assert 0.4 < used < 0.9


def test_parallelism_divides_the_work_and_not_the_share():
    alone, split = run(1.0), run(1.0, tensor_parallel=2)
    assert split[1] == pytest.approx(alone[1] / 2, rel=0.05)


@pytest.mark.parametrize("name", ["benchmark", "embedding-batch"])
def test_utilisation_without_a_model_is_unknown_and_busy_is_not(name):
    found = utilisation_table(
        cp.simulate(cp.load_scenario(name, values={"requests": 100, "warmup_s": 0.0}))
    )
    assert found["busy_fraction"].gt(0).all()
    assert found["utilisation_fraction"].isna().all()


def test_simulate_states_both(capsys):
    main(["simulate", "chat-service", "--set", "requests=200", "--set", "warmup_s=0", "--json"])
    found = {row["pool"]: row for row in json.loads(capsys.readouterr().out)["utilisation"]}
    assert 0 < found["llm"]["utilisation_fraction"] < found["llm"]["busy_fraction"]
    assert found["labelling"]["utilisation_fraction"] is None
