"""Profiles of traces that are too short for a rate, a peak or a burst."""

import pytest

import capplan as cp


@pytest.fixture
def profile_of(tmp_path):
    def make(count, gap_s):
        rows = [f"{i * gap_s},{100 + i},{20 + i}" for i in range(count)]
        file = tmp_path / "short.csv"
        file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]))
        return cp.profile(cp.read_trace(file))

    return make


@pytest.mark.parametrize(("count", "gap_s"), [(1, 0.0), (2, 3.0), (11, 0.5)])
def test_less_than_a_minute_shows_no_peak_and_no_absence_of_bursts(profile_of, count, gap_s):
    found = profile_of(count, gap_s)
    text = found.summary()
    assert "no bursts" not in text
    assert "times as many" not in text
    assert not {"unknown", "nan", "inf"} & set(text.partition("How long")[0].split())
    bounds = " ".join(found.length_table()["p99 between"])
    assert "inf" not in bounds
    assert "nan" not in bounds


def test_a_longer_trace_shows_both(profile_of):
    text = profile_of(700, 0.1).summary()
    assert "no bursts" in text
    assert "times as many as the mean" in text
