"""Which replica gets the next request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

import numpy as np

from capplan.scenario.layers import Router
from capplan.simulation.attempt import Attempt


class Target(Protocol):
    """A replica as the router sees it."""

    @property
    def in_flight(self) -> int:
        """Return how many requests it holds."""

    def holds_model(self, attempt: Attempt) -> bool:
        """Return whether the model that an attempt needs is there."""

    def cached_tokens(self, attempt: Attempt) -> int:
        """Return how many tokens of a prompt its prefix cache holds."""

    def submit(self, attempt: Attempt) -> None:
        """Send an attempt there."""


class LastSeen:
    """A replica as a blind router last saw it: its load is frozen, requests reach what is there."""

    def __init__(self, replica: Target, submit: Callable[[Attempt], None]) -> None:
        self.in_flight = replica.in_flight
        self.holds_model = replica.holds_model
        self.cached_tokens = replica.cached_tokens
        self.submit = submit


Route = Callable[[Sequence[Target], Sequence[Target], Attempt], Target]
"""``(all replicas, candidates, attempt) -> one candidate``."""


def least_in_flight(
    replicas: Sequence[Target], candidates: Sequence[Target], attempt: Attempt
) -> Target:
    """Return the candidate with the fewest requests; the first of equals."""
    if len(candidates) == 1:
        return candidates[0]
    loads = [one.in_flight for one in candidates]
    return candidates[loads.index(min(loads))]


def model_resident(
    replicas: Sequence[Target], candidates: Sequence[Target], attempt: Attempt
) -> Target:
    """Return the candidate that holds the model; of several or none, the least loaded."""
    return min(candidates, key=lambda one: (not one.holds_model(attempt), one.in_flight))


def round_robin() -> Route:
    """Return the route to each replica in turn, skipping those that can take none."""
    last = -1

    def route(replicas: Sequence[Target], candidates: Sequence[Target], attempt: Attempt) -> Target:
        nonlocal last
        last = (last + 1) % len(replicas)
        while replicas[last] not in candidates:
            last = (last + 1) % len(replicas)
        return replicas[last]

    return route


def at_random(rng: np.random.Generator) -> Route:
    """Return the route to a random candidate, all with equal probability."""
    return lambda replicas, candidates, attempt: candidates[int(rng.random() * len(candidates))]


def prefix_aware(rules: Router) -> Route:
    """Return the route to the replica with the longest cached prefix, unless loads differ much.

    Source: SGLang project, model gateway, policy ``cache_aware`` (``cache_threshold``,
    ``balance_abs_threshold``, ``balance_rel_threshold``), 2025; the vLLM router has the same rule.
    Two differences: theirs guesses the caches from what it sent, here they are known (as with KV
    events); below the threshold theirs takes the replica that got the least text, here the least
    loaded.
    """
    least, most_apart = rules.prefix_threshold_fraction, rules.balance_abs_threshold

    def route(replicas: Sequence[Target], candidates: Sequence[Target], attempt: Attempt) -> Target:
        idlest = min(candidates, key=attrgetter("in_flight"))
        most, fewest = max(one.in_flight for one in candidates), idlest.in_flight
        if most - fewest > most_apart and most > rules.balance_rel_threshold * fewest:
            return idlest
        found = [one.cached_tokens(attempt) for one in candidates]
        longest = max(found)
        if longest <= least * attempt.prompt_tokens:
            return idlest
        holders = [one for one, n in zip(candidates, found, strict=True) if n == longest]
        return min(holders, key=attrgetter("in_flight"))

    return route


def route_of(rules: Router, rng: np.random.Generator) -> Route:
    """Return the route of a scenario's policy: the one place that maps names to functions."""
    match rules.policy:
        case "least_in_flight":
            return least_in_flight
        case "round_robin":
            return round_robin()
        case "random":
            return at_random(rng)
        case "model_resident":
            return model_resident
        case "prefix_aware":
            return prefix_aware(rules)
