"""The numbers that a calibration fits, each with what is known of it before any run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from capplan.catalog import accelerator
from capplan.measured import REQUEST_OVERHEAD_S
from capplan.measured.server import Server

SCALE_STEP = 0.05
"""Difference of the logarithm of a scale in a finite derivative."""
FARTHEST_SCALE = 0.4
"""Largest change of the logarithm of a scale in one step."""


class Parameter(NamedTuple):
    """A fitted number and its normal prior; a scale's is of the logarithm.

    A trial value is given in standard deviations from the prior's mean, so that all numbers are of
    the same order.
    """

    name: str
    meaning: str
    mean: float
    spread: float
    most: float = math.inf

    @property
    def is_scale(self) -> bool:
        """Return whether it is a factor, so that its logarithm is fitted."""
        return self.name.endswith("_scale")

    @property
    def step(self) -> float:
        """Return the difference of a finite derivative, in deviations."""
        return SCALE_STEP / self.spread if self.is_scale else 0.5

    @property
    def farthest(self) -> float:
        """Return the largest change in one step, in deviations."""
        return FARTHEST_SCALE / self.spread if self.is_scale else 3.0

    @property
    def least_deviation(self) -> float:
        """Return the deviation at which it is 0; a factor never is."""
        return -math.inf if self.is_scale else -self.mean / self.spread

    def value(self, deviation: float) -> float:
        """Return the number so many standard deviations from the prior's mean.

        >>> PARAMETERS[0].value(0.0), PARAMETERS[-1].value(-2.0)
        (1.0, 0.0)
        """
        at = self.mean + self.spread * deviation
        return math.exp(at) if self.is_scale else min(max(at, 0.0), self.most)


LAW = (
    Parameter("dense_scale", "of the base's time of a decode step without context", 0.0, 0.1),
    Parameter("context_scale", "of the base's time of reading the KV", 0.0, 0.08),
    Parameter("prefill_scale", "of the base's time that a prefill adds", 0.0, 0.1),
    Parameter(
        "mixed_fraction",
        "by how much longer decoding sequences attend in a step that also prefills",
        0.7,
        0.4,
    ),
    Parameter(
        "tile_fraction", "share of products that take whole tiles of 128 tokens", 0.5, 0.4, most=1.0
    ),
)
"""Those of the step time. Spreads of the scales: measured kernels against the roofline of an
accelerator whose shares they gave (see ``capplan.replica.roofline``). Fractions: see
``capplan.replica.step_time``; products of 512 to 2,048 rows against one more in aiconfigurator-core
0.12: 0.2 (H200) to 0.9 (A100) of a tile."""

FRONT_END = (
    Parameter(
        "request_overhead_s",
        "HTTP, tokenizer, detokenizer: taken of every request, s",
        REQUEST_OVERHEAD_S,
        0.005,
    ),
    Parameter(
        "overhead_per_in_flight_s",
        "the same for each request in flight, s",
        3e-5,
        3e-5,
    ),
)
"""Those outside the engine. Sources: ``REQUEST_OVERHEAD_S``, half of its fits 4 to 13 ms; 14 to
57 µs for each request in flight, residuals of vLLM servers on H100 and RTX 4090, 2026."""

PARAMETERS = (*LAW, *FRONT_END)

UNKNOWN_SPREAD, UNKNOWN_OWN_SPREAD = 1.0, 0.3
"""Spreads of all scales together, and of each beside it, over the roofline of an accelerator
without measured shares: a processor of one's own may be off by a factor of 3, its parts mostly
alike."""


def is_known(server: Server, base: Mapping[str, Any]) -> bool:
    """Return whether the base of a server's step times was compared with measured kernels."""
    name = server.accelerator
    shares = math.nan if name is None else accelerator(name).gemm_compute_fraction
    return base["kind"] != "roofline" or not math.isnan(shares)


def parameters_of(*, known: bool) -> tuple[Parameter, ...]:
    """Return the numbers to fit, the scales of an unknown base with wider priors."""
    own: dict[str, Any] = {} if known else {"spread": UNKNOWN_OWN_SPREAD}
    return tuple(one._replace(**own) if one.is_scale else one for one in PARAMETERS)


def prior_covariance(parameters: Sequence[Parameter], *, known: bool) -> npt.NDArray[np.float64]:
    """Return the covariance of the deviations before any run."""
    shared = 0.0 if known else UNKNOWN_SPREAD
    scales = np.array([shared * one.is_scale / one.spread for one in parameters])
    return np.eye(scales.size) + np.outer(scales, scales)
