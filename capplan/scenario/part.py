"""The base of everything that is configured from a file, and where each value comes from."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Origin = Literal["promise", "measured", "default"]

LEAST = 1e-300


def _with_an_inverse(value: float) -> float:
    """Refuse what is so small that one over it is not a number any more."""
    if value < LEAST:
        msg = f"input should be at least {LEAST:g}"
        raise ValueError(msg)
    return value


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[
    float, Field(gt=0, allow_inf_nan=False), AfterValidator(_with_an_inverse)
]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_with_an_inverse)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Quantile = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=80)]


class Part(BaseModel):
    """A frozen part of a scenario: unknown fields, wrong types and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def origin(part: Part, field: str) -> Origin:
    """Return where a value comes from: ``promise`` if the file states it, else ``default``.

    A part may say better in its own ``origins`` mapping, for example ``{"ttft_s": "measured"}``.
    """
    stated: dict[str, Origin] = getattr(part, "origins", {})
    if field in stated:
        return stated[field]
    return "promise" if field in part.model_fields_set else "default"
