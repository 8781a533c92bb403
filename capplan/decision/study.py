"""From the documents of a sizing and a load acceptance to the clauses of a decision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capplan.budget import resolved
from capplan.decision.clauses import STATES, Clause, Decision
from capplan.decision.settings import pool_words, price_words, setting_words, settings
from capplan.encoding import plain
from capplan.formatting import counted, format_value, in_layer, listed, rule_words
from capplan.replica.assumptions import rests_on
from capplan.results import pool_cost_usd_per_hour
from capplan.scenario import Scenario
from capplan.scenario.files import with_values
from capplan.scenario.pools import Pool
from capplan.sizing.reasons import OWN
from capplan.sizing.table import ROWS, row_outcome
from capplan.verdict import PRECEDENCE, worst

HOURS_A_MONTH = 730.0
"""365 days of 24 hours, divided by 12."""
COVERED = (OWN, "failure_margin", "planned_load", *(row.replace(" ", "_") for row in ROWS))
"""Rules of the verdicts of sizing and load stages that a clause of its own is about."""
HOLDS = "Every promise holds up to"
FIRST_BREAK = "First to break beyond"
CALLERS = "classes."
"""What the fields of the callers' own limits begin with."""


def decide(
    scenario: Scenario,
    sized: Mapping[str, Any] | None,
    loaded: Mapping[str, Any] | None = None,
    *,
    assumed: Iterable[str] = (),
    more: Iterable[Clause] = (),
) -> Decision:
    """Return the decision that a sizing and a load acceptance of one scenario support.

    It is about the scenario's own replicas if they suffice, else about the fewest that do under
    every loss. What was run at another number is unknown for this one.

    Parameters
    ----------
    scenario
        The service that was sized, and whose load was raised.
    sized, loaded
        Documents of ``size --json`` and ``stages --json``; None = that was not run.
    assumed
        Sentences on what was assumed, cut, dropped or filled.
    more
        Further clauses, of other parts of the study, about the scenario as it is.
    """
    study = _Study(scenario=scenario, sized=plain(sized or {}), loaded=plain(loaded or {}))
    clauses = [*study.clauses(), *(replace(c, clause=study.as_is(c.clause)) for c in more)]
    clauses += [study.rests_on(assumed), study.not_known(clauses)]
    return Decision(
        replicas=study.replicas, clauses=tuple(clauses), settings=settings(study.configured)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """What was found out about one scenario; ``sized`` and ``loaded`` are empty if not run."""

    scenario: Scenario
    sized: Mapping[str, Any]
    loaded: Mapping[str, Any]

    @property
    def pool(self) -> Pool:
        return self.scenario.pool(self.sized.get("pool"))

    @property
    def replicas(self) -> int | None:
        """Return the scenario's own replicas if no loss needs more; None if no number holds."""
        needed = list(self.sized.get("replicas", {}).values())
        return None if None in needed else max([self.pool.replicas, *needed])

    @property
    def configured(self) -> Scenario:
        """Return the scenario with these replicas."""
        count = self.replicas or self.pool.replicas
        return resolved(with_values(self.scenario, {f"pools.{self.pool.name}.replicas": count}))

    @property
    def ramp(self) -> Mapping[str, Any]:
        """Return the load acceptance if it is about these replicas; empty if not."""
        return self.loaded if self.replicas == self.pool.replicas else {}

    def clauses(self) -> Iterator[Clause]:
        """Yield what to run, what that was shown to carry, what breaks first, and the settings."""
        yield self._run()
        yield self._holds()
        yield self._first_to_break()
        yield self._with_lost()
        yield self._limit("burst protection", "Burst")
        yield Clause(clause="Set", outcome=STATES, text=setting_words(settings(self.configured)))
        yield from self._others("Also found by the sizing", self.sized)
        if self.ramp:
            yield from self._others("Also found by the load stages", self.ramp)
        else:
            yield from self._others(self.as_is("Load stages"), self.loaded, covered=())

    def as_is(self, name: str) -> str:
        """Return the name of a clause about the scenario's own replicas, where these do not do."""
        own = self.pool.replicas
        return name if self.replicas == own else f"{name}, with the scenario's own {own}"

    def _run(self) -> Clause:
        pools = self.configured.pools
        cost = sum(map(pool_cost_usd_per_hour, pools)) * HOURS_A_MONTH
        month = "cost unknown" if math.isnan(cost) else f"{format_value(cost)} USD a month"
        answer = self.sized.get("answer", "How many are needed is unknown: that was not sized")
        return Clause(
            clause="Run",
            outcome=worst(
                reason["outcome"]
                for reason in self._reasons(self.sized)
                if reason["rule"] in (OWN, "failure_margin")
            ),
            text=f"{listed(map(pool_words, pools))}; {month} "
            f"({'; '.join(map(price_words, pools))}). {_sentence(answer)}",
            evidence=self.sized.get("run_id", ""),
        )

    def _holds(self) -> Clause:
        """Return the load of all classes that the ramp kept, else that of the busiest minute."""
        rows = [self._limit(name, name) for name in ("stable load", "acceptable peak")]
        planned = next((r for r in self._reasons(self.ramp) if r["rule"] == "planned_load"), None)
        if planned is None:
            text = f"{rows[1].text}. How much more is unknown: no load stages were run with it"
            return replace(rows[1], clause=HOLDS, text=text, outcome=worst(r.outcome for r in rows))
        peak_rps, needed_rps = self.ramp["loads"]["peak_rps"], planned["limit"]
        kept, peak = format_value(planned["value"], "_rps"), format_value(peak_rps, "_rps")
        if needed_rps < peak_rps:  # the steps replay the trace's gaps, and with them its peaks
            mean = format_value(needed_rps, "_rps")
            peak = f"{peak}, which comes with the trace's own gaps at a mean of {mean}"
            kept = f"a mean of {kept}"
        low, _ = (self.ramp.get("first_degradation") or {}).get("interval", (None, None))
        sure = f", surely up to {format_value(low, '_rps')}" if low is not None else ""
        if (within := self.ramp.get("within_step_time_error")) is not None:
            ends = (format_value(end, "_rps") for end in within["interval"])
            sure += f", between {' and '.join(ends)} within the error of step times"
        rows = [row for row in rows if self.sized and row.outcome != "pass"]
        return Clause(
            clause=HOLDS,
            outcome=worst([planned["outcome"], *(row.outcome for row in rows)]),
            text="; ".join(
                [
                    f"{kept} of all classes{sure} (planned peak {peak})",
                    *(f"{row.clause}: {row.text}" for row in rows),
                ]
            ),
            evidence=self.ramp["run_id"],
        )

    def _first_to_break(self) -> Clause:
        steps = [s["load_rps"] for s in self.ramp.get("stages", ()) if s["kind"] == "ramp"]
        point = self.ramp.get("first_degradation")
        run = self.ramp.get("run_id", "")
        if not steps:
            text = "unknown: no load stages were run with these replicas"
        elif point is None:
            text = f"nothing up to {format_value(max(steps), '_rps')}, the highest load tried"
        else:
            ends = [format_value(end, "_rps") for end in point.get("interval", ())]
            between = f" (between {' and '.join(ends)})" if ends else ""
            text = (
                f"{point['request_class']}, {rule_words(point['promise'])}, "
                f"{in_layer(point['layer'])}, at {format_value(point['load_rps'], '_rps')}"
                f"{between}; protected then by {listed(self._acted(), none='no limit that acted')}"
            )
            run = point["run_id"]
        return Clause(clause=FIRST_BREAK, outcome=STATES, text=text, evidence=run)

    def _acted(self) -> Iterator[str]:
        for one in self.ramp["protective_actions"]:
            if one["acted"] and not one["boundary"].startswith(CALLERS):
                load = format_value(one.get("first_at_rps"), "_rps")
                yield f"`{one['boundary']}` ({one['action']}), from {load}"

    def _with_lost(self) -> Clause:
        """Return what the largest loss does, and how long the promises take to hold again."""
        lost: Mapping[str, Any] = max(
            self.sized.get("failure_margin", ()), key=lambda one: one["lose"]["count"], default={}
        )
        count = lost.get("lose", {}).get("count") or "one"
        found = self._limit("failure degradation", f"With {count} lost")
        if lost.get("replicas") != self.replicas or count == "one":
            return found
        after_s = lost.get("recovery_s")
        after = "at once" if after_s == 0 else format_value(after_s, "_s")
        shed = listed(lost.get("shed", ()), none="no class")
        return replace(found, text=f"{found.text}; recovery: {after}, shed: {shed}")

    def _others(
        self, name: str, found: Mapping[str, Any], covered: Sequence[str] = COVERED
    ) -> Iterator[Clause]:
        """Yield the worst that a verdict finds beside what other clauses are about, in one."""
        left = [r for r in self._reasons(found) if r["rule"] not in covered]
        outcome = worst(reason["outcome"] for reason in left)
        if left and outcome != "pass":
            text = "; ".join(_reason_words(r) for r in left if r["outcome"] == outcome)
            run_id = found.get("run_id", "")
            yield Clause(clause=name, outcome=outcome, text=text, evidence=run_id)

    def _limit(self, row: str, name: str) -> Clause:
        """Return a row of the capacity table as a clause; unknown if it is of other replicas."""
        table = self.sized.get("capacity_table", ())
        found = next((one for one in table if one["row"] == row), None)
        if found is None:
            return Clause(clause=name, outcome="unknown", text="not sized")
        count, outcome = found.get("replicas"), row_outcome(found)
        if count not in (None, self.replicas):
            text = f"judged with {counted(count, 'replica')}, not with {self.replicas or 'enough'}"
            return Clause(clause=name, outcome="unknown", text=text)
        run_id, load = self.sized.get("run_id", ""), found.get("judged_rps")
        if outcome not in PRECEDENCE or load is None:
            known = outcome if outcome in PRECEDENCE else STATES
            return Clause(clause=name, outcome=known, text=found["evidence"], evidence=run_id)
        of = found.get("class_group", self.pool.name)
        text = f"{format_value(load, '_rps')} of {of} ({found['evidence']})"
        return Clause(clause=name, outcome=outcome, text=text, evidence=run_id)

    def rests_on(self, assumed: Iterable[str]) -> Clause:
        """Return what was assumed, the sources of step times, and promises that are defaults."""
        found = dict.fromkeys((*rests_on(self.scenario), *assumed, *self.sized.get("notes", ())))
        text = ". ".join(map(_sentence, found))
        return Clause(clause="Rests on", outcome=STATES, text=text)

    def not_known(self, clauses: Iterable[Clause]) -> Clause:
        """Return which clauses are unknown, and what else no run decided."""
        names = [c.clause for c in clauses if "unknown" in (c.outcome, c.text.partition(":")[0])]
        asked = {"needed replicas": self.sized, "load that is kept": self.ramp}
        names += [
            f"{name} within the error of step times"
            for name, found in asked.items()
            if found and found.get("within_step_time_error") is None
        ]
        text = listed(dict.fromkeys(names), none="nothing that was asked")
        return Clause(clause="Not known", outcome=STATES, text=text)

    def _reasons(self, found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return list(found.get("verdict", {}).get("reasons", ()))


def _reason_words(reason: Mapping[str, Any]) -> str:
    front = f"{reason['request_class']}: " if reason.get("request_class") else ""
    return f"{front}{rule_words(reason['rule'])}: {reason['evidence']}"


def _sentence(text: str) -> str:
    """Return a sentence without its full stop."""
    return text.removesuffix(".")
