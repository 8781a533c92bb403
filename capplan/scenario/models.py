"""Models that share the replicas of a pool."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from capplan.catalog.dtypes import Dtype
from capplan.scenario.part import Fraction, Name, Part, Seconds
from capplan.scenario.steptimes import StepTime


class ResidentModel(Part):
    """One of several models of a pool: what it takes of a replica while it is resident.

    It takes its weights, activations and runtime, and ``kv_fraction`` of the memory that the
    engine may use; where ``kv_blocks`` is stated, ``kv_fraction`` of these blocks and nothing
    else. As many are resident at once as fit.
    """

    name: Name
    model: str | None = None
    """In the catalogue; None = its ``name``."""
    kv_fraction: Annotated[Fraction, Field(gt=0)]
    load_s: Seconds | None = None
    """None = the bytes of its weights ÷ the pool's ``load_bandwidth_bytes_per_s``; not needed
    where all models fit at once."""
    unload_s: Seconds = 0.0
    """Weights are only read, so they can be dropped without being written back."""
    weight_dtype: Dtype | None = None
    """None = the pool's; so with ``kv_dtype`` and ``step_time``."""
    kv_dtype: Dtype | None = None
    step_time: StepTime | None = None
