"""The frozen errors by family of models: within bounds, and the same when computed again."""

import importlib.util

import pandas as pd
import pytest

from capplan.bundled import data_path
from capplan.replica.family_errors import COLUMNS, KERNELS

FOLDER = data_path("validation")
BOUNDS = {
    # Worst and median size of an error; of 8 bits the steps that mix prefill and decode are worst.
    "dense": (0.2, 0.06),
    "dense at 8 bits": (0.31, 0.1),
    "mixture-of-experts": (0.2, 0.1),
    "mixture-of-experts at 8 bits": (0.31, 0.1),
    "latent-attention at 8 bits": (0.2, 0.15),
    "sliding-window": (0.25, 0.06),
    "sliding-window at 4 bits": (0.4, 0.12),  # worst: prefills of gpt-oss-120b on two accelerators
    "linear-attention": (0.25, 0.1),
    "sparse-attention at 8 bits": (0.8, 0.5),
}


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(FOLDER / "kernels.csv")


@pytest.mark.parametrize("family", BOUNDS)
def test_the_roofline_is_within_the_bounds_of_its_family(table, family):
    rows = table[(table["family"] == family) & (table["step_times"] == "roofline")]
    worst, median = BOUNDS[family]
    assert set(rows["against"]) >= {KERNELS}
    for _, errors in rows.groupby("against")["error_fraction"]:
        assert errors.abs().max() < worst
        assert errors.abs().median() < median


def test_computed_again_the_errors_are_the_frozen_ones(table):
    pytest.importorskip("aiconfigurator_core")
    spec = importlib.util.spec_from_file_location("make_kernels", FOLDER / "make_kernels.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert tuple(table.columns) == COLUMNS
    frozen = table.set_index(["case", "step_times", "step"])["error_fraction"]
    again = [(case, row) for case in script.CASES[9::4] for row in script.against_kernels(case)]
    assert {script.named(*case) for case in script.CASES} <= set(table["case"])
    for case, (law, against, step, error) in again:
        assert against == KERNELS
        assert frozen[script.named(*case), law, step] == pytest.approx(error, abs=0.002)
    *case, config = script.OWN[4]
    for law, _, step, error in script.against_own_kernels(case, config):
        assert frozen[script.named(*case), law, step] == pytest.approx(error, abs=0.002)
    servers = script.servers()
    assert len(table) == 10 * len(script.CASES) + 8 * len(script.OWN) + 2 * len(servers)
    for law, _, step, error in script.against_server(next(servers.itertuples())):
        errors = frozen[:, law, step]
        assert (errors - error).abs().min() < 0.002
