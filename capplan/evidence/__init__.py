"""The run store: inputs and results of runs, in folders with checksums.

:func:`write_run` stores a run, :func:`read_run` reads it back; :func:`artefact` stores a value of a
notebook for later pages.
"""

from capplan.evidence.folders import artefact, read_artefact
from capplan.evidence.manifest import Inputs, TraceIdentity
from capplan.evidence.store import RunRecord, read_run, seal, store, write_run

__all__ = [
    "Inputs",
    "RunRecord",
    "TraceIdentity",
    "artefact",
    "read_artefact",
    "read_run",
    "seal",
    "store",
    "write_run",
]
