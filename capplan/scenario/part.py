"""The base of all parts of a scenario: types of fields, and what a field affects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    model_validator,
)

from capplan.catalog.tables import placed_trace

LEAST = 1e-300


class Affects(StrEnum):
    """What a field changes; a field without one has that of the field its part stands in."""

    TRAFFIC = "traffic"
    """Which requests are drawn, and when they come."""
    SERVING = "serving"
    """What happens to these requests."""
    JUDGING = "judging"
    """What is promised, budgeted, staged and counted."""
    DESCRIBING = "describing"
    """Names, owners and origins: no figure."""


@dataclass(frozen=True, slots=True)
class Refers:
    """A field that holds the name of an entry of this list of the scenario."""

    to: Literal["classes", "tenants", "pools", "hosts", "resource_pools"]


WITHOUT_TRACE = "without trace"
"""Mark of a field that has no effect where requests are rows of a trace."""


def _invertible(value: float) -> float:
    """Refuse a number so small that one over it overflows."""
    if value < LEAST:
        raise ValueError(f"input should be at least {LEAST:g}")
    return value


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_invertible)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False), AfterValidator(_invertible)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Quantile = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$", max_length=80)]
ClassName = Annotated[Name, Refers("classes")]
TenantName = Annotated[Name, Refers("tenants")]
PoolName = Annotated[Name, Refers("pools")]
HostName = Annotated[Name, Refers("hosts")]


def _beside(value: str, info: ValidationInfo) -> str:
    """Return a path that counts from the scenario's folder, if there is a file; else the text."""
    folder = (info.context or {}).get("folder")
    there = Path(folder or "") / value
    return str(there.resolve()) if folder is not None and there.exists() else value


def _trace_beside(value: str, info: ValidationInfo) -> str:
    """Return the path of a trace that counts from the scenario's folder, or its name."""
    folder = (info.context or {}).get("folder")
    return value if folder is None else placed_trace(value, folder)


PathOrName = Annotated[str, AfterValidator(_beside)]
TracePath = Annotated[str, AfterValidator(_trace_beside)]
Owner = Annotated[str, Affects.DESCRIBING]
Version = Annotated[str, Affects.DESCRIBING]
"""Version of model and engine, as a replica reports it."""
Origin = Literal["promise", "measured", "default"]
Origins = Annotated[dict[str, Origin], Affects.DESCRIBING]


NUMBER, DERIVED = "number", "derived"
"""The word in place of a number that the wait budget derives; see :mod:`capplan.budget`."""

if TYPE_CHECKING:
    _T = TypeVar("_T")
    Derivable = Annotated[_T, DERIVED]
else:

    class Derivable:
        """A number, or the word ``derived`` until :func:`capplan.budget.resolved` replaces it."""

        def __class_getitem__(cls, kind: Any) -> Any:
            """Return the type of a field of that kind, or of the word."""
            return Annotated[
                Annotated[kind, Tag(NUMBER)] | Annotated[Literal["derived"], Tag(DERIVED)],
                Discriminator(lambda value: DERIVED if value == DERIVED else NUMBER),
            ]


def is_derived(value: object) -> bool:
    """Return whether a value is the word ``derived``, for which no number stands yet."""
    return value == DERIVED


class Part(BaseModel):
    """A frozen part of a scenario: unknown fields, wrong types and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def _broken(self) -> Iterator[str]:
        """Yield the rules between fields that are broken; the first is the error."""
        yield from ()

    @model_validator(mode="after")
    def _rules_hold(self) -> Self:
        """Check the rules, and count a kind as stated, so that values written out name it."""
        if (rule := next(self._broken(), None)) is not None:
            raise ValueError(rule)
        if "kind" in type(self).model_fields:
            self.model_fields_set.add("kind")
        return self


def together(broken: Iterable[str]) -> Iterator[str]:
    """Yield the broken rules as one, if there are any."""
    if text := "; ".join(broken):
        yield text


def part_classes() -> list[type[Part]]:
    """Return every kind of part that is defined, the base left out."""
    found: list[type[Part]] = []
    todo = list(Part.__subclasses__())
    while todo:
        kind = todo.pop()
        found.append(kind)
        todo += kind.__subclasses__()
    return found


def part_fields() -> list[str]:
    """Return the name of every field of every part, each once."""
    return sorted({name for kind in part_classes() for name in kind.model_fields})


def origin(part: Part, field: str) -> Origin:
    """Return where a value comes from: ``promise`` if the file states it, else ``default``.

    A part may say better in its own ``origins`` mapping, for example ``{"ttft_s": "measured"}``.
    """
    stated: dict[str, Origin] = getattr(part, "origins", {})
    if field in stated:
        return stated[field]
    return "promise" if field in part.model_fields_set else "default"
