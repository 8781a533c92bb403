"""Sources of the time of a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from capplan.scenario.part import (
    Affects,
    Fraction,
    NonNegative,
    Part,
    PathOrName,
    PositiveSeconds,
    Rate,
    Seconds,
)


class TimeLaw(Part):
    """A law of the time of a step or batch."""

    error_fraction: Annotated[float | None, Field(gt=0, lt=1), Affects.JUDGING] = None
    """Most by which real times are shorter or longer than the law's, as a share of these; near the
    knee, answers are given for both ends. None = as far as the law was compared with servers or
    measured kernels, else unknown."""


class LinearStep(TimeLaw):
    """Step time linear in the work of the step.

    seconds = base_s + per_prefill_token_s · prefill tokens + per_sequence_s · decoding sequences
    + per_context_token_s · context tokens of the decoding sequences.
    """

    kind: Literal["linear"] = "linear"
    base_s: PositiveSeconds
    per_prefill_token_s: NonNegative
    per_sequence_s: NonNegative
    per_context_token_s: NonNegative


class RooflineStep(TimeLaw):
    """Step time from the numbers of the accelerator and the model.

    Defaults and their sources: see ``capplan.replica.roofline``.
    """

    kind: Literal["roofline"] = "roofline"
    compute_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    """Share of the peak rate in large matrix products; None = the accelerator's."""
    memory_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    """Share of the peak bandwidth in reads of weights and activations; None = the accelerator's."""
    kernel_s: Seconds = 4.5e-6
    """Time of each kernel beside its work (launch, first and last wave), s. Source: products in
    aiconfigurator-core 0.12 (3.6 µs on H100, 4.0 on H200, 3.9 on B200, 6.0 on A100) and Vidur (6 on
    both); attention of a short context 12 to 14 µs, element-wise kernels 2 to 5."""
    overhead_s: Seconds = 0.0006
    """Work of the host for a step (scheduler, inputs, outputs), s; the accelerator idles meanwhile,
    unless ``async_scheduling``. Source: vLLM, PR 23569, 2025: hiding only inputs and sampling
    makes steps 5 to 10 % shorter."""
    per_sequence_s: Seconds = 1e-5
    """The same per decoding sequence, s."""


class TablesStep(TimeLaw):
    """Step time from measured kernels: see ``capplan.replica.kernel_tables``."""

    kind: Literal["tables"] = "tables"
    path: PathOrName
    """Folder of a kernel profile."""
    overhead_s: Seconds = 0.0
    """Work of the host for a step, s; hidden behind the kernels with ``async_scheduling``."""
    per_sequence_s: Seconds = 0.0
    """The same per decoding sequence, s."""


class SiliconStep(TimeLaw):
    """Step time from the database of aiconfigurator-core: see ``capplan.replica.silicon``."""

    kind: Literal["silicon"] = "silicon"
    backend: Literal["vllm", "sglang", "trtllm"] = "vllm"
    backend_version: str = "current"
    """Version of the engine in the database; ``current`` = its newest complete one."""
    overhead_s: Seconds = 0.0
    """Work of the host for a step, s; hidden behind the kernels with ``async_scheduling``."""
    per_sequence_s: Seconds = 0.0
    """The same per decoding sequence, s."""


Base = Annotated[RooflineStep | TablesStep | SiliconStep, Field(discriminator="kind")]


class CalibratedStep(TimeLaw):
    """Step time of another source with its terms scaled: see ``capplan.replica.step_time``.

    What ``capplan calibrate`` writes.
    """

    kind: Literal["calibrated"] = "calibrated"
    base: Base = RooflineStep()
    dense_scale: Rate = 1.0
    """Factor of a decode step without context."""
    context_scale: Rate = 1.0
    """Factor of reading the KV."""
    prefill_scale: Rate = 1.0
    """Factor of a prefill."""
    fixed_s: Seconds = 0.0
    """Added to each step, s."""
    mixed_fraction: NonNegative | None = 0.0
    """By how much longer decoding sequences attend in a step that also prefills, in place of what a
    roofline has; None = as the base."""
    tile_fraction: Fraction = 0.0
    """Share of a roofline's products that take whole tiles of 128 tokens in steps of more than 256;
    tables have their own."""

    def _broken(self) -> Iterator[str]:
        others = {"kind", "base", *TimeLaw.model_fields}
        own = [name for name in type(self).model_fields if name not in others]
        if not self.model_fields_set & set(own):
            yield (
                f"at least one of {', '.join(own)}: without them, a calibrated step time is "
                "that of its base; capplan calibrate writes them"
            )


StepTime = Annotated[
    LinearStep | RooflineStep | TablesStep | SiliconStep | CalibratedStep,
    Field(discriminator="kind"),
]
