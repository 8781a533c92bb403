"""Move the protective actions, and see whether the service comes back after a surge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from capplan.formatting import format_value
from capplan.widgets.explorer import Choice, Control, Explorer, Values, View
from capplan.widgets.protection import ProtectiveActions, own_attempts, protected
from capplan.widgets.surge import Aftermath, Overload, Surge, SurgeRuns, no_surge, surge_of

if TYPE_CHECKING:
    from capplan.scenario import Scenario
    from capplan.stages.run_load import Loads

HALF = 0.5
MOST_ATTEMPTS = 5
STRONGEST = 10.0
"""Strongest surge of the slider, in planned peaks; more where the page opens with more."""
ON, OFF = 1.0, 2.0
"""What a choice may be set to; 0 leaves the scenario as it is."""
ACTIONS = {
    "backoff": ("wait before a retry", {"backoff with jitter": ON, "none": OFF}),
    "retry_budget": ("retry budget", {"on": ON, "off": OFF}),
    "queue_limits": ("queue limits", {"none": OFF}),
    "breakers": ("breakers", {"tiered-default": ON, "none": OFF}),
    "autoscaler": ("autoscaler", {"off": OFF}),
}
"""Field of :class:`ProtectiveActions` -> its title, and what it can be set to."""


def protective_actions(
    scenario: Scenario, *, loads: Loads, strength: float = 2.0, attempts: int = 0, seed: int = 0
) -> None:
    """Show a control for each protective action, and whether the service comes back with it.

    ``strength`` is the surge's, in planned peaks. ``attempts`` of every caller is what the page
    opens with; 0 = as the scenario has it. Headless, it shows charts and sentence of these, and a
    table of each action moved alone. If the scenario can have no surge, it says why.
    """
    from capplan import pages

    why_not = no_surge(scenario, loads)
    if why_not is not None:
        pages.show(why_not)
        return
    runs = SurgeRuns(scenario=scenario, surge=surge_of(loads, strength=strength), seed=seed)
    explorer = explore_actions(runs, strength=strength, attempts=attempts)
    explorer.show()
    if not pages.has_reader():
        pages.show(pages.table(each_alone(runs, explorer)))


def explore_actions(runs: SurgeRuns, *, strength: float = 2.0, attempts: int = 0) -> Explorer:
    """Return the explorer of a service's protective actions under a surge.

    The service as it is, under the same surge and random numbers, is the grey reference.
    """

    def look(values: Values) -> View:
        moved = values["strength"]
        now, reference = runs.run(moved, choice_of(values)), runs.run(moved)
        return _view(runs.surge, moved, now, reference)

    surge = Control(
        title="surge, × planned peak",
        value=strength,
        low=min(0.5, strength),
        high=max(STRONGEST, strength),
        step=0.5,
    )
    return Explorer(controls={"strength": surge, **choices(runs.scenario, attempts)}, look=look)


def choices(scenario: Scenario, attempts: int = 0) -> dict[str, Choice]:
    """Return a control for each protective action that can be another than it is."""
    numbers = sorted({*range(1, MOST_ATTEMPTS + 1), max(attempts, 1)})
    own = f"as it is ({own_attempts(scenario)})"
    options = {own: 0.0, **{str(number): float(number) for number in numbers}}
    found = {"attempts": Choice(title="attempts", value=float(attempts), settings=options)}
    for name, (title, settings) in ACTIONS.items():
        others = {
            label: value
            for label, value in settings.items()
            if protected(scenario, choice_of({name: value})) != scenario
        }
        if others:
            found[name] = Choice(title=title, value=0.0, settings={"as it is": 0.0, **others})
    return found


def choice_of(values: Values) -> ProtectiveActions:
    """Return the protective actions that controls are set to.

    >>> choice_of({"strength": 3.0, "attempts": 5.0, "breakers": 2.0, "backoff": 0.0})
    ... # doctest: +ELLIPSIS
    ProtectiveActions(attempts=5, backoff=None, ..., breakers=False, autoscaler=None)
    """
    attempts = int(values.get("attempts", 0))
    chosen = {name: values[name] == ON for name in ACTIONS if values.get(name, 0.0)}
    return ProtectiveActions(attempts=attempts or None, **chosen)


def each_alone(runs: SurgeRuns, explorer: Explorer) -> pd.DataFrame:
    """Return what each protective action does when it alone is moved, under the page's surge.

    Of several settings, it runs the first and the last.
    """
    strength = explorer.controls["strength"].value
    return pd.DataFrame(_alone(runs, explorer, strength))


def _alone(
    runs: SurgeRuns, explorer: Explorer, strength: float
) -> Iterator[dict[str, str | float]]:
    yield _row(runs.surge, "as it is", runs.run(strength))
    for name, control in explorer.controls.items():
        if not isinstance(control, Choice):
            continue
        settings = [(label, value) for label, value in control.settings.items() if value]
        for label, value in dict.fromkeys((settings[0], settings[-1])):
            run = runs.run(strength, choice_of({name: value}))
            yield _row(runs.surge, f"{control.title}: {label}", run)


def _row(surge: Surge, moved: str, run: Overload) -> dict[str, str | float]:
    found = run.aftermath
    return {
        "moved": moved,
        "afterwards": _plain(comeback(surge, found)),
        "good in the surge_fraction": found.good_surge_fraction,
        "good after it_fraction": found.good_after_fraction,
        "attempts per request": found.attempts_per_request,
        "in vain_tokens": found.wasted_tokens,
    }


def _view(surge: Surge, strength: float, now: Overload, reference: Overload) -> View:
    from capplan import charts

    drawn = [charts.flows_in_overload(now.flows, reference=reference.flows, surge_s=surge.times_s)]
    layer = largest_queue(now, reference)
    if layer:
        waiting = charts.waiting_in_overload(
            now.queues[layer],
            reference=reference.queues[layer],
            queue=_queue(layer),
            surge_s=surge.times_s,
        )
        drawn.append(waiting)
    same = now is reference
    sentence = overload_summary(surge, strength, now, None if same else reference)
    return View(charts=tuple(drawn), sentences=(sentence,))


def overload_summary(
    surge: Surge, strength: float, now: Overload, reference: Overload | None = None
) -> str:
    """Return whether it comes back, when, and at what cost, beside the reference where it differs.

    ``reference`` is the service as it is.
    """
    layer = largest_queue(now, reference)
    facts = _facts(surge, now, layer)
    before = facts if reference is None else _facts(surge, reference, layer)
    parts = [
        text.format(
            value if value == before[text] else f"{value} (as it is: {_plain(before[text])})"
        )
        for text, value in facts.items()
    ]
    alike = reference is not None and facts == before
    nothing = "; what was moved changes none of it" if alike else ""
    strongest = format_value(strength * surge.peak_rps, "_rps")
    return (
        f"{strongest} ({format_value(strength)} × the planned peak) for "
        f"{format_value(surge.length_s, '_s')} instead of "
        f"{format_value(surge.usual_rps, '_rps')}: {'; '.join(parts)}{nothing}."
    )


def _facts(surge: Surge, run: Overload, layer: str) -> dict[str, str]:
    """Return the figures of a run by the sentences that they stand in."""
    found = run.aftermath
    tokens = format_value(found.wasted_tokens, "_tokens")
    share = format_value(found.wasted_token_fraction, "_fraction")
    facts = {
        "{}": comeback(surge, found),
        "{} of the requests of the surge keep every promise": format_value(
            found.good_surge_fraction, "_fraction"
        ),
        "{} of those after it do": format_value(found.good_after_fraction, "_fraction"),
        "attempts per request are {}": format_value(found.attempts_per_request),
        "{}, are computed in vain": f"{tokens}, {share} of all",
    }
    if layer:
        facts[f"at most {{}} wait in the {_queue(layer)}"] = format_value(run.longest(layer))
    return facts


def _plain(text: str) -> str:
    return text.replace("**", "")


def comeback(surge: Surge, found: Aftermath) -> str:
    """Return whether a service comes back after a surge, and when."""
    after = format_value(surge.judged_s - surge.times_s[1], "_s")
    if math.isnan(found.back_s):
        return "whether it comes back is **unknown**: not every request can be judged"
    if found.good_before_fraction < HALF:
        usual = format_value(found.good_before_fraction, "_fraction")
        return f"**nothing to come back to**: {usual} keep every promise before it"
    if math.isinf(found.back_s):
        return f"**it does not come back** within {after} after it"
    if found.back_s > 0:
        return f"**it comes back** {format_value(found.back_s, '_s')} after it"
    if found.good_surge_fraction >= found.good_before_fraction:
        return "**it holds**"
    return "**it comes back** as soon as the surge ends"


def largest_queue(now: Overload, reference: Overload | None = None) -> str:
    """Return the layer in which most requests wait at once in either run; "" if none waits."""
    runs = [now] if reference is None else [now, reference]
    longest = {layer: max(run.longest(layer) for run in runs) for layer in now.queues}
    return max(longest, key=lambda layer: longest[layer], default="")


def _queue(layer: str) -> str:
    """Return a layer's queue in words.

    >>> _queue("gateway"), _queue("service_queue")
    ("gateway's queue", 'service queue')
    """
    return layer.replace("_", " ") if layer.endswith("queue") else f"{layer}'s queue"
