import csv
import importlib.util
import itertools
import sys

import numpy as np
import pandas as pd
import pytest

from capplan.bundled import data_path
from capplan.schema import TRACE, names

FOLDER = data_path("sample")


def script(name):
    """Import a script of the sample's folder."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table():
    return pd.read_parquet(FOLDER / "trace.parquet")


@pytest.fixture(scope="module")
def figures():
    with (FOLDER / "figures.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def known(figures):
    return {(row["hour"], row["figure"]): float(row["value"]) for row in figures}


def test_the_script_makes_the_bundled_rows_again(table):
    again = script("make_sample").sample()
    blocks = ["prefix_blocks"]
    pd.testing.assert_frame_equal(
        again.drop(columns=blocks), table.drop(columns=blocks), check_dtype=False
    )
    pairs = zip(again["prefix_blocks"], table["prefix_blocks"], strict=True)
    assert all(np.array_equal(ours, theirs) for ours, theirs in pairs)


def test_the_trace_is_small_enough_for_git():
    assert (FOLDER / "trace.parquet").stat().st_size <= 500_000


def test_every_figure_has_its_source(figures):
    assert len(figures) > 200
    assert all("commit b469a113" in row["source"] and row["figure"] for row in figures)
    assert len({(row["hour"], row["figure"]) for row in figures}) == len(figures)


def test_the_figures_are_those_of_the_public_trace(shared_data, figures, tmp_path):
    folder = shared_data / "traces" / "azure-llm-2023"
    found = script("measure_figures").figures(folder)
    assert [list(row) for row in found] == [list(row.values()) for row in figures]


def test_the_columns_are_those_of_a_trace(table):
    absent = {"size", "observed_e2e_s", "user", "think_s", "imputed"}
    assert set(table.columns) == set(names(TRACE)) - absent
    assert table["arrival_s"].is_monotonic_increasing
    assert table["request_id"].is_unique
    assert table["arrival_s"].between(0, 3600).all()


def test_three_classes_and_four_tenants_come_in_their_shares(table):
    assert set(table["request_class"]) == {"chat", "assistant", "batch"}
    assert set(table["tenant"]) == {"web-shop", "mobile-app", "engineering", "back-office"}
    share = table["request_class"].value_counts(normalize=True)
    assert share["chat"] == pytest.approx(0.65, abs=0.02)
    assert share["assistant"] == pytest.approx(0.20, abs=0.02)
    assert share["batch"] == pytest.approx(0.15, abs=0.02)


def test_the_whole_rate_is_the_conversation_hours(table, known):
    expected = 3600 * known["conversation", "rate_rps"]
    assert abs(len(table) - expected) < 3.29 * 1.1 * np.sqrt(expected)


HOURS = {"chat": "conversation", "assistant": "conversation", "batch": "code"}


@pytest.mark.parametrize("name", HOURS)
@pytest.mark.parametrize("column", ["prompt_tokens", "output_tokens"])
@pytest.mark.parametrize("quantile", [0.5, 0.95, 0.99])
def test_lengths_have_the_published_quantiles(table, known, name, column, quantile):
    """The figure lies in the 99.9 % interval of the quantile, give or take 1 % for the grid."""
    values = np.sort(table.loc[table["request_class"] == name, column])
    half = 3.29 * np.sqrt(len(values) * quantile * (1 - quantile))
    low, high = values[[int(len(values) * quantile - half), int(len(values) * quantile + half)]]
    assert 0.99 * low <= known[HOURS[name], f"{column}.q{quantile:g}"] <= 1.01 * high


@pytest.mark.parametrize("name", HOURS)
def test_lengths_have_the_measured_rank_correlation(table, known, name):
    rows = table[table["request_class"] == name]
    ours = rows["prompt_tokens"].corr(rows["output_tokens"], method="spearman")
    assert abs(ours - known[HOURS[name], "length_rank_correlation"]) < 3.29 / np.sqrt(len(rows))


@pytest.mark.parametrize("name", HOURS)
def test_gaps_have_the_published_burstiness(table, known, name):
    gaps = np.diff(table.loc[table["request_class"] == name, "arrival_s"])
    assert gaps.std() / gaps.mean() == pytest.approx(known[HOURS[name], "gap_cv"], rel=0.05)


def test_conversations_grow_and_stay_with_one_tenant(table):
    talks = table[table["request_class"] != "batch"]
    by_session = talks.groupby("session")
    assert 1.5 < len(talks) / by_session.ngroups < 2.5
    assert len(talks[["session", "tenant"]].drop_duplicates()) == by_session.ngroups
    context = talks["prompt_tokens"] + talks["output_tokens"]
    before = context.groupby(talks["session"]).shift()
    assert not (talks["prompt_tokens"] < before).any()


def test_later_turns_begin_with_the_blocks_of_earlier_ones(table):
    for _, rows in table[table["request_class"] == "chat"].head(2000).groupby("session"):
        blocks = rows["prefix_blocks"].to_list()
        for earlier, later in itertools.pairwise(blocks):
            assert np.array_equal(later[: len(earlier)], earlier)


def test_a_prompt_has_the_blocks_it_fills(table):
    filled = table["prefix_blocks"].map(len)
    assert (filled == table["prompt_tokens"] // 128).all()


def test_tenants_share_no_block_and_each_has_one_system_prompt(table):
    used = {}
    for tenant, rows in table.groupby("tenant"):
        used[tenant] = set(np.concatenate(rows["prefix_blocks"].to_list()))
        first = {blocks[0] for blocks in rows["prefix_blocks"] if len(blocks)}
        assert len(first) == 1
    assert sum(map(len, used.values())) == len(set.union(*used.values()))
