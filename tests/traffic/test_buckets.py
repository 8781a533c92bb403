from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.traffic.profile.lengths import length_buckets


def squared(logs, ends):
    groups = np.split(logs, ends)
    return sum(float(((g - g.mean()) ** 2).sum()) for g in groups)


@given(st.lists(st.integers(1, 5000), min_size=4, max_size=14))
def test_no_other_cut_of_the_lengths_is_better(tokens):
    logs = np.sort(np.log(tokens))
    found = length_buckets(tokens)
    k = len(found.names)
    best = min(
        squared(logs, list(ends)) for ends in itertools.combinations(range(1, len(logs)), k - 1)
    )
    label = np.searchsorted(np.log(found.upper_tokens) + 1e-9, logs)
    got = sum(float(((logs[label == i] - logs[label == i].mean()) ** 2).sum()) for i in range(k))
    assert got == pytest.approx(best, abs=1e-9)
    assert sum(found.requests) == len(tokens)
    assert min(found.requests) > 0


def test_equal_lengths_are_one_bucket_without_a_fit():
    found = length_buckets([7] * 20)
    assert found.names == ("all",)
    assert math.isnan(found.fit)
    assert set(found.of([1, 7, 9])) == {"all"}


def test_three_groups_of_lengths_are_found():
    rng = np.random.default_rng(2)
    tokens = np.concatenate([rng.normal(m, m / 20, 2000) for m in (50, 600, 9000)]).round()
    found = length_buckets(tokens)
    assert found.requests == (2000, 2000, 2000)
    assert found.fit > 0.98
    assert list(found.of([50, 600, 9000])) == ["short", "medium", "long"]


def test_no_length_or_a_wrong_number_of_buckets_is_refused():
    with pytest.raises(ValueError, match="at least one length"):
        length_buckets([])
    with pytest.raises(ValueError, match="k from 1 to 4"):
        length_buckets([1, 2], k=9)
