"""Measured runs of real servers, and the scenario that replays what was measured.

A measured run is a table of requests and, beside it, what is known of the server and of the
client that measured it. :func:`read_measured` reads one; :func:`replay_scenario` and
:func:`replay_trace` turn it into the same question to the simulator.
"""

from capplan.measured.replay import REQUEST_OVERHEAD_S, replay_scenario, replay_trace
from capplan.measured.run import Measured, read_measured
from capplan.measured.server import Server

__all__ = [
    "REQUEST_OVERHEAD_S",
    "Measured",
    "Server",
    "read_measured",
    "replay_scenario",
    "replay_trace",
]
