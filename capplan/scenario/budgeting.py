"""How the queueing budget is divided, and at which lengths it is computed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from capplan.scenario.part import Part, Quantile

Weight = Annotated[float, Field(ge=0)]


class Weights(Part):
    """Relative shares of the queueing budget, one per waiting layer."""

    gateway_queue: Weight = 1.0
    service_queue: Weight = 1.0
    scheduler_queue: Weight = 1.0
    batch_window: Weight = 1.0

    @model_validator(mode="after")
    def _some_weight(self) -> Weights:
        if self.gateway_queue + self.service_queue + self.scheduler_queue + self.batch_window <= 0:
            msg = "at least one weight must be positive"
            raise ValueError(msg)
        return self


class BudgetRule(Part):
    """The stated rule: ``equal``, ``weights``, or ``proportional``.

    ``proportional`` gives the batch window what the batching needs (one step, or the queue delay)
    and divides the rest by ``weights``. Service times are taken at these quantiles of the class's
    lengths.
    """

    rule: Literal["equal", "proportional", "weights"] = "proportional"
    weights: Weights = Weights()
    prompt_quantile: Quantile = 0.95
    output_quantile: Quantile = 0.95
