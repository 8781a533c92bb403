"""One pool of a scenario studied alone: its classes, its requests, the same layers in front."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from capplan.formatting import counted, does, format_value
from capplan.pages.alone import left_out, part_of
from capplan.pages.loads import at_load, busiest, rate_rps

if TYPE_CHECKING:
    from capplan.pages.page import Page
    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.traffic.trace import Trace

FIELDS = {
    "dynamic": ("max_batch_size", "max_queue_delay_s"),
    "static": ("max_batch_size", "max_queue_delay_s"),
    "continuous": ("max_num_seqs", "max_num_batched_tokens"),
}
"""The two fields that make the batch window of a pool, by its kind of batching."""
NO_POOL = "No pool that batches in this way has requests here, so there is nothing to choose."
TITLES = {
    "max_batch_size": "max batch size",
    "max_queue_delay_s": "max queue delay (s)",
    "max_num_seqs": "sequences at once",
    "max_num_batched_tokens": "token budget of a step",
}

BATCHED = {
    "dynamic": "requests a batch",
    "static": "requests a batch",
    "continuous": "sequences at once",
}
"""What the first of them counts, by kind of batching."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolStudy:
    """A pool alone behind its scenario's gateway, with the requests of its classes."""

    scenario: Scenario
    trace: Trace
    seed: int
    left_out: str = ""
    """What acts by itself in the pool and is not studied, in words."""

    @property
    def pool(self) -> Pool:
        """Return the pool."""
        return self.scenario.pools[0]

    @property
    def fields(self) -> tuple[str, str]:
        """Return the names of the two fields that make its batch window."""
        return FIELDS[self.pool.batching.kind]

    @property
    def point(self) -> tuple[float, float]:
        """Return what the scenario has for them."""
        across, down = (float(getattr(self.pool.batching, name)) for name in self.fields)
        return across, down

    def told(self, point: tuple[float, float] | None = None) -> str:
        """Return a point of the batch window in words; None = the scenario's own."""
        across, down = point or self.point
        if self.pool.batching.kind == "continuous":
            most = counted(across, "sequence")
            return f"{most} at once and {counted(down, 'token')} a step"
        window = format_value(down, "max_queue_delay_s")
        return f"batches of up to {counted(across, 'request')} that wait for at most {window}"

    @property
    def equal_lengths(self) -> bool:
        """Return whether all requests are equally long: then nothing follows for others."""
        lengths = self.trace.frame[["prompt_tokens", "output_tokens"]]
        return len(lengths.drop_duplicates()) == 1

    def path(self, field: str) -> str:
        """Return the dotted path of a field of the pool's batching."""
        return f"pools.{self.pool.name}.batching.{field}"

    def with_point(self, across: float, down: float) -> Scenario:
        """Return the scenario at another point of the batch window."""
        from capplan.scenario.files import with_values

        values = zip(self.fields, (across, down), strict=True)
        return with_values(self.scenario, {self.path(n): _number(n, v) for n, v in values})

    def alike(self, scenario: Scenario | None = None, trace: Trace | None = None) -> PoolStudy:
        """Return the study of another scenario or other requests."""
        return replace(self, scenario=scenario or self.scenario, trace=trace or self.trace)


def study_pool(
    page: Page, kind: str, *, requests: int, load: float, warmup_s: float = 0.0
) -> PoolStudy | None:
    """Return the study of the first pool that batches in this way; None where there is none.

    Its requests are the busiest stretch of that many requests of its classes, ``load`` times as
    fast. The other classes are left out: pools share nothing but the gateway.
    """
    pools = [pool for pool in page.scenario.pools if pool.batching.kind == kind]
    served = {page.scenario.pool_of(c.name).name for c in page.scenario.classes}
    pool = next((pool for pool in pools if pool.name in served), None)
    if pool is None:
        return None
    drawn = page.draw()
    names = [c.name for c in page.scenario.classes if page.scenario.pool_of(c.name) == pool]
    own = drawn.frame["request_class"].isin(names)
    trace = replace(drawn, frame=drawn.frame[own].reset_index(drop=True))
    if trace.frame.empty:
        return None
    trace = at_load(busiest(trace, requests), load)
    alone = scenario_of_pool(page.scenario, pool.name, trace=trace, warmup_s=warmup_s)
    left = left_out(page.scenario, pool.name)
    return PoolStudy(scenario=alone, trace=trace, seed=page.seed, left_out=left)


def scenario_of_pool(scenario: Scenario, pool: str, *, trace: Trace, warmup_s: float) -> Scenario:
    """Return the scenario with only the classes that a pool serves, behind the same gateway.

    What changes replicas or answers by itself is left out (:func:`~capplan.pages.alone.part_of`).
    Its traffic is told by the mean rate of the trace, with which it is always simulated.
    """
    from capplan.scenario.files import validate

    kept = {**part_of(scenario, pool), "warmup_s": warmup_s}
    rate = rate_rps(trace)
    steady = {"kind": "steady", "rate_rps": rate if rate > 0 else 1.0}
    lasts = {"duration_s": scenario.traffic.duration_s}
    return validate(
        {**kept, "traffic": {"shape": steady, **lasts}}, where=f"{scenario.name}, pool {pool}"
    )


def _number(field: str, value: float) -> float | int:
    return float(value) if field.endswith("_s") else int(value)


def study_parts(study: PoolStudy | None) -> list[Any]:
    """Return what is studied, as a table of its classes and a sentence."""
    import pandas as pd

    from capplan.display import table

    if study is None:
        return [NO_POOL]
    frame = study.trace.frame
    without = f" Left out, so that only the window differs: {study.left_out}."
    without = without if study.left_out else ""
    classes = pd.DataFrame(
        [
            {
                "request_class": c.name,
                "priority": c.priority,
                "streaming": "yes" if c.streaming else "no",
                "requests": int((frame["request_class"] == c.name).sum()),
                "samples needed": c.promises.samples_needed(),
            }
            for c in study.scenario.classes
        ]
    )
    return [
        table(classes),
        f"Pool `{study.pool.name}`: {counted(study.pool.replicas, 'replica')}, {study.told()}. "
        f"Its busiest {counted(len(frame), 'request')} {does(len(frame), 'arrives', 'arrive')} at "
        f"{format_value(rate_rps(study.trace), '_rps')}.{without}",
    ]
