"""Which replica gets the next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from capplan.simulation.attempt import Attempt
from capplan.simulation.replica import Replica

if TYPE_CHECKING:
    import numpy as np

Route = Callable[[Sequence[Replica], Sequence[Replica], Attempt], Replica]
"""``(all replicas, those that may take the attempt, the attempt) -> one of the latter``."""


def least_in_flight(rng: np.random.Generator) -> Route:
    """Return the route to the replica that holds fewest requests; the first of equals."""

    def route(
        replicas: Sequence[Replica], candidates: Sequence[Replica], attempt: Attempt
    ) -> Replica:
        return min(candidates, key=attrgetter("in_flight"))

    return route


def round_robin(rng: np.random.Generator) -> Route:
    """Return the route to one after the other, passing over those that may take none."""
    last = -1

    def route(
        replicas: Sequence[Replica], candidates: Sequence[Replica], attempt: Attempt
    ) -> Replica:
        nonlocal last
        last = (last + 1) % len(replicas)
        while replicas[last] not in candidates:
            last = (last + 1) % len(replicas)
        return replicas[last]

    return route


def at_random(rng: np.random.Generator) -> Route:
    """Return the route to any of them with equal probability."""

    def route(
        replicas: Sequence[Replica], candidates: Sequence[Replica], attempt: Attempt
    ) -> Replica:
        return candidates[int(rng.random() * len(candidates))]

    return route


def model_resident(rng: np.random.Generator) -> Route:
    """Return the route to who holds the request's model, of these to who holds fewest requests."""

    def route(
        replicas: Sequence[Replica], candidates: Sequence[Replica], attempt: Attempt
    ) -> Replica:
        return min(candidates, key=lambda one: (not one.holds_model(attempt), one.in_flight))

    return route


ROUTES: dict[
    Literal["round_robin", "least_in_flight", "random", "model_resident"],
    Callable[[np.random.Generator], Route],
] = {
    "round_robin": round_robin,
    "least_in_flight": least_in_flight,
    "random": at_random,
    "model_resident": model_resident,
}
"""Where the names of a scenario become functions."""
