"""In which order a queue serves those who wait, and what each order needs to know."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.part import Count, Name, Part

Order = Literal[
    "fifo", "priority", "weighted_fair", "earliest_deadline", "shortest_prompt", "length_buckets"
]


class Weight(Part):
    """The weight of one tenant or class: with twice the weight of another, twice its share."""

    name: Name
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FairShare(Part):
    """How ``order: weighted_fair`` shares the service, by start-time fair queueing.

    Each tenant, class, or tenant's class (``by``) is a flow. A flow's next request starts where
    its last one finished in virtual time, each ``cost / weight`` long; the earliest start is served
    next. Two flows that both have somebody waiting get service in the ratio of their weights,
    within one request of each (Source: Goyal, Vin and Cheng, "Start-time Fair Queueing", SIGCOMM
    1996, theorem 1). A request that leaves unserved costs its flow nothing.
    """

    by: Literal["tenant", "class", "tenant_and_class"] = "tenant"
    """``tenant_and_class``: each class of a tenant is a flow, with the product of both weights."""
    cost: Literal["requests", "prompt_tokens", "tokens"] = "tokens"
    """What is shared. ``tokens`` are those of the prompt and of the answer, as if its length were
    known on arrival; an engine that does not know it charges while it decodes (Sheng et al.,
    "Fairness in Serving Large Language Models", OSDI 2024, algorithm 2)."""
    tenants: tuple[Weight, ...] = ()
    """Tenants whose weight is not 1."""
    classes: tuple[Weight, ...] = ()
    """Classes whose weight is not 1."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> FairShare:
        for field, weights in (("tenants", self.tenants), ("classes", self.classes)):
            names = [entry.name for entry in weights]
            if len(set(names)) < len(names):
                msg = f"{field}: one weight each, got {', '.join(names)}"
                raise ValueError(msg)
        return self


class LengthBuckets(Part):
    """How ``order: length_buckets`` sorts prompts by length; in a bucket, by arrival.

    A bucket holds prompts of at most its bound, and more than that of the bucket before; one more
    holds those above all bounds.
    """

    bounds_tokens: tuple[Count, ...] = (256, 1024, 4096)
    turn: Literal["round_robin", "shortest_first"] = "round_robin"
    """One request of each bucket in turn, or all of the shorter buckets first."""

    @model_validator(mode="after")
    def _bounds_rise(self) -> LengthBuckets:
        bounds = self.bounds_tokens
        if not bounds or list(bounds) != sorted(set(bounds)):
            msg = f"bounds_tokens: at least one, rising, got {list(bounds)}"
            raise ValueError(msg)
        return self
