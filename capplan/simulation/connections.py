"""Connections between callers and gateway: who has to open one, and what that costs."""

from __future__ import annotations

from capplan.scenario import Network
from capplan.simulation.attempt import Request


class Connections:
    """The connections that are open.

    ``long_lived`` ones belong to a user, else to a session; a request of neither uses one that
    was open before. ``fresh`` ones are opened by every attempt.
    """

    def __init__(self, network: Network) -> None:
        self._handshake_s = network.handshake_s
        self._fresh = network.connections == "fresh"
        self._open: set[str] = set()

    def handshake_s(self, request: Request) -> float:
        """Return how long an attempt must wait for its connection, s, and keep it open."""
        if self._fresh or self._handshake_s == 0:
            return self._handshake_s
        owner = request.user or request.session
        if not owner or owner in self._open:
            return 0.0
        self._open.add(owner)
        return self._handshake_s
