"""Prompts sent again, told by their lengths alone."""

import numpy as np
import pandas as pd
import pytest

from capplan.measured import read_measured
from capplan.measured.repetition import repetition


def lengths(round_, times, *, seed=0, spread=40):
    rng = np.random.default_rng(seed)
    return pd.Series(np.tile(rng.integers(500, 500 + spread, size=round_), times), dtype=float)


def test_a_round_of_prompts_is_found_and_numbered():
    found = repetition(lengths(37, 9))
    assert found.round == 37
    assert found.match_fraction == 1.0
    assert found.ids.tolist() == [i % 37 for i in range(37 * 9)]


def test_rows_out_of_order_take_the_nearest_place_of_their_length():
    told = lengths(50, 20, spread=4000)
    told[[500, 501]] = told[[501, 500]].to_numpy()
    found = repetition(told)
    assert found.round == 50
    assert (found.ids[500], found.ids[501]) == (1, 0)
    told[700] = 1.0
    assert repetition(told).ids[700] == -1


def test_unknown_lengths_keep_their_place():
    told = lengths(20, 30)
    told[[5, 6, 7, 101]] = np.nan
    found = repetition(told)
    assert found.round == 20
    assert found.ids[[5, 6, 7, 101]].tolist() == [5, 6, 7, 1]


@pytest.mark.parametrize("seed", range(5))
def test_independent_lengths_repeat_nothing(seed):
    rng = np.random.default_rng(seed)
    assert repetition(pd.Series(rng.integers(500, 540, size=2000), dtype=float)) is None


def test_prompts_of_one_length_prove_nothing():
    assert repetition(pd.Series(np.full(500, 512.0))) is None


def test_two_rounds_are_too_few():
    assert repetition(lengths(100, 2)) is None


@pytest.mark.parametrize("name", ["codegen", "general", "roleplay", "reasoning"])
def test_the_measured_load_generator_walks_through_a_hundred_prompts(shared_data, name):
    """The evidence behind the prefix cache of these replays; by chance 3 to 6 % of rows match."""
    found = read_measured(shared_data / "measured" / f"vllm-h100-llama-2-7b-tp1-{name}").repetition
    assert found.round == 100
    assert found.match_fraction > 0.98
    assert found.chance_fraction < 0.06


def test_the_first_round_of_prompts_waits_longer_for_its_first_token(shared_data):
    """Prompts that are not in the cache yet are computed: the other side of the evidence."""
    rows = read_measured(shared_data / "measured" / "vllm-h100-llama-2-7b-tp1-codegen").requests
    first, later = rows["ttft_s"].iloc[:100].median(), rows["ttft_s"].iloc[100:3000].median()
    assert first > 1.25 * later
