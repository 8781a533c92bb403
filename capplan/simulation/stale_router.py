"""What a router sees that has lost sight of its replicas: how they were at that moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.simulation.attempt import Failure

if TYPE_CHECKING:
    from capplan.simulation.attempt import Attempt
    from capplan.simulation.pool import ServingPool
    from capplan.simulation.replica import Replica

UNREACHABLE = "unreachable"
"""Why a request failed that was sent to a replica which is no more."""
_LOST = Failure("failed", "service_queue", UNREACHABLE, 502)


class LastSeen:
    """A replica as it was last seen; requests go to what it is now, if it is there."""

    def __init__(self, replica: Replica, pool: ServingPool) -> None:
        self.name = replica.name
        self.up = replica.up
        self.in_flight = replica.in_flight
        self.engine = replica.engine
        self._replica = replica
        self._pool = pool

    def holds_model(self, attempt: Attempt) -> bool:
        """Return whether the model that an attempt needs is there; its place does not change."""
        return self._replica.holds_model(attempt)

    def cached_tokens(self, attempt: Attempt) -> int:
        """Return how much of a prompt its prefix cache holds."""
        return self._replica.cached_tokens(attempt)

    def submit(self, attempt: Attempt) -> None:
        """Send an attempt there."""
        if self._replica.up and self._replica in self._pool.replicas:
            self._replica.submit(attempt)
        else:
            self._pool.lost(attempt, _LOST)
