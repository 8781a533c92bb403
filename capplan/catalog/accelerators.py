"""Accelerators: memory, bandwidth, peak rates, links, and list prices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from capplan.catalog.tables import look_up, rows
from capplan.schema import DataError, invalid_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One accelerator: peak rates as its maker states them, dense; NaN if unknown."""

    name: str
    memory_bytes: float
    """Memory as marketed, bytes."""
    usable_bytes: float
    """Memory that the runtime reports as the device's total, bytes."""
    memory_bandwidth_bytes_per_s: float
    bf16_flop_per_s: float
    fp8_flop_per_s: float = math.nan
    int8_flop_per_s: float = math.nan
    interconnect_bytes_per_s: float = math.nan
    """To another accelerator of the same server, one direction, bytes/s."""
    gemm_compute_fraction: float = math.nan
    """Share of the peak rate that large 16-bit matrix products reach, measured."""
    gemm_bandwidth_fraction: float = math.nan
    """Share of the peak bandwidth that reading weights reaches, measured."""
    kv_bandwidth_fraction: float = math.nan
    """Share of the peak bandwidth that decode attention reaches over long contexts, measured."""
    attention_compute_fraction: float = math.nan
    """Share of the peak rate that causal attention of long prompts reaches, measured."""

    def flop_per_s(self, dtype: str) -> float:
        """Return the peak rate of matrix products at a type; NaN if unknown.

        ``int4`` weights are widened to 16 bits before the product, so they run at that rate.
        """
        if dtype == "fp8":
            return self.fp8_flop_per_s
        return self.int8_flop_per_s if dtype == "int8" else self.bf16_flop_per_s


FIELDS = tuple(field.name for field in fields(Accelerator) if field.name != "name")
REQUIRED = ("memory_bytes", "memory_bandwidth_bytes_per_s", "bf16_flop_per_s")


def accelerator(name: str) -> Accelerator:
    """Return an accelerator by its name in the catalogue, an alias, or the path of a YAML file.

    Raises :class:`DataError` listing near matches if there is none.

    >>> accelerator("H100-SXM-80GB").memory_bandwidth_bytes_per_s
    3350000000000.0
    """
    if name.endswith((".yaml", ".yml")):
        return accelerator_from_yaml(name)
    rule = "an accelerator of the catalogue or a .yaml file"
    return look_up(name, _accelerators(), rule, field="accelerator")


def accelerator_names() -> list[str]:
    """Return the names of the catalogue's accelerators."""
    return sorted(_accelerators())


def accelerator_from_yaml(path: str | Path) -> Accelerator:
    """Return the accelerator of a YAML file: ``name`` and the fields of the class.

    ``usable_bytes`` defaults to the marketed memory, which is more than a runtime reports;
    ``source`` and ``date`` of the numbers are optional.
    Raises :class:`DataError` naming file, field, rule and value.
    """
    file = Path(path)
    data = read_yaml_mapping(file)
    known = {"name", "source", "date", *FIELDS}
    for field in data:
        if field not in known:
            raise DataError(f"one of {', '.join(sorted(known))}", where=file, field=str(field))
    if not isinstance(data.get("name"), str):
        raise DataError("a name", where=file, field="name", value=data.get("name"))
    values = {field: _positive(data[field], field, file) for field in FIELDS if field in data}
    for field in REQUIRED:
        if field not in values:
            raise DataError("a required number", where=file, field=field)
    values.setdefault("usable_bytes", values["memory_bytes"])
    return Accelerator(name=data["name"], **values)


def read_yaml_mapping(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; raises :class:`DataError` for anything else."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as err:
        raise DataError("an existing file", where=file) from err
    except (OSError, UnicodeDecodeError, YAMLError) as err:
        raise invalid_yaml(err, where=file) from err
    if not isinstance(data, dict):
        raise DataError("a mapping of fields", where=file, value=type(data).__name__)
    return data


def _positive(value: Any, field: str, file: Path) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as err:
        raise DataError("a number", where=file, field=field, value=value) from err
    if isinstance(value, bool) or not (0 < number < math.inf):
        raise DataError("a positive finite number", where=file, field=field, value=value)
    return number


@cache
def _accelerators() -> Mapping[str, Accelerator]:
    numbers: dict[str, dict[str, float]] = {}
    for row in rows("accelerators.csv"):
        numbers.setdefault(row["accelerator"], {})[row["field"]] = float(row["value"])
    return {name: Accelerator(name=name, **values) for name, values in numbers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """One price of one accelerator."""

    accelerator: str
    usd_per_hour: float
    kind: str
    """``list`` for a provider's published on-demand price."""
    source: str
    date: str


def prices(name: str) -> tuple[Price, ...]:
    """Return the known prices of an accelerator, the preferred one first; empty if unknown."""
    found = accelerator(name).name
    return tuple(
        Price(
            accelerator=found,
            usd_per_hour=float(row["usd_per_accelerator_hour"]),
            kind=row["kind"],
            source=row["source"],
            date=row["date"],
        )
        for row in rows("prices.csv")
        if row["accelerator"] == found
    )


def price(name: str) -> float:
    """Return the preferred price of an accelerator, USD per accelerator-hour; NaN if unknown.

    >>> price("H100-SXM-80GB") > 0
    True
    """
    known = prices(name)
    return known[0].usd_per_hour if known else math.nan
