"""The simulated backend: a SimPy control plane around the replicas' batching.

A caller sends to a gateway, which passes on to a pool's service queue, whose router gives to a
replica; answers and refusals come back the same way. :func:`simulate` runs one drawn trace through
it and returns a :class:`capplan.results.RunResult`.
"""

from capplan.simulation.run import simulate, simulate_many

__all__ = ["simulate", "simulate_many"]
