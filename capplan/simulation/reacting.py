"""Callers who react to an answer in the very instant in which it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.scenario.faults import GeneratorLimit

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.simulation.attempt import Downstream
    from capplan.simulation.callers import Callers


class AtOnce:
    """What is downstream of the pools, where an answer can bring or take others at once.

    With the first answer the caller gives up the other attempts of its race, and a load generator
    sends on the connection that is free again. Both belong to the instant in which the step ends,
    before the next begins.
    """

    def __init__(self, downstream: Downstream, callers: Callers) -> None:
        self.answered = downstream.answered
        self.failed = downstream.failed
        self._downstream = downstream
        self._callers = callers

    @property
    def has_waiting(self) -> bool:
        """Return whether anybody waits at the gateway, or at a caller for the end of another."""
        return self._downstream.has_waiting or self._callers.reacts


def downstream(gateway: Downstream, *, callers: Callers, scenario: Scenario) -> Downstream:
    """Return what a scenario's pools tell of their answers: the gateway, or it and the callers."""
    hedges = any(one.hedge is not None for one in scenario.classes)
    limited = any(isinstance(fault, GeneratorLimit) for fault in scenario.faults)
    if scenario.network.one_way_s > 0 or not (hedges or limited):
        return gateway
    return AtOnce(gateway, callers)
