"""Move the protective actions, and see whether the service comes back after a surge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from capplan.formatting import format_value
from capplan.widgets.explorer import Choice, Control, Explorer, Values, View
from capplan.widgets.protection import Protection, own_attempts, protected
from capplan.widgets.surge import Surge, no_surge, surge_of
from capplan.widgets.surge_runs import Aftermath, Bench, Overload

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
"""Field of :class:`Protection` -> its title, and what it can be set to."""


def protective_actions(
    scenario: Scenario, *, loads: Loads, strength: float = 2.0, attempts: int = 0, seed: int = 0
) -> None:
    """Show a control for each protective action, and whether the service comes back with it.

    ``strength`` is the surge's, in planned peaks. ``attempts`` of every caller is what the page
    opens with; 0 = as the scenario has it. Without a reader it shows charts and sentence of these,
    and a table of each action moved alone. Where no surge can be played, it says why.
    """
    from capplan import pages

    told_why = no_surge(scenario, loads)
    if told_why is not None:
        pages.show(told_why)
        return
    bench = Bench(scenario=scenario, surge=surge_of(loads, strength=strength), seed=seed)
    explorer = explore_actions(bench, strength=strength, attempts=attempts)
    explorer.show()
    if not pages.has_reader():
        pages.show(pages.table(each_alone(bench, explorer)))


def explore_actions(bench: Bench, *, strength: float = 2.0, attempts: int = 0) -> Explorer:
    """Return the explorer of a service's protective actions under a surge.

    The service as it is, under the same surge and random numbers, is the grey reference.
    """

    def look(values: Values) -> View:
        moved = values["strength"]
        now, reference = bench.run(moved, choice_of(values)), bench.run(moved)
        return _view(bench.surge, moved, now, reference)

    surge = Control(
        title="surge, × planned peak",
        value=strength,
        low=min(0.5, strength),
        high=max(STRONGEST, strength),
        step=0.5,
    )
    return Explorer(controls={"strength": surge, **choices(bench.scenario, attempts)}, look=look)


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


def choice_of(values: Values) -> Protection:
    """Return the protective actions that controls are set to.

    >>> choice_of({"strength": 3.0, "attempts": 5.0, "breakers": 2.0, "backoff": 0.0})
    ... # doctest: +ELLIPSIS
    Protection(attempts=5, backoff=None, retry_budget=None, queue_limits=None, breakers=False, ...)
    """
    attempts = int(values.get("attempts", 0))
    chosen = {name: values[name] == ON for name in ACTIONS if values.get(name, 0.0)}
    return Protection(attempts=attempts or None, **chosen)


def each_alone(bench: Bench, explorer: Explorer) -> pd.DataFrame:
    """Return what each protective action does when it alone is moved, under the page's surge.

    Of several settings, the first and the last are told.
    """
    strength = explorer.controls["strength"].value
    return pd.DataFrame(_alone(bench, explorer, strength))


def _alone(bench: Bench, explorer: Explorer, strength: float) -> Iterator[dict[str, str | float]]:
    yield _row(bench.surge, "as it is", bench.run(strength))
    for name, control in explorer.controls.items():
        if not isinstance(control, Choice):
            continue
        settings = [(label, value) for label, value in control.settings.items() if value]
        for label, value in dict.fromkeys((settings[0], settings[-1])):
            run = bench.run(strength, choice_of({name: value}))
            yield _row(bench.surge, f"{control.title}: {label}", run)


def _row(surge: Surge, moved: str, run: Overload) -> dict[str, str | float]:
    found = run.aftermath
    return {
        "moved": moved,
        "afterwards": _plain(back_said(surge, found)),
        "good in the surge_fraction": found.good_surge_fraction,
        "good after it_fraction": found.good_after_fraction,
        "attempts per request": found.attempts_per_request,
        "for nobody_tokens": found.wasted_tokens,
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
    sentence = overload_said(surge, strength, now, None if same else reference)
    return View(charts=tuple(drawn), sentences=(sentence,))


def overload_said(
    surge: Surge, strength: float, now: Overload, reference: Overload | None = None
) -> str:
    """Return whether it comes back, when, and what it cost; ``reference`` is it as it is.

    Of the reference only what differs is told.
    """
    layer = largest_queue(now, reference)
    told_now = _told(surge, now, layer)
    told_was = told_now if reference is None else _told(surge, reference, layer)
    parts = [
        text.format(value if value == was else f"{value} (as it is: {_plain(was)})")
        for text, (value, was) in zip(
            _texts(layer), zip(told_now, told_was, strict=True), strict=True
        )
    ]
    alike = reference is not None and told_now == told_was
    nothing = "; what was moved changes none of it" if alike else ""
    return (
        f"{format_value(strength * surge.peak_rps, '_rps')} ({format_value(strength)} × the planned peak) for "
        f"{format_value(surge.length_s, '_s')} instead of {format_value(surge.usual_rps, '_rps')}: "
        f"{'; '.join(parts)}{nothing}."
    )


def _texts(layer: str) -> list[str]:
    texts = [
        "{}",
        "{} of the requests of the surge keep every promise",
        "{} of those after it do",
        "attempts per request are {}",
        "{}, are computed for nobody",
    ]
    return [*texts, f"at most {{}} wait in the {_queue(layer)}"] if layer else texts


def _told(surge: Surge, run: Overload, layer: str) -> list[str]:
    found = run.aftermath
    figures = [
        back_said(surge, found),
        format_value(found.good_surge_fraction, "_fraction"),
        format_value(found.good_after_fraction, "_fraction"),
        format_value(found.attempts_per_request),
        f"{format_value(found.wasted_tokens, '_tokens')}, "
        f"{format_value(found.wasted_token_fraction, '_fraction')} of all",
    ]
    return [*figures, format_value(run.longest(layer))] if layer else figures


def _plain(text: str) -> str:
    return text.replace("**", "")


def back_said(surge: Surge, found: Aftermath) -> str:
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
    return "**it comes back** as soon as it is over"


def largest_queue(now: Overload, reference: Overload | None = None) -> str:
    """Return the layer in which most waited at once in either run; "" where nobody waits."""
    runs = [now] if reference is None else [now, reference]
    longest = {layer: max(run.longest(layer) for run in runs) for layer in now.queues}
    return max(longest, key=lambda layer: longest[layer], default="")


def _queue(layer: str) -> str:
    """Return a layer's queue in words.

    >>> _queue("gateway"), _queue("service_queue")
    ("gateway's queue", 'service queue')
    """
    return layer.replace("_", " ") if layer.endswith("queue") else f"{layer}'s queue"
