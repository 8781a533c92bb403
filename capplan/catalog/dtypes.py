"""Number types of weights and KV, and their size."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

Dtype = Literal["float32", "float16", "bfloat16", "fp8", "int8", "int4"]

BYTES: Mapping[str, float] = MappingProxyType(
    {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}
)
"""Bytes of one number. Scales and zero points of a quantisation are left out: in groups of 128
with 16-bit scales they add 0.125 bits a number (3 % of int4)."""
