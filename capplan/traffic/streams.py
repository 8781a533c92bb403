"""Random streams: one independent generator for each purpose of a replication.

Streams are numbered, and the numbers are append-only: a new purpose takes a new number, so the
draws of the others never change. Traffic uses 0 to 9, the simulation 10 to 19.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """Purpose of each stream of the traffic; never renumber, only append up to 9."""

    ARRIVALS = 0
    ROWS = 1
    CLASSES = 2
    TENANTS = 3
    LENGTHS = 4
    STREAMING = 5
    COPIES = 6
    MODULATION = 7
    PERTURBATION = 8
    SIZES = 9


def stream(seed: int, replication: int, index: int) -> np.random.Generator:
    """Return the generator of one purpose in one replication.

    It is the generator that ``SeedSequence([seed, replication]).spawn(n)[index]`` gives for every
    n > index. Raises ValueError for a negative number.

    >>> stream(1, 0, 3).integers(100) == stream(1, 0, 3).integers(100)
    np.True_
    """
    if min(seed, replication, index) < 0:
        msg = f"seed, replication and index must be >= 0, got {seed}, {replication}, {index}"
        raise ValueError(msg)
    sequence = np.random.SeedSequence([seed, replication], spawn_key=(index,))
    return np.random.Generator(np.random.PCG64(sequence))
