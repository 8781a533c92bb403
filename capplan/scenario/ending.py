"""How requests end at a limit, and where a limit stands: what each part that limits declares.

A part declares its endings as class attributes and yields its limits from a method ``limits()``;
:func:`endings` and :meth:`capplan.scenario.Scenario.limits` collect them. Simulation, acceptance
and capacity table derive reasons, statuses, boundaries and next changes from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from capplan.scenario.part import Part

UNSET = "none"
"""Action of a limit that is not set."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How requests end at a limit: the reason in the log, the HTTP status, whether to try again."""

    reason: str
    status: int | None = None
    final: bool = False
    """Whether the same request cannot succeed later, so that the answer says "do not retry".

    Source: RFC 9110, "HTTP Semantics", 2022, sections 15.5.1 (400: an error of the client) and
    15.5.14 (413); Beyer et al. (eds.), "Site Reliability Engineering", 2016, chapter 21
    ("overloaded; don't retry").
    """
    layer: str = ""
    """The layer that ends them; "" = the one that the part stands in."""

    def named(self, name: str | None) -> str:
        """Return the reason as in the log: with the name of the limit behind a colon."""
        return f"{self.reason}:{name}" if name else self.reason

    def at(
        self,
        field: str,
        what: str = "",
        *,
        name: str | None = None,
        value: float | None = None,
        moved_by: str = "",
        why: str = "",
        owner: str = "",
    ) -> Limit:
        """Return the limit that ends requests so; ``what`` follows the status in its action.

        >>> Ending("too_long", 413, final=True).at("longest", "beyond 9 tokens").action
        '413 beyond 9 tokens, not to be retried'
        """
        status = "" if self.status is None or not what else f"{self.status} "
        advice = ", not to be retried" if self.final and what else ""
        return Limit(
            field=field,
            reason=self.named(name),
            status=self.status,
            layer=self.layer,
            action=f"{status}{what}{advice}" or UNSET,
            owner=owner,
            value=value,
            moved_by=moved_by or field,
            why=why,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit of a scenario: where it stands, what happens at it, who owns it, what moves it."""

    field: str
    reason: str = ""
    """As in the log; "" = it ends no attempt, but drops what would follow."""
    status: int | None = None
    """HTTP status of a refusal, where the limit alone decides it."""
    layer: str = ""
    action: str = UNSET
    owner: str = ""
    classes: tuple[str, ...] = ()
    """The classes it acts on."""
    changes_pool: bool = False
    """Whether it acts without any request that would prove it."""
    value: float | None = None
    """Value of the field that moves it; None = no single field does."""
    moved_by: str = ""
    why: str = ""
    """Why that field is the one to move; "" = it refuses the requests."""

    @property
    def is_set(self) -> bool:
        """Return whether the scenario sets it."""
        return self.action != UNSET

    def within(
        self, path: str, *, layer: str = "", owner: str = "", classes: tuple[str, ...] = ()
    ) -> Limit:
        """Return the limit as one of the part at ``path``; the rest is that part's."""
        return replace(
            self,
            field=f"{path}.{self.field}",
            moved_by=f"{path}.{self.moved_by}",
            layer=self.layer or layer,
            owner=self.owner or owner,
            classes=self.classes or classes,
        )


@cache
def endings() -> dict[str, Ending]:
    """Return every ending that a part declares, by its reason."""
    parts: list[type[Part]] = [Part]
    for part in parts:
        parts.extend(part.__subclasses__())
    found = [one for part in parts for one in vars(part).values() if isinstance(one, Ending)]
    return {one.reason: one for one in found}


def is_final(reason: str) -> bool:
    """Return whether a reason of the log means "do not retry".

    >>> [is_final(reason) for reason in ("quota_exhausted:month", "rate_limit:quota_exhausted")]
    [True, False]
    """
    ending = endings().get(reason.partition(":")[0])
    return ending is not None and ending.final
