"""Whether a load generator sent the same prompts again, found by their lengths.

A generator that walks through a fixed list of prompts leaves a mark: the length of each prompt
equals that of the one a whole round earlier. A server with a prefix cache then computes each
prompt once, and the latencies of the run make no sense without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

LEAST_MATCH = 0.9
"""Share of rows that must equal the row a round earlier."""
MOST_CHANCE = 0.5
"""Share of rows that may equal a row at any other distance: where all prompts are of nearly the
same length, equal lengths prove nothing."""
LONGEST_ROUND = 5000
LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Repetition:
    """A round of prompts that a run walked through again and again."""

    round: int
    """Prompts in a round."""
    match_fraction: float
    """Share of rows of the same length as the row a round before."""
    chance_fraction: float
    """The same at other distances."""
    ids: npt.NDArray[np.int64]
    """Number of each request's prompt within the round; -1 where the length contradicts it."""

    @property
    def note(self) -> str:
        """Return the evidence in a sentence."""
        match, chance = (100 * x for x in (self.match_fraction, self.chance_fraction))
        return (
            f"Prompt lengths repeat every {self.round} requests ({match:.1f} % of rows equal the "
            f"row {self.round} before, {chance:.1f} % at other distances): the same prompts were "
            "sent again, and a prefix cache holds them."
        )


def repetition(prompt_tokens: pd.Series[float]) -> Repetition | None:
    """Return the round in which prompt lengths repeat, None if they do not.

    ``prompt_tokens`` is in order of sending, NaN where unknown (such rows keep their place in the
    round).
    """
    lengths = np.asarray(prompt_tokens, dtype=np.float64)
    known = ~np.isnan(lengths)
    longest = min(LONGEST_ROUND, int(known.sum()) // LEAST_ROUNDS)
    if longest < 1:
        return None
    matches = np.array([_match(lengths, lag) for lag in range(1, longest + 1)])
    matches = np.nan_to_num(matches)
    best = int(matches.argmax())
    first = int(np.flatnonzero(matches >= matches[best] - (1 - LEAST_MATCH) / 2)[0])
    others = np.delete(matches, np.arange(first, longest, first + 1))
    chance = float(np.median(others)) if others.size else 1.0
    if matches[first] < LEAST_MATCH or chance > MOST_CHANCE:
        return None
    return Repetition(
        round=first + 1,
        match_fraction=float(matches[first]),
        chance_fraction=chance,
        ids=_ids(lengths, first + 1),
    )


def _match(lengths: npt.NDArray[np.float64], lag: int) -> float:
    now, before = lengths[lag:], lengths[:-lag]
    known = ~(np.isnan(now) | np.isnan(before))
    return float((now[known] == before[known]).mean()) if known.any() else 0.0


def _ids(lengths: npt.NDArray[np.float64], around: int) -> npt.NDArray[np.int64]:
    """Return each row's place in the round; rows that came out of order take the nearest place."""
    place = np.arange(lengths.size) % around
    usual = np.full(around, np.nan)
    for index in range(around):
        seen = lengths[index::around]
        seen = seen[~np.isnan(seen)]
        if seen.size:
            values, counts = np.unique(seen, return_counts=True)
            usual[index] = values[counts.argmax()]
    for row in np.flatnonzero(~np.isnan(lengths) & (lengths != usual[place])):
        same = np.flatnonzero(usual == lengths[row])
        away = np.abs(same - place[row])
        away = np.minimum(away, around - away)
        place[row] = same[away.argmin()] if same.size else -1
    return place
