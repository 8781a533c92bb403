import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capplan.traffic.streams import Stream, stream

SMALL = st.integers(0, 1000)


@given(seed=SMALL, replication=SMALL, index=st.integers(0, 19), more=st.integers(1, 20))
def test_a_stream_is_the_spawned_child_of_its_number(seed, replication, index, more):
    child = np.random.SeedSequence([seed, replication]).spawn(index + more)[index]
    spawned = np.random.Generator(np.random.PCG64(child))
    assert stream(seed, replication, index).random() == spawned.random()


def test_streams_seeds_and_replications_give_different_numbers():
    keys = [(s, r, i) for s in range(3) for r in range(3) for i in range(20)]
    assert len({stream(*key).random() for key in keys}) == len(keys)


@pytest.mark.parametrize("key", [(-1, 0, 0), (0, -1, 0), (0, 0, -1)])
def test_a_negative_number_is_an_error(key):
    with pytest.raises(ValueError, match="must be >= 0"):
        stream(*key)


def test_streams_of_the_traffic_stay_below_those_of_the_simulation():
    assert sorted(Stream) == list(range(10))
