"""The decision of a study: what to run, how far it holds, what breaks first, what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from capplan.budget import resolved
from capplan.catalog import prices
from capplan.display import Displayed, html_text
from capplan.encoding import plain
from capplan.formatting import counted, format_value, in_layer, listed, rule_words
from capplan.replica.assumptions import rests_on
from capplan.results import pool_cost_usd_per_hour
from capplan.scenario import Scenario
from capplan.scenario.fields import walk
from capplan.scenario.files import with_values
from capplan.scenario.part import Part
from capplan.scenario.pools import Pool
from capplan.sizing.own import OWN
from capplan.sizing.table import ROWS, row_outcome
from capplan.verdict import PRECEDENCE, Outcome, worst

STATES = "states"
"""Outcome of a clause that states something and promises nothing."""
HOURS_A_MONTH = 730.0
"""365 days of 24 hours, divided by 12."""
FIRST = ("fail", "blocked")
"""Outcomes of the clauses that come before all others."""
ALWAYS = ("replicas", "max_num_seqs", "max_num_batched_tokens", "max_batch_size")
"""Settings that are stated even at their default."""
NO_SETTING = ("name", "owner", "model", "accelerator", "price_usd_per_accelerator_hour", "kind",
              "cold_start_s", "overhead_s", "bytes")  # fmt: skip
"""Fields of gateway and pools that stand elsewhere in the decision, or measure it."""
MEASURED = ("step_time", "service", "lifecycle", "model_load", "step_factors")
"""Parts of pools that describe them, and set nothing."""
COVERED = (OWN, "failure_margin", "planned_load", *(row.replace(" ", "_") for row in ROWS))
"""Rules of the verdicts of sizing and load stages that a clause of its own is about."""
HOLDS = "Every promise holds up to"
FIRST_BREAK = "First to break beyond"
CALLERS = "classes."
"""What the fields of the callers' own limits begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One clause: what it is about, its outcome, the sentence, and the run that shows it."""

    clause: str
    outcome: str
    """Of a verdict, or ``states``."""
    text: str
    evidence: str = ""

    def line(self) -> str:
        """Return the clause as a line of Markdown."""
        mark = "" if self.outcome in (STATES, "pass") else f" **{self.outcome}**:"
        run = f" [{self.evidence}]" if self.evidence else ""
        return f"**{self.clause}:**{mark} {self.text}.{run}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Displayed):
    """The clauses of a decision, all about one configuration; those that fail come first."""

    replicas: int | None
    """Of the sized pool; None if no number is shown to hold."""
    clauses: tuple[Clause, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Gateway and pools as they are to be set, by dotted path."""

    def __post_init__(self) -> None:
        ordered = sorted(self.clauses, key=lambda one: one.outcome not in FIRST)
        object.__setattr__(self, "clauses", tuple(ordered))

    @property
    def outcome(self) -> Outcome:
        """Return the worst outcome of the clauses."""
        return worst(one.outcome for one in self.clauses)

    def summary(self) -> str:
        """Return the decision as Markdown, a paragraph a clause."""
        return "\n\n".join([f"**Decision: {self.outcome}**", *(c.line() for c in self.clauses)])

    def table(self) -> pd.DataFrame:
        """Return one row per clause: clause, outcome, text, evidence."""
        return pd.DataFrame(plain(self.clauses), columns=list(Clause.__slots__))

    def as_text(self) -> str:
        """Return the decision as plain text, a line a clause."""
        return str(self).replace("\n\n", "\n") + "\n"

    def _repr_html_(self) -> str:
        return "".join(f"<p>{html_text(part)}</p>" for part in self.summary().split("\n\n"))

    def to_json(self) -> dict[str, Any]:
        """Return ``{"outcome", "replicas", "clauses": […], "settings": {…}}``, plain values."""
        parts = {name: plain(getattr(self, name)) for name in self.__slots__}
        return {"outcome": self.outcome, **parts}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        """Return the decision of a document that :meth:`to_json` wrote."""
        clauses = tuple(Clause(**one) for one in data["clauses"])
        return cls(replicas=data["replicas"], clauses=clauses, settings=data["settings"])


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
        Further clauses, of other parts of the study.
    """
    study = _Study(scenario=scenario, sized=plain(sized or {}), loaded=plain(loaded or {}))
    clauses = [*study.clauses(), *more]
    clauses += [study.rests_on(assumed), study.not_known(clauses)]
    return Decision(
        replicas=study.replicas, clauses=tuple(clauses), settings=_settings(study.configured)
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
        yield Clause(clause="Set", outcome=STATES, text=_setting_words(_settings(self.configured)))
        for name, found in (("sizing", self.sized), ("load stages", self.ramp)):
            yield from self._others(f"Also found by the {name}", found)

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
            text=f"{listed(map(_pool_words, pools))}; {month} "
            f"({'; '.join(map(_price_words, pools))}). {_sentence(answer)}",
            evidence=self.sized.get("run_id", ""),
        )

    def _holds(self) -> Clause:
        """Return the load of all classes that the ramp kept, else that of the busiest minute."""
        rows = [self._limit(name, name) for name in ("stable load", "acceptable peak")]
        planned = next((r for r in self._reasons(self.ramp) if r["rule"] == "planned_load"), None)
        if planned is None:
            text = f"{rows[1].text}. How much more is unknown: no load stages were run with it"
            return replace(rows[1], clause=HOLDS, text=text, outcome=worst(r.outcome for r in rows))
        kept, peak = (format_value(planned[key], "_rps") for key in ("value", "limit"))
        low, _ = (self.ramp.get("first_degradation") or {}).get("interval", (None, None))
        sure = f", surely up to {format_value(low, '_rps')}" if low is not None else ""
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

    def _others(self, name: str, found: Mapping[str, Any]) -> Iterator[Clause]:
        """Yield what the verdict finds beside what the other clauses are about, in one clause."""
        open_ones = [
            reason
            for reason in self._reasons(found)
            if reason["outcome"] != "pass" and reason["rule"] not in COVERED
        ]
        if open_ones:
            outcome = worst(reason["outcome"] for reason in open_ones)
            run_id = found.get("run_id", "")
            text = "; ".join(map(_reason_words, open_ones))
            yield Clause(clause=name, outcome=outcome, text=text, evidence=run_id)

    def _limit(self, row: str, name: str) -> Clause:
        """Return a row of the capacity table as a clause; unknown if it is of other replicas."""
        table = self.sized.get("capacity_table", ())
        found = next((one for one in table if one["row"] == row), None)
        if found is None:
            return Clause(clause=name, outcome="unknown", text="not sized")
        count, outcome = found.get("replicas"), row_outcome(found)
        if count not in (None, self.replicas):
            text = f"judged with {counted(count, 'replica')}, not with {self.replicas}"
            return Clause(clause=name, outcome="unknown", text=text)
        load = format_value(found.get("judged_rps"), "_rps")
        return Clause(
            clause=name,
            outcome=outcome if outcome in PRECEDENCE else STATES,
            text=f"{load} of {found.get('class_group', self.pool.name)} ({found['evidence']})",
            evidence=self.sized.get("run_id", ""),
        )

    def rests_on(self, assumed: Iterable[str]) -> Clause:
        """Return what was assumed, the sources of step times, and promises that are defaults."""
        found = dict.fromkeys((*rests_on(self.scenario), *assumed, *self.sized.get("notes", ())))
        text = ". ".join(map(_sentence, found))
        return Clause(clause="Rests on", outcome=STATES, text=text)

    def not_known(self, clauses: Iterable[Clause]) -> Clause:
        """Return which clauses are unknown, and what else no run decided."""
        names = [c.clause for c in clauses if "unknown" in (c.outcome, c.text.partition(":")[0])]
        text = listed(dict.fromkeys(names), none="nothing that was asked")
        return Clause(clause="Not known", outcome=STATES, text=text)

    def _reasons(self, found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return list(found.get("verdict", {}).get("reasons", ()))


def _pool_words(pool: Pool) -> str:
    """Return a pool's replicas, models and accelerators in words.

    >>> from capplan.scenario.files import load_scenario
    >>> _pool_words(load_scenario("chat-service").pool("llm"))
    '3 replicas of meta-llama/Llama-3.1-8B (`llm`) on 3 × A100-SXM-80GB'
    """
    model = listed(name for name in pool.model_names if name != "unnamed")
    what = f"`{pool.name}`" if model == "none" else f"{model} (`{pool.name}`)"
    warm = "" if pool.standby is None else f", {pool.standby.replicas} more on standby,"
    kind = pool.accelerator or "unnamed accelerator"
    number = f"{pool.accelerators_at_start:,} × {kind}"
    return f"{counted(pool.replicas, 'replica')} of {what}{warm} on {number}"


def _price_words(pool: Pool) -> str:
    """Return a pool's price and where it comes from."""
    if (stated := pool.price_usd_per_accelerator_hour) is not None:
        price = format_value(stated, "_usd_per_hour")
        return f"`{pool.name}` at {price} an accelerator, as the scenario states, undated"
    known = () if pool.accelerator is None else prices(pool.accelerator)
    if not known:
        return f"`{pool.name}`: price unknown"
    price = format_value(known[0].usd_per_hour, "_usd_per_hour")
    return f"`{pool.name}` at {price} an accelerator, {known[0].kind} price of {known[0].date}"


def _settings(scenario: Scenario) -> dict[str, Any]:
    """Return the settings of gateway and pools that are not the default, by dotted path."""
    found = {}
    for path, declared, value in walk(scenario):
        name = path.rpartition(".")[2]
        is_part = isinstance(value, Part) or (
            isinstance(value, tuple) and any(isinstance(one, Part) for one in value)
        )
        if not path.startswith(("gateway.", "pools.")) or name in NO_SETTING or is_part:
            continue
        if set(path.split(".")) & set(MEASURED):
            continue
        if name in ALWAYS or value != declared.get_default(call_default_factory=True):
            found[path] = plain(value)
    return found


def _setting_words(settings: Mapping[str, Any]) -> str:
    """Return settings as they are written, gateway and pools apart.

    >>> _setting_words({"gateway.overhead_s": 0.0125, "pools.a.replicas": 3, "pools.a.x.y": "z"})
    'gateway: overhead_s 0.0125; `a`: replicas 3, x.y z'
    """
    parts: dict[str, list[str]] = {}
    for path, value in settings.items():
        place, _, name = path.partition(".")
        if place == "pools":
            place, _, name = name.partition(".")
            place = f"`{place}`"
        parts.setdefault(place, []).append(f"{name} {value}")
    return "; ".join(f"{place}: {', '.join(each)}" for place, each in parts.items())


def _reason_words(reason: Mapping[str, Any]) -> str:
    front = f"{reason['request_class']}: " if reason.get("request_class") else ""
    return f"{front}{rule_words(reason['rule'])}, {reason['outcome']}: {reason['evidence']}"


def _sentence(text: str) -> str:
    """Return a sentence without its full stop."""
    return text.removesuffix(".")
