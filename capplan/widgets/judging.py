"""What a short simulated stretch breaks, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capplan.pages import rule_words

if TYPE_CHECKING:
    from capplan.results import RunResult
    from capplan.scenario import Scenario


def judged_as_shown(scenario: Scenario) -> Scenario:
    """Return the scenario with promises that may be judged on however few requests are shown.

    A slider has to say at once what breaks in the stretch it shows; that is a hint, and no verdict
    on the service, for which the promises' own sample counts stand.
    """
    from capplan.scenario.files import with_values

    few = {f"classes.{c.name}.promises.min_samples": 1 for c in scenario.classes}
    return with_values(scenario, {**few, "warmup_s": 0.0})


def broken(result: RunResult) -> tuple[str, ...]:
    """Return what a run breaks beyond doubt, one sentence each."""
    from capplan.slo import judge

    return tuple(
        f"{reason.request_class or 'all'}, {rule_words(reason.rule)}: {reason.evidence}"
        for reason in judge(result).reasons
        if reason.outcome in ("fail", "blocked")
    )
