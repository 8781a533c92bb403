"""The run store: what was run on what, and what came out, in folders that can be checked.

:func:`write_run` stores a run, :func:`read_run` reads it back; :func:`artefact` is how a notebook
hands something to the pages after it.
"""

from capplan.evidence.artefacts import artefact, read_artefact
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
