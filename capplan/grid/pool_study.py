"""One pool of a scenario studied alone: its classes, its requests, the same layers in front."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from capplan.budget import resolved
from capplan.display import Displayed
from capplan.formatting import axis_title, counted, does, format_value
from capplan.grid.buckets import Slowdown, slowdown
from capplan.grid.only_pool import acting_alone, only_pool
from capplan.scenario.files import with_values
from capplan.traffic.replay import at_load, busiest, rate_rps

if TYPE_CHECKING:
    import pandas as pd

    from capplan.scenario import Scenario
    from capplan.scenario.pools import Pool
    from capplan.traffic.trace import Trace

DYNAMIC = ("max_batch_size", "max_queue_delay_s")
FIELDS = {
    "dynamic": DYNAMIC,
    "static": DYNAMIC,
    "continuous": ("max_num_seqs", "max_num_batched_tokens"),
}
"""The two fields that make the batch window of a pool, by its kind of batching."""
USUAL = {
    DYNAMIC: ((1, 4, 16, 64, 128), (0.0, 0.01, 0.05, 0.2, 1.0)),
    FIELDS["continuous"]: ((8, 16, 32, 64, 128), (512, 2048, 8192)),
}
"""Values of the two that are worth a try."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PoolStudy(Displayed):
    """A pool alone behind its scenario's gateway, with the requests of its classes.

    ``left_out`` names what acts by itself in the pool and is not studied.
    """

    scenario: Scenario
    trace: Trace
    seed: int = 0
    left_out: str = ""

    @property
    def pool(self) -> Pool:
        """Return the pool."""
        return self.scenario.pools[0]

    @property
    def fields(self) -> tuple[str, str]:
        """Return the dotted paths of the two fields that make its batch window."""
        across, down = FIELDS[self.pool.batching.kind]
        part = f"pools.{self.pool.name}.batching"
        return f"{part}.{across}", f"{part}.{down}"

    @property
    def titles(self) -> tuple[str, str]:
        """Return the names of the two fields in words, with their units."""
        across, down = FIELDS[self.pool.batching.kind]
        return axis_title(across), axis_title(down)

    @property
    def point(self) -> tuple[float, float]:
        """Return the two values that the scenario has."""
        across, down = FIELDS[self.pool.batching.kind]
        return getattr(self.pool.batching, across), getattr(self.pool.batching, down)

    @property
    def window(self) -> dict[str, list[float]]:
        """Return the two fields with their usual values and the scenario's own, to be swept."""
        usual = USUAL[FIELDS[self.pool.batching.kind]]
        return {
            field: sorted({*values, own})
            for field, values, own in zip(self.fields, usual, self.point, strict=True)
        }

    @property
    def reference(self) -> tuple[float, float]:
        """Return a point that common advice names.

        A batch of 128 within 50 ms; 32 sequences at once, at the scenario's own token budget.
        """
        continuous = self.pool.batching.kind == "continuous"
        return (32, self.point[1]) if continuous else (128, 0.05)

    def at(self, across: float, down: float | None = None) -> Scenario:
        """Return the scenario at another point of the batch window; None = ``down`` as it is."""
        values = (across, self.point[1] if down is None else down)
        whole = (
            v if f.endswith("_s") else int(v) for f, v in zip(self.fields, values, strict=True)
        )
        return with_values(self.scenario, dict(zip(self.fields, whole, strict=True)))

    def slowdown(self, values: Sequence[float] | None = None) -> Slowdown:
        """Return what long requests cost short ones at these batch sizes; None = two usual ones."""
        usual = USUAL[FIELDS[self.pool.batching.kind]][0]
        return slowdown(self, usual[1::2] if values is None else values)

    def summary(self) -> str:
        """Return the pool's replicas and batch window, its load, and what is left out."""
        n = len(self.trace)
        without = f" Left out, so that only the window differs: {self.left_out}."
        return (
            f"Pool `{self.pool.name}`: {counted(self.pool.replicas, 'replica')}, "
            f"{self.window_words(*self.point)}. Its busiest "
            f"{counted(n, 'request')} {does(n, 'arrives', 'arrive')} at "
            f"{format_value(rate_rps(self.trace), '_rps')}.{without if self.left_out else ''}"
        )

    def table(self) -> pd.DataFrame:
        """Return the pool's classes: priority, streaming, requests, samples needed."""
        import pandas as pd

        counts = self.trace.frame["request_class"].value_counts()
        rows = [
            {
                "request_class": c.name,
                "priority": c.priority,
                "streaming": c.streaming,
                "requests": int(counts.get(c.name, 0)),
                "samples needed": c.promises.samples_needed(),
            }
            for c in self.scenario.classes
        ]
        return pd.DataFrame(rows)

    def window_words(self, across: float, down: float) -> str:
        """Return a batch window of the pool in words."""
        if self.pool.batching.kind == "continuous":
            return f"{counted(across, 'sequence')} at once and {counted(down, 'token')} a step"
        limit = format_value(down, "max_queue_delay_s")
        return f"batches of up to {counted(across, 'request')} that wait for at most {limit}"


def pool_studies(
    scenario: Scenario, trace: Trace, *, requests: int, load: float = 1.0, seed: int = 0
) -> list[PoolStudy]:
    """Return a study of each pool whose classes have requests in a drawn trace.

    Its requests are the busiest stretch of that many requests of its classes, ``load`` times as
    fast. The other classes are left out: pools share nothing but the gateway.
    """
    scenario = resolved(scenario)
    found = []
    for pool in scenario.pools:
        names = [c.name for c in scenario.classes if scenario.pool_of(c.name) == pool]
        own = trace.frame[trace.frame["request_class"].isin(names)]
        if own.empty:
            continue
        part = replace(trace, frame=own.reset_index(drop=True))
        part = at_load(busiest(part, requests), load)
        alone = only_pool(scenario, pool.name, rate_rps=rate_rps(part))
        left_out = acting_alone(scenario, pool.name)
        found.append(PoolStudy(scenario=alone, trace=part, seed=seed, left_out=left_out))
    return found
