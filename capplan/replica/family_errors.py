"""How far uncalibrated step times are from measured kernels and servers, by family of models.

The errors stand in ``data/validation/kernels.csv``; ``data/validation/make_kernels.py`` computes
them from aiconfigurator-core.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles

from capplan.bundled import data_path
from capplan.catalog import BYTES
from capplan.formatting import format_value
from capplan.replica.memory import accelerator_of, model_of
from capplan.scenario.pools import Pool

COLUMNS = ("family", "case", "step_times", "against", "step", "error_fraction")
KERNELS = "measured kernels"
"""What ``against`` names, or the server."""
SOURCES = ("roofline", "silicon")
_BITS = {2.0: "", 1.0: " at 8 bits", BYTES["mxfp4"]: " at 4 bits"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyErrors:
    """Errors of a source of step times over steps, or loads, of a family: law over measured − 1."""

    family: str
    against: str
    least_fraction: float
    most_fraction: float
    median_fraction: float
    """Of their sizes."""
    nine_of_ten: tuple[float, float]
    """The range that holds the middle nine of ten: 5th and 95th percentile."""

    def __str__(self) -> str:
        """Return them in words."""
        low, high, half = (
            format_value(share, "_fraction")
            for share in (self.least_fraction, self.most_fraction, self.median_fraction)
        )
        return (
            f"steps are {low} to {high} off {self.against} of {self.family} models, "
            f"half of them within {half}"
        )


def family_of(pool: Pool) -> str | None:
    """Return the family of a pool's model as it is served; None if it was compared with nothing."""
    found, device = model_of(pool), accelerator_of(pool)
    bits = _BITS.get(BYTES[pool.weight_dtype or found.served_dtype])
    if bits is None or math.isnan(device.gemm_compute_fraction):
        return None
    kinds = {
        "sparse-attention": found.index_layers,
        "linear-attention": found.linear_layers,
        "sliding-window": found.sliding_layers,
        "latent-attention": found.kv_lora_rank,
        "mixture-of-experts": found.num_experts,
    }
    kind = next((name for name, present in kinds.items() if present), "dense")
    return f"{kind}{bits}"


def family_errors(pool: Pool) -> list[FamilyErrors]:
    """Return the errors of a pool's source of step times in its model's family, kernels first.

    None of a pool of several models, and of sources that are not compared by family.
    """
    source = getattr(getattr(pool.batching, "step_time", None), "kind", "")
    if pool.models or source not in SOURCES:
        return []
    family = family_of(pool)
    found = _errors().get((family or "", source), {})
    return [
        FamilyErrors(
            family=family or "",
            against=against,
            least_fraction=min(errors),
            most_fraction=max(errors),
            median_fraction=median(map(abs, errors)),
            nine_of_ten=_middle(errors),
        )
        for against, errors in sorted(found.items(), key=lambda item: item[0] != KERNELS)
    ]


def _middle(errors: Sequence[float]) -> tuple[float, float]:
    low, *_, high = quantiles(errors, n=20, method="inclusive")
    return low, high


@cache
def _errors() -> dict[tuple[str, str], dict[str, list[float]]]:
    """Return the errors by family and source of step times, then by what they are against."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    with data_path("validation", "kernels.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            own = found.setdefault((row["family"], row["step_times"]), {})
            own.setdefault(row["against"], []).append(float(row["error_fraction"]))
    return found
